"""Where keys are asked for: a role says what its holder may be, and a life belongs to its first key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.driving import EPOCH, group
from tests.core.hearing import batches, outcomes
from zbatch.config import BrokerCoreSettings
from zbatch.core.actions import Send
from zbatch.core.broker import BrokerCore
from zbatch.core.links import BACK, FRONT, Identity
from zbatch.messages import Batch, Beat, Cancel, Denied, Done, Facts, Hello, Ready, Request, Welcome

ADA, BOB = Identity(b"a" * 40, "client", "ada"), Identity(b"b" * 40, "client", "bob")
GPU, BOSS = Identity(b"g" * 40, "worker", "gpu"), Identity(b"x" * 40, "admin", "boss")

CONN = b"conn...1"


def peer(side: bytes, name: str) -> bytes:
    return side + b"\0" + name.encode().ljust(4, b".")


def life(name: str) -> bytes:
    return name.encode().ljust(16, b".")


class Door:
    """A broker that asks for keys."""

    def __init__(self) -> None:
        self.core = BrokerCore(BrokerCoreSettings(keyed=True), EPOCH)

    def hello(
        self,
        name: str,
        role: Any,
        identity: Identity | None,
        *,
        at: str = "",
        now: float = 0.0,
        conn: bytes = CONN,
    ) -> list[Any]:
        """Introduce somebody; return what it is told."""
        side = FRONT if role == "client" else BACK
        message = Hello(conn, 1, 0, life(name), role, 1, incarnation=b"inc....." if role == "worker" else b"")
        return self.says(peer(side, at or name), message, identity, now=now)

    def says(
        self, who: bytes, message: Any, identity: Identity | None = None, *, now: float = 0.0
    ) -> list[Any]:
        actions: list[Send] = self.core.handle(who, message, [], now, identity)
        actions += self.core.tick(now)
        return [action.message for action in actions if action.peer == who]


def faults(messages: list[Any]) -> list[str]:
    return [message.fault.code for message in messages if isinstance(message, Denied)]


@pytest.mark.parametrize(
    ("identity", "role"),
    [(ADA, "client"), (BOSS, "client"), (GPU, "worker"), (GPU, "supervisor")],
)
def test_a_key_lets_its_holder_in_as_what_its_role_says(identity: Identity, role: str) -> None:
    assert isinstance(Door().hello("one", role, identity)[0], Welcome)


@pytest.mark.parametrize(
    ("identity", "role"),
    [(ADA, "worker"), (ADA, "supervisor"), (GPU, "client"), (BOSS, "worker"), (BOSS, "supervisor")],
)
def test_a_key_of_another_role_is_told_why_it_stays_outside(identity: Identity, role: str) -> None:
    door = Door()
    assert faults(door.hello("one", role, identity)) == ["forbidden"]
    assert not door.core.links.by_peer
    assert door.core.counters["peer_refused"] == 1


def test_who_has_no_key_stays_outside() -> None:
    door = Door()
    assert faults(door.hello("one", "client", None)) == ["unauthorized"]
    assert not door.core.links.by_peer


def test_who_keeps_knocking_is_answered_once_a_second() -> None:
    door = Door()
    told = [faults(door.hello("one", "client", None, now=at / 10)) for at in range(21)]
    assert sum(map(len, told)) == 3


def test_a_life_cannot_be_taken_over_with_another_key() -> None:
    door = Door()
    door.hello("ada", "client", ADA)
    assert faults(door.hello("ada", "client", BOB, at="bobs", conn=b"conn...2")) == ["forbidden"]
    assert door.core.links.by_life[life("ada")].peer == peer(FRONT, "ada")


def test_a_life_that_comes_back_with_its_key_goes_on() -> None:
    door = Door()
    door.hello("ada", "client", ADA)
    (welcome,) = door.hello("ada", "client", ADA, at="new", conn=b"conn...2")
    assert isinstance(welcome, Welcome)
    assert door.core.links.by_life[life("ada")].peer == peer(FRONT, "new")


def test_a_second_hello_over_the_same_connection_needs_no_look_at_its_key() -> None:
    door = Door()
    door.hello("ada", "client", ADA)
    (welcome,) = door.hello("ada", "client", None, conn=b"conn...2")
    assert isinstance(welcome, Welcome)
    assert door.core.links.by_life[life("ada")].identity == ADA


def test_all_clients_of_one_key_share_its_turns() -> None:
    door = Door()
    for name in ("one", "two"):
        door.hello(name, "client", ADA)
    door.hello("bob", "client", BOB)
    principals = {client.principal for client in door.core.ledger.clients.values()}
    assert principals == {ADA.key, BOB.key}


def test_nobody_cancels_what_another_asked_for() -> None:
    door = Door()
    door.hello("ada", "client", ADA)
    door.hello("bob", "client", BOB)
    door.says(peer(FRONT, "ada"), Request(CONN, 2, 1, [group(0, 2)]))
    door.says(peer(FRONT, "bob"), Cancel(CONN, 2, 1, [(0, 2)]))
    door.says(peer(FRONT, "bob"), Beat(CONN, 3, 1, [], 99))
    assert door.core.topics.all["bert"].items == 2


# --- a key that is taken away --------------------------------------------------------------------


def served() -> tuple[Door, Batch]:
    """Return a broker whose worker runs what ada asked for."""
    door = Door()
    door.hello("ada", "client", ADA)
    door.hello("gpu", "worker", GPU)
    door.says(peer(BACK, "gpu"), Ready(CONN, 2, 1, "bert", 2, 4, None, 0.0, 0, True, Facts()))
    actions = door.core.handle(peer(FRONT, "ada"), Request(CONN, 2, 1, [group(0, 2)]), [], 0.0)
    actions += door.core.tick(0.0)
    (batch,) = batches([action.message for action in actions])
    return door, batch


def test_a_client_whose_key_is_revoked_is_forgotten_with_all_that_it_asked_for() -> None:
    door, _ = served()
    door.core.revoke([peer(FRONT, "ada"), peer(FRONT, "nobody")])
    assert life("ada") not in door.core.ledger.clients
    assert door.core.topics.all["bert"].items == 0
    assert door.says(peer(FRONT, "ada"), Beat(CONN, 3, 1, [], 9)) != []
    assert faults(door.hello("ada", "client", None, now=9.0)) == ["unauthorized"]


def test_what_a_worker_had_whose_key_is_revoked_runs_elsewhere() -> None:
    door, batch = served()
    door.core.revoke([peer(BACK, "gpu")])
    assert not door.core.dispatcher.workers
    door.says(
        peer(BACK, "gpu"),
        Done(CONN, 3, 2, EPOCH, batch.batch, batch.attempt, b"inc.....", [b"no", b"no"], None, None, 1.0),
    )
    other = Identity(b"h" * 40, "worker", "other")
    door.hello("w2", "worker", other)
    ready = Ready(CONN, 2, 1, "bert", 2, 4, None, 0.0, 0, True, Facts())
    (again,) = batches(door.says(peer(BACK, "w2"), ready))
    done = Done(CONN, 3, 2, EPOCH, again.batch, again.attempt, b"inc.....", [b"y", b"z"], None, None, 1.0)
    actions = door.core.handle(peer(BACK, "w2"), done, [], 0.0) + door.core.tick(0.0)
    told = [action.message for action in actions if action.peer == peer(FRONT, "ada")]
    assert outcomes(told) == {0: b"y", 1: b"z"}


def test_the_children_of_a_supervisor_whose_key_is_revoked_are_forgotten() -> None:
    door = Door()
    door.hello("boss", "supervisor", GPU)
    door.core.revoke([peer(BACK, "boss")])
    assert not door.core.links.by_life


def test_a_worker_that_offered_nothing_yet_is_just_forgotten() -> None:
    door = Door()
    door.hello("gpu", "worker", GPU)
    door.core.revoke([peer(BACK, "gpu")])
    assert not door.core.links.by_life
