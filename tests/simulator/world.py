"""Virtual time and chance: what happens next, in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TypeVar

T = TypeVar("T")


class World:
    """The clock on the wall, and everything that is going to happen."""

    def __init__(self, seed: int, *, tells: bool = False) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.story: list[str] = []
        self.named: dict[bytes, str] = {}
        """The request id that each item was asked for under, empty where it has none."""
        self._tells = tells
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()
        self._bytes = count(1)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Let something happen in a while."""
        heappush(self._events, (self.now + seconds, next(self._count), act))

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, act = heappop(self._events)
        act()

    def until(self) -> float:
        """Return when the next thing happens."""
        return self._events[0][0] if self._events else float("inf")

    def mint(self, size: int) -> bytes:
        """Return bytes that nobody else was given."""
        return next(self._bytes).to_bytes(size, "big")

    def tell(self, words: str) -> None:
        """Add a line to the story, where one is wanted."""
        if self._tells:
            self.story.append(f"{self.now:9.4f}  {words}")

    # --- chance ------------------------------------------------------------------------------------

    def maybe(self, probability: float) -> bool:
        """Return True so often."""
        return self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        """Return a number in a range."""
        return self.random.uniform(low, high)

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of several."""
        return self.random.choice(choices)


class Clock:
    """A process's own monotonic clock: it began anywhere, and may run a little faster or slower."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._offset = world.between(0.0, 1_000_000.0)
        self._rate = world.one_of((1.0, 1.0, 1.0, 0.999, 1.001, 0.99, 1.01))

    def now(self) -> float:
        """Return what it shows."""
        return self._offset + self._world.now * self._rate

    def shown(self, seconds: float) -> float:
        """Return what it shows of so many seconds of the world."""
        return seconds * self._rate

    def left(self, due: float) -> float:
        """Return in how many seconds of the world it will show ``due``."""
        return max(0.0, (due - self.now()) / self._rate)
