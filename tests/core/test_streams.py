"""Streams at the broker, the worker and the client: handed on, held back, broken off, never mixed up."""

from __future__ import annotations

from typing import Any

from tests.core import working
from tests.core.asking import call, conn, connected, pulse, refuse, result, started, welcome
from tests.core.driving import EPOCH, Cluster, Peer, beats, dies, group
from tests.core.hearing import batches, outcomes
from zbatch.core.actions import Send
from zbatch.core.calls import Call, Came, Failed, Finished
from zbatch.core.client import BROKEN, ClientCore
from zbatch.core.sizes import HEAD
from zbatch.core.stream import PART_BYTES, WINDOW, Inflow
from zbatch.core.worker import Offer
from zbatch.messages import (
    Batch,
    Beat,
    Bye,
    Cancel,
    Done,
    Draining,
    Fault,
    Flow,
    Parts,
    Progress,
    Pulse,
    Ready,
    Request,
    Returned,
    Room,
    Skip,
    Stage,
    Taken,
    Who,
    Yielded,
)

FAILED = Fault("model_failed", "no")


# --- the broker ----------------------------------------------------------------------------------


def streaming(streams: int = 1, **worker: Any) -> tuple[Cluster, Peer, Peer, Batch]:
    """Return a cluster whose only worker runs a batch of streams; their ids count from 0."""
    cluster = Cluster()
    served, client = cluster.worker(**worker), cluster.client()
    ask(client, *range(streams))
    (batch,) = batches(served.told())
    return cluster, served, client, batch


def ask(client: Peer, *ids: int, ms: int = 30_000, now: float = 0.0, **more: Any) -> list[Any]:
    groups = [group(one, ms=ms, whole=True, patience_ms=ms, **more) for one in ids]
    return client.says(Request, groups, now=now)


def yields(worker: Peer, batch: Batch, *flows: Flow, now: float = 0.0, frames: Any = ()) -> list[Any]:
    said = (Yielded, batch.epoch, batch.batch, batch.attempt, worker.incarnation, list(flows))
    return worker.says(*said, now=now, frames=frames)


def live(client: Peer, worker: Peer, batch: Batch, *times: float) -> list[Any]:
    """Let both be heard at these times; return what the client was told."""
    told = []
    for now in times:
        told += client.says(Beat, [(0, 1)], 1, now=now)
        beats(worker, batch, now=now)
    return told


def flows_of(messages: list[Any]) -> list[Flow]:
    return [flow for one in messages if isinstance(one, Parts) for flow in one.flows]


def test_parts_of_a_batch_that_runs_reach_their_clients_under_their_ids() -> None:
    _, worker, client, batch = streaming(2)
    assert [span.streamed for span in batch.spans] == [True, True]
    yields(worker, batch, Flow(0, 0, [b"a"]), Flow(1, 0, [b"b", b"c"], [1, 0]), frames=[b"buffer"])
    assert flows_of(client.told()) == [Flow(0, 0, [b"a"]), Flow(1, 0, [b"b", b"c"], [1, 0])]
    assert [list(one.frames) for one in client.read] == [[b"buffer"]]


def test_parts_of_one_turn_share_a_message() -> None:
    cluster, worker, client, batch = streaming(2)
    for place in range(2):
        worker.sent += 1
        head = (worker.conn, worker.sent, 0)
        said = Yielded(*head, EPOCH, batch.batch, 1, worker.incarnation, [Flow(place, 0, [b"a"])])
        cluster.deliver(cluster.core.handle(worker.peer, said, [], 0.0))
    cluster.turn(0.0)
    assert [len(one.flows) for one in client.told()] == [2]


def test_an_item_that_ends_is_over_while_others_of_its_batch_go_on() -> None:
    cluster, worker, client, batch = streaming(2)
    yields(worker, batch, Flow(0, 0, [b"a"], None, True))
    assert flows_of(client.told()) == [Flow(0, 0, [b"a"], None, True)]
    assert cluster.core.topics.all["bert"].items == 1
    yields(worker, batch, Flow(1, 0, [], None, False, FAILED))
    assert outcomes(client.told()) == {1: "model_failed"}
    worker.answers(batch, errors=[(0, FAILED), (1, FAILED)])
    assert client.told() == []
    assert cluster.core.topics.all["bert"].items == 0


def test_parts_that_come_twice_are_handed_on_once() -> None:
    _, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"a", b"b"]))
    yields(worker, batch, Flow(0, 1, [b"b", b"c"]))
    yields(worker, batch, Flow(0, 0, [b"a"]))
    assert flows_of(client.told()) == [Flow(0, 0, [b"a", b"b"]), Flow(0, 2, [b"c"])]


