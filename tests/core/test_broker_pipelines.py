"""Pipelines at the broker: an item goes from topic to topic, and each promise holds on all of its way."""

from __future__ import annotations

from typing import Any

from tests.core.driving import Cluster, Peer, dies, gives_back, group
from tests.core.hearing import batches, handed, outcomes
from tests.core.piping import JOINED, LINE, items, one_batch, stage, work
from zbatch.config import Limits
from zbatch.messages import Beat, Cancel, Fault, Order, Pulse, Refused, Request, Skip, Stage

FAILED = Fault("model_failed", "no", 0, "ValueError", "tb")


def line(**settings: Any) -> tuple[Cluster, Peer, Peer, Peer, Peer]:
    """Return a cluster with one worker for each stage of LINE, and a client."""
    cluster = Cluster(**settings)
    first, second, third = (cluster.worker(name[:2], topic=name) for name in ("pre", "bert", "post"))
    return cluster, first, second, third, cluster.client()


def joined(**settings: Any) -> tuple[Cluster, dict[str, Peer], Peer]:
    """Return a cluster with one worker for each stage of JOINED, and a client."""
    cluster = Cluster(**settings)
    workers = {name: cluster.worker(name * 2, topic=name) for name in "abcd"}
    return cluster, workers, cluster.client()


def faults(messages: list[Any]) -> list[Fault]:
    return [one.fault for message in messages if isinstance(message, Refused) for one in message.refusals]


def again(topic: str, source: int) -> Stage:
    """Return a second stage of a topic."""
    return Stage(f"{topic}#2", topic, (("", source),))


def messages(peer: Peer) -> list[Any]:
    """Return what was said in answer to a peer's last message."""
    return [one.message for one in peer.read]


def nothing_is_left(cluster: Cluster) -> None:
    for topic in cluster.core.topics.all.values():
        assert (topic.items, topic.coming, topic.size, topic.running) == (0, 0, 0, 0), topic.name
    for client in cluster.core.ledger.clients.values():
        assert (client.items, client.size, client.groups()) == (0, 0, [])
    assert cluster.core.ledger.size == 0
    assert cluster.core.ledger.wakeup() is None


# --- the way ---------------------------------------------------------------------------------------


def test_what_a_stage_makes_is_the_next_ones_item_and_the_last_ones_is_the_answer() -> None:
    cluster, first, second, third, client = line()
    assert client.asks(5, 2, topic="pipe", route=LINE) == []
    assert work(first) == [b"x5", b"x6"]
    assert work(second) == [b"pr(x5)", b"pr(x6)"]
    assert work(third) == [b"be(pr(x5))", b"be(pr(x6))"]
    assert outcomes(client.told()) == {5: b"po(be(pr(x5)))", 6: b"po(be(pr(x6)))"}
    nothing_is_left(cluster)


def test_an_item_keeps_its_id_and_its_deadline_in_each_stage() -> None:
    _, first, second, _, client = line()
    client.asks(5, 1, topic="pipe", route=LINE, ms=10_000)
    work(first, now=2.0)
    (span,) = one_batch(second).spans
    assert (span.origin, span.base, span.deadline_ms) == (client.origin, 5, 8_000)


def test_deadlines_of_items_that_differ_stay_each_ones_own() -> None:
    _, first, second, _, client = line()
    client.asks(0, 3, topic="pipe", route=LINE, ms=10_000, later_ms=[0, 2_000, 1_000])
    work(first, now=2.0)
    (span,) = one_batch(second).spans
    assert (span.deadline_ms, span.later_ms) == (0, [8_000, 10_000, 9_000])


def test_buffers_go_on_with_the_output_that_they_belong_to() -> None:
    _, first, second, _, client = line()
    client.asks(0, 2, topic="pipe", route=LINE)
    work(first, b"a", b"b", buffers=[2, 1], frames=[b"a1", b"a2", b"b1"])
    (span,) = one_batch(second).spans
    assert (span.items, span.buffers, second.read[0].frames) == ([b"a", b"b"], [2, 1], [b"a1", b"a2", b"b1"])


