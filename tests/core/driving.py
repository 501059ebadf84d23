"""A broker's core and those who speak to it, as short to write as to read; every answer is looked at.

Nobody here decides anything: a :class:`Peer` numbers its messages, acknowledges what it was sent and keeps
it for the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zbatch.config import BrokerCoreSettings
from zbatch.core.actions import Send
from zbatch.core.broker import BrokerCore
from zbatch.core.links import origin_of
from zbatch.messages import (
    Batch,
    Beat,
    Child,
    Children,
    Done,
    Facts,
    Fault,
    Group,
    Hello,
    Ready,
    Request,
    Returned,
)

EPOCH = b"epoch..1"


@dataclass(eq=False)
class Peer:
    """One connection of a client, a worker or a supervisor."""

    cluster: Cluster
    peer: bytes
    life: bytes
    conn: bytes
    role: str
    sent: int = 0
    received: int = 0
    inbox: list[Send] = field(default_factory=list)
    read: list[Send] = field(default_factory=list)
    """What the last look has read."""
    incarnation: bytes = b""
    greeted: list[Any] = field(default_factory=list)
    """What the broker said to the HELLO, or to a worker's first offer."""

    @property
    def origin(self) -> bytes:
        return origin_of(self.life)

    def says(
        self, kind: type[Any], *body: Any, now: float = 0.0, frames: Sequence[Any] = (), **more: Any
    ) -> list[Any]:
        """Send a message, let the broker's turn end, and return what this peer is told."""
        self.sent += 1
        message = kind(self.conn, self.sent, self.received, *body, **more)
        self.cluster.deliver(self.cluster.core.handle(self.peer, message, frames, now))
        self.cluster.turn(now)
        return self.told()

    def told(self) -> list[Any]:
        """Return what this peer was sent since the last look, and acknowledge it with the next message."""
        heard, self.inbox = self.inbox, []
        self.read = heard
        for one in heard:
            self.received = max(self.received, one.message.number)
        return [one.message for one in heard]

    # --- clients -----------------------------------------------------------------------------------

    def asks(self, base: int = 0, items: int = 1, *, now: float = 0.0, **more: Any) -> list[Any]:
        """Ask for items whose ids begin at ``base``; they have 30 s."""
        return self.says(Request, [group(base, items, **more)], now=now)

    # --- workers -----------------------------------------------------------------------------------

    def answers(
        self, batch: Batch, *outputs: bytes, now: float = 0.0, errors: list[tuple[int, Fault]] | None = None
    ) -> list[Any]:
        """Finish a batch; without outputs each item's is its own with a Y before it."""
        own = [b"y" + item for span in batch.spans for item in span.items]
        return self.says(
            *(Done, batch.epoch, batch.batch, batch.attempt, self.incarnation),
            *(list(outputs) or own, None, errors, 5.0),
            now=now,
        )


class Cluster:
    """A broker's core with its peers."""

    def __init__(self, now: float = 0.0, **settings: Any) -> None:
        self.core = BrokerCore(BrokerCoreSettings(**settings), EPOCH)
        self._peers: dict[bytes, Peer] = {}
        self.turn(now)

    def client(self, name: str = "ada", *, now: float = 0.0, **hello: Any) -> Peer:
        """Return a client that has been welcomed."""
        return self._introduced(b"F", name, "client", now, **hello)

    def worker(
        self, name: str = "w1", *, topic: str = "bert", now: float = 0.0, size: int = 4, **offer: Any
    ) -> Peer:
        """Return a worker that has offered to serve a topic; what it got at once is in ``greeted``."""
        worker = self.stranger_worker(name, now=now)
        worker.greeted = ready(worker, topic=topic, now=now, size=size, **offer)
        return worker

    def stranger_worker(
        self, name: str = "w1", *, now: float = 0.0, incarnation: bytes | None = None
    ) -> Peer:
        """Return a worker that has been welcomed and has offered nothing."""
        if incarnation is None:
            incarnation = name.encode().ljust(8, b".")
        return self._introduced(b"B", name, "worker", now, incarnation=incarnation)

    def supervisor(self, name: str = "s1", *, now: float = 0.0) -> Peer:
        """Return a supervisor that has been welcomed."""
        return self._introduced(b"B", name, "supervisor", now)

    def again(self, old: Peer, *, now: float = 0.0, **hello: Any) -> Peer:
        """Return a peer's next connection; its life goes on."""
        name = old.peer[2:].decode().strip(".")
        if old.role == "worker":
            hello.setdefault("incarnation", old.incarnation)
        return self._introduced(old.peer[:1], name + "'", old.role, now, life=old.life, **hello)

    def _introduced(
        self, side: bytes, name: str, role: str, now: float, *, life: bytes | None = None, **hello: Any
    ) -> Peer:
        short = name.encode().ljust(4, b".")[:4]
        own = life or b"life of " + short.ljust(8, b".")
        peer = Peer(self, side + b"\0" + short, own, b"conn" + short, role)
        peer.incarnation = hello.get("incarnation", b"")
        self._peers[peer.peer] = peer
        peer.greeted = peer.says(Hello, own, role, 1, now=now, host="host", pid=1, **hello)
        return peer

    def turn(self, now: float) -> None:
        """Let a turn of the broker end."""
        self.deliver(self.core.tick(now))

    def deliver(self, actions: list[Send]) -> None:
        for action in actions:
            self._peers[action.peer].inbox.append(action)


def group(base: int = 0, items: int = 1, *, topic: str = "bert", ms: int = 30_000, **more: Any) -> Group:
    """Return a group of items."""
    return Group(base, topic, ms, [b"x%d" % (base + at) for at in range(items)], **more)


def ready(
    worker: Peer,
    *,
    topic: str = "bert",
    now: float = 0.0,
    size: int = 4,
    slots: int = 2,
    cost: float | None = None,
    lease_ms: int = 60_000,
    idempotent: bool = True,
) -> list[Any]:
    """Let a worker offer to hold batches of a topic."""
    offer = (topic, slots, size, cost, 10.0, lease_ms, idempotent, Facts(name="m:M", gpu="0"))
    return worker.says(Ready, *offer, now=now)


def gives_back(worker: Peer, *batch: Batch, now: float = 0.0) -> list[Any]:
    """Let a worker return batches that never began."""
    return worker.says(Returned, EPOCH, [one.batch for one in batch], now=now)


def dies(
    supervisor: Peer,
    worker: Peer,
    *,
    begun: int = 0,
    finished: int = 0,
    now: float = 0.0,
    epoch: bytes = EPOCH,
    status: int = -9,
) -> list[Any]:
    """Let a supervisor tell of a model process's death, and what it was doing."""
    child = Child(worker.incarnation, False, epoch, begun, finished, status, "killed" if status else "exit")
    return supervisor.says(Children, "bert", [child], now=now)


def beats(worker: Peer, *holds: Batch, running: int = 1, now: float) -> list[Any]:
    """Let a worker say which batches it holds and which one runs."""
    return worker.says(Beat, [(one.batch, one.batch + 1) for one in holds], 0, running, now=now)