def test_a_gap_ends_a_stream_in_an_error() -> None:
    _, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"a"]))
    client.told()
    assert batches(yields(worker, batch, Flow(0, 2, [b"c"], None, True))) == []
    assert outcomes(client.told()) == {0: "worker_lost"}


def test_parts_of_what_is_no_stream_or_is_not_in_those_hands_change_nothing() -> None:
    cluster, worker, client, batch = streaming()
    client.asks(5, 1)
    for flows, number, attempt, incarnation in (
        ([Flow(7, 0, [b"a"])], batch.batch, 1, worker.incarnation),
        ([Flow(0, 0, [b"a"])], 9, 1, worker.incarnation),
        ([Flow(0, 0, [b"a"])], batch.batch, 2, worker.incarnation),
        ([Flow(0, 0, [b"a"])], batch.batch, 1, b"another."),
    ):
        worker.says(Yielded, EPOCH, number, attempt, incarnation, flows)
    cluster.worker("w2").says(Yielded, EPOCH, batch.batch, 1, b"w2......", [Flow(0, 0, [b"a"])])
    assert flows_of(client.told()) == []


def test_what_a_model_that_yields_nothing_returns_is_the_result() -> None:
    _, worker, client, batch = streaming()
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0"}


def test_what_comes_out_of_a_pipeline_is_one_part() -> None:
    cluster = Cluster()
    first, second, client = cluster.worker("w1", topic="a"), cluster.worker("w2", topic="b"), cluster.client()
    ask(client, 0, route=(Stage("one", "a", (("", 0),)), Stage("two", "b", (("", 1),))))
    for worker in (first, second):
        (batch,) = batches(worker.told())
        assert not batch.spans[0].streamed
        worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yyx0"}


def test_a_batch_that_is_done_leaves_no_stream_open() -> None:
    _, worker, client, batch = streaming(2)
    yields(worker, batch, Flow(0, 0, [b"a"]), Flow(1, 0, [b"b"]))
    client.told()
    worker.answers(batch, b"", b"", errors=[(1, FAILED)])
    assert outcomes(client.told()) == {0: "worker_lost", 1: "model_failed"}


def test_streams_and_whole_results_share_a_batch() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.says(Request, [group(0, 2), group(2, whole=True, patience_ms=30_000), group(3, 1)])
    (batch,) = batches(worker.told())
    yields(worker, batch, Flow(2, 0, [b"a"], None, True))
    client.told()
    worker.answers(batch, b"y0", b"y1", b"", b"y3", errors=[(2, FAILED)])
    assert outcomes(client.told()) == {0: b"y0", 1: b"y1", 3: b"y3"}


def test_each_part_gives_the_next_one_the_whole_timeout() -> None:
    _, worker, client, batch = streaming()
    for at in range(4):
        now = 25.0 * at
        live(client, worker, batch, now + 8.0, now + 16.0, now + 24.0)
        yields(worker, batch, Flow(0, at, [b"a"]), now=now + 25.0)
        assert len(flows_of(client.told())) == 1
    live(client, worker, batch, 108.0, 116.0, 124.0)
    assert outcomes(client.says(Beat, [(0, 1)], 1, now=131.0)) == {0: "deadline_exceeded"}
    assert Skip in {type(one) for one in worker.told()}


def test_a_part_renews_the_lease_of_its_batch() -> None:
    cluster, worker, client, batch = streaming(lease_ms=20_000)
    for at in range(6):
        now = 8.0 * (at + 1)
        yields(worker, batch, Flow(0, at, [b"a"]), now=now)
        assert len(flows_of(live(client, worker, batch, now))) == 1
    assert "lease_overrun" not in cluster.core.counters


def test_what_was_read_reaches_the_worker() -> None:
    _, worker, client, batch = streaming(2)
    yields(worker, batch, Flow(1, 0, [b"a"] * 9))
    client.says(Taken, [(1, 2 * HEAD), (0, 0), (7, 5)])
    (room,) = worker.told()
    assert (room.batch, room.streams) == (batch.batch, [(1, 2 * HEAD), (0, 0)])
    assert isinstance(room, Room)


def test_nobody_has_read_more_than_was_sent() -> None:
    _, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"a"]))
    client.says(Taken, [(0, 2**50)])
    assert [one.streams for one in worker.told()] == [[(0, HEAD + 1)]]


def test_what_was_read_of_no_stream_is_nobodys_business() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    assert client.says(Taken, [(0, 5), (3, 5)]) == []


def test_a_part_of_a_batch_behind_another_ones_is_handed_on() -> None:
    # The worker says what runs; that another batch was thought to is no reason to drop it.
    cluster = Cluster()
    worker, client = cluster.worker(size=1), cluster.client()
    ask(client, 0, 1)
    _, second = batches(worker.told())
    yields(worker, second, Flow(0, 0, [b"a"]))
    assert flows_of(client.told()) == [Flow(1, 0, [b"a"])]


