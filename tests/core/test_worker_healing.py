"""A worker that gives back, comes back, leaves: what is lost on the way is said again, and counts once."""

from __future__ import annotations

from tests.core.working import (
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
from zbatch.core.worker import Offer
from zbatch.messages import Beat, Bye, Done, Draining, Hello, Pulse, Ready, Recall, Returned, Who


def acknowledged(number: int, connection: int = 1) -> Pulse:
    """Return a broker's word that it has received the messages up to a number."""
    return Pulse(conn(connection), 9, number)


# --- giving back ---------------------------------------------------------------------------------


def test_a_batch_that_is_called_back_before_it_began_is_given_back() -> None:
    core = serving()
    hand(core, 1)
    begin(core)
    hand(core, 2)
    recalled = core.handle(FIRST, Recall(conn(1), 4, 0, EPOCH, 2), [], 0.0)
    assert recalled == [Send(FIRST, Returned(conn(1), 3, 4, EPOCH, [2]))]


def test_a_batch_that_runs_is_not_given_back() -> None:
    core = serving()
    hand(core, 1)
    begin(core)
    assert core.handle(FIRST, Recall(conn(1), 3, 0, EPOCH, 1), [], 0.0) == []


def test_a_recall_by_another_life_of_the_broker_is_ignored() -> None:
    core = serving()
    hand(core, 1)
    assert core.handle(FIRST, Recall(conn(1), 3, 0, LATER_EPOCH, 1), [], 0.0) == []
    assert begin(core).number == 1


def test_a_draining_worker_gives_back_what_has_not_begun_and_finishes_what_runs() -> None:
    core = serving()
    hand(core, 1)
    job = begin(core)
    hand(core, 2)
    assert core.drain() == [
        Send(FIRST, Draining(conn(1), 3, 3)),
        Send(FIRST, Returned(conn(1), 4, 3, EPOCH, [2])),
    ]
    assert not core.is_drained(0.0)
    answer(core, job, b"y")
    assert not core.is_drained(0.0)
    core.handle(FIRST, acknowledged(5), [], 0.0)
    assert core.is_drained(0.0)


def test_a_draining_worker_does_not_wait_for_a_broker_that_is_gone() -> None:
    core = serving()
    hand(core, 1)
    job = begin(core)
    core.drain()
    assert not core.is_drained(60.0)  # the model runs
    answer(core, job, b"y")
    assert not core.is_drained(2.9)
    assert core.is_drained(3.0)


def test_a_draining_worker_gives_back_what_still_comes() -> None:
    core = serving()
    core.drain()
    assert hand(core, 1) == [Send(FIRST, Returned(conn(1), 4, 2, EPOCH, [1]))]


def test_a_draining_worker_says_so_on_a_new_connection_and_offers_nothing() -> None:
    core = serving()
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    assert core.drain() == []
    assert welcome(core, connection=2) == [Send(FIRST, Draining(conn(2), 2, 1))]


def test_only_brokers_that_know_it_hear_that_it_drains_or_leaves() -> None:
    core, _ = started(brokers=2)
    welcome(core, SECOND, 2)
    assert core.drain() == [Send(SECOND, Draining(conn(2), 2, 1))]
    assert core.stop() == [Send(SECOND, Bye(conn(2), 3, 1))]


# --- beats ---------------------------------------------------------------------------------------


def test_a_beat_says_what_it_holds_and_what_runs() -> None:
    core = serving()
    for number in (1, 2, 3):
        hand(core, number)
    answer(core, begin(core), b"y")
    begin(core)
    assert core.tick(1.0) == [Send(FIRST, Beat(conn(1), 4, 4, [(1, 4)], 0, 2, EPOCH))]
    assert core.wakeup() == 2.0


def test_each_broker_hears_only_of_its_own_batches() -> None:
    core, _ = started(brokers=2)
    welcome(core, FIRST, 1)
    welcome(core, SECOND, 2)
    core.ready(Offer("bert"))
    hand(core, 1)
    hand(core, 5, peer=SECOND, connection=2)
    begin(core)
    assert core.tick(1.0) == [
        Send(FIRST, Beat(conn(1), 3, 2, [(1, 2)], 0, 1, EPOCH)),
        Send(SECOND, Beat(conn(2), 3, 6, [(5, 6)], 0, 0, EPOCH)),
    ]


# --- answers that may be lost --------------------------------------------------------------------


def test_a_finished_batch_is_held_until_its_answer_is_acknowledged() -> None:
    core = serving()
    hand(core, 1)
    answer(core, begin(core), b"y")  # message 3
    core.handle(FIRST, acknowledged(2), [], 0.0)
    assert core.tick(1.0) == [Send(FIRST, Beat(conn(1), 4, 9, [(1, 2)], 0, 0, EPOCH))]
    core.handle(FIRST, acknowledged(3), [], 0.0)
    assert core.tick(2.0) == [Send(FIRST, Beat(conn(1), 5, 9, [], 0, 0, EPOCH))]


def test_after_a_new_connection_the_answer_is_said_again_without_a_second_run() -> None:
    core = serving()
    hand(core, 1)
    answer(core, begin(core), b"y", buffers=[[b"p"]])
    greeting = core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    hello = Hello(
        *(conn(2), 1, 0, LIFE, "worker", 1, [(1, 2)]),
        epoch=EPOCH,
        incarnation=INCARNATION,
        host="gpu-box",
        pid=12,
    )
    assert greeting == [Send(FIRST, hello)]
    assert welcome(core, connection=2) == [
        Send(FIRST, Ready(conn(2), 2, 1, "bert", 2, 32, None, 10.0, 60_000)),
        Send(FIRST, Done(conn(2), 3, 1, EPOCH, 1, 1, INCARNATION, [b"y"], [1], None, 5.0), [b"p"]),
    ]
    assert core.begin(1.0) == (None, [])


def test_an_answer_is_acknowledged_only_on_the_connection_on_which_it_was_said() -> None:
    core = serving()
    hand(core, 1)
    answer(core, begin(core), b"y")  # message 3 of connection 1
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    welcome(core, connection=2)  # READY is message 2, DONE message 3
    core.handle(FIRST, acknowledged(2, connection=2), [], 1.0)
    core.drain()
    assert not core.is_drained(1.0)
    core.handle(FIRST, acknowledged(3, connection=2), [], 1.0)
    assert core.is_drained(1.0)


def test_an_answer_that_is_ready_while_the_broker_is_away_waits_for_its_welcome() -> None:
    core = serving()
    hand(core, 1)
    job = begin(core)
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    assert answer(core, job, b"y") == []
    _, done = welcome(core, connection=2)
    assert done == Send(FIRST, Done(conn(2), 3, 1, EPOCH, 1, 1, INCARNATION, [b"y"], None, None, 5.0), [])


def test_another_brokers_acknowledgement_does_not_count() -> None:
    core, _ = started(brokers=2)
    welcome(core, FIRST, 1)
    welcome(core, SECOND, 2)
    core.ready(Offer("bert"))
    hand(core, 1)
    answer(core, begin(core), b"y")
    core.handle(SECOND, acknowledged(9, connection=2), [], 0.0)
    core.drain()
    assert not core.is_drained(1.0)
    assert core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0) != []
    assert [type(one.message) for one in welcome(core, SECOND, 2)] == [Draining]


# --- a broker that was restarted -----------------------------------------------------------------


def test_for_a_new_life_of_the_broker_its_old_batches_are_dropped() -> None:
    core = serving()
    for number in (1, 2, 3):
        hand(core, number, span(base=number))
    answer(core, begin(core), b"y")
    running = begin(core)
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    assert welcome(core, connection=2, epoch=LATER_EPOCH) == [
        Send(FIRST, Ready(conn(2), 2, 1, "bert", 2, 32, None, 10.0, 60_000))
    ]
    assert core.tick(2.0) == [Send(FIRST, Beat(conn(2), 3, 1, [], 0, 0, LATER_EPOCH))]
    assert answer(core, running, b"y") == []
    assert core.begin(2.0) == (None, [])


def test_what_an_old_connection_left_in_the_pipe_is_not_taken() -> None:
    core = serving()
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    welcome(core, connection=2)
    assert hand(core, 1, connection=1) == []
    assert core.begin(1.0) == (None, [])
