"""The workers of a topic: who may get work, and who gets it first."""

from __future__ import annotations

import pytest

from tests.core.staffing import make_worker
from zbatch.core.roster import Handed, Roster, Worker


def roster_of(*workers: Worker) -> Roster:
    roster = Roster()
    for worker in workers:
        roster.add(worker)
    return roster


def hand(roster: Roster, worker: Worker, number: int) -> Handed:
    handed = worker.holds[number] = Handed(number, worker, [], 32, 1, 0.0)
    roster.changed(worker)
    return handed


def free(roster: Roster, worker: Worker, number: int) -> None:
    del worker.holds[number]
    roster.changed(worker)


def test_the_worker_that_has_been_idle_longest_comes_first() -> None:
    ann, bob = make_worker("ann"), make_worker("bob")
    roster = roster_of(ann, bob)
    assert roster.next_idle() is ann
    hand(roster, ann, 1)
    assert roster.next_idle() is bob
    free(roster, ann, 1)
    assert roster.next_idle() is bob
    assert roster.idle == 2


def test_a_worker_that_holds_something_and_has_a_slot_left_is_open() -> None:
    ann = make_worker("ann")
    roster = roster_of(ann)
    assert roster.next_open() is None
    hand(roster, ann, 1)
    assert (roster.next_idle(), roster.next_open()) == (None, ann)
    hand(roster, ann, 2)
    assert roster.next_open() is None


def test_a_worker_of_one_slot_gets_nothing_in_advance() -> None:
    ann = make_worker("ann", slots=1)
    roster = roster_of(ann)
    hand(roster, ann, 1)
    assert roster.next_open() is None


@pytest.mark.parametrize(
    ("fact", "value", "state"),
    [
        ("suspect", True, "suspect"),
        ("draining", True, "draining"),
        ("stuck", 3, "stuck"),
        ("gone", 1.0, "gone"),
    ],
)
def test_a_worker_in_doubt_gets_no_work_until_it_is_trusted_again(
    fact: str, value: object, state: str
) -> None:
    ann, bob = make_worker("ann"), make_worker("bob")
    roster = roster_of(ann, bob)
    hand(roster, bob, 1)
    trusted = getattr(ann, fact)
    for worker in (ann, bob):
        setattr(worker, fact, value)
        roster.changed(worker)
    assert (roster.next_idle(), roster.next_open(), roster.idle) == (None, None, 0)
    assert ann.state == state
    setattr(ann, fact, trusted)
    roster.changed(ann)
    assert (roster.next_idle(), ann.state) == (ann, "idle")


def test_a_worker_that_left_is_forgotten_everywhere() -> None:
    ann, bob = make_worker("ann"), make_worker("bob", max_latency=0.005)
    roster = roster_of(ann, bob)
    hand(roster, ann, 1)
    hand(roster, ann, 2)
    assert roster.max_latency == 0.005
    roster.remove(bob)
    roster.remove(ann)
    assert (len(roster), roster.next_idle(), roster.next_open(), roster.prefetched()) == (0, None, None, None)
    assert roster.max_latency == 0.0


def test_removing_a_worker_leaves_another_of_the_same_life_alone() -> None:
    old, new = make_worker("ann"), make_worker("ann")
    roster = roster_of(old)
    roster.add(new)
    roster.remove(old)
    assert roster.workers == {new.link.life: new}


def test_the_window_of_a_topic_is_the_smallest_that_a_worker_announced() -> None:
    assert roster_of(make_worker("ann", max_latency=0.020), make_worker("bob")).max_latency == 0.010


def test_the_batch_behind_the_one_that_runs_may_be_called_back_once() -> None:
    ann = make_worker("ann")
    roster = roster_of(ann)
    hand(roster, ann, 1).began = 0.0
    assert roster.prefetched() is None
    second = hand(roster, ann, 2)
    assert roster.prefetched() is second
    second.recalled = True
    assert roster.prefetched() is None


def test_a_batch_that_has_begun_is_not_called_back() -> None:
    ann = make_worker("ann")
    roster = roster_of(ann)
    hand(roster, ann, 1)
    hand(roster, ann, 2).began = 0.0
    assert roster.prefetched() is None


def test_a_worker_is_busy_while_it_holds_something() -> None:
    ann = make_worker("ann")
    roster = roster_of(ann)
    hand(roster, ann, 1)
    assert ann.state == "busy"