def test_what_was_read_of_a_stream_that_waits_is_nobodys_business() -> None:
    cluster = Cluster()
    client = cluster.client()
    ask(client, 0)
    assert client.says(Taken, [(0, 5)]) == []


def test_a_reader_that_reads_nothing_for_its_timeout_is_told_that_it_was_too_slow() -> None:
    _, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]), now=1.0)
    told = live(client, worker, batch, 8.0, 16.0, 24.0, 31.5)
    assert outcomes(told + client.told()) == {0: "reader_too_slow"}


def waits(worker: Peer, batch: Batch, *seconds: float, start: float = 0.0) -> None:
    """Have a worker tell once a second for how many seconds of each its model waited for readers."""
    waited = 0.0
    for second, one in enumerate(seconds, 1):
        waited += one
        worker.says(Progress, batch.epoch, batch.batch, int(waited * 1000), now=start + second)


def test_a_reader_for_whom_a_model_waits_alone_may_take_its_time() -> None:
    _, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]))
    waits(worker, batch, *[1.0] * 9)
    assert outcomes(client.told()) == {}


def test_a_reader_for_whom_a_model_waits_while_others_wait_for_it_has_two_seconds() -> None:
    cluster, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]))
    waits(worker, batch, 1.0, 1.0, 1.0)
    cluster.client("other").asks(0, 1, now=3.0)
    worker.says(Progress, batch.epoch, batch.batch, 4_000, now=4.0)
    assert outcomes(client.told()) == {}
    told = worker.says(Progress, batch.epoch, batch.batch, 5_000, now=5.0)
    assert outcomes(client.told()) == {0: "reader_too_slow"}
    skips = [one for one in told if isinstance(one, Skip)]
    assert {(one.batch, *one.positions) for one in skips} == {(batch.batch, (0, 1))}


def test_a_reader_that_is_behind_now_and_then_goes_on_for_ever() -> None:
    cluster, worker, client, batch = streaming()
    cluster.client("other").asks(0, 1, ms=900_000)
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]))
    waits(worker, batch, *[0.2] * 60)
    assert outcomes(client.told()) == {}


def test_a_reader_that_reads_a_little_does_not() -> None:
    cluster, worker, client, batch = streaming()
    cluster.client("other").asks(0, 1, ms=900_000)
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]))
    waits(worker, batch, 0.9, 0.9, 0.9)
    assert outcomes(client.told()) == {0: "reader_too_slow"}


def test_of_several_streams_those_end_whose_readers_are_behind() -> None:
    cluster, worker, client, batch = streaming(2)
    cluster.client("other").asks(0, 1, ms=900_000)
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]), Flow(1, 0, [b"a"]))
    waits(worker, batch, 1.0, 1.0)
    assert outcomes(client.told()) == {0: "reader_too_slow"}


def test_what_the_worker_has_in_hand_already_waits_too() -> None:
    cluster, worker, client, batch = streaming(size=1)
    cluster.client("other").asks(0, 1, ms=900_000)
    assert len(worker.told()) == 1  # it was prefetched
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]))
    waits(worker, batch, 1.0, 1.0)
    assert outcomes(client.told()) == {0: "reader_too_slow"}


def test_what_the_worker_has_in_hand_for_nobody_does_not_wait() -> None:
    cluster, worker, client, batch = streaming(size=1)
    other = cluster.client("other")
    other.asks(0, 1, ms=900_000)
    assert len(worker.told()) == 1
    other.says(Cancel, [(0, 1)])
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]))
    waits(worker, batch, 1.0, 1.0, 1.0)
    assert outcomes(client.told()) == {}


def test_a_worker_that_takes_nothing_new_is_waited_for_by_nobody() -> None:
    cluster, worker, client, batch = streaming()
    cluster.client("other").asks(0, 1, ms=900_000)
    worker.says(Draining)
    yields(worker, batch, Flow(0, 0, [b"x" * WINDOW]))
    waits(worker, batch, 1.0, 1.0, 1.0)
    assert outcomes(client.told()) == {}


def test_a_worker_that_sends_more_than_is_read_loses_that_stream() -> None:
    _, worker, client, batch = streaming()
    part = b"x" * PART_BYTES
    for at in range(3):
        yields(worker, batch, Flow(0, at, [part]))
    assert outcomes(client.told()) == {0: "worker_lost"}


def test_a_stream_of_which_nothing_came_runs_again() -> None:
    cluster, worker, client, batch = streaming()
    supervisor = cluster.supervisor()
    other = cluster.worker("w2")
    dies(supervisor, worker, begun=batch.batch)
    (again,) = batches(other.told())
    yields(worker, batch, Flow(0, 0, [b"late"]))
    yields(other, again, Flow(0, 0, [b"a"], None, True))
    assert flows_of(client.told()) == [Flow(0, 0, [b"a"], None, True)]


