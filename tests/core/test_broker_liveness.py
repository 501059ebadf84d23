"""What silence means: late is suspect, gone is gone after a while, our own sleep is nobody's death."""

from __future__ import annotations

from typing import Any

from tests.core.driving import EPOCH, Cluster, Peer, beats, dies, ready
from tests.core.hearing import batch_ids, batches, handed, outcomes
from zbatch.config import Limits
from zbatch.core.session import LARGE, SLOWEST
from zbatch.messages import (
    Batch,
    Beat,
    Bulk,
    Bye,
    Cancel,
    Children,
    Done,
    Hello,
    Pulse,
    Recall,
    Result,
    Welcome,
    Who,
)

# With the defaults: suspect after 3 s, lost after 12 s of silence, gone after 4 s without its connection,
# a client with open requests after 10 s.


# --- strangers -----------------------------------------------------------------------------------


def test_a_stranger_is_asked_who_it_is_and_told_from_where_on_nothing_was_taken() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    worker.says(Bye)  # message 3
    assert worker.says(Beat) == [Who(worker.conn, 0, 3)]


def says_hello_again(peer: Peer, *, now: float = 0.0) -> list[Any]:
    return peer.says(Hello, peer.life, peer.role, 1, incarnation=peer.incarnation, now=now)


def test_what_is_on_its_way_when_a_worker_says_its_hello_again_is_not_lost() -> None:
    cluster = Cluster()
    old, client = cluster.worker(), cluster.client()
    worker = cluster.again(old, now=1.0)
    worker.received = 0
    client.asks(0, 4, now=1.0)
    assert [type(one) for one in says_hello_again(worker, now=1.0)] == [Batch, Welcome]
    assert handed(cluster.worker("w2", now=1.0)) == []


def test_what_is_on_its_way_when_a_client_says_its_hello_again_is_not_missing() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    worker.answers(batch)
    hello = (client.life, client.role, 1, [(0, 1)], 1)
    result, welcome = client.says(Hello, *hello)
    assert (result.number, welcome.number, welcome.missing) == (2, 3, [])


def test_a_hello_of_a_connection_that_began_elsewhere_is_asked_for_a_new_one() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    hello = Hello(worker.conn, 1, 0, worker.life, "worker", 1)
    (sent,) = cluster.core.handle(b"B\0else", hello, (), 1.0)
    assert (sent.peer, sent.message) == (b"B\0else", Who(worker.conn, 0, 0))
    assert cluster.core.handle(b"B\0else", hello, (), 1.5) == []
    assert cluster.core.links.by_life[worker.life].peer == worker.peer


def test_a_stranger_is_asked_at_most_so_often() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    worker.says(Bye)
    assert len(worker.says(Beat, now=1.0)) == 1
    assert worker.says(Beat, now=1.1) == []
    assert len(worker.says(Beat, now=3.0)) == 1


def test_nobody_is_asked_who_says_goodbye() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.says(Bye)
    assert client.says(Bye) == []


def test_a_life_that_changes_its_role_is_not_introduced() -> None:
    cluster = Cluster()
    client = cluster.client()
    told = client.says(Hello, client.life, "worker", 1)
    assert told == []
    assert cluster.core.counters["refused_hellos"] == 1


def test_a_message_that_does_not_fit_the_role_is_counted_and_changes_nothing() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    assert worker.says(Cancel, [(0, 9)]) == []
    assert cluster.core.counters["unexpected_cancel"] == 1


# --- a worker that is late -----------------------------------------------------------------------


def test_a_silent_worker_gets_no_new_work_and_what_it_has_not_begun_goes_to_others() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    _, second = batches(one.told())
    two = cluster.worker("w2", now=2.0)
    cluster.turn(3.0)
    assert one.told() == [
        Recall(one.conn, 4, 2, EPOCH, second.batch),
        Pulse(one.conn, 5, 2, [], 2),
    ]
    assert handed(two) == [[(4, 8)]]
    client.asks(8, 1, now=3.0)
    assert handed(one) == []


