"""A batch that hangs: the supervisor should see to it, and two beats after the lease the broker does."""

from __future__ import annotations

from tests.core.driving import EPOCH, Cluster, beats, gives_back
from tests.core.hearing import batch_ids, batches, handed, outcomes
from zbatch.messages import Beat, Draining, Progress, Recall

# Each lease is 5 s, so what begins at 0.0 and still runs at 7.0 is lost.

OVERRUN = "lease_overrun"


def test_a_batch_that_overruns_its_lease_runs_elsewhere_and_its_worker_gets_nothing() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", lease_ms=5_000), cluster.client()
    client.asks(0, 8)
    first, second = batches(one.told())
    beats(one, first, second, now=6.9)
    cluster.turn(7.1)
    assert one.told() == [Recall(one.conn, 5, 3, EPOCH, second.batch)]
    two = cluster.worker("w2", now=7.2)
    assert batch_ids(two.greeted) == [[(0, 4)], [(4, 8)]]
    assert cluster.core.counters[OVERRUN] == 1


def test_a_batch_that_overruns_its_lease_is_handed_out_again_in_the_same_turn() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    two = cluster.worker("w2", now=6.0)
    beats(one, batch, now=6.9)
    cluster.turn(7.1)
    assert handed(two) == [[(0, 4)]]


def test_progress_renews_a_lease() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(worker.told())
    worker.says(Progress, EPOCH, batch.batch, now=4.0)
    cluster.turn(7.1)
    assert OVERRUN not in cluster.core.counters
    cluster.turn(11.1)
    assert cluster.core.counters[OVERRUN] == 1


def test_a_lease_is_over_when_the_batch_is_answered() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(worker.told())
    worker.answers(batch, now=1.0)
    cluster.turn(7.1)
    assert OVERRUN not in cluster.core.counters


def test_each_batch_has_a_lease_of_its_own() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (first,) = batches(worker.told())
    worker.answers(first, now=4.0)
    client.asks(4, 4, now=4.0)
    (second,) = batches(worker.told())
    beats(worker, second, running=second.batch, now=10.9)
    assert OVERRUN not in cluster.core.counters
    cluster.turn(11.1)
    assert cluster.core.counters[OVERRUN] == 1


def test_a_batch_is_lost_at_the_very_moment_and_the_broker_wakes_for_it() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=500), cluster.client()
    client.asks(0, 4)
    worker.told()
    assert cluster.core.wakeup() == 2.5
    cluster.turn(2.5)
    assert cluster.core.counters[OVERRUN] == 1


def test_a_prefetched_batch_begins_when_the_one_before_it_is_answered() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 8)
    first, second = batches(worker.told())
    worker.answers(first, now=4.0)
    beats(worker, second, running=second.batch, now=10.9)
    assert OVERRUN not in cluster.core.counters
    cluster.turn(11.1)
    assert cluster.core.counters[OVERRUN] == 1


def test_a_prefetched_batch_begins_when_the_one_before_it_is_returned() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 8)
    first, second = batches(worker.told())
    worker.says(Draining)
    gives_back(worker, first, now=4.0)
    beats(worker, second, running=second.batch, now=10.9)
    assert OVERRUN not in cluster.core.counters
    cluster.turn(11.1)
    assert cluster.core.counters[OVERRUN] == 1


def test_a_batch_handed_over_behind_another_does_not_renew_its_lease() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    client.asks(4, 4, now=4.0)
    beats(worker, *batches(worker.told()), now=6.9)
    cluster.turn(7.1)
    assert cluster.core.counters[OVERRUN] == 1


def test_what_begins_in_the_turn_in_which_a_lease_is_looked_at_has_its_own() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 8)
    first, second = batches(worker.told())
    beats(worker, first, second, running=first.batch, now=6.0)
    client.says(Beat, [(0, 8)], 8, now=6.0)
    worker.answers(first, now=7.1)
    beats(worker, second, running=second.batch, now=13.9)
    assert OVERRUN not in cluster.core.counters
    cluster.turn(14.2)
    assert cluster.core.counters[OVERRUN] == 1


def test_a_worker_that_was_idle_when_it_was_looked_at_is_watched_again() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (first,) = batches(worker.told())
    worker.answers(first, now=1.0)
    beats(worker, now=7.0)
    client.asks(4, 4, now=8.0)
    (batch,) = batches(worker.told())
    beats(worker, batch, running=batch.batch, now=14.9)
    cluster.turn(15.1)
    assert cluster.core.counters[OVERRUN] == 1


def test_progress_of_a_batch_that_has_not_begun_does_not_begin_it() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 8)
    _, second = batches(worker.told())
    worker.says(Progress, EPOCH, second.batch)
    cluster.turn(3.0)
    assert worker.told()[0] == Recall(worker.conn, 4, 3, EPOCH, second.batch)


def test_progress_of_another_epoch_renews_nothing() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(worker.told())
    worker.says(Progress, b"epoch..0", batch.batch, now=4.0)
    cluster.turn(7.0)
    assert cluster.core.counters[OVERRUN] == 1


def test_without_a_lease_nobody_looks() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=0), cluster.client()
    client.asks(0, 4)
    worker.told()
    cluster.turn(2.9)
    assert OVERRUN not in cluster.core.counters


def test_the_late_answer_of_a_batch_that_overran_counts_if_it_is_the_first() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    beats(one, batch, now=6.9)
    cluster.turn(7.1)
    one.answers(batch, now=7.2)
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4)}
    client.asks(4, 1, now=7.3)
    assert handed(one) == [[(4, 5)]]


def test_a_worker_that_does_not_hold_what_overran_is_not_stuck_in_it() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    beats(one, batch, now=6.9)
    cluster.turn(7.1)
    client.says(Beat, [(0, 4)], 4, now=7.1)
    assert handed(one) == []
    assert batch_ids(beats(one, now=7.9)) == [[(0, 4)]]


def test_a_beat_from_before_the_batch_arrived_does_not_say_that_its_worker_is_free() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    cluster.turn(7.1)
    assert one.says(Beat, [], 0, 0, now=7.9) != []
    assert cluster.core.dispatcher.workers[one.life].state == "stuck"


def test_a_worker_that_comes_back_without_what_overran_is_not_stuck_in_it() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    beats(one, *batches(one.told()), now=6.9)
    cluster.turn(7.1)
    assert batch_ids(cluster.again(one, now=8.0, epoch=EPOCH).greeted) == [[(0, 4)]]


def test_a_worker_that_comes_back_with_what_overran_stays_stuck_in_it() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    beats(one, batch, now=6.9)
    cluster.turn(7.1)
    new = cluster.again(one, now=8.0, epoch=EPOCH, open=[(batch.batch, batch.batch + 1)])
    assert batch_ids(new.greeted) == []


def test_where_a_model_must_not_run_twice_an_overrun_ends_the_batch_and_the_next_one_waits() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000, idempotent=False), cluster.client()
    client.asks(0, 8)
    beats(worker, *batches(worker.told()), now=6.9)
    cluster.turn(7.1)
    assert outcomes(client.told()) == dict.fromkeys(range(4), "worker_lost")
    assert worker.told() == []
