"""What clients may ask for: each item that is admitted has one outcome, each other one an error at once."""

from __future__ import annotations

from typing import Any

from tests.core.driving import EPOCH, Cluster, group
from tests.core.hearing import batch_ids, batches, outcomes
from zbatch.config import Limits
from zbatch.core.sizes import LEAST
from zbatch.messages import Beat, Bye, Fault, Group, Hello, Pulse, Refused, Request, Welcome


def faults(messages: list[Any]) -> list[Fault]:
    return [refusal.fault for one in messages if isinstance(one, Refused) for refusal in one.refusals]


# --- asking --------------------------------------------------------------------------------------


def test_a_request_is_answered_with_what_the_worker_made_of_it() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    assert client.asks(0, 2) == []
    (batch,) = batches(worker.told())
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0", 1: b"yx1"}


def test_a_request_for_a_topic_without_workers_waits_for_one() -> None:
    cluster = Cluster()
    client = cluster.client()
    assert client.asks() == []
    assert batch_ids(cluster.worker(now=1.0).greeted) == [[(0, 1)]]


def test_a_group_that_is_sent_again_is_taken_where_it_was_not_held() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 2)
    client.says(Request, [group(0, 4, again=True)])
    assert cluster.core.topics.all["bert"].items == 4
    worker = cluster.worker()
    (batch,) = batches(worker.greeted)
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0", 1: b"yx1", 2: b"yx2", 3: b"yx3"}


def test_a_part_that_is_sent_again_keeps_its_buffers_costs_and_deadlines() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    again = group(0, 3, again=True, buffers=[1, 0, 2], costs=[1.0, 2.0, 3.0], later_ms=[0, 1_000, 2_000])
    client.says(Request, [again], frames=[b"p", b"q", b"r"])
    held = cluster.core.ledger.clients[client.life].groups()[1]
    assert (held.base, held.items, held.buffers) == (1, [b"x1", b"x2"], [[], [b"q", b"r"]])
    assert (held.costs, held.later) == ([2.0, 3.0], [1.0, 2.0])


def test_a_part_that_is_sent_again_and_does_not_fit_whole_keeps_its_own_buffers() -> None:
    cluster = Cluster(limits=Limits(client_items=2))
    client = cluster.client()
    client.asks(0, 1)
    again = group(0, 4, again=True, buffers=[1, 1, 2, 1])
    client.says(Request, [again], frames=[b"p", b"q", b"r", b"s", b"t"])
    held = cluster.core.ledger.clients[client.life].groups()[1]
    assert (held.base, held.items, held.buffers) == (1, [b"x1"], [[b"q"]])


def test_what_is_sent_again_without_buffers_stays_without() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    client.says(Request, [group(0, 3, again=True)])
    held = cluster.core.ledger.clients[client.life].groups()[1]
    assert (held.buffers, held.costs, held.later) == (None, None, None)


def test_two_groups_sent_again_in_one_message_are_each_compared_with_what_is_held() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    client.asks(5, 1)
    client.says(Request, [group(0, 2, again=True), group(5, 2, again=True)])
    assert cluster.core.topics.all["bert"].items == 4


def test_a_part_that_is_sent_again_is_refused_by_its_own_ids() -> None:
    cluster = Cluster(limits=Limits(client_items=3))
    client = cluster.client()
    client.asks(10, 1)
    assert outcomes(client.says(Request, [group(10, 4, again=True)])) == {13: "overloaded"}
    assert batch_ids(cluster.worker().greeted) == [[(10, 11), (11, 13)]]
    assert outcomes(client.says(Request, [group(12, 2, ms=0, again=True)])) == {13: "deadline_exceeded"}
    cluster.core.drain()
    assert outcomes(client.says(Request, [group(12, 2, again=True)])) == {13: "draining"}


def test_a_deadline_that_had_passed_on_arrival_is_exceeded_at_once() -> None:
    client = Cluster().client()
    assert faults(client.asks(ms=0)) == [
        Fault("deadline_exceeded", "the deadline had passed when the request arrived")
    ]