def test_each_stage_makes_batches_of_its_own() -> None:
    cluster = Cluster()
    first, second = cluster.worker("pr", topic="pre", size=2, slots=1), cluster.worker("be", topic="bert")
    ada, bob = cluster.client("ada"), cluster.client("bob")
    ada.asks(0, 1, topic="bert")
    busy = one_batch(second)
    ada.asks(1, 2, topic="pipe", route=LINE[:2])
    bob.asks(0, 1, topic="pipe", route=LINE[:2])
    assert work(first) == [b"x1", b"x2"]
    assert work(first) == [b"x0"]
    second.answers(busy)
    (batch,) = batches(messages(second))
    assert [(span.origin, span.base, len(span.items)) for span in batch.spans] == [
        (ada.origin, 1, 1),
        (bob.origin, 0, 1),
        (ada.origin, 2, 1),
    ]


def test_branches_run_side_by_side_and_the_stage_behind_them_gets_a_dict() -> None:
    cluster, workers, client = joined()
    client.asks(0, 2, topic="pipe", route=JOINED)
    work(workers["a"])
    assert work(workers["c"]) == [b"aa(x0)", b"aa(x1)"]
    assert handed(workers["d"]) == []
    assert work(workers["b"]) == [b"aa(x0)", b"aa(x1)"]
    assert work(workers["d"]) == [
        {"left": b"bb(aa(x0))", "right": b"cc(aa(x0))"},
        {"left": b"bb(aa(x1))", "right": b"cc(aa(x1))"},
    ]
    assert outcomes(client.told()) == {0: b"dd(+)", 1: b"dd(+)"}
    nothing_is_left(cluster)


def test_a_joined_item_has_the_buffers_of_all_its_parts_in_their_order() -> None:
    _, workers, client = joined()
    client.asks(0, 2, topic="pipe", route=JOINED)
    work(workers["a"])
    work(workers["b"], b"l0", b"l1", buffers=[1, 0], frames=[b"L0"])
    work(workers["c"], b"r0", b"r1", buffers=[0, 2], frames=[b"R1", b"R1'"])
    (span,) = one_batch(workers["d"]).spans
    assert (span.items, span.buffers) == ([b"", b""], None)
    assert [(part.name, part.items, part.buffers) for part in span.parts or ()] == [
        ("left", [b"l0", b"l1"], [1, 0]),
        ("right", [b"r0", b"r1"], [0, 2]),
    ]
    assert workers["d"].read[0].frames == [b"L0", b"R1", b"R1'"]


def test_a_join_may_take_the_requests_own_items_and_meets_them_one_by_one() -> None:
    route = (stage("a"), stage("d", ("item", 0), ("made", 1)))
    cluster = Cluster()
    worker, last = cluster.worker("aa", topic="a", size=1, slots=1), cluster.worker("dd", topic="d")
    client = cluster.client()
    client.asks(0, 2, topic="pipe", route=route)
    work(worker)
    assert work(last) == [{"item": b"x0", "made": b"aa(x0)"}]
    work(worker)
    assert work(last) == [{"item": b"x1", "made": b"aa(x1)"}]
    nothing_is_left(cluster)


def test_joined_and_plain_items_of_one_topic_share_a_batch() -> None:
    _, workers, client = joined()
    client.asks(0, 1, topic="pipe", route=JOINED)
    work(workers["a"])
    work(workers["b"])
    client.asks(9, 1, topic="d")
    busy = one_batch(workers["d"])
    work(workers["c"])
    client.asks(10, 1, topic="d")
    workers["d"].answers(busy)
    (batch,) = batches(messages(workers["d"]))
    assert items(batch) == [{"left": b"bb(aa(x0))", "right": b"cc(aa(x0))"}, b"x10"]


def test_two_stages_may_be_one_topic() -> None:
    cluster = Cluster()
    worker, client = cluster.worker("aa", topic="a"), cluster.client()
    client.asks(0, 1, topic="pipe", route=(stage("a"), again("a", 1)))
    assert (work(worker), work(worker)) == ([b"x0"], [b"aa(x0)"])
    assert outcomes(client.told()) == {0: b"aa(aa(x0))"}
    nothing_is_left(cluster)


def test_a_pipeline_that_the_broker_knows_by_name_is_asked_like_a_topic() -> None:
    _, first, second, third, client = line(pipelines={"all": LINE})
    client.asks(0, 1, topic="all")
    work(first)
    work(second)
    work(third)
    assert outcomes(client.told()) == {0: b"po(be(pr(x0)))"}


# --- errors ------------------------------------------------------------------------------------------


def test_a_failure_names_its_stage_and_keeps_its_code() -> None:
    cluster, first, second, third, client = line()
    client.asks(0, 3, topic="pipe", route=LINE)
    work(first)
    work(second, b"a", b"", b"c", errors=[(1, FAILED)])
    assert faults(client.told()) == [
        Fault("model_failed", "stage 'bert': no", 0, "ValueError", "tb"),
    ]
    assert work(third) == [b"a", b"c"]
    assert outcomes(client.told()) == {0: b"po(a)", 2: b"po(c)"}
    nothing_is_left(cluster)
    assert cluster.core.topics.all["bert"].tally.errors == {"model_failed": 1}


