"""A broker's body in the simulator: turns as the real one takes them, its lag included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tests.simulator.network import HEARTBEATS, Parcel, Router, pack
from tests.simulator.processes import Process
from tests.simulator.world import World
from zbatch import wire
from zbatch.config import BrokerCoreSettings
from zbatch.core.actions import Send
from zbatch.core.broker import BrokerCore
from zbatch.core.links import BACK

LAG = 0.5
"""A turn that takes this much longer than was meant to be waited was stopped; see ``zbatch/broker.py``."""

LAST_WORDS = 5.0


class Broker(Process):
    """One broker, over all its lives."""

    def __init__(
        self, world: World, name: str, settings: BrokerCoreSettings, reads: int, looked_at: Callable[[], None]
    ) -> None:
        super().__init__(world, name)
        self.counters: Counter[str] = Counter()
        """Those of lives that ended."""
        self.router = Router(world, self._arrived)
        self.settings = settings
        self.lives = 0
        self.gone = False
        """Whether its host does not come back."""
        self._reads = reads
        self._looked_at = looked_at
        self._begin()

    def _begin(self) -> None:
        self.alive = True
        self.lives += 1
        self.core = BrokerCore(self.settings, self.world.mint(8))
        self.router.listens = True
        self.leaving: float | None = None
        self._asked = self._turned = self.now()
        self._patience: float | None = 0.0
        self._fronts: list[tuple[bytes, Parcel]] = []
        self._backs: list[tuple[bytes, Parcel]] = []
        self.soon()

    # --- its loop ----------------------------------------------------------------------------------

    def wakeup(self) -> float | None:
        due = self.core.wakeup()
        if self.leaving is not None:
            due = min(due or self.leaving, self.leaving)
        now = self.now()
        if self._fronts or self._backs:
            due = now
        self._asked, self._patience = now, None if due is None else max(0.0, due - now)
        return due

    def turn(self) -> None:
        now = self.now()
        waited = now - self._asked
        meant = waited if self._patience is None else min(waited, self._patience)
        self._backs = self._read(self._backs, 4 * self._reads)
        self._fronts = self._read(self._fronts, self._reads)
        if now - self._turned - meant > LAG:
            self.core.slept(self._turned, now)
        self._turned = now
        self._perform(self.core.tick(now), now)
        self.core.events.clear()
        self._looked_at()
        if self.leaving is not None and (self.core.is_drained or now >= self.leaving):
            self.die()

    def _read(self, waiting: list[tuple[bytes, Parcel]], most: int) -> list[tuple[bytes, Parcel]]:
        for peer, (envelope, frames) in waiting[:most]:
            now = self.now()
            self._perform(self.core.handle(peer, wire.decode(envelope, len(frames)), frames, now), now)
            self._looked_at()
        return waiting[most:]

    def _perform(self, actions: Iterable[Send], now: float) -> None:
        for action in actions:
            if not self.router.send(action.peer, pack(action.message, action.frames)):
                self.core.unreachable(action.peer, now, action.message)

    def _arrived(self, peer: bytes, parcel: Parcel) -> None:
        if self.alive:
            (self._backs if peer[:1] == BACK else self._fronts).append((peer, parcel))
            self.soon()

    # --- faults ------------------------------------------------------------------------------------

    def stop(self, seconds: float, *, whole: bool = True) -> None:
        if not self.alive or self.stopped is not None:
            return
        self.stopped = self.world.now
        self.world.after(seconds, self.go_on)
        if whole:
            self.router.listens = False
            for connection in self.router.connections.values():
                connection.dealer.stall(up=True, down=True)
            self.world.after(HEARTBEATS, lambda since=self.stopped: self._missed(since))  # type: ignore[misc]

    def go_on(self) -> None:
        if self.stopped is None:
            return
        self.router.listens = True
        for connection in list(self.router.connections.values()):
            if not connection.dealer.blocked and not connection.dealer.asleep:
                connection.dealer.go_on()
        super().go_on()

    def _missed(self, since: float) -> None:
        if self.stopped == since and self.alive:
            for connection in list(self.router.connections.values()):
                connection.close()

    def die(self) -> None:
        self.alive = False
        self.stopped = None
        self.counters.update(self.core.counters)
        for topic in self.core.topics.all.values():
            self.counters.update({f"error_{code}": count for code, count in topic.tally.errors.items()})
            self.counters["retries"] += topic.tally.retries
        self.router.close()

    def start_again(self) -> None:
        """Begin another life on the same address."""
        if not self.alive and not self.gone:
            self._begin()

    def leave(self) -> None:
        """Drain, as on SIGTERM."""
        if self.alive and self.stopped is None and self.leaving is None:
            now = self.now()
            self.leaving = now + LAST_WORDS
            self._perform(self.core.drain(), now)
            self.soon()
