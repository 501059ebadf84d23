"""Who gets which batch, and when: idle workers first, full batches in advance, nothing frozen early."""

from __future__ import annotations

from tests.core.driving import EPOCH, Cluster, gives_back, group, ready
from tests.core.hearing import batch_ids, batches, handed, ids, outcomes
from zbatch.messages import (
    Batch,
    Beat,
    Cancel,
    Done,
    Draining,
    Facts,
    Progress,
    Pulse,
    Ready,
    Recall,
    Request,
    Span,
)


def test_a_lone_item_goes_to_an_idle_worker_at_once() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    assert batch == Batch(
        *(worker.conn, 2, 2, EPOCH, 1, 1),
        [Span(client.origin, 0, 30_000, [b"x0"], None, None)],
        "",
    )


def test_what_several_clients_ask_for_runs_as_one_batch() -> None:
    cluster = Cluster()
    ada, bob = cluster.client("ada"), cluster.client("bob")
    ada.asks(0, 1)
    bob.asks(7, 2)
    worker = cluster.worker()
    (batch,) = batches(worker.greeted)
    assert [(span.origin, span.items) for span in batch.spans] == [
        (ada.origin, [b"x0"]),
        (bob.origin, [b"x7", b"x8"]),
    ]
    worker.answers(batch)
    assert outcomes(ada.told()) == {0: b"yx0"}
    assert outcomes(bob.told()) == {7: b"yx7", 8: b"yx8"}


def test_a_request_larger_than_a_batch_is_split_and_rejoined() -> None:
    cluster = Cluster()
    one, two, client = cluster.worker("w1"), cluster.worker("w2"), cluster.client()
    client.asks(0, 6)
    (first,), (second,) = batches(one.told()), batches(two.told())
    assert (ids(first), ids(second)) == ([(0, 4)], [(4, 6)])
    two.answers(second)
    one.answers(first)
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(6)}


def test_a_full_batch_is_prefetched_behind_the_one_that_runs() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 9)
    assert handed(worker) == [[(0, 4)], [(4, 8)]]


def test_a_part_filled_batch_waits_for_an_idle_worker_and_grows_meanwhile() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (first,) = batches(worker.told())
    client.asks(1, 1)
    client.asks(2, 1)
    assert handed(worker) == []
    assert [ids(one) for one in batches(worker.answers(first))] == [[(1, 2), (2, 3)]]


def test_batches_of_different_keys_are_apart() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.says(Request, [group(0, 1, key="en"), group(1, 1, key="de"), group(2, 1, key="en")])
    worker = cluster.worker()
    (first,) = batches(worker.greeted)
    assert (first.key, ids(first)) == ("en", [(0, 1), (2, 3)])
    (second,) = batches(worker.answers(first))
    assert (second.key, ids(second)) == ("de", [(1, 2)])


def test_a_batch_is_cut_to_the_cost_that_its_worker_takes() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(cost=10.0), cluster.client()
    client.asks(0, 3, costs=[6.0, 4.0, 1.0])
    assert handed(worker) == [[(0, 2)]]


def test_the_broker_may_cap_what_workers_announce() -> None:
    cluster = Cluster(batch_size=2, max_latency=0.005)
    small, client = cluster.worker("w1", size=1), cluster.client()
    large = cluster.worker("w2", size=4)
    client.asks(0, 9)
    assert (handed(small), handed(large)) == ([[(0, 1)], [(3, 4)]], [[(1, 3)], [(4, 6)]])
    assert cluster.core.topics.all["bert"].roster.max_latency == 0.005


def test_a_window_closes_when_the_oldest_item_has_waited_long_enough() -> None:
    cluster = Cluster(batching="window")
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1, now=1.0)
    assert handed(worker) == []
    assert cluster.core.wakeup() == 1.010
    client.asks(1, 1, now=1.005)
    cluster.turn(1.009)
    assert handed(worker) == []
    cluster.turn(1.010)
    assert handed(worker) == [[(0, 1), (1, 2)]]


def test_a_window_closes_at_once_when_the_batch_is_full() -> None:
    cluster = Cluster(batching="window")
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 4, now=1.0)
    assert handed(worker) == [[(0, 4)]]
    assert cluster.core.topics.all["bert"].tally.closed == {"full": 1}


def test_deadlines_of_their_own_travel_with_the_items() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 3, ms=1_000, later_ms=[0, 500, 2_000], now=1.0)
    (batch,) = batches(worker.told())
    assert [(span.deadline_ms, span.later_ms) for span in batch.spans] == [(0, [1_000, 1_500, 3_000])]


