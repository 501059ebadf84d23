"""Which topics there are, when each is looked at, and which batch goes where then."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.core.driving import Cluster, ready
from tests.core.queueing import ids, make_held, push
from tests.core.staffing import make_worker
from zbatch.config import BrokerCoreSettings, Limits
from zbatch.core.backlog import RUNNING, Span
from zbatch.core.batching import POLICIES
from zbatch.core.roster import Handed, Worker
from zbatch.core.topics import KEPT, Tally, Topic, Topics
from zbatch.errors import UnknownTopic
from zbatch.metrics import Histogram


def topics(**settings: object) -> Topics:
    return Topics(BrokerCoreSettings(**settings))  # type: ignore[arg-type]


def test_a_topic_is_made_once_with_the_policy_of_the_broker() -> None:
    some = topics(batching="window")
    bert = some.open("bert")
    assert some.open("bert") is bert
    assert (bert.name, bert.policy.name) == ("bert", "window")


def test_a_topic_that_the_broker_was_not_told_of_is_unknown() -> None:
    some = topics(topics=("bert", "resnet"))
    some.open("resnet")
    with pytest.raises(UnknownTopic, match=r"'gpt' is not served here; this broker serves bert, resnet"):
        some.open("gpt")


def test_only_so_many_topics_are_waited_for() -> None:
    some = topics(limits=Limits(unserved_topics=2))
    for name in ("one", "two"):
        some.open(name).items = 1
    with pytest.raises(
        UnknownTopic, match=r"2 topics without a worker are waited for; 'three' is one too many"
    ):
        some.open("three")


def test_a_topic_that_nobody_waits_for_any_more_makes_room() -> None:
    some = topics(limits=Limits(unserved_topics=2))
    some.open("one").items = 1
    some.open("two")
    some.open("three")
    assert list(some.all) == ["one", "three"]


def test_topics_that_workers_serve_do_not_count() -> None:
    some = topics(limits=Limits(unserved_topics=1))
    for name in ("one", "two"):
        some.open(name).served = 0.0
    some.open("three")
    assert list(some.all) == ["one", "two", "three"]


def test_a_worker_is_taken_whatever_is_waited_for() -> None:
    some = topics(limits=Limits(unserved_topics=1))
    some.open("one").items = 1
    some.open("two", served=True)
    assert list(some.all) == ["one", "two"]


def test_of_topics_that_nobody_serves_any_more_the_last_thousand_are_kept() -> None:
    some = topics()
    some.open("busy", served=True).items = 1
    some.open("never", served=True)
    some.drained.add("drained")
    some.open("drained", served=True)
    for at in range(KEPT - 1):
        some.open(f"t{at}", served=True).served = float(KEPT - at)
    assert len(some.all) == KEPT + 2
    some.open("new", served=True)
    assert list(some.all) == ["busy", "drained", *(f"t{at}" for at in range(750)), "new"]


def test_a_worker_that_serves_one_topic_after_the_other_leaves_no_more_than_these() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    for at in range(2 * KEPT):
        ready(worker, topic=f"t{at}", now=float(at))
    assert KEPT / 2 < len(cluster.core.topics.all) <= KEPT + 1


def test_a_touched_topic_is_looked_at_once() -> None:
    some = topics()
    bert = some.open("bert")
    some.touch(bert)
    some.touch(bert)
    assert some.touched(0.0) == [bert]
    assert some.touched(0.0) == []


def test_a_topic_is_looked_at_when_its_policy_wants_to() -> None:
    some = topics()
    bert, resnet = some.open("bert"), some.open("resnet")
    bert.wake, resnet.wake = 2.0, 1.0
    for topic in (bert, resnet):
        some.sleeps(topic)
    assert some.wakeup() == 1.0
    assert some.touched(0.9) == []
    assert some.touched(1.0) == [resnet]
    resnet.wake = None
    assert some.touched(1.5) == []
    assert some.wakeup() == 2.0


def test_a_topic_without_a_wish_does_not_sleep() -> None:
    some = topics()
    some.sleeps(some.open("bert"))
    assert some.wakeup() is None


# --- which batch goes where ------------------------------------------------------------------------

Start = tuple[str, list[tuple[int, int]], bool]
"""Who got which ids, and whether they run apart."""


def topic_of(*workers: Worker, batching: str = "eager") -> Topic:
    """Return a topic that these workers serve."""
    topic = Topic("bert", POLICIES[batching]())
    for worker in workers:
        topic.roster.add(worker)
    return topic


def set_apart(topic: Topic, base: int, items: int) -> Span:
    """Let a batch wait to be run apart."""
    held = make_held(base, items)
    held.state[:] = bytes([RUNNING]) * items
    span = Span(held, 0, items)
    topic.apart.append([span])
    return span


def dispatch(topic: Topic, now: float = 0.0) -> list[Start]:
    """Hand out what should run now; return who got what."""
    started: list[Start] = []

    def start(worker: Worker, spans: list[Span], apart: bool) -> None:
        number = 1 + max((handed.number for handed in topic.handed()), default=0)
        items = sum(span.stop - span.start for span in spans)
        handed = worker.holds[number] = Handed(number, worker, spans, items, 1, now)
        if apart:
            topic.apart_running = handed
        topic.roster.changed(worker)
        started.append((worker.link.life.decode().strip(), ids(spans), apart))

    topic.dispatch(now, start)
    return started


def finish(topic: Topic, worker: Worker) -> None:
    """Let a worker end the first batch in its hands."""
    handed = worker.holds.pop(min(worker.holds))
    if topic.apart_running is handed:
        topic.apart_running = None
    topic.roster.changed(worker)


def test_idle_workers_take_what_waits_in_turn() -> None:
    topic = topic_of(make_worker("ann", size=4), make_worker("bob", size=4))
    push(topic.backlog, make_held(0, 6))
    assert dispatch(topic) == [("ann", [(0, 4)], False), ("bob", [(4, 6)], False)]
    assert (topic.tally.closed, topic.wake) == ({"full": 1, "idle": 1}, None)


def test_only_full_batches_go_to_a_worker_that_has_one_already() -> None:
    topic = topic_of(make_worker("ann", size=4))
    push(topic.backlog, make_held(0, 4))
    assert dispatch(topic) == [("ann", [(0, 4)], False)]
    push(topic.backlog, make_held(4, 3))
    assert dispatch(topic) == []
    push(topic.backlog, make_held(7, 3))
    assert dispatch(topic) == [("ann", [(4, 7), (7, 8)], False)]
    assert dispatch(topic) == []
    assert (topic.backlog.items, topic.tally.closed) == (2, {"full": 2})


def test_nothing_is_handed_out_where_nobody_works() -> None:
    topic = topic_of()
    push(topic.backlog, make_held(0, 40))
    assert dispatch(topic) == []
    assert topic.backlog.items == 40


def test_a_window_hands_out_nothing_until_it_closes_and_says_when_to_look_again() -> None:
    topic = topic_of(make_worker("ann"), batching="window")
    push(topic.backlog, make_held(0, 3, arrived=1.0))
    assert (dispatch(topic, 1.009), topic.wake) == ([], 1.010)
    assert dispatch(topic, 1.010) == [("ann", [(0, 3)], False)]
    assert (topic.wake, topic.tally.closed) == (None, {"window": 1})


def test_a_batch_that_is_full_by_cost_closes_at_once() -> None:
    topic = topic_of(make_worker("ann", cost=10.0), batching="window")
    push(topic.backlog, make_held(0, 3, costs=[6.0, 4.0, 1.0]))
    assert dispatch(topic) == [("ann", [(0, 2)], False)]
    assert (topic.tally.closed, topic.wake) == ({"full": 1}, None)


def test_what_runs_apart_goes_before_all_else_and_one_at_a_time() -> None:
    ann, bob = make_worker("ann", slots=1), make_worker("bob", slots=1)
    topic = topic_of(ann, bob)
    for base in (0, 4):
        set_apart(topic, base, 4)
    push(topic.backlog, make_held(10, 2))
    assert dispatch(topic) == [("ann", [(0, 4)], True), ("bob", [(10, 12)], False)]
    finish(topic, bob)
    assert dispatch(topic) == []
    finish(topic, ann)
    assert dispatch(topic) == [("bob", [(4, 8)], True)]


def test_nothing_is_prefetched_while_batches_wait_apart_so_that_somebody_becomes_idle() -> None:
    ann = make_worker("ann", size=4)
    topic = topic_of(ann)
    push(topic.backlog, make_held(0, 40))
    assert dispatch(topic) == [("ann", [(0, 4)], False), ("ann", [(4, 8)], False)]
    set_apart(topic, 50, 2)
    finish(topic, ann)
    assert dispatch(topic) == []
    finish(topic, ann)
    assert dispatch(topic) == [("ann", [(50, 52)], True), ("ann", [(8, 12)], False)]


def test_what_runs_apart_waits_while_nobody_has_room() -> None:
    topic = topic_of(make_worker("ann", slots=1))
    push(topic.backlog, make_held(0, 1))
    dispatch(topic)
    set_apart(topic, 4, 2)
    assert dispatch(topic) == []
    assert len(topic.apart) == 1


@pytest.mark.parametrize(("learned", "called_back"), [(0.039, False), (0.040, True)])
def test_a_batch_is_called_back_for_an_idle_worker_where_runs_are_long(
    learned: float, called_back: bool
) -> None:
    ann = make_worker("ann", size=4)
    topic = topic_of(ann)
    push(topic.backlog, make_held(0, 8))
    dispatch(topic)
    topic.roster.add(make_worker("bob", size=4))
    topic.learned(learned)
    assert topic.recallable() is (ann.holds[2] if called_back else None)


def test_nothing_is_called_back_while_something_waits_or_nobody_idles() -> None:
    ann = make_worker("ann", size=4)
    topic = topic_of(ann)
    topic.typical_run = 1.0
    push(topic.backlog, make_held(0, 8))
    dispatch(topic)
    assert topic.recallable() is None
    topic.roster.add(make_worker("bob", size=4))
    push(topic.backlog, make_held(8, 1))
    assert topic.recallable() is None


@pytest.mark.parametrize(("run", "prefetched"), [(0.039, True), (0.040, False)])
def test_where_several_ask_and_runs_are_long_nothing_is_prefetched(run: float, prefetched: bool) -> None:
    topic = topic_of(make_worker("ann", size=4))
    topic.typical_run = run
    push(topic.backlog, make_held(0, 12))
    for who in (b"ada", b"bob"):
        topic.asked(who, 0.0)
    assert len(dispatch(topic, 1.0)) == (2 if prefetched else 1)


def test_once_one_alone_has_asked_for_a_while_its_batches_are_prefetched_again() -> None:
    topic = topic_of(make_worker("ann", size=4))
    topic.typical_run = 1.0
    push(topic.backlog, make_held(0, 12))
    for who, now in ((b"bob", 0.0), (b"ada", 0.0), (b"ada", 9.0)):
        topic.asked(who, now)
    assert len(dispatch(topic, 9.9)) == 1
    assert len(dispatch(topic, 10.0)) == 1


def tally_of_all(number: int) -> Tally:
    """Return a tally in which everything was counted so many times."""
    tally = Tally()
    for one in fields(Tally):
        match getattr(tally, one.name):
            case int():
                setattr(tally, one.name, number)
            case dict() as counts:
                counts[f"code {number}"] = counts["a code"] = number
            case Histogram() as seen:
                seen.record(float(number), number)
    return tally


def test_a_tally_counts_all_that_another_one_counted_too() -> None:
    tally = tally_of_all(2)
    tally.add(tally_of_all(3))
    seen = {}
    for one in fields(Tally):
        match getattr(tally, one.name):
            case Histogram() as histogram:
                seen[one.name] = (histogram.count, histogram.total)
            case counted:
                seen[one.name] = counted
    counts = {"a code": 5, "code 2": 2, "code 3": 3}
    del seen["rate"]  # only the present has one
    assert seen == {
        **dict.fromkeys(("items", "size", "answered", "batches", "batched_items", "batched_room"), 5),
        **dict.fromkeys(("sizes", "closed", "errors", "refused"), counts),
        "retries": 5,
        **dict.fromkeys(("wait", "latency", "run"), (5, 13.0)),
    }


def test_what_is_counted_later_is_not_in_a_copy_of_a_tally() -> None:
    tally = tally_of_all(2)
    copy = tally.copy()
    tally.add(tally_of_all(3))
    assert (copy.items, copy.errors, copy.run.count) == (2, {"a code": 2, "code 2": 2}, 2)