def test_a_suspect_that_speaks_again_is_trusted_again() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    cluster.turn(3.0)
    worker.told()
    client.asks(0, 1, now=3.5)
    assert handed(worker) == []
    assert batch_ids(worker.says(Beat, now=4.0)) == [[(0, 1)]]


def test_a_suspect_is_suspected_once_and_probed_each_beat() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    cluster.turn(3.0)
    cluster.turn(4.0)
    assert [type(one) for one in worker.told()] == [Pulse, Pulse]
    assert cluster.core.counters["worker_suspect"] == 1


def test_of_what_must_not_run_twice_nothing_is_taken_from_a_suspect() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(idempotent=False), cluster.client()
    client.asks(0, 8)
    worker.told()
    cluster.turn(3.0)
    assert [type(one) for one in worker.told()] == [Pulse]


def test_the_first_valid_success_wins_whoever_brings_it() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    _, second = batches(one.told())
    two = cluster.worker("w2", now=2.0)
    cluster.turn(3.0)
    one.answers(second, now=3.1)
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4, 8)}
    two.answers(batches(two.told())[0], now=3.2)
    assert client.told() == []


def test_a_worker_that_stays_silent_is_lost() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    one.told()
    client.says(Beat, [(0, 4)], 4, now=9.0)
    two = cluster.worker("w2", now=11.0)
    assert batch_ids(two.greeted) == []
    cluster.core.events.clear()
    cluster.turn(12.0)
    assert handed(two) == [[(0, 4)]]
    assert cluster.core.events == [("worker lost", {"host": "host", "pid": 1, "silent_s": 12.0})]


def test_a_silent_process_that_offered_nothing_is_forgotten() -> None:
    cluster = Cluster()
    worker = cluster.stranger_worker()
    cluster.turn(3.0)
    assert [type(one) for one in worker.told()] == [Pulse]
    cluster.turn(12.0)
    assert cluster.core.links.by_life == {}


def test_a_beat_that_names_another_batch_moves_the_begin_of_the_first() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=5_000), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(worker.told())
    # Another broker's batch runs until 4.0.
    beats(worker, batch, running=0, now=4.0)
    beats(worker, batch, running=batch.batch, now=7.5)
    assert "lease_overrun" not in cluster.core.counters
    cluster.turn(11.1)
    assert cluster.core.counters["lease_overrun"] == 1


# --- a connection that is gone -------------------------------------------------------------------


def test_a_worker_whose_connection_is_gone_may_come_back_on_another() -> None:
    cluster = Cluster()
    old, client = cluster.worker(), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(old.told())
    cluster.core.unreachable(old.peer, 1.0)
    cluster.core.unreachable(old.peer, 1.0)
    new = cluster.again(old, now=2.0, epoch=EPOCH, open=[(batch.batch, batch.batch + 1)])
    ready(new, now=2.0)
    cluster.turn(5.5)
    new.answers(batch, now=5.6)
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4)}


def test_a_worker_that_comes_back_gets_work_without_a_new_offer() -> None:
    cluster = Cluster()
    old, client = cluster.worker(), cluster.client()
    cluster.core.unreachable(old.peer, 1.0)
    client.asks(0, 1, now=1.0)
    assert batch_ids(cluster.again(old, now=2.0).greeted) == [[(0, 1)]]


def test_a_suspect_that_comes_back_is_trusted_again() -> None:
    cluster = Cluster()
    old, client = cluster.worker(), cluster.client()
    cluster.turn(3.0)
    client.asks(0, 1, now=3.0)
    assert batch_ids(cluster.again(old, now=4.0).greeted) == [[(0, 1)]]


def test_a_worker_without_connection_is_not_probed() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    cluster.core.unreachable(worker.peer, 1.0)
    cluster.turn(3.0)
    cluster.turn(4.0)
    assert worker.told() == []
    assert cluster.core.counters == {"worker_ready": 1, "unreachable": 1}


def test_a_worker_that_does_not_come_back_is_lost() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    one.told()
    cluster.core.unreachable(one.peer, 1.0)
    two = cluster.worker("w2", now=4.0)
    cluster.turn(4.9)
    assert handed(two) == []
    cluster.turn(5.1)
    assert handed(two) == [[(0, 4)]]


