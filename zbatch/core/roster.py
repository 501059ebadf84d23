"""The workers of one topic: their slots, whether they may get work, and whom to pick.

A worker is idle when it holds nothing, and open when it holds something and has a slot left; a full batch
may be prefetched into an open one.  Picking takes the one that has been idle longest, so that load spreads
and ties rotate.  Which batch a worker gets is decided in ``topics.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from msgspec import structs

from zbatch.core.backlog import Held, Room, Span
from zbatch.core.links import Link
from zbatch.messages import Facts, Ready


@dataclass(slots=True, eq=False)
class Handed:
    """A batch in a worker's hands."""

    number: int
    worker: Worker
    spans: list[Span]
    items: int
    attempt: int
    sent: float
    sent_number: int = 0
    began: float | None = None
    apart: bool = False
    """These items are tried apart because a process died over them."""
    recalled: bool = False
    streams: dict[int, Held] = field(default_factory=dict)
    """Those of its items that are streamed, by place."""
    waited: float = 0.0
    """Seconds for which its model has waited for their readers, as its worker told last."""
    weighed: float = 0.0
    """When that was."""
    held_up: float = 0.0
    """What of that others had to wait for, less what was forgiven."""
    withdrawn: bool = False
    """Others have it now: a late success still counts, a late error does not."""


@dataclass(slots=True, eq=False)
class Worker:
    """One model process, for as long as its life is known."""

    link: Link
    ready: Ready
    incarnation: bytes
    room: Room
    max_latency: float
    lease: float
    holds: dict[int, Handed] = field(default_factory=dict)
    withdrawn: OrderedDict[int, Handed] = field(default_factory=OrderedDict)
    """Batches given to others meanwhile; the first valid success still wins."""
    suspect: bool = False
    draining: bool = False
    told_to_leave: bool = False
    """An operator ordered it; it takes work until it says itself that it drains."""
    gone: float | None = None
    """When its connection was found gone."""
    stuck: int = 0
    """The batch that ran beyond its lease; while the model hangs in it, new work would only wait."""
    batches: int = 0
    watched: bool = False
    """Whether somebody will look at its lease; one entry serves all its batches."""

    @property
    def takes_work(self) -> bool:
        """Whether new work may go there."""
        return not (self.suspect or self.draining or self.stuck or self.gone is not None)

    @property
    def leaves(self) -> bool:
        """Whether its end is expected."""
        return self.draining or self.told_to_leave

    @property
    def state(self) -> str:
        """One word for people."""
        if self.gone is not None:
            return "gone"
        if self.stuck:
            return "stuck"
        if self.suspect:
            return "suspect"
        if self.draining:
            return "draining"
        return "busy" if self.holds else "idle"


class Roster:
    """The workers of one topic."""

    def __init__(self) -> None:
        self.workers: dict[bytes, Worker] = {}
        """By life."""
        self._idle: OrderedDict[bytes, Worker] = OrderedDict()
        self._open: OrderedDict[bytes, Worker] = OrderedDict()
        self._loaded: OrderedDict[bytes, Worker] = OrderedDict()
        """Those with a batch that has not begun behind one that runs."""
        self.items_at_once = 0
        """How many items run at once when every worker has a full batch."""
        self.max_latency = 0.0
        """The smallest window that a worker announced."""
        self.models: dict[Facts, int] = {}
        """What they told of their models, but for the GPU, and how many told it: mostly one of all."""
        self._told: dict[bytes, Facts] = {}

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def idle(self) -> int:
        """How many workers hold nothing and may get work."""
        return len(self._idle)

    def add(self, worker: Worker) -> None:
        """Count a worker in, or again after its offer changed."""
        self.workers[worker.link.life] = worker
        self._forget(worker.link.life)
        told = self._told[worker.link.life] = structs.replace(worker.ready.facts, gpu="")
        self.models[told] = self.models.get(told, 0) + 1
        self._measure()
        self.changed(worker)

    def remove(self, worker: Worker) -> None:
        """Forget a worker."""
        if self.workers.get(worker.link.life) is worker:
            del self.workers[worker.link.life]
            self._forget(worker.link.life)
        self._idle.pop(worker.link.life, None)
        self._open.pop(worker.link.life, None)
        self._loaded.pop(worker.link.life, None)
        self._measure()

    def changed(self, worker: Worker) -> None:
        """Put a worker where it belongs after its slots or its state changed."""
        life = worker.link.life
        held = len(worker.holds)
        takes = worker.takes_work
        if takes and not held:
            if life not in self._idle:
                self._idle[life] = worker
        else:
            self._idle.pop(life, None)
        if takes and 0 < held < worker.ready.slots:
            self._open[life] = worker
        else:
            self._open.pop(life, None)
        if takes and held > 1:
            self._loaded[life] = worker
        else:
            self._loaded.pop(life, None)

    def _forget(self, life: bytes) -> None:
        """Strike what a worker told of its model."""
        told = self._told.pop(life, None)
        if told is not None:
            self.models[told] -= 1
            if not self.models[told]:
                del self.models[told]

    def _measure(self) -> None:
        self.items_at_once = sum(worker.room.items for worker in self.workers.values())
        self.max_latency = min((worker.max_latency for worker in self.workers.values()), default=0.0)

    def next_idle(self) -> Worker | None:
        """Return the worker that has been idle longest."""
        return next(iter(self._idle.values())) if self._idle else None

    def next_open(self) -> Worker | None:
        """Return a working worker with a slot left."""
        return next(iter(self._open.values())) if self._open else None

    def prefetched(self) -> Handed | None:
        """Return a batch that waits behind another at its worker and was not called back yet."""
        for worker in self._loaded.values():
            last = worker.holds[max(worker.holds)]
            if last.began is None and not last.recalled:
                return last
            return None
        return None