def test_a_long_text_makes_room_for_the_stage() -> None:
    _, first, _, _, client = line()
    client.asks(0, 1, topic="pipe", route=LINE)
    work(first, b"", errors=[(0, Fault("model_failed", "n" * 65_536))])
    (fault,) = faults(client.told())
    assert fault.text[:15] == "stage 'pre': nn"
    assert len(fault.text) == 65_536


def test_what_fails_in_one_branch_is_dropped_in_the_others_and_fails_once() -> None:
    cluster, workers, client = joined()
    client.asks(0, 3, topic="pipe", route=JOINED)
    work(workers["a"])
    running = one_batch(workers["b"])
    work(workers["c"], b"c0", b"", b"c2", errors=[(1, FAILED)])
    assert outcomes(client.told()) == {1: "model_failed"}
    workers["b"].answers(running)
    assert client.told() == []
    assert [one["right"] for one in work(workers["d"])] == [b"c0", b"c2"]
    assert outcomes(client.told()) == {0: b"dd(+)", 2: b"dd(+)"}
    nothing_is_left(cluster)


def test_a_worker_is_told_to_leave_out_what_failed_in_another_branch() -> None:
    cluster, workers, client = joined()
    client.asks(0, 1, topic="b")
    client.asks(1, 4, topic="pipe", route=JOINED)
    busy = one_batch(workers["b"])
    work(workers["a"])
    (behind,) = batches(workers["b"].told())
    work(workers["c"], b"c1", b"", b"c3", b"c4", errors=[(1, FAILED)])
    (skip,) = [one for one in workers["b"].told() if isinstance(one, Skip)]
    assert (skip.batch, skip.positions) == (behind.batch, [(1, 2)])
    workers["b"].answers(busy)
    workers["b"].answers(behind)
    assert len(work(workers["d"])) == 3
    nothing_is_left(cluster)


def test_both_branches_in_one_batch_may_fail_and_the_item_fails_once() -> None:
    route = (stage("a"), again("a", 0), stage("d", ("x", 1), ("y", 2)))
    cluster = Cluster()
    worker, _, client = cluster.worker("aa", topic="a"), cluster.worker("dd", topic="d"), cluster.client()
    client.asks(0, 1, topic="a")
    client.asks(1, 1, topic="pipe", route=route)
    work(worker)
    client.told()
    work(worker, b"", b"", errors=[(0, FAILED), (1, FAILED)])
    assert outcomes(client.told()) == {1: "model_failed"}
    nothing_is_left(cluster)


def test_the_one_deadline_ends_an_item_wherever_it_is() -> None:
    cluster, workers, client = joined()
    client.asks(0, 1, topic="pipe", route=JOINED, ms=1_000)
    work(workers["a"])
    work(workers["b"])
    cluster.turn(1.0)
    (fault,) = faults(client.told())
    assert fault == Fault("deadline_exceeded", "stage 'c': the deadline passed after 1.000 s, while it ran")
    workers["c"].answers(one_batch(workers["c"]), now=1.1)
    assert client.told() == []
    nothing_is_left(cluster)


def test_a_stage_without_workers_is_named_when_the_time_is_over() -> None:
    cluster = Cluster()
    first, client = cluster.worker("pr", topic="pre"), cluster.client()
    client.asks(0, 1, topic="pipe", route=LINE[:2], ms=1_000)
    work(first)
    cluster.turn(1.0)
    (fault,) = faults(client.told())
    assert fault.code == "no_workers"
    assert fault.text.startswith("stage 'bert': the deadline passed")
    nothing_is_left(cluster)


def test_what_is_no_pipeline_is_refused() -> None:
    client = Cluster().client()
    wrong = (stage("a", ("", 1)),)
    assert faults(client.asks(0, 2, topic="pipe", route=wrong)) == [
        Fault("bad_request", "this is no pipeline: stage 'a' reads what does not come before it")
    ]


def test_a_pipeline_with_an_unknown_stage_is_refused_at_once() -> None:
    cluster = Cluster(topics=("pre", "post"))
    client = cluster.client()
    (fault,) = faults(client.asks(0, 1, topic="pipe", route=LINE))
    assert (fault.code, "'bert'" in fault.text) == ("unknown_topic", True)
    nothing_is_left(cluster)