def test_buffers_go_through_untouched() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    frames = [bytearray(b"p"), bytearray(b"q")]
    client.says(Request, [group(0, 2, buffers=[0, 2])], frames=frames)
    sent = worker.inbox[0]
    (batch,) = batches(worker.told())
    assert [span.buffers for span in batch.spans] == [[0, 2]]
    assert all(came is went for came, went in zip(sent.frames, frames, strict=True))
    back = [bytearray(b"r")]
    worker.says(Done, EPOCH, 1, 1, worker.incarnation, [b"y0", b"y1"], [1, 0], None, 5.0, frames=back)
    assert client.inbox[0].frames[0] is back[0]
    (result,) = client.told()
    assert [(span.base, span.outputs, span.buffers) for span in result.spans] == [(0, [b"y0", b"y1"], [1, 0])]


# --- calling back --------------------------------------------------------------------------------


def slow(cluster: Cluster) -> None:
    """Let the topic's runs be known as long ones."""
    cluster.core.topics.all["bert"].typical_run = 1.0


def test_a_prefetched_batch_is_called_back_when_another_worker_idles() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    slow(cluster)
    client.asks(0, 8)
    _, second = batches(one.told())
    two = cluster.worker("w2")
    (recall,) = one.told()
    assert recall == Recall(one.conn, 4, 2, EPOCH, second.batch)
    gives_back(one, second)
    (again,) = batches(two.told())
    assert (ids(again), again.attempt) == ([(4, 8)], 2)


def test_a_batch_is_called_back_once() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    slow(cluster)
    client.asks(0, 8)
    one.told()
    cluster.worker("w2")
    assert len(one.told()) == 1
    cluster.worker("w3")
    assert one.told() == []


def test_nothing_is_called_back_where_runs_are_short() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    one.told()
    cluster.worker("w2")
    assert one.told() == []


# --- workers that come, change and leave ----------------------------------------------------------


def test_a_worker_of_a_topic_that_is_not_served_gets_nothing() -> None:
    cluster = Cluster(topics=("resnet",))
    worker = cluster.worker(topic="bert")
    assert worker.told() == []
    assert cluster.core.counters["worker_of_an_unknown_topic"] == 1


def test_a_worker_that_no_supervisor_named_serves_all_the_same() -> None:
    cluster = Cluster()
    worker, client = cluster.stranger_worker(incarnation=b""), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(ready(worker))
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0"}


def test_a_second_offer_replaces_the_first() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(size=4), cluster.client()
    worker.says(Ready, "bert", 1, 2, None, 5.0, 60_000, True, Facts())
    client.asks(0, 4)
    assert handed(worker) == [[(0, 2)]]
    assert cluster.core.topics.all["bert"].roster.max_latency == 0.005


def test_a_worker_that_offers_again_does_not_drain_any_more() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    worker.says(Draining)
    client.asks(0, 1)
    assert handed(worker) == []
    assert batch_ids(ready(worker)) == [[(0, 1)]]


def test_an_offer_is_told_with_what_was_made_of_it() -> None:
    cluster = Cluster(batch_size=2)
    cluster.worker(size=4)
    offered = {"topic": "bert", "host": "host", "pid": 1, "gpu": "0", "model": "m:M", "batch_size": 2}
    assert cluster.core.events == [("worker ready", offered)]


def test_an_offer_of_another_topic_ends_the_first() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    worker.told()
    ready(worker, topic="resnet")
    assert len(cluster.core.topics.all["bert"].roster) == 0
    assert batch_ids(cluster.worker("w2").greeted) == [[(0, 1)]]


def test_what_is_run_for_another_topic_than_at_first_counts() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    for topic in ("resnet", "llama"):
        ready(worker, topic=topic)
        client.asks(0, 1, topic=topic)
        (batch,) = batches(worker.told())
        worker.answers(batch)
        assert outcomes(client.told()) == {0: b"yx0"}


def test_a_draining_worker_gets_nothing_new_and_its_answers_count() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    assert [type(one) for one in worker.says(Draining)] == [Pulse]  # it leaves once all is acknowledged
    client.asks(1, 1)
    assert worker.answers(batch) == []
    assert outcomes(client.told()) == {0: b"yx0"}


def test_draining_progress_and_beats_of_a_worker_without_an_offer_mean_nothing() -> None:
    cluster = Cluster()
    worker = cluster.stranger_worker()
    assert len(worker.says(Draining)) == 1
    assert worker.says(Progress, EPOCH, 1) == []
    assert len(worker.says(Beat)) == 1


def test_cancelled_items_of_a_prefetched_batch_are_named_to_its_worker() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=3), cluster.client()
    client.asks(0, 12)
    worker.told()
    client.says(Cancel, [(1, 2), (5, 7)])
    (skip,) = worker.told()
    assert (skip.batch, skip.positions) == (2, [(1, 3)])


def test_cancelled_items_are_named_once_by_their_place_in_the_batch() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.says(Request, [group(0, 6), group(10, 2)])
    assert handed(worker) == [[(0, 4)], [(4, 6), (10, 12)]]
    (skip,) = client.says(Cancel, [(10, 11)]) + worker.told()
    assert (skip.batch, skip.positions) == (2, [(2, 3)])
    client.asks(20, 1)
    assert worker.told() == []