def test_a_topic_that_the_broker_does_not_serve_is_unknown_at_once() -> None:
    client = Cluster(topics=("resnet",)).client()
    assert outcomes(client.asks(0, 3)) == {0: "unknown_topic", 1: "unknown_topic", 2: "unknown_topic"}


def test_no_deadline_is_further_away_than_a_week() -> None:
    cluster = Cluster()
    cluster.client().asks(ms=2**50)
    assert cluster.core.wakeup() is not None
    (held,) = cluster.core.ledger.clients[b"life of ada....."].groups()
    assert held.deadline == 604_800.0


# --- bounds --------------------------------------------------------------------------------------


def test_beyond_the_bound_of_a_topic_items_are_refused_at_once() -> None:
    cluster = Cluster(limits=Limits(topic_items=3))
    ada, bob = cluster.client("ada"), cluster.client("bob")
    assert outcomes(ada.asks(0, 5)) == {3: "overloaded", 4: "overloaded"}
    assert outcomes(bob.asks(0, 1)) == {0: "overloaded"}
    assert batch_ids(cluster.worker().greeted) == [[(0, 3)]]


def test_a_request_of_several_items_is_admitted_whole_or_refused_whole() -> None:
    client = Cluster(limits=Limits(topic_items=3)).client()
    assert outcomes(client.asks(0, 2, whole=True)) == {}
    assert outcomes(client.asks(2, 2, whole=True)) == {2: "overloaded", 3: "overloaded"}


def test_beyond_the_bound_of_a_client_others_may_still_ask() -> None:
    cluster = Cluster(limits=Limits(client_items=2))
    ada, bob = cluster.client("ada"), cluster.client("bob")
    assert outcomes(ada.asks(0, 1)) == {}
    assert outcomes(ada.asks(1, 2)) == {2: "overloaded"}
    assert outcomes(bob.asks(0, 2)) == {}


def test_bounds_count_bytes_too() -> None:
    client = Cluster(limits=Limits(client_bytes=4)).client()
    assert outcomes(client.asks(0, 2)) == {}
    assert outcomes(client.asks(2, 1)) == {2: "overloaded"}
    cluster = Cluster(limits=Limits(topic_bytes=4))
    assert outcomes(cluster.client("ada").asks(0, 2)) == {}
    assert outcomes(cluster.client("bob").asks(0, 1)) == {0: "overloaded"}


def test_buffers_count_with_their_length() -> None:
    client = Cluster(limits=Limits(client_bytes=10_002)).client()
    assert outcomes(client.says(Request, [group(0, 1, buffers=[1])], frames=[bytes(10_000)])) == {}
    assert outcomes(client.asks(1, 1)) == {1: "overloaded"}


def test_a_short_buffer_counts_as_much_as_its_frame_costs() -> None:
    client = Cluster(limits=Limits(client_bytes=2 * LEAST + 5)).client()
    assert outcomes(client.says(Request, [group(0, 1, buffers=[2])], frames=[b"1", b"2"])) == {}
    assert outcomes(client.says(Request, [group(1, 1, buffers=[1])], frames=[b"1"])) == {1: "overloaded"}


def test_an_overloaded_topic_says_when_to_come_back() -> None:
    cluster = Cluster(limits=Limits(topic_items=4))
    worker, client = cluster.worker(), cluster.client()
    assert faults(client.asks(0, 5)) == [
        Fault(
            "overloaded",
            "a bound is reached: topic 'bert' has 4 unfinished items; come back in 1.0 s",
            retry_after_ms=1_000,
        )
    ]
    (batch,) = batches(worker.told())
    worker.answers(batch, now=1.0)
    client.told()
    client.asks(5, 3, now=3.0)
    # 4 items in 2 s were answered, and 3 wait.
    assert faults(client.asks(8, 2, whole=True, now=3.0)) == [
        Fault(
            "overloaded",
            "a bound is reached: topic 'bert' has 3 unfinished items; come back in 1.5 s",
            retry_after_ms=1_500,
        )
    ]