def test_a_stream_of_which_something_came_ends_as_lost_with_its_worker() -> None:
    cluster, worker, client, batch = streaming(2)
    supervisor = cluster.supervisor()
    other = cluster.worker("w2")
    yields(worker, batch, Flow(0, 0, [b"a"]))
    client.told()
    dies(supervisor, worker, begun=batch.batch)
    assert outcomes(client.told()) == {0: "worker_lost"}
    assert [[span.base for span in one.spans] for one in batches(other.told())] == [[1]]


def test_of_two_runs_only_the_later_one_makes_a_stream() -> None:
    cluster, worker, client, batch = streaming(lease_ms=5_000)
    other = cluster.worker("w2")
    live(client, worker, batch, 2.0, 4.0)
    beats(other, running=0, now=6.5)
    live(client, worker, batch, 6.6, 8.0)
    (again,) = batches(other.told())
    yields(worker, batch, Flow(0, 0, [b"late"]), now=8.0)
    worker.answers(batch, now=8.0)
    assert outcomes(client.told()) == {}
    other.answers(again, now=8.0)
    assert outcomes(client.told()) == {0: b"yx0"}


def test_a_reader_that_leaves_stops_its_stream_at_the_worker() -> None:
    _, worker, client, batch = streaming(2)
    client.says(Cancel, [(1, 2)])
    (skip,) = worker.told()
    assert (skip.batch, skip.positions) == (batch.batch, [(1, 2)])
    yields(worker, batch, Flow(1, 0, [b"a"]))
    assert client.told() == []
    client.says(Bye)
    assert [one.positions for one in worker.told()] == [[(0, 1)]]


def test_a_worker_that_is_held_up_is_told_again_which_of_its_streams_nobody_reads() -> None:
    _, worker, client, batch = streaming(2)
    client.says(Cancel, [(1, 2)])
    worker.told()  # and that was lost on the way
    said = worker.says(Progress, EPOCH, batch.batch)
    assert [(one.batch, one.positions) for one in said] == [(batch.batch, [(1, 2)])]


def test_a_worker_whose_streams_are_all_read_is_told_nothing_as_it_advances() -> None:
    _, worker, _, batch = streaming(2)
    assert worker.says(Progress, EPOCH, batch.batch) == []


def at_once(cluster: Cluster, *saying: tuple[Peer, Any]) -> None:
    """Let several be heard in one turn."""
    for peer, message in saying:
        cluster.deliver(cluster.core.handle(peer.peer, message, [], 0.0))
    cluster.turn(0.0)


def test_nobody_is_told_to_stop_what_it_gave_away_in_the_same_turn() -> None:
    for ended in (True, False):
        cluster, worker, client, batch = streaming()
        cancel = Cancel(client.conn, client.sent + 1, 0, [(0, 1)])
        head = (worker.conn, worker.sent + 1, 0)
        done = Done(*head, EPOCH, batch.batch, 1, worker.incarnation, [b"y"])
        at_once(cluster, (client, cancel), (worker, done if ended else Returned(*head, EPOCH, [1])))
        assert worker.told() == []


def test_nobody_is_told_to_stop_what_is_not_in_its_hands_any_more() -> None:
    cluster, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"a"]))
    worker.answers(batch, b"")
    client.says(Cancel, [(0, 1)])
    assert Skip not in {type(one) for one in worker.told()}
    assert cluster.core.ledger.books.unread == []


def test_parts_on_a_connection_that_broke_are_sent_again() -> None:
    cluster, worker, client, batch = streaming()
    yields(worker, batch, Flow(0, 0, [b"a"]))
    client.told()
    client.says(Beat, [(0, 1)], 1)
    yields(worker, batch, Flow(0, 1, [b"b"]))
    yields(worker, batch, Flow(0, 2, [b"c"], None, True))
    back = cluster.again(client, open=[(0, 1)], next=1)
    hello, parts = back.greeted
    assert hello.missing == []
    assert parts.flows == [Flow(0, 1, [b"b"]), Flow(0, 2, [b"c"], None, True)]
    assert back.says(Beat, [(0, 1)], 1)[0].missing == [(0, 1)]


def test_parts_that_a_client_reads_no_more_are_let_go_of() -> None:
    cluster, worker, client, batch = streaming(3)
    yields(worker, batch, Flow(0, 0, [b"a"]), Flow(1, 0, [b"b"]), Flow(2, 0, [b"c"]))
    client.inbox.clear()
    # It says nothing of the third one yet, and that it wants no more of the first.
    client.says(Beat, [(1, 2)], 2)
    assert flows_of(cluster.again(client, open=[(1, 3)], next=3).greeted) == [
        Flow(1, 0, [b"b"]),
        Flow(2, 0, [b"c"]),
    ]


