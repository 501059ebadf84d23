"""Some hundred lives with each run of the tests; ``make simulate`` lives as many as one wants."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.lives import live
from tests.simulator.situations import ENOUGH, missing


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_every_life_ends_as_it_should(first: int) -> None:
    failures = [(seed, failure) for seed in range(first, first + 20) if (failure := live(seed).failure)]
    assert not failures, "its story: python -m tests.simulator --seed SEED"


def test_a_seed_is_a_life_told_twice_it_is_the_same() -> None:
    first, second = live(7, tells=True), live(7, tells=True)
    assert len(first.story) > 20
    assert first.story == second.story
    assert first.met == second.met


def test_a_run_that_met_nothing_does_not_pass() -> None:
    assert "broker killed while items run" in missing(Counter(), ENOUGH)
