"""A request id goes with its items, from the client to the worker that runs them, and decides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.asking import ask, call, call_of, connected, pulse
from tests.core.driving import Cluster, Peer, dies
from tests.core.hearing import batches, outcomes
from tests.core.piping import JOINED, LINE, work
from tests.core.working import BOB, begin, hand, serving, span
from zbatch.config import Limits
from zbatch.core.names import of_each, part_of
from zbatch.messages import Group, Request


def groups(actions: Any) -> list[Group]:
    return [group for one in actions for group in one.message.groups]


def told(worker: Peer) -> list[list[tuple[int, list[str] | None]]]:
    """Return of each batch that a worker was handed the first id and the names of each span."""
    return [[(one.base, one.names) for one in batch.spans] for batch in batches(worker.told())]


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "part", "each"),
    [
        (None, None, ["", ""]),
        (["all"], ["all"], ["all", "all"]),
        (["a", "b", "", "d"], ["b", ""], ["b", ""]),
    ],
)
def test_some_items_have_some_of_the_names_or_the_one_of_all(
    names: list[str] | None, part: list[str] | None, each: list[str]
) -> None:
    assert part_of(names, 1, 3) == part
    assert of_each(part, 2) == each


def test_a_name_that_could_speak_to_a_terminal_is_spelled_out() -> None:
    assert of_each(["ok ü", "a\nb\x1b[2J", "\u202egpj"], 3) == ["ok ü", r"a\nb\x1b[2J", r"\u202egpj"]


# --- at the client ---------------------------------------------------------------------------------


def test_calls_with_different_request_ids_travel_as_one_group() -> None:
    actions = ask(connected(), call(b"a", name="r1"), call(b"b"), call(b"c", name="r3"))
    assert groups(actions) == [Group(1, "bert", 30_000, [b"a", b"b", b"c"], names=["r1", "", "r3"])]


def test_a_group_of_calls_without_request_ids_has_none() -> None:
    assert groups(ask(connected(), call(b"a"), call(b"b"))) == [Group(1, "bert", 30_000, [b"a", b"b"])]


def test_a_call_of_several_items_says_its_request_id_once() -> None:
    actions = ask(connected(), call_of(b"a", b"b", b"c", name="r1"))
    assert groups(actions) == [Group(1, "bert", 30_000, [b"a", b"b", b"c"], whole=True, names=["r1"])]


def test_what_is_sent_again_keeps_its_request_ids() -> None:
    core = connected()
    ask(core, *(call(b"%d" % at, name=f"r{at}") for at in range(4)), call_of(b"x", b"y", name="all"))
    (again,) = pulse(core, (2, 4), (6, 7), now=1.0)
    assert [(one.base, one.items, one.names) for one in again.message.groups] == [  # type: ignore[union-attr]
        (2, [b"1", b"2"], ["r1", "r2"]),
        (6, [b"y"], ["all"]),
    ]


# --- at the broker ---------------------------------------------------------------------------------


def test_names_are_cut_as_items_are_cut() -> None:
    cluster = Cluster()
    worker, ada, bob = cluster.worker(size=2), cluster.client("ada"), cluster.client("bob")
    ada.asks(0, 3, names=["r0", "r1", "r2"])
    bob.asks(0, 1)
    (first, second) = batches(worker.told())
    assert [(one.base, one.names) for one in first.spans] == [(0, ["r0", "r1"])]
    assert [(one.base, one.names) for one in second.spans] == [(2, ["r2"]), (0, None)]


def test_a_name_of_all_stays_the_one_of_each_part() -> None:
    cluster = Cluster()
    one, two, client = cluster.worker("w1"), cluster.worker("w2"), cluster.client()
    client.asks(0, 6, whole=True, names=["all"])
    assert (told(one), told(two)) == ([[(0, ["all"])]], [[(4, ["all"])]])


def test_items_keep_their_names_when_a_process_dies_under_them() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 3, names=["r0", "r1", "r2"])
    (batch,) = batches(one.told())
    dies(supervisor, one, begun=batch.batch)
    two = cluster.worker("w2")
    (half,) = batches(two.greeted)
    (other,) = batches(two.answers(half))
    assert [(span.base, span.names) for batch in (half, other) for span in batch.spans] == [
        (0, ["r0"]),
        (1, ["r1", "r2"]),
    ]


def test_of_what_is_sent_again_the_missing_part_has_its_own_names() -> None:
    cluster = Cluster()
    client, _ = cluster.client(), cluster.worker()
    client.asks(0, 2, names=["r0", "r1"])
    client.asks(0, 4, again=True, names=["r0", "r1", "r2", "r3"])
    idle = cluster.worker("w2")
    assert [[(one.base, one.names) for one in got.spans] for got in batches(idle.greeted)] == [
        [(2, ["r2", "r3"])]
    ]


def test_a_request_of_which_a_part_finds_room_has_the_names_of_that_part() -> None:
    cluster = Cluster(limits=Limits(topic_items=2))
    worker, client = cluster.worker(), cluster.client()
    assert outcomes(client.asks(0, 3, names=["r0", "r1", "r2"])) == {2: "overloaded"}
    assert told(worker) == [[(0, ["r0", "r1"])]]


def test_one_request_id_holds_over_all_stages_of_a_pipeline() -> None:
    cluster = Cluster()
    stages = [cluster.worker(name[:2], topic=name) for name in ("pre", "bert", "post")]
    client = cluster.client()
    client.asks(5, 2, topic="pipe", route=LINE, names=["r5", "r6"])
    for worker in stages:
        (batch,) = batches(worker.told())
        assert [(one.base, one.names) for one in batch.spans] == [(5, ["r5", "r6"])]
        worker.answers(batch)


def test_branches_and_what_joins_them_have_the_request_id() -> None:
    cluster = Cluster()
    workers = {name: cluster.worker(name * 2, topic=name) for name in "abcd"}
    client = cluster.client()
    client.says(Request, [Group(5, "pipe", 9_000, [b"x", b"y"], route=JOINED, names=["r5", ""])])
    for name in "abcd":
        (batch,) = batches(workers[name].told())
        assert [(one.base, one.names) for one in batch.spans] == [(5, ["r5", ""])]
        workers[name].answers(batch)


def test_an_item_that_is_late_in_its_pipeline_has_its_own_name() -> None:
    cluster = Cluster()
    first = cluster.worker("pr", topic="pre", size=1, slots=1)
    second = cluster.worker("be", topic="bert", slots=1)
    client = cluster.client()
    client.asks(5, 2, topic="pipe", route=LINE[:2], names=["r5", "r6"])
    for base, name in ((5, "r5"), (6, "r6")):
        work(first)
        (batch,) = batches(second.told())
        assert [(one.base, one.names) for one in batch.spans] == [(base, [name])]
        second.answers(batch)


# --- at the worker ---------------------------------------------------------------------------------


def test_a_batch_knows_the_request_id_of_each_item() -> None:
    core = serving()
    hand(core, 1, span(2, names=["r0", "r1"]), span(1, of=BOB), span(2, 7, names=["all"]))
    job = begin(core)
    assert job.names() == ["r0", "r1", "", "all", "all"]
    assert list(job.names_at_work()) == job.names()
    assert job.names_at_work()[1:3] == ["r1", ""]


def test_what_is_left_out_takes_its_request_id_along() -> None:
    core = serving()
    hand(core, 1, span(3, ms=1_000, later_ms=[0, 5_000, 9_000], names=["r0", "r1", "r2"]))
    assert list(begin(core, 1.0).names_at_work()) == ["r1", "r2"]


def test_a_batch_without_request_ids_makes_no_list_of_them() -> None:
    core = serving()
    hand(core, 1, span(2))
    assert begin(core).names_at_work() == ()