def test_a_worker_is_told_that_nobody_reads_what_was_taken_from_it() -> None:
    _, worker, _, batch = streaming()
    (again,) = batches(worker.says(Returned, EPOCH, [batch.batch]))
    for message in (
        (Progress, EPOCH, batch.batch),
        (Yielded, EPOCH, batch.batch, 1, worker.incarnation, [Flow(0, 0, [b"a"])]),
    ):
        (skip,) = worker.says(*message)
        assert (skip.batch, skip.positions) == (batch.batch, [(0, 1 << 31)])
    assert worker.says(Progress, b"epoch..0", batch.batch) == []
    assert again.batch != batch.batch


def test_what_ended_and_waits_for_its_client_is_not_missing() -> None:
    cluster, worker, client, batch = streaming()
    cluster.core.unreachable(client.peer, 0.0)
    yields(worker, batch, Flow(0, 0, [b"a"], None, True))
    back = cluster.again(client, open=[(0, 1)], next=1)
    assert back.greeted[0].missing == []
    assert flows_of(back.greeted) == [Flow(0, 0, [b"a"], None, True)]


# --- the worker ----------------------------------------------------------------------------------


def worker_streaming(*streamed: bool) -> tuple[Any, Any]:
    """Return a worker that runs a batch; its next message is number 3."""
    core = working.serving()
    spans = [working.span(base=at, streamed=one) for at, one in enumerate(streamed or (True,))]
    working.hand(core, 1, *spans)
    return core, working.begin(core)


def said(actions: list[Send]) -> list[Any]:
    return [one.message.flows if isinstance(one.message, Yielded) else one.message for one in actions]


def test_a_worker_sends_what_is_read_and_not_what_is_wanted_as_a_whole() -> None:
    core, job = worker_streaming(True, False)
    assert [flow is not None for flow in job.streams()] == [True, False]
    sent = core.put(job, [(0, b"a", ()), (1, b"b", ())], [(1, None)])
    assert sent == [
        Send(
            working.FIRST,
            Yielded(conn(1), 3, 2, working.EPOCH, 1, 1, working.INCARNATION, [Flow(0, 0, [b"a"])]),
            [],
        )
    ]
    assert said(core.put(job, [], [(0, None)])) == [[Flow(0, 1, [], None, True)]]
    assert core.put(job, [], []) == []


def test_places_are_those_of_the_batch_though_some_were_left_out() -> None:
    core = working.serving()
    working.hand(core, 1, working.span(ms=1, streamed=True), working.span(base=1, streamed=True))
    job = working.begin(core, 1.0)
    assert said(core.put(job, [(0, b"a", ())], [])) == [[Flow(1, 0, [b"a"])]]


def test_what_ends_with_its_batch_is_said_before_it_is_done() -> None:
    core, job = worker_streaming(True, False)
    core.put(job, [(0, b"a", ())], [])
    flows, done = said(core.finished(job, [b"", b"y"], None, None, 0.005))
    assert flows == [Flow(0, 1, [], None, True)]
    assert isinstance(done, Done)
    assert [(place, fault.code) for place, fault in done.errors or []] == [(0, "worker_lost")]


def test_a_stream_that_failed_before_anything_came_keeps_its_error() -> None:
    core, job = worker_streaming(True, True)
    job.streams()
    flows, done = said(core.finished(job, [b"", b""], None, [(0, FAILED)], 0.005))
    assert flows == [Flow(0, 0, [], None, False, FAILED), Flow(1, 0, [], None, True)]
    assert done.errors[0] == (0, FAILED)


def test_a_worker_goes_on_where_its_reader_has_read() -> None:
    core, job = worker_streaming()
    core.put(job, [(0, b"x" * WINDOW, ())], [])
    assert core.put(job, [(0, b"b", ())], []) == []
    assert core.are_held_up(job, [0], 0.0)
    room = Room(conn(1), 4, 3, working.EPOCH, 1, [(0, HEAD + WINDOW), (5, 1)])
    assert said(core.handle(working.FIRST, room, [], 0.0)) == [[Flow(0, 1, [b"b"])]]
    assert not core.are_held_up(job, [0], 0.0)


def test_nobody_holds_up_a_model_for_whom_others_wait() -> None:
    core, job = worker_streaming(True, False)
    core.put(job, [(0, b"x" * WINDOW, ())], [])
    assert core.are_held_up(job, [0], 0.0)
    assert not core.are_held_up(job, [0, 1], 0.0)
    assert not core.are_held_up(job, [], 0.0)


def test_no_model_waits_for_a_broker_that_is_quiet() -> None:
    core, job = worker_streaming()
    core.put(job, [(0, b"x" * WINDOW, ())], [])
    assert not core.are_held_up(job, [0], 3.0)