def test_a_pipeline_that_had_no_time_left_is_refused() -> None:
    client = Cluster().client()
    assert outcomes(client.asks(0, 1, topic="pipe", route=LINE, ms=0)) == {0: "deadline_exceeded"}


# --- leaving early -----------------------------------------------------------------------------------


def test_one_cancel_forgets_an_item_wherever_it_is() -> None:
    cluster, workers, client = joined()
    client.asks(0, 2, topic="pipe", route=JOINED)
    work(workers["a"])
    work(workers["b"])
    running = one_batch(workers["c"])
    client.says(Cancel, [(0, 1)])
    workers["c"].answers(running)
    assert len(work(workers["d"])) == 1
    assert outcomes(client.told()) == {1: b"dd(+)"}
    nothing_is_left(cluster)


def test_a_client_that_leaves_leaves_nothing_on_the_way() -> None:
    cluster, workers, client = joined()
    client.asks(0, 2, topic="pipe", route=JOINED)
    work(workers["a"])
    work(workers["b"])
    cluster.turn(11.0)
    assert cluster.core.ledger.clients == {}
    assert cluster.core.ledger.size == 0
    assert all((one.items, one.coming) == (0, 0) for one in cluster.core.topics.all.values())


def test_an_item_on_its_way_is_held_for_its_client() -> None:
    _, workers, client = joined()
    client.asks(0, 2, topic="pipe", route=JOINED)
    for name in "ab":
        work(workers[name])
        (pulse,) = client.says(Beat, [(0, 2)], 2)
        assert pulse.missing == []
    (pulse,) = [one for one in client.says(Beat, [(1, 3)], 3) if isinstance(one, Pulse)]
    assert pulse.missing == [(2, 3)]
    work(workers["c"])
    assert len(work(workers["d"])) == 1


def test_what_is_asked_back_comes_with_the_word_that_a_stage_has_had_it_and_what_runs_stays() -> None:
    cluster = Cluster()
    first, client = cluster.worker("pr", topic="pre", size=1, slots=1), cluster.client()
    client.asks(0, 3, topic="pipe", route=LINE[:2])
    work(first)
    (refused,) = client.says(Cancel, [(0, 3)], True)
    assert sorted((one.ids, one.fault.code, one.fault.kind) for one in refused.refusals) == [
        ([(0, 1)], "draining", "begun"),
        ([(2, 3)], "draining", ""),
    ]
    second = cluster.worker("be", topic="bert", slots=1)
    work(first)
    assert work(second) == [b"pr(x1)"]
    assert outcomes(client.told()) == {1: b"be(pr(x1))"}
    nothing_is_left(cluster)


def test_of_branches_none_is_given_back_while_another_runs() -> None:
    route = (stage("a"), stage("b"), stage("d", ("x", 1), ("y", 2)))
    cluster = Cluster()
    worker, client = cluster.worker("aa", topic="a", size=1, slots=1), cluster.client()
    client.asks(0, 2, topic="pipe", route=route)
    one_batch(worker)
    assert outcomes(client.says(Cancel, [(0, 2)], True)) == {1: "draining"}
    assert outcomes(client.says(Cancel, [(0, 2)], True)) == {}


def test_a_broker_that_leaves_brings_to_its_end_what_a_stage_has_begun() -> None:
    cluster = Cluster()
    first, second = cluster.worker("pr", topic="pre", size=1, slots=1), cluster.worker("be", topic="bert")
    client = cluster.client()
    client.asks(0, 2, topic="pipe", route=LINE[:2])
    cluster.deliver(cluster.core.drain())
    assert outcomes(client.told()) == {1: "draining"}
    work(first)
    before = cluster.core.is_drained
    work(second)
    assert outcomes(client.told()) == {0: b"be(pr(x0))"}
    assert (before, cluster.core.is_drained) == (False, True)
    assert outcomes(client.asks(2, 1, topic="pipe", route=LINE[:2])) == {2: "draining"}


def test_a_topic_is_drained_when_nothing_is_on_its_way_to_it() -> None:
    cluster = Cluster()
    first, second = cluster.worker("pr", topic="pre"), cluster.worker("be", topic="bert")
    client = cluster.client()
    client.asks(0, 2, topic="pipe", route=LINE[:2])
    (ordered,) = client.says(Order, "topic", "bert")
    assert ordered.text == "topic 'bert' takes no new requests; 2 items are to be finished"
    assert outcomes(client.asks(9, 1, topic="pipe", route=LINE[:2])) == {9: "unknown_topic"}
    work(first)
    work(second)
    assert outcomes(client.told()) == {0: b"be(pr(x0))", 1: b"be(pr(x1))"}


