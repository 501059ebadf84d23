"""When the broker looks at whom again, and that it looks no more at those whom it has forgotten."""

from __future__ import annotations

from tests.core.driving import Cluster
from zbatch.messages import Beat, Bye, Children, Who

# With the defaults: a first look after 3 s, a worker is looked at 3 s after its last word, a supervisor 12 s
# after it, a client 10 s after it with open requests and 60 s without.


def test_a_worker_is_looked_at_when_it_would_be_suspect() -> None:
    cluster = Cluster()
    cluster.worker().says(Beat, now=2.0)
    cluster.turn(3.0)
    assert cluster.core.wakeup() == 5.0


def test_a_suspect_is_looked_at_each_beat() -> None:
    cluster = Cluster()
    cluster.worker()
    cluster.turn(3.0)
    assert cluster.core.wakeup() == 4.0
    cluster.turn(4.0)
    assert cluster.core.wakeup() == 5.0


def test_a_client_with_open_requests_is_looked_at_when_it_would_be_gone() -> None:
    cluster = Cluster()
    cluster.client().asks(0, 1, now=2.0)
    cluster.turn(3.0)
    assert cluster.core.wakeup() == 12.0


def test_a_client_without_open_requests_is_looked_at_after_a_minute() -> None:
    cluster = Cluster()
    cluster.client()
    cluster.turn(3.0)
    assert cluster.core.wakeup() == 60.0


def test_a_supervisor_is_looked_at_when_it_would_be_gone() -> None:
    cluster = Cluster()
    cluster.supervisor().says(Children, "bert", [], now=2.0)
    cluster.turn(3.0)
    assert cluster.core.wakeup() == 14.0


# --- those whose connection is gone ----------------------------------------------------------------


def test_a_client_that_does_not_come_back_is_forgotten() -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.turn(3.0)
    cluster.core.unreachable(client.peer, 10.0)
    assert cluster.core.wakeup() == 14.0
    cluster.turn(13.9)
    assert list(cluster.core.ledger.clients) == [client.life]
    cluster.turn(14.0)
    assert (cluster.core.ledger.clients, cluster.core.links.by_life) == ({}, {})


def test_a_supervisor_that_does_not_come_back_is_forgotten() -> None:
    cluster = Cluster()
    supervisor = cluster.supervisor()
    cluster.turn(3.0)
    cluster.core.unreachable(supervisor.peer, 4.0)
    cluster.turn(7.9)
    assert list(cluster.core.links.by_life) == [supervisor.life]
    cluster.turn(8.0)
    assert cluster.core.links.by_life == {}


# --- those who are forgotten -----------------------------------------------------------------------


def test_nobody_is_looked_at_who_fell_silent_and_was_forgotten() -> None:
    cluster = Cluster()
    cluster.client().asks(0, 1)
    cluster.worker(lease_ms=0)
    cluster.supervisor()
    for second in range(3, 13):
        cluster.turn(float(second))
    assert cluster.core.links.by_life == {}
    assert cluster.core.wakeup() is None


def test_nobody_is_looked_at_more_than_once_who_said_goodbye() -> None:
    cluster = Cluster()
    for peer in (cluster.client(), cluster.worker(), cluster.supervisor()):
        peer.says(Bye)
    cluster.turn(3.0)
    assert cluster.core.wakeup() is None


def test_what_was_said_on_a_connection_before_this_one_is_a_strangers_word() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    late = Beat(b"conn....", 9, 9)
    (sent,) = cluster.core.handle(worker.peer, late, (), 1.0)
    assert sent.message == Who(b"conn....", 0, 8)
    assert cluster.core.counters == {"worker_ready": 1, "strange_messages": 1}