def test_a_reader_that_left_is_not_waited_for() -> None:
    core, job = worker_streaming(True, True)
    core.put(job, [(0, b"x" * WINDOW, ())], [])
    skip = Skip(conn(1), 4, 3, working.EPOCH, 1, [(0, 9)])
    assert core.handle(working.FIRST, skip, [], 0.0) == []
    assert [flow.is_open for flow in job.streams()] == [False, False]
    assert not core.are_held_up(job, [0], 0.0)
    assert core.put(job, [(0, b"b", ())], []) == []


def test_a_reader_that_left_before_the_model_began_to_yield_gets_nothing() -> None:
    core, job = worker_streaming()
    core.handle(working.FIRST, Skip(conn(1), 4, 3, working.EPOCH, 1, [(0, 1)]), [], 0.0)
    assert [flow.is_open for flow in job.streams()] == [False]


def test_what_is_said_of_another_batch_does_not_concern_the_one_that_runs() -> None:
    core, job = worker_streaming()
    job.streams()
    for number, epoch in ((2, working.EPOCH), (1, working.LATER_EPOCH)):
        core.handle(working.FIRST, Room(conn(1), 4, 3, epoch, number, [(0, 9)]), [], 0.0)
        core.handle(working.FIRST, Skip(conn(1), 5, 3, epoch, number, [(0, 1)]), [], 0.0)
    assert job.streams()[0].is_open


def test_parts_that_were_not_acknowledged_are_said_again_before_what_is_done() -> None:
    core, job = worker_streaming()
    core.put(job, [(0, b"a", ())], [])
    core.put(job, [(0, b"b", ())], [])
    core.handle(working.FIRST, Pulse(conn(1), 4, 3), [], 0.0)
    core.finished(job, [b""], None, None, 0.005)
    core.handle(working.FIRST, Who(conn(1), 0, 0), [], 0.0)
    again = said(working.welcome(core, connection=2, ack=0))
    assert again[1:3] == [[Flow(0, 1, [b"b"])], [Flow(0, 2, [], None, True)]]
    assert isinstance(again[3], Done)
    core.handle(working.FIRST, Pulse(conn(2), 5, 5), [], 0.0)
    core.handle(working.FIRST, Who(conn(2), 0, 0), [], 0.0)
    assert len(working.welcome(core, connection=3, ack=0)) == 1


def test_parts_for_a_broker_that_is_not_there_are_kept_until_it_is() -> None:
    core, job = worker_streaming()
    core.handle(working.FIRST, Who(conn(1), 0, 0), [], 0.0)
    assert core.put(job, [(0, b"a", ())], []) == []
    assert said(working.welcome(core, connection=2))[1:] == [[Flow(0, 0, [b"a"])]]


def test_a_stream_ends_with_the_life_of_its_broker() -> None:
    core, job = worker_streaming(True, False)
    core.put(job, [(0, b"a", ())], [])
    core.handle(working.FIRST, Who(conn(1), 0, 0), [], 0.0)
    working.welcome(core, connection=2, epoch=working.LATER_EPOCH)
    assert not job.streams()[0].is_open
    assert core.put(job, [(0, b"b", ())], [(0, None)]) == []
    assert core.finished(job, [b"", b"y"], None, None, 0.005) == []


def test_a_batch_of_a_broker_that_died_before_it_yielded_has_no_readers() -> None:
    core, job = worker_streaming()
    core.handle(working.FIRST, Who(conn(1), 0, 0), [], 0.0)
    working.welcome(core, connection=2, epoch=working.LATER_EPOCH)
    assert not job.streams()[0].is_open


def test_what_found_no_way_is_said_again_and_nothing_overtakes_it() -> None:
    core, job = worker_streaming(True, False)
    (first,) = core.put(job, [(0, b"a", ())], [])
    core.unsent(working.FIRST, first.message)
    assert core.is_choked
    assert core.are_held_up(job, [0, 1], 0.0)
    # The next try takes along what came meanwhile.
    assert said(core.put(job, [(0, b"b", ())], [])) == [[Flow(0, 0, [b"a"])], [Flow(0, 1, [b"b"])]]
    assert not core.is_choked


def test_one_broker_is_told_nothing_of_anothers_streams() -> None:
    core, _ = working.started(2)
    for at, peer in enumerate((working.FIRST, working.SECOND)):
        working.welcome(core, peer, at + 1)
    core.ready(Offer("bert"))
    working.hand(core, 1, working.span(streamed=True))
    job = working.begin(core)
    core.put(job, [(0, b"a", ())], [])
    core.handle(working.SECOND, Who(conn(2), 0, 0), [], 0.0)
    assert [type(one.message) for one in working.welcome(core, working.SECOND, 3)] == [Ready]
    core.handle(working.SECOND, Who(conn(3), 0, 0), [], 0.0)
    assert working.welcome(core, working.SECOND, 4, working.LATER_EPOCH)[1:] == []
    core.unsent(working.SECOND, Done(conn(9), 9, 0, working.EPOCH, 1, 1, b"", []))
    assert core.tick(0.0) == []