def test_a_pipeline_is_unserved_while_a_stage_before_it_is() -> None:
    cluster = Cluster()
    _first, client = cluster.worker("pr", topic="pre"), cluster.client()
    client.asks(0, 1, topic="pipe", route=LINE[:2])
    (pulse,) = client.says(Beat, [(0, 1)], 1)
    assert pulse.unserved == ["pipe"]
    cluster.worker("be", topic="bert")
    (pulse,) = client.says(Beat, [(0, 1)], 1)
    assert pulse.unserved == []


# --- losses --------------------------------------------------------------------------------------------


def test_a_crash_runs_its_stage_again_and_no_other() -> None:
    cluster, first, second, third, client = line()
    supervisor = cluster.supervisor()
    client.asks(0, 1, topic="pipe", route=LINE)
    work(first)
    crashed = one_batch(second)
    dies(supervisor, second, begun=crashed.batch, finished=0)
    fresh = cluster.worker("b2", topic="bert")
    assert work(fresh) == [b"pr(x0)"]
    assert handed(first) == []
    assert work(third) == [b"b2(pr(x0))"]
    assert outcomes(client.told()) == {0: b"po(b2(pr(x0)))"}


def test_what_ended_one_process_in_each_stage_is_no_poison() -> None:
    cluster, first, second, _, client = line()
    supervisor = cluster.supervisor()
    client.asks(0, 1, topic="pipe", route=LINE)
    dies(supervisor, first, begun=one_batch(first).batch)
    work(cluster.worker("p2", topic="pre"))
    dies(supervisor, second, begun=one_batch(second).batch)
    third = cluster.worker("b2", topic="bert")
    dies(supervisor, third, begun=one_batch(third).batch)
    (fault,) = faults(client.told())
    assert (fault.code, fault.text[:13]) == ("poison_item", "stage 'bert':")
    nothing_is_left(cluster)


def test_a_stage_that_must_not_run_twice_does_not() -> None:
    cluster = Cluster()
    first, client = cluster.worker("pr", topic="pre"), cluster.client()
    second = cluster.worker("be", topic="bert", idempotent=False)
    client.asks(0, 1, topic="pipe", route=LINE[:2])
    work(first)
    dies(cluster.supervisor(), second, begun=one_batch(second).batch)
    (fault,) = faults(client.told())
    assert (fault.code, fault.text[:13]) == ("worker_lost", "stage 'bert':")
    nothing_is_left(cluster)


def test_what_was_sent_again_begins_at_the_first_stage_and_counts_as_sent_again_in_each() -> None:
    cluster = Cluster()
    first, client = cluster.worker("pr", topic="pre"), cluster.client()
    cluster.worker("be", topic="bert", idempotent=False)
    client.asks(0, 1, topic="pipe", route=LINE[:2], again=True)
    assert work(first) == [b"x0"]
    assert outcomes(client.told()) == {0: "worker_lost"}


def test_what_is_given_back_in_a_stage_waits_there_again() -> None:
    _cluster, first, second, _, client = line()
    client.asks(0, 1, topic="pipe", route=LINE)
    work(first)
    (batch,) = batches(gives_back(second, one_batch(second)))
    assert items(batch) == [b"pr(x0)"]


# --- bounds --------------------------------------------------------------------------------------------


def test_each_stage_keeps_a_place_for_each_item_on_its_way() -> None:
    cluster, first, _second, _, client = line(limits=Limits(topic_items=3))
    client.asks(0, 2, topic="pipe", route=LINE)
    assert [cluster.core.topics.all[name].coming for name in ("pre", "bert", "post")] == [0, 2, 2]
    assert outcomes(client.asks(9, 2, topic="bert", whole=True)) == {9: "overloaded", 10: "overloaded"}
    work(first)
    assert [cluster.core.topics.all[name].coming for name in ("pre", "bert", "post")] == [0, 0, 2]
    assert [cluster.core.topics.all[name].items for name in ("pre", "bert", "post")] == [0, 2, 0]


def test_of_single_items_as_many_enter_as_every_stage_has_places_for() -> None:
    cluster, *_, client = line(limits=Limits(topic_items=3))
    client.asks(0, 2, topic="post")
    assert outcomes(client.asks(10, 3, topic="pipe", route=LINE)) == {11: "overloaded", 12: "overloaded"}
    assert cluster.core.topics.all["post"].coming == 1


