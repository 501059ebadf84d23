"""When the gateway's loop stays awake: told by literal times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from zbatch.gateway.awake import Awake

SPAN = 0.1


class Loop:
    """A loop that turns when a test says so, at the time that it says."""

    def __init__(self) -> None:
        self.now = 10.0
        self.soon: deque[Callable[[], Any]] = deque()

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.soon.append(callback)

    def turn(self, now: float) -> None:
        self.now = now
        self.soon.popleft()()

    @property
    def is_awake(self) -> bool:
        return bool(self.soon)


def awake(span: float = SPAN) -> tuple[Loop, Awake]:
    loop = Loop()
    return loop, Awake(loop, span, lambda: loop.now)  # type: ignore[arg-type]


def test_the_first_touch_lets_it_sleep_and_one_soon_after_keeps_it_awake() -> None:
    loop, kept = awake()
    kept.touch()
    assert not loop.is_awake
    loop.now = 10.05
    kept.touch()
    assert loop.is_awake


def test_a_touch_that_comes_late_lets_it_sleep() -> None:
    loop, kept = awake()
    for now in (10.0, 10.2, 10.4):
        loop.now = now
        kept.touch()
        assert not loop.is_awake


def test_it_sleeps_when_nothing_came_for_the_span() -> None:
    loop, kept = awake()
    kept.touch()
    kept.touch()
    loop.turn(10.09)
    assert loop.is_awake
    loop.turn(10.11)
    assert not loop.is_awake


def test_a_touch_between_two_turns_lengthens_it() -> None:
    loop, kept = awake()
    kept.touch()
    kept.touch()
    kept.touch()
    loop.turn(10.09)  # from here on for the span again
    loop.turn(10.15)
    assert loop.is_awake
    loop.turn(10.2)
    assert not loop.is_awake


def test_asleep_again_it_counts_from_the_last_touch() -> None:
    loop, kept = awake()
    kept.touch()
    kept.touch()
    loop.turn(10.15)
    assert not loop.is_awake
    kept.touch()  # more than a span after the one before
    assert not loop.is_awake
    kept.touch()
    assert loop.is_awake


def test_many_touches_are_one_turn() -> None:
    loop, kept = awake()
    for _ in range(10):
        kept.touch()
    assert len(loop.soon) == 1


def test_with_a_span_of_nothing_it_never_stays_awake() -> None:
    loop, kept = awake(0.0)
    for _ in range(3):
        kept.touch()
    assert not loop.is_awake
