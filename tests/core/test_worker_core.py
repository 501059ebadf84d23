"""What a model process decides: which batch runs next, what is left out of it, what is said of it."""

from __future__ import annotations

from tests.core.working import (
    ADA,
    BOB,
    EPOCH,
    FIRST,
    INCARNATION,
    LATER_EPOCH,
    LIFE,
    SECOND,
    answer,
    begin,
    conn,
    hand,
    serving,
    span,
    started,
    welcome,
)
from zbatch.core.actions import Send
from zbatch.core.pipeline import Joined
from zbatch.core.session import LARGE
from zbatch.core.worker import Offer
from zbatch.messages import Bulk, Done, Facts, Fault, Hello, Part, Progress, Ready, Skip, Span, Who

# --- coming --------------------------------------------------------------------------------------


def test_it_introduces_itself_to_each_broker_with_what_its_supervisor_named_it() -> None:
    _, actions = started(brokers=2)
    assert actions == [
        Send(
            peer,
            Hello(conn(number), 1, 0, LIFE, "worker", 1, incarnation=INCARNATION, host="gpu-box", pid=12),
        )
        for peer, number in ((FIRST, 1), (SECOND, 2))
    ]


def test_a_broker_that_does_not_answer_is_greeted_again_each_beat() -> None:
    core, greeting = started()
    assert not core.is_welcome
    assert core.wakeup() == 1.0
    assert core.tick(0.9) == []
    assert core.tick(1.0) == greeting


def test_it_offers_nothing_before_its_model_is_ready() -> None:
    core, _ = started()
    assert welcome(core) == []
    assert core.is_welcome


def test_its_offer_goes_to_the_brokers_that_know_it() -> None:
    core, _ = started(brokers=2)
    welcome(core, FIRST, 1)
    facts = Facts(name="m:Bert", version="2")
    offer = Offer("bert", 16, 4096.0, 0.020, 3, 90.0, idempotent=False, facts=facts)
    assert core.ready(offer) == [
        Send(FIRST, Ready(conn(1), 2, 1, "bert", 3, 16, 4096.0, 20.0, 90_000, False, facts))
    ]


def test_a_broker_that_comes_later_gets_the_offer_with_its_welcome() -> None:
    core, _ = started()
    assert core.ready(Offer("bert")) == []
    assert welcome(core) == [Send(FIRST, Ready(conn(1), 2, 1, "bert", 2, 32, None, 10.0, 60_000))]


# --- running -------------------------------------------------------------------------------------


def test_batches_run_one_at_a_time_in_the_order_handed_over() -> None:
    core = serving()
    hand(core, 1)
    hand(core, 2)
    first = begin(core)
    assert first.number == 1
    assert core.begin(0.0) == (None, [])
    answer(core, first, b"y")
    assert begin(core).number == 2


def test_a_batch_says_whether_it_is_tried_apart() -> None:
    core = serving()
    hand(core, 1)
    hand(core, 2, apart=True)
    first = begin(core)
    answer(core, first, b"y")
    assert (first.apart, begin(core).apart) == (False, True)


def test_with_nothing_handed_over_nothing_begins() -> None:
    assert serving().begin(0.0) == (None, [])


def test_a_done_names_batch_attempt_and_incarnation() -> None:
    core = serving()
    hand(core, 1, span(2))
    errors = [(1, Fault("model_failed", "no"))]
    assert answer(core, begin(core), b"y0", b"", errors=errors) == [
        Send(FIRST, Done(conn(1), 3, 2, EPOCH, 1, 1, INCARNATION, [b"y0", b""], None, errors, 5.0), [])
    ]


def test_spans_of_several_clients_run_as_one_batch_with_their_ids_and_deadlines() -> None:
    core = serving()
    hand(core, 1, span(2, base=10, of=ADA, ms=4_000), span(1, base=7, of=BOB, ms=9_000), now=100.0)
    items, buffers, ids, deadlines = begin(core, 100.0).work()
    assert (list(items), buffers) == ([b"a10", b"a11", b"b7"], None)
    assert list(ids) == [(ADA, 10), (ADA, 11), (BOB, 7)]
    assert list(deadlines) == [104.0, 104.0, 109.0]
    assert len(ids) == 3