def test_nobody_is_sent_away_for_less_than_a_tenth_of_a_second_or_more_than_a_minute() -> None:
    cluster = Cluster(limits=Limits(topic_items=40, client_items=41))
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    worker.answers(batch, now=1.0)
    client.told()
    client.asks(1, 40, topic="clip", now=3.0)
    client.asks(41, 1, topic="clap", now=3.0)
    (soon,) = faults(client.asks(50, 1, now=3.0))
    (late,) = faults(cluster.client("bob").asks(0, 41, now=3.0))
    assert (soon.retry_after_ms, late.retry_after_ms) == (100, 60_000)


def test_a_request_that_would_not_fit_into_an_empty_broker_is_too_large() -> None:
    client = Cluster(limits=Limits(topic_items=3, client_bytes=9)).client()
    (fault,) = faults(client.asks(0, 4, whole=True))
    text = "the request has 4 items, at most 3 are held for a client: send fewer at a time"
    assert fault == Fault("too_large", text)
    (fault,) = faults(client.asks(10, 3, whole=True) + client.asks(100, 3, whole=True))
    assert fault == Fault(
        "too_large", "the request has 12 bytes, at most 9 are held for a client: send fewer at a time"
    )


def test_a_single_item_over_the_bound_is_too_large_and_several_are_only_too_many_at_once() -> None:
    client = Cluster(limits=Limits(client_bytes=4)).client()
    assert outcomes(client.says(Request, [Group(0, "bert", 9, [b"12345"])])) == {0: "too_large"}
    assert outcomes(client.asks(1, 4)) == dict.fromkeys((3, 4), "overloaded")


def test_an_item_over_the_bound_hurts_none_of_its_group() -> None:
    cluster = Cluster(limits=Limits(client_bytes=LEAST + 4))
    client = cluster.client()
    group = Group(0, "bert", 9_000, [b"1", bytes(LEAST + 5), b"12"], [1, 0, 0])
    assert outcomes(client.says(Request, [group], frames=[b"12"])) == {1: "too_large"}
    assert batch_ids(cluster.worker().greeted) == [[(0, 1), (2, 3)]]


def test_a_request_sent_again_that_fits_no_more_as_a_whole_is_served_in_parts() -> None:
    cluster = Cluster(limits=Limits(client_bytes=6))
    client = cluster.client()
    assert outcomes(client.asks(0, 4, again=True)) == {3: "overloaded"}
    assert batch_ids(cluster.worker().greeted) == [[(0, 3)]]


def test_what_has_an_outcome_makes_room() -> None:
    cluster = Cluster(limits=Limits(client_items=1, client_bytes=2))
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0"}
    assert outcomes(client.asks(1, 1)) == {}


def test_nothing_is_kept_of_what_has_an_outcome() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=0), cluster.client()
    client.asks(0, 1, ms=1_000)
    (batch,) = batches(worker.told())
    worker.answers(batch)
    assert cluster.core.ledger.clients[client.life].groups() == []
    # Not the deadline: the next look at who is silent.
    assert cluster.core.wakeup() == 3.0


# --- healing -------------------------------------------------------------------------------------


def test_a_beat_is_answered_with_the_open_ids_that_are_not_held() -> None:
    client = Cluster().client()
    client.asks(0, 2)
    assert client.says(Beat, [(0, 5)], 5) == [Pulse(client.conn, 2, 3, [(2, 5)], 3, ["bert"])]


def test_what_a_client_does_not_name_any_more_is_dropped() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 4)
    client.says(Beat, [(1, 2)], 4)
    assert cluster.core.topics.all["bert"].items == 1


def test_ids_that_a_beat_could_not_know_of_are_not_dropped() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 4)
    client.says(Beat, [], 2)
    assert cluster.core.topics.all["bert"].items == 2