def test_a_worker_without_connection_gets_no_work() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    cluster.core.unreachable(worker.peer, 1.0)
    client.asks(0, 1, now=1.0)
    assert worker.told() == []


def test_results_for_a_client_without_connection_are_kept_for_its_next_one() -> None:
    cluster = Cluster()
    worker, old = cluster.worker(), cluster.client()
    old.asks(0, 1)
    (batch,) = batches(worker.told())
    cluster.core.unreachable(old.peer, 1.0)
    worker.answers(batch, now=1.1)
    assert old.told() == []
    new = cluster.again(old, now=2.0, open=[(0, 1)], next=1)
    assert outcomes(new.greeted) == {0: b"yx0"}


def test_a_client_that_was_idle_and_dies_over_its_next_request_is_missed_as_soon_as_others() -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.turn(3.0)
    client.asks(0, 4, now=5.0)
    cluster.turn(14.9)
    assert cluster.core.topics.all["bert"].items == 4
    cluster.turn(15.1)
    assert cluster.core.topics.all["bert"].items == 0


def test_our_own_pause_is_added_to_the_time_to_come_back_and_no_more() -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.core.unreachable(client.peer, 1.0)
    cluster.core.slept(1.5, 4.5)
    cluster.turn(5.1)
    assert client.life in cluster.core.ledger.clients
    cluster.turn(8.1)
    assert client.life not in cluster.core.ledger.clients


def test_a_peer_that_nobody_knows_cannot_be_unreachable() -> None:
    cluster = Cluster()
    cluster.core.unreachable(b"F\0zzzz", 1.0)
    assert cluster.core.counters == {}


# --- clients -------------------------------------------------------------------------------------


def test_a_silent_client_with_open_requests_is_forgotten_with_all_that_waits() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 4)
    for second in (3.0, 9.9):
        cluster.turn(second)
    assert cluster.core.topics.all["bert"].items == 4
    cluster.turn(10.0)
    assert cluster.core.topics.all["bert"].items == 0
    assert cluster.core.events == [("client gone", {"host": "host", "pid": 1, "unfinished": 4})]
    assert client.says(Beat, [(0, 4)], 4, now=11.0) == [Who(client.conn, 0, 2)]
    (welcome,) = cluster.again(client, now=11.0, open=[(0, 4)], next=4).greeted
    assert welcome.missing == [(0, 4)]


def test_a_silent_client_without_open_requests_is_kept_for_a_minute() -> None:
    cluster = Cluster()
    cluster.client()
    for second in range(3, 60, 3):
        cluster.turn(float(second))
    assert len(cluster.core.ledger.clients) == 1
    cluster.turn(63.1)
    assert cluster.core.ledger.clients == {}
    assert "client_gone" not in cluster.core.counters


def test_a_client_that_speaks_is_not_silent() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 4)
    for second in range(1, 20):
        client.says(Beat, [(0, 4)], 4, now=float(second))
    assert cluster.core.topics.all["bert"].items == 4


# --- supervisors ---------------------------------------------------------------------------------


def test_a_supervisor_that_stays_silent_is_forgotten() -> None:
    cluster = Cluster()
    supervisor, worker = cluster.supervisor(), cluster.worker()
    assert supervisor.says(Children, "bert", []) == [Pulse(supervisor.conn, 2, 2, [], 2)]
    dies(supervisor, worker)
    cluster.turn(3.0)
    assert len(cluster.core.dispatcher.children) == 1
    cluster.turn(12.0)
    assert cluster.core.dispatcher.children == {}


def test_of_workers_that_left_before_they_offered_anything_nothing_is_kept() -> None:
    cluster = Cluster()
    cluster.stranger_worker("w1").says(Bye)
    cluster.stranger_worker("w2")
    for second in (3.0, 6.0, 9.0, 12.0):
        cluster.turn(second)
    assert (cluster.core.links.by_life, cluster.core.dispatcher._incarnations) == ({}, {})


# --- our own pause -------------------------------------------------------------------------------