def test_items_of_one_span_may_have_deadlines_of_their_own() -> None:
    core = serving()
    hand(core, 1, span(2, ms=1_000, later_ms=[0, 500]), now=100.0)
    job = begin(core, 100.0)
    assert (job.earliest(), job.deadlines(), job.latest()) == (101.0, [101.0, 101.5], 101.5)


def test_frames_are_given_to_the_items_that_they_belong_to() -> None:
    core = serving()
    hand(core, 1, span(2, buffers=[2, 0]), span(1, base=5, buffers=[1]), frames=[b"p", b"q", b"r"])
    _, buffers, _, _ = begin(core).work()
    assert buffers == [[b"p", b"q"], [], [b"r"]]


def test_a_span_without_frames_may_share_a_batch_with_one_that_has_some() -> None:
    core = serving()
    hand(core, 1, span(2), span(1, base=5, buffers=[1]), frames=[b"r"])
    _, buffers, _, _ = begin(core).work()
    assert buffers == [[], [], [b"r"]]


def test_buffers_of_outputs_leave_as_frames_with_a_count_for_each_item() -> None:
    core = serving()
    hand(core, 1, span(3))
    (sent,) = answer(core, begin(core), b"y0", b"y1", b"y2", buffers=[[b"p", b"q"], [], [b"r"]])
    assert isinstance(sent.message, Done)
    assert (sent.message.buffers, sent.frames) == ([2, 0, 1], [b"p", b"q", b"r"])


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_is_two_thirds_of_the_longest_time_left() -> None:
    core = serving()
    hand(core, 1, span(ms=10_000), span(base=5, ms=45_000))
    assert begin(core, 0.0).lease == 30.0


def test_a_lease_is_never_shorter_than_20_s_nor_longer_than_60_s() -> None:
    core = serving()
    hand(core, 1, span(ms=1_000))
    hand(core, 2, span(ms=600_000))
    short = begin(core)
    answer(core, short, b"y")
    assert (short.lease, begin(core).lease) == (20.0, 60.0)


def test_a_lease_that_the_worker_was_given_holds() -> None:
    core = serving(Offer("bert", lease=5.0))
    hand(core, 1)
    assert begin(core).lease == 5.0


def test_progress_is_told_to_the_broker_of_the_running_batch() -> None:
    core = serving()
    assert core.progress() == []
    hand(core, 1)
    begin(core)
    assert core.progress() == [Send(FIRST, Progress(conn(1), 3, 2, EPOCH, 1))]


def test_progress_is_not_told_to_another_life_of_the_broker() -> None:
    core = serving()
    hand(core, 1)
    begin(core)
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    assert core.progress() == []
    welcome(core, connection=2, epoch=LATER_EPOCH)
    assert core.progress() == []


# --- leaving out ---------------------------------------------------------------------------------


def test_an_item_whose_deadline_has_passed_is_left_out_and_its_neighbours_run() -> None:
    core = serving()
    hand(core, 1, span(3, ms=1_000, later_ms=[0, 5_000, 9_000]))
    job = begin(core, 1.0)
    items, _, ids, deadlines = job.work()
    assert (list(items), list(ids), list(deadlines)) == (
        [b"a1", b"a2"],
        [(ADA, 1), (ADA, 2)],
        [6.0, 10.0],
    )
    (sent,) = answer(core, job, b"y1", b"", errors=[(1, Fault("model_failed", "no"))])
    assert isinstance(sent.message, Done)
    late = Fault("deadline_exceeded", "the deadline passed while it waited in its worker's hands")
    assert sent.message.outputs == [b"", b"y1", b""]
    assert sent.message.errors == [(0, late), (2, Fault("model_failed", "no"))]