def test_an_outcome_on_its_way_is_not_missing() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    worker.answers(batch)
    # The client has not read its result yet.
    client.sent += 1
    acts = cluster.core.handle(client.peer, Beat(client.conn, client.sent, 1, [(0, 1)], 1), (), 0.0)
    assert [one.message for one in acts] == [Pulse(client.conn, 3, 3, [], 3, [])]


def test_an_outcome_that_has_arrived_is_missing_if_it_is_named_all_the_same() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0"}
    (pulse,) = client.says(Beat, [(0, 1)], 1)
    assert pulse.missing == [(0, 1)]


def test_a_refusal_on_its_way_is_not_missing() -> None:
    cluster = Cluster(topics=("resnet",))
    client = cluster.client()
    asked = Request(client.conn, 2, 1, [group(0, 1)])
    cluster.core.handle(client.peer, asked, (), 0.0)
    cluster.core.tick(0.0)
    acts = cluster.core.handle(client.peer, Beat(client.conn, 3, 1, [(0, 1)], 1), (), 0.0)
    assert [one.message for one in acts] == [Pulse(client.conn, 3, 3, [], 3, [])]


def test_a_beat_may_name_its_ids_in_any_order() -> None:
    client = Cluster().client()
    client.asks(4, 1)
    (pulse,) = client.says(Beat, [(6, 8), (0, 5), (2, 3)], 8)
    assert pulse.missing == [(0, 4), (6, 8)]


def test_after_a_new_connection_the_welcome_names_what_was_lost() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 2)
    client.asks(2, 1)
    first, *_ = batches(worker.told())
    worker.answers(first)
    # The result travelled over the old connection; 0 and 1 will run again.
    (welcome,) = cluster.again(client, open=[(0, 3)], next=3).greeted
    assert welcome.missing == [(0, 2)]


def test_a_welcome_names_epoch_limits_and_missing_ids() -> None:
    cluster = Cluster(limits=Limits(message_bytes=1 << 20))
    client = cluster.client()
    assert client.says(Hello, client.life, "client", 1, [(4, 6)], 6) == [
        Welcome(client.conn, 2, 1, EPOCH, 1, [(4, 6)], 1 << 20, [])
    ]


# --- leaving -------------------------------------------------------------------------------------


def test_with_a_goodbye_all_that_waits_is_dropped() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 4)
    client.says(Bye)
    assert cluster.core.topics.all["bert"].items == 0
    assert cluster.core.ledger.clients == {}


def test_after_a_goodbye_nothing_more_is_sent() -> None:
    cluster = Cluster(topics=("resnet",))
    client = cluster.client()
    cluster.core.handle(client.peer, Request(client.conn, 2, 1, [group(0, 1)]), (), 0.0)
    cluster.core.handle(client.peer, Bye(client.conn, 3, 1), (), 0.0)
    assert cluster.core.tick(0.0) == []


def test_a_broker_that_does_not_leave_is_not_drained() -> None:
    assert not Cluster().core.is_drained


def test_a_draining_broker_hands_back_what_waits_and_takes_nothing_new() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 6)
    cluster.deliver(cluster.core.drain())
    assert outcomes(client.told()) == {4: "draining", 5: "draining"}
    assert outcomes(client.asks(6, 1)) == {6: "draining"}
    assert not cluster.core.is_drained
    (batch,) = batches(worker.told())
    worker.answers(batch)
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4)}
    assert cluster.core.is_drained


def test_a_draining_broker_tells_those_of_whom_it_has_nothing() -> None:
    cluster = Cluster()
    idle, busy = cluster.client("ida"), cluster.client("bea")
    busy.asks(0, 1)
    cluster.deliver(cluster.core.drain())
    (told,) = idle.told()
    assert [(refusal.ids, refusal.fault.code) for refusal in told.refusals] == [([], "draining")]
    (told,) = busy.told()
    assert [(refusal.ids, refusal.fault.code) for refusal in told.refusals] == [([(0, 1)], "draining")]


