"""What a process is: a clock of its own, an inbox, and a loop that sleeps until something comes or is due."""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.simulator.network import HEARTBEATS, Dealer
from tests.simulator.world import Clock, World


class Process:
    """A process that takes turns; it may be stopped for a while, or die."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = Clock(world)
        self.alive = True
        self.stopped: float | None = None
        """Since when it has not run."""
        self.lag = 0.0
        """For how long it did not run, in all, by its own clock."""
        self.dealers: list[Dealer] = []
        self.inbox: deque[Any] = deque()
        self._due = float("inf")
        """World time of the next turn."""

    def now(self) -> float:
        """Return what its own clock shows."""
        return self.clock.now()

    def turn(self) -> None:
        """Do what there is to do."""
        raise NotImplementedError

    def wakeup(self) -> float | None:
        """Return when to take a turn if nothing comes, by its own clock."""
        raise NotImplementedError

    # --- time --------------------------------------------------------------------------------------

    def soon(self, seconds: float = 0.0002) -> None:
        """Take a turn in a moment."""
        due = self.world.now + seconds
        if due < self._due:
            self._due = due
            self.world.after(seconds, self._wake)

    def rest(self) -> None:
        """Sleep until the next turn is due."""
        due = self.wakeup()
        if due is not None:
            # Poll counts milliseconds and never wakes early.
            self.soon(self.clock.left(due) + 0.001)

    def _wake(self) -> None:
        if self._due > self.world.now + 1e-9:
            return  # an earlier turn was taken, and this one is not due any more
        self._due = float("inf")
        if self.alive and self.stopped is None:
            self.turn()
            if self.alive:
                self.rest()

    # --- faults ------------------------------------------------------------------------------------

    def stop(self, seconds: float, *, whole: bool = True) -> None:
        """Let it do nothing for a while; where only Python hangs, libzmq goes on."""
        if not self.alive or self.stopped is not None:
            return
        self.stopped = self.world.now
        self.world.after(seconds, self.go_on)
        if whole:
            for dealer in self.dealers:
                dealer.asleep = True
                dealer.stall(up=True, down=True)
            self.world.after(HEARTBEATS, lambda since=self.stopped: self._missed(since))  # type: ignore[misc]

    def go_on(self) -> None:
        """Let it run again."""
        if self.stopped is None:
            return
        self.lag += self.clock.shown(self.world.now - self.stopped)
        self.stopped = None
        for dealer in self.dealers:
            dealer.asleep = False
            if not dealer.blocked:
                dealer.go_on()
        self._due = float("inf")
        self.soon()

    def _missed(self, since: float) -> None:
        if self.stopped != since or not self.alive:
            return
        for dealer in self.dealers:
            if dealer.connection is not None:
                dealer.connection.close()

    def die(self) -> None:
        """End without a word."""
        self.alive = False
        for dealer in self.dealers:
            dealer.close()