def test_a_cancelled_item_is_left_out() -> None:
    core = serving()
    hand(core, 1, span(3, buffers=[1, 1, 1]), frames=[b"p", b"q", b"r"])
    core.handle(FIRST, Skip(conn(1), 3, 0, EPOCH, 1, [(1, 2)]), [], 0.0)
    job = begin(core)
    items, buffers, _, _ = job.work()
    assert (items, buffers) == ([b"a0", b"a2"], [[b"p"], [b"r"]])
    (sent,) = answer(core, job, b"y0", b"y2", buffers=[[b"s"], []])
    assert isinstance(sent.message, Done)
    assert sent.message.outputs == [b"y0", b"", b"y2"]
    assert (sent.message.buffers, sent.frames) == ([1, 0, 0], [b"s"])
    assert sent.message.errors == [(1, Fault("cancelled", "cancelled before it began"))]


def test_a_skip_names_positions_of_one_batch_and_no_more_than_it_has() -> None:
    core = serving()
    hand(core, 1, span(2))
    hand(core, 2, span(2, base=5))
    core.handle(FIRST, Skip(conn(1), 4, 0, EPOCH, 2, [(1, 4_000_000_000)]), [], 0.0)
    core.handle(FIRST, Skip(conn(1), 5, 0, LATER_EPOCH, 1, [(0, 2)]), [], 0.0)
    first = begin(core)
    answer(core, first, b"y0", b"y1")
    assert list(first.work()[0]) == [b"a0", b"a1"]
    assert list(begin(core).work()[0]) == [b"a5"]


def test_a_batch_of_which_nothing_is_left_is_answered_without_a_run() -> None:
    core = serving()
    hand(core, 1, span(1, ms=1_000))
    hand(core, 2, span(1, base=5))
    job, actions = core.begin(1.0)
    late = Fault("deadline_exceeded", "the deadline passed while it waited in its worker's hands")
    assert actions == [
        Send(FIRST, Done(conn(1), 3, 3, EPOCH, 1, 1, INCARNATION, [b""], None, [(0, late)], 0.0), [])
    ]
    assert job is not None
    assert job.number == 2


def test_a_batch_that_comes_late_in_its_deadline_still_runs_all_its_items() -> None:
    core = serving()
    hand(core, 1, span(2, ms=1_000))
    assert list(begin(core, 0.999).work()[0]) == [b"a0", b"a1"]


def test_a_large_answer_is_announced() -> None:
    core = serving()
    hand(core, 1)
    bulk, done = answer(core, begin(core), b"y", buffers=[[bytes(LARGE)]])
    assert bulk == Send(FIRST, Bulk(conn(1), 3, 2, LARGE))
    assert isinstance(done.message, Done)


# --- items of several parts ----------------------------------------------------------------------


def test_where_stages_meet_an_item_is_its_parts_each_with_its_buffers() -> None:
    core = serving()
    parts = [Part("x", [b"x0", b"x1"], [1, 0]), Part("y", [b"y0", b"y1"], [0, 2])]
    joined = span(2)
    joined = Span(joined.origin, joined.base, joined.deadline_ms, [b"", b""], parts=parts)
    hand(core, 1, span(1, 7, buffers=[1]), joined, span(1, 9), frames=[b"own", b"X0", b"Y1", b"Y1'"])
    job = begin(core)
    assert job.joined
    items, buffers, ids, _ = job.work()
    assert items == [
        b"a7",
        Joined([("x", b"x0", [b"X0"]), ("y", b"y0", [])]),
        Joined([("x", b"x1", []), ("y", b"y1", [b"Y1", b"Y1'"])]),
        b"a9",
    ]
    assert buffers == [[b"own"], [], [], []]
    assert list(ids) == [(ADA, 7), (ADA, 0), (ADA, 1), (ADA, 9)]


def test_of_items_of_several_parts_some_may_be_left_out() -> None:
    core = serving()
    hand(core, 1, span(1))
    running = begin(core)
    parts = [Part("x", [b"x0", b"x1"]), Part("y", [b"y0", b"y1"])]
    hand(core, 2, Span(ADA, 5, 30_000, [b"", b""], parts=parts))
    core.handle(FIRST, Skip(conn(1), 4, 0, EPOCH, 2, [(0, 1)]), [], 0.0)
    answer(core, running, b"y")
    items, *_ = begin(core).work()
    assert items == [Joined([("x", b"x1", []), ("y", b"y1", [])])]


def test_a_batch_of_plain_items_is_not_joined() -> None:
    core = serving()
    hand(core, 1, span(2))
    assert not begin(core).joined