def test_many_refusals_of_one_kind_travel_as_one() -> None:
    client = Cluster(topics=("resnet",)).client()
    told = client.says(Request, [Group(0, "bert", 9, [b"a"]), Group(7, "bert", 9, [b"b"])])
    (refused,) = told
    assert [refusal.ids for refusal in refused.refusals] == [[(0, 1), (7, 8)]]


def test_a_message_carries_so_many_ranges_of_refused_ids_at_most_in_one_refusal() -> None:
    client = Cluster(topics=("resnet",)).client()
    groups = [Group(2 * at, "bert", 9, [b"a"]) for at in range(4_097)]
    (refused,) = client.says(Request, groups)
    assert [len(refusal.ids) for refusal in refused.refusals] == [4_096, 1]


def test_all_topics_together_are_bounded_too() -> None:
    cluster = Cluster(limits=Limits(broker_bytes=10))
    client = cluster.client()
    assert client.asks(0, 3) == []
    assert client.asks(3, 2, topic="gpt") == []
    (fault,) = faults(client.asks(5, 1, topic="other"))
    assert fault.code == "overloaded"
    client.says(Beat, [], 99)
    assert cluster.core.ledger.size == 0


# --- what would wait in vain ---------------------------------------------------------------------


def busy(**settings: Any) -> tuple[Cluster, Any, Any]:
    """Return a broker whose one worker, for one item at a time, takes half a second each; 40 items wait."""
    cluster = Cluster(**settings)
    worker, client = cluster.worker(size=1, slots=1), cluster.client()
    cluster.core.topics.all["bert"].typical_run = 0.5
    client.asks(0, 40)
    return cluster, worker, client


def test_what_would_wait_beyond_its_deadline_is_refused_at_once() -> None:
    _, _, client = busy()
    (fault,) = faults(client.says(Request, [group(50, 1, ms=10_000)]))
    assert fault == Fault(
        "overloaded",
        "topic 'bert' has 40 unfinished items: this one would wait 20.5 s, longer than 10.0 s; "
        "come back in 15.5 s",
        retry_after_ms=15_500,
    )


def test_what_will_have_its_turn_in_time_is_admitted() -> None:
    cluster, _, client = busy()
    assert client.says(Request, [group(50, 1, ms=23_000)]) == []
    assert cluster.core.topics.all["bert"].items == 41


def test_the_one_that_may_wait_longest_speaks_for_its_group() -> None:
    _, _, client = busy()
    assert client.says(Request, [group(50, 2, ms=1_000, later_ms=[0, 25_000])]) == []


def test_a_polite_client_does_not_wait_behind_all_that_a_greedy_one_asked_for() -> None:
    cluster, _, _ = busy()
    polite = cluster.client("bob")
    assert polite.says(Request, [group(0, 1, ms=3_000)]) == []


def test_what_is_sent_again_had_its_place() -> None:
    _, _, client = busy()
    assert client.says(Request, [group(50, 1, ms=1_000, again=True)]) == []


def test_the_age_that_a_topic_may_reach_can_be_bounded() -> None:
    _, _, client = busy(limits=Limits(topic_age=5.0))
    (fault,) = faults(client.asks(50, 1))
    assert "would wait 20.5 s, longer than 5.0 s" in fault.text


def test_what_runs_for_nobody_any_more_is_not_waited_for() -> None:
    cluster, _, client = busy()
    client.says(Beat, [], 99)
    topic = cluster.core.topics.all["bert"]
    assert (topic.items, topic.running) == (0, 1)
    assert client.says(Request, [group(100, 1, ms=200)]) == []
    (fault,) = faults(client.says(Request, [group(101, 1, ms=200)]))
    assert fault.code == "overloaded"


def test_without_workers_nobody_knows_how_long_it_takes() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 40)
    assert client.says(Request, [group(50, 1, ms=10)]) == []