def test_a_request_of_several_enters_whole_or_not() -> None:
    _, *_, client = line(limits=Limits(topic_items=3))
    client.asks(0, 2, topic="post")
    refused = client.asks(10, 2, topic="pipe", route=LINE, whole=True)
    assert outcomes(refused) == {10: "overloaded", 11: "overloaded"}
    assert outcomes(client.asks(20, 4, topic="pipe", route=LINE, whole=True)) == dict.fromkeys(
        range(20, 24), "too_large"
    )


def test_a_client_has_an_item_open_once_however_many_stages_have_it() -> None:
    cluster, workers, client = joined(limits=Limits(client_items=2))
    client.asks(0, 2, topic="pipe", route=JOINED)
    work(workers["a"])
    (known,) = cluster.core.ledger.clients.values()
    assert known.items == 2
    assert outcomes(client.asks(2, 1, topic="pipe", route=JOINED)) == {2: "overloaded"}


def test_a_stage_that_makes_more_than_there_is_room_for_fails_what_does_not_fit() -> None:
    cluster, first, second, _, client = line(limits=Limits(topic_bytes=100))
    client.asks(0, 3, topic="pipe", route=LINE)
    work(first, b"a" * 60, b"b" * 60, b"c" * 40)
    (fault,) = faults(client.told())
    assert fault.code == "overloaded"
    assert fault.text.startswith("stage 'bert': a bound is reached")
    assert items(one_batch(second)) == [b"a" * 60, b"c" * 40]
    assert cluster.core.topics.all["bert"].size == 100


def test_a_stage_that_makes_more_than_would_ever_fit_says_so() -> None:
    cluster, first, _, _, client = line(limits=Limits(topic_bytes=100))
    client.asks(0, 1, topic="pipe", route=LINE)
    work(first, b"a" * 101)
    (fault,) = faults(client.told())
    assert fault.code == "too_large"
    nothing_is_left(cluster)


def test_parts_that_are_too_much_for_one_message_fail_at_the_join() -> None:
    cluster, workers, client = joined(limits=Limits(message_bytes=1 << 20))
    client.asks(0, 2, topic="pipe", route=JOINED)
    work(workers["a"])
    work(workers["b"], b"l" * 600_000, b"l")
    work(workers["c"], b"r" * 600_000, b"r")
    (fault,) = faults(client.told())
    assert (fault.code, fault.text[:42]) == ("too_large", "stage 'd': its inputs have 1,200,128 bytes")
    assert len(work(workers["d"])) == 1
    nothing_is_left(cluster)


def test_what_would_wait_in_vain_in_any_stage_is_refused_at_once() -> None:
    cluster, _first, _second, _third, client = line()
    for topic in cluster.core.topics.all.values():
        topic.typical_run = 1.0
    client.asks(0, 12, topic="bert")
    (fault,) = faults(client.asks(20, 1, topic="pipe", route=LINE, ms=2_000))
    assert (fault.code, "topic 'bert'" in fault.text) == ("overloaded", True)
    assert client.asks(21, 1, topic="pipe", route=LINE, ms=20_000) == []


def test_stages_that_are_new_are_not_let_go_for_each_other() -> None:
    cluster = Cluster(limits=Limits(unserved_topics=2))
    client = cluster.client()
    assert client.asks(0, 1, topic="pipe", route=LINE[:2]) == []
    assert sorted(cluster.core.topics.all) == ["bert", "pre"]
    assert outcomes(client.says(Request, [group(1, topic="other")])) == {1: "unknown_topic"}


# --- fairness ------------------------------------------------------------------------------------------


def test_priority_and_turns_hold_in_each_stage() -> None:
    cluster = Cluster()
    first = cluster.worker("pr", topic="pre", size=8, slots=1)
    ada, bob = cluster.client("ada"), cluster.client("bob")
    route = LINE[:2]
    cluster.client("eve").asks(0, 1, topic="pre")
    ada.asks(0, 2, topic="pipe", route=route)
    ada.asks(2, 1, topic="pipe", route=route, priority=1)
    bob.asks(10, 1, topic="pipe", route=route)
    work(first)
    work(first)
    second = cluster.worker("be", topic="bert", size=1, slots=1)
    assert [work(second)[0] for _ in range(4)] == [b"pr(x2)", b"pr(x0)", b"pr(x10)", b"pr(x1)"]
