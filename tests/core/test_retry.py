"""What becomes of a lost worker's items: who is guilty, what runs again, in what company."""

from __future__ import annotations

from tests.core.queueing import ids, make_held
from zbatch.core.backlog import CLOSED, RUNNING, Span
from zbatch.core.retry import ATTEMPTS, DEATHS_ALONE, alive, died_running, lost_quietly, never_began


def running(items: int, base: int = 0) -> Span:
    """Return a span whose items a worker has."""
    held = make_held(base, items)
    held.state[:] = bytes([RUNNING]) * items
    return Span(held, 0, items)


def test_what_never_began_goes_back_for_nothing() -> None:
    span = running(3)
    verdict = never_began([span])
    assert (verdict.again, verdict.apart, verdict.poisoned, verdict.lost) == ([span], [], [], [])
    assert span.attempts == 0


def test_a_quiet_loss_costs_an_attempt_and_the_last_one_ends_the_item() -> None:
    span = running(3)
    for attempt in range(1, ATTEMPTS):
        verdict = lost_quietly([span])
        assert (verdict.again, verdict.lost) == ([span], [])
        assert span.attempts == attempt
    verdict = lost_quietly([span])
    assert (verdict.again, verdict.lost) == ([], [span])


def test_a_batch_in_which_a_process_died_runs_again_in_halves() -> None:
    verdict = died_running([running(3, base=0), running(4, base=10)])
    assert [ids(half) for half in verdict.apart] == [[(0, 3)], [(10, 14)]]
    assert (verdict.again, verdict.poisoned, verdict.lost) == ([], [], [])


def test_the_cut_may_go_through_a_span() -> None:
    verdict = died_running([running(5)])
    assert [ids(half) for half in verdict.apart] == [[(0, 2)], [(2, 5)]]


def test_an_item_that_was_alone_runs_alone_once_more_and_is_poison_then() -> None:
    span = running(1)
    for _ in range(DEATHS_ALONE - 1):
        assert died_running([span]).apart == [[span]]
    verdict = died_running([span])
    assert (verdict.apart, verdict.poisoned) == ([], [span])


def test_halves_keep_the_past_of_their_items() -> None:
    span = running(2)
    span.attempts = 1
    assert [half[0].attempts for half in died_running([span]).apart] == [1, 1]


def test_items_with_an_outcome_are_left_out_of_every_verdict() -> None:
    span = running(5)
    span.held.state[1] = CLOSED
    span.held.state[4] = CLOSED
    assert ids(alive([span])) == [(0, 1), (2, 4)]
    assert ids(never_began([span]).again) == [(0, 1), (2, 4)]
    assert [ids(half) for half in died_running([span]).apart] == [[(0, 1)], [(2, 4)]]


def test_a_batch_of_which_nobody_waits_for_anything_is_over() -> None:
    span = running(2)
    span.held.state[:] = bytes([CLOSED]) * 2
    verdict = died_running([span])
    assert (verdict.again, verdict.apart, verdict.poisoned, verdict.lost) == ([], [], [], [])