def test_our_own_sleep_is_nobodys_death() -> None:
    cluster = Cluster()
    one, two = cluster.worker("w1", lease_ms=5_000), cluster.worker("w2")
    client, supervisor = cluster.client(), cluster.supervisor()
    client.asks(0, 12, ms=300_000)
    batch, _ = batches(one.told())
    cluster.core.unreachable(two.peer, 1.0)
    cluster.core.slept(1.0, 101.0)
    cluster.turn(101.0)
    assert "worker_lost" not in cluster.core.counters
    assert "lease_overrun" not in cluster.core.counters
    assert len(cluster.core.links.by_life) == 4
    assert supervisor.life in cluster.core.links.by_life
    one.answers(batch, now=101.1)
    cluster.turn(105.5)
    assert cluster.core.counters["worker_lost"] == 1


def test_who_is_heard_after_our_pause_is_not_heard_in_the_future() -> None:
    cluster = Cluster()
    one, two = cluster.worker("w1"), cluster.worker("w2")
    cluster.deliver(cluster.core.handle(one.peer, Beat(one.conn, 3, 1), (), 100.5))
    cluster.core.slept(1.0, 101.0)
    heard = [cluster.core.links.by_life[worker.life].heard for worker in (one, two)]
    assert heard == [101.0, 100.0]


# --- what operators may read ---------------------------------------------------------------------


def test_events_wait_for_whoever_prints_and_are_bounded() -> None:
    cluster = Cluster()
    for _ in range(300):
        cluster.core.note("worker lost", host="gpu-1")
    assert len(cluster.core.events) == 256
    assert cluster.core.events[0] == ("worker lost", {"host": "gpu-1"})
    assert cluster.core.counters == {"worker_lost": 300}


def test_a_welcome_names_the_topics_that_nobody_serves() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    again = cluster.again(client, open=[(0, 1)], next=1)
    (welcome,) = again.greeted
    assert isinstance(welcome, Welcome)
    assert (welcome.missing, welcome.unserved) == ([], ["bert"])


# --- large messages ------------------------------------------------------------------------------


def test_a_client_that_announced_something_large_may_be_silent_meanwhile() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    client.says(Bulk, 15 * SLOWEST, now=1.0)
    for second in range(2, 16):
        cluster.turn(float(second))
    assert client.life in cluster.core.ledger.clients
    for second in range(16, 29):
        cluster.turn(float(second))
    assert client.life not in cluster.core.ledger.clients


def test_once_the_large_message_has_come_silence_counts_as_ever() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.says(Bulk, 3_000 * SLOWEST, now=1.0)
    client.asks(0, 1, now=2.0)
    for second in range(3, 14):
        cluster.turn(float(second))
    assert client.life not in cluster.core.ledger.clients


def test_while_something_large_travels_a_word_back_finds_out_whether_the_connection_is_there() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    client.says(Bulk, 300 * SLOWEST, now=1.0)
    client.told()
    cluster.turn(12.0)
    assert [type(one) for one in client.told()] == [Pulse]
    cluster.core.unreachable(client.peer, 12.0)
    cluster.turn(17.0)
    assert client.life not in cluster.core.ledger.clients


def test_a_worker_that_announced_something_large_is_no_suspect() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    worker.says(Bulk, 20 * SLOWEST, now=1.0)
    for second in range(2, 20):
        cluster.turn(float(second))
    client.asks(0, 1, now=20.0)
    assert len(batches(worker.told())) == 1


def test_nobody_is_excused_for_longer_than_the_largest_message_takes() -> None:
    cluster = Cluster(limits=Limits(message_bytes=11 * SLOWEST))
    client = cluster.client()
    client.asks(0, 1)
    client.says(Bulk, 2**50, now=1.0)
    for second in range(2, 26):
        cluster.turn(float(second))
    assert client.life not in cluster.core.ledger.clients


def test_large_outcomes_are_announced_to_their_client() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1)
    (batch,) = batches(worker.told())
    large = bytes(LARGE)
    worker.says(
        *(Done, batch.epoch, batch.batch, batch.attempt, worker.incarnation, [b"y"], [1], None, 1.0),
        frames=[large],
    )
    bulk, result = client.told()
    assert (bulk.size, type(result)) == (LARGE, Result)