def test_what_found_its_way_is_not_said_again_when_the_way_was_full() -> None:
    core, first = worker_streaming(False)
    core.finished(first, [b"y"], None, None, 0.005)
    working.hand(core, 2, working.span(streamed=True))
    job = working.begin(core)
    (parts,) = core.put(job, [(0, b"a", ())], [])
    assert isinstance(parts.message, Yielded)
    core.unsent(working.FIRST, parts.message)
    assert said(core.tick(0.0)) == [[Flow(0, 0, [b"a"])]]


def test_a_batch_that_ends_while_the_way_is_full_is_done_afterwards() -> None:
    core, job = worker_streaming()
    (first,) = core.put(job, [(0, b"a", ())], [])
    core.unsent(working.FIRST, first.message)
    assert core.finished(job, [b""], None, None, 0.005) == []
    actions = core.tick(0.0)
    assert said(actions)[:2] == [[Flow(0, 0, [b"a"])], [Flow(0, 1, [], None, True)]]
    done = actions[2].message
    assert isinstance(done, Done)
    core.unsent(working.FIRST, done)
    assert [type(one.message) for one in core.tick(0.0)] == [Done]


def test_what_found_no_way_waits_for_a_broker_that_is_not_there() -> None:
    core, job = worker_streaming()
    (first,) = core.put(job, [(0, b"a", ())], [])
    core.unsent(working.FIRST, first.message)
    core.handle(working.FIRST, Who(conn(1), 0, 0), [], 0.0)
    assert core.put(job, [], []) == []
    assert said(working.welcome(core, connection=2))[1:] == [[Flow(0, 0, [b"a"])]]


# --- the client ----------------------------------------------------------------------------------


def stream(patience: float = 30.0) -> Call:
    one = call(b"x", timeout=patience)
    one.items, one.outputs, one.left = [b"x"], [None], 1
    one.inflow = Inflow(patience)
    one.mark = ("bert", "", 0, one)
    return one


def reading(*calls: Call, brokers: int = 1) -> ClientCore:
    core = connected(brokers)
    for one in calls:
        core.submit(one)
    core.flush(0.0)
    return core


def parts(
    core: ClientCore,
    *flows: Flow,
    now: float = 0.0,
    frames: Any = (),
    peer: bytes = b"\0",
    connection: int = 1,
) -> list[Any]:
    return core.handle(peer, Parts(conn(connection), 2, 9, list(flows)), frames, now)


def came(actions: list[Any]) -> list[Any]:
    """Return the payloads of the parts that came, and what ended."""
    found: list[Any] = []
    for one in actions:
        if isinstance(one, Came):
            found += [payload for (payload, _), _ in one.parts]
        elif isinstance(one, Finished):
            found.append(one.call.faults[0].code if one.call.faults else "end")
        elif isinstance(one, Failed):
            found.append(one.fault.code)
        else:
            found.append(type(one.message))
    return found


def test_a_stream_is_asked_for_by_itself_and_says_its_patience() -> None:
    one, other = stream(), stream()
    core = connected()
    core.submit(one)
    core.submit(other)
    (request,) = core.flush(0.0)
    assert isinstance(request, Send)
    assert isinstance(request.message, Request)
    assert [(sent.base, sent.whole, sent.patience_ms) for sent in request.message.groups] == [
        (1, True, 30_000),
        (2, True, 30_000),
    ]


def test_parts_come_to_their_reader_with_what_they_weigh() -> None:
    one = stream()
    core = reading(one)
    actions = parts(core, Flow(1, 0, [b"a", b"b"], [1, 0]), frames=[b"x" * 5_000])
    assert actions == [
        Came(one, [((b"a", [b"x" * 5_000]), HEAD + 5_001), ((b"b", []), HEAD + 1)]),
    ]
    assert came(parts(core, Flow(1, 2, [b"c"], None, True))) == [b"c", "end"]
    assert core.is_idle


def test_parts_that_a_client_has_are_dropped() -> None:
    core = reading(stream())
    parts(core, Flow(1, 0, [b"a", b"b"]))
    assert came(parts(core, Flow(1, 0, [b"a"]))) == []
    assert came(parts(core, Flow(1, 1, [b"b", b"c"]))) == [b"c"]
    assert came(parts(core, Flow(7, 0, [b"a"]))) == []


def test_a_gap_is_an_error_and_no_shorter_stream() -> None:
    core = reading(stream())
    parts(core, Flow(1, 0, [b"a"]))
    assert came(parts(core, Flow(1, 2, [], None, True))) == ["worker_lost", Cancel]


