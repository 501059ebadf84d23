"""When a lone caller looks for its answer without sleeping."""

from __future__ import annotations

import pytest

from zbatch.core.expectation import EARLY, LATE, Expectation


def expectation(*answers: float) -> Expectation:
    made = Expectation()
    for took in answers:
        made.learn(took)
    return made


def test_the_first_caller_looks_at_once_for_it_may_be_a_quick_model() -> None:
    assert expectation().watch(10.0) == (10.0 - EARLY, 10.0 + LATE)


def test_answers_that_come_in_step_are_looked_for_from_shortly_before_they_are_due() -> None:
    begins, ends = expectation(*[0.005] * 60).watch(10.0) or (0.0, 0.0)

    assert begins == pytest.approx(10.005 - EARLY, abs=1e-6)
    assert ends == pytest.approx(10.005 + LATE, abs=1e-6)


def test_answers_that_come_out_of_step_are_not_looked_for() -> None:
    assert expectation(*[0.005, 0.009] * 30).watch(10.0) is None


def test_one_late_answer_stops_the_looking_until_some_came_in_step_again() -> None:
    late = expectation(*[0.005] * 60, 0.050)
    assert late.watch(10.0) is None

    for _ in range(40):
        late.learn(0.005)
    assert late.watch(10.0) is not None


def test_a_model_that_became_quick_is_soon_looked_for_at_once() -> None:
    begins, _ = expectation(*[0.005] * 60, *[0.0003] * 40).watch(10.0) or (99.0, 0.0)

    assert begins < 10.0