def test_parts_for_who_asked_for_the_whole_are_none() -> None:
    core = reading(call())
    assert came(parts(core, Flow(1, 0, [b"a"], None, True))) == []


def test_what_comes_as_a_whole_is_a_stream_of_one_part() -> None:
    core = reading(stream(), stream())
    assert came(result(core, 1, b"y")) == [b"y", "end"]
    assert came(result(core, 2, b"y", buffers=[1], frames=[b"z"])) == [b"y", "end"]


def test_a_whole_result_of_another_run_does_not_end_a_stream() -> None:
    core = reading(stream())
    parts(core, Flow(1, 0, [b"a"]))
    assert came(result(core, 1, b"y")) == []


def test_an_error_ends_a_stream() -> None:
    core = reading(stream())
    parts(core, Flow(1, 0, [b"a"]))
    assert came(refuse(core, FAILED, (1, 2))) == ["model_failed"]


def test_the_deadline_of_a_stream_is_for_its_next_part() -> None:
    one = stream()
    core = reading(one)
    for now in (20.0, 40.0):
        pulse(core, now=now)
        parts(core, Flow(1, int(now / 20) - 1, [b"a"]), now=now)
        assert one.deadline == now + 30.0
        assert Finished not in {type(action) for action in core.tick(now + 15.0)}
    core.tick(70.0)
    ended = core.tick(70.1)
    assert came(ended)[0] == "deadline_exceeded"
    assert (one.faults or {})[0].text == "no further part came within 30.000 s"


def test_what_was_read_is_told_and_gives_the_stream_its_time_again() -> None:
    one, other, gone = stream(), stream(), stream()
    core = reading(one, other)
    assert one.inflow is not None
    due = [one.inflow.is_due]
    one.inflow.taken = WINDOW // 2
    due.append(one.inflow.is_due)
    (taken,) = core.read([one, other, gone, call()], 10.0)
    assert isinstance(taken, Send)
    assert isinstance(taken.message, Taken)
    assert taken.message.streams == [(1, WINDOW // 2), (2, 0)]
    assert one.deadline == 40.0
    assert [*due, one.inflow.is_due] == [False, True, False]


def test_nothing_is_told_to_a_broker_that_is_not_there() -> None:
    core, _ = started()
    one = stream()
    core.submit(one)
    core.flush(0.0)
    assert core.read([one], 0.0) == []


def test_what_was_read_is_repeated_with_each_beat() -> None:
    one, other = stream(), stream()
    core = reading(one, other)
    assert one.inflow is not None
    one.inflow.taken = 100
    for now in (1.0, 2.0):
        beat, taken = core.tick(now)
        assert isinstance(beat, Send)
        assert isinstance(taken, Send)
        assert isinstance(beat.message, Beat)
        assert isinstance(taken.message, Taken)
        assert taken.message.streams == [(1, 100)]
        assert one.deadline == 31.0
    parts(core, Flow(1, 0, [], None, True), now=2.0)
    assert [type(action.message) for action in core.tick(3.0) if isinstance(action, Send)] == [Beat]


def test_a_stream_of_which_nothing_came_is_asked_for_again() -> None:
    core = reading(stream())
    assert came(pulse(core, (1, 2))) == [Request]


def test_a_stream_that_its_broker_lost_ends_in_an_error_once_something_came() -> None:
    one = stream()
    core = reading(one)
    parts(core, Flow(1, 0, [b"a"]))
    assert came(pulse(core, (1, 2))) == ["worker_lost"]
    assert one.faults == {0: BROKEN}


def test_parts_of_a_broker_that_is_not_asked_any_more_are_another_run() -> None:
    core = reading(stream(), brokers=2)
    core.tick(1.0)
    core.tick(3.0)
    welcome(core, (1, 2), peer=b"\1", connection=2, now=3.0)
    assert came(parts(core, Flow(1, 0, [b"a"]))) == []
    assert came(parts(core, Flow(1, 0, [b"b"]), peer=b"\1", connection=2)) == [b"b"]


def test_a_client_says_at_once_that_the_last_parts_have_come() -> None:
    core = reading(stream())
    pulse(core, now=5.0)
    parts(core, Flow(1, 0, [], None, True), now=5.0)
    (beat,) = core.tick(5.0)
    assert isinstance(beat, Send)
    assert beat.message.ack == 2
    assert core.wakeup() is None
    # They came again over another connection.
    parts(core, Flow(1, 0, [], None, True), now=5.0)
    assert core.wakeup() == 6.0


def test_a_reader_that_leaves_cancels() -> None:
    one = stream()
    core = reading(one)
    parts(core, Flow(1, 0, [b"a"]))
    assert came(core.cancel(one, 1.0)) == [Cancel]
    assert came(parts(core, Flow(1, 1, [b"b"]))) == []
