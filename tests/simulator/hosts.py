"""A worker's bodies in the simulator: a supervisor, and the model processes that it keeps alive.

What the model answers is said in ``models_of_bytes.py``.  What an item does stands in its name:
``!`` ends the process, ``?`` raises; where the lease is short ``~`` hangs (elsewhere it ends the process) and
``=`` takes long and says so.  Of an item that is streamed it yields a few parts, each with the name of the
process; what else the item does happens behind the first of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.models_of_bytes import Made, made, opened, root_of
from tests.simulator.callers import parts_of
from tests.simulator.network import Dealer, Parcel, Router
from tests.simulator.processes import Process
from tests.simulator.world import World
from zbatch import wire
from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.links import BACK
from zbatch.core.supervisor import Brake, SupervisorCore
from zbatch.core.worker import Job, Offer, WorkerCore
from zbatch.messages import Child, Fault

LOOK = 0.1
"""Seconds between a supervisor's looks at the leases."""

DRAIN = 25.0
"""Seconds that what runs may go on after a supervisor was told to leave."""

KILLED, CRASHED, LEASE, LEFT = "SIGKILL", "SIGSEGV", "lease", "left"


@dataclass
class Note:
    """What a model process writes where its supervisor can read it."""

    epoch: bytes = b""
    begun: int = 0
    finished: int = 0
    apart: bool = False
    others: dict[bytes, int] = field(default_factory=dict)
    lease_until: float = float("inf")
    """World time."""


@dataclass
class Farm:
    """What all hosts of a topic have in common."""

    offer: Offer
    timing: Timing
    run: float
    """Seconds that a batch takes, about."""
    load: float
    """Seconds that a model takes to load."""
    crash_after: float
    """How probable it is that a process dies between a run's end and its reply."""


class Model(Process):
    """One model process."""

    def __init__(self, host: Host, incarnation: bytes) -> None:
        world = host.world
        super().__init__(world, f"{host.name}.{host.born}")
        self.host = host
        self.incarnation = incarnation
        self.note = Note()
        self.exit = 0
        self.core = WorkerCore(len(host.routers), world.mint(16), incarnation, world.mint, host.farm.timing)
        self.state = "loading"
        self._job: Job | None = None
        self.dealers = host.connect(self._arrived)
        self._perform(self.core.start(self.now()))
        world.after(host.farm.load * world.between(0.3, 1.7), self._loaded)
        self.soon()

    @property
    def situation(self) -> str:
        """One word for what it is doing, to count what faults meet."""
        if self.state != "ready":
            return self.state
        if self._job is not None:
            return "running with another behind" if self.core._queue else "running"
        return "unacknowledged" if self.core._finished else "idle"

    def wakeup(self) -> float | None:
        return self.core.wakeup()

    def turn(self) -> None:
        now = self.now()
        self._perform(self.core.tick(now))
        while self.inbox:
            peer, (envelope, frames) = self.inbox.popleft()
            self._perform(self.core.handle(peer, wire.decode(envelope, len(frames)), frames, self.now()))
        if self.state == "loading" or self._job is not None:
            return
        job, actions = self.core.begin(self.now())
        self._perform(actions)
        if job is not None:
            self._run(job)
        elif self.core.is_drained(self.now()):
            self._perform(self.core.stop())
            self.end(0)
        elif actions:
            self.soon()

    def _arrived(self, index: int, parcel: Parcel) -> None:
        if self.alive:
            self.inbox.append((bytes([index]), parcel))
            self.soon()

    def _perform(self, actions: Iterable[Send]) -> None:
        for action in actions:
            self.dealers[action.peer[0]].send(action.message, action.frames)

    def _loaded(self) -> None:
        if not self.alive:
            return
        if self.stopped is not None:
            self.world.after(0.1, self._loaded)
            return
        if self.state == "loading":
            self.state = "ready"
            self._perform(self.core.ready(self.host.farm.offer))
            self.host.shown(self)
        self.soon()

    # --- the model ---------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        self._job = job
        items = [item for item, _ in _seen(job)]
        topic = self.host.farm.offer.topic
        self.host.ran.update((job.epoch, topic, item) for item in items)
        assert all(topic.encode() in item for item in items), f"a model of {topic!r} got {items}"
        self._look_at_names(job, items)
        note = self.note
        if note.epoch != job.epoch:
            if note.begun:
                note.others[note.epoch] = note.begun
            note.others.pop(job.epoch, None)
            note.finished = 0
        note.epoch, note.begun, note.apart = job.epoch, job.number, job.apart
        self.note.lease_until = self.world.now + job.lease
        if any(job.streams()):
            self._step(job, 0)
            return
        seconds = min(self.host.farm.run * self.world.between(0.2, 1.8), 0.6 * job.lease)
        marks = {item[:1] for item in items}
        self.world.tell(f"{self.name} runs {items}")
        short = self.host.farm.offer.lease is not None
        if b"=" in marks and short:
            self.world.after(job.lease * 0.7, lambda: self._progress(job))
            seconds = job.lease * 1.3
        if b"~" in marks and short:
            return
        if b"!" in marks or b"~" in marks:
            self.world.after(seconds, lambda: self._crash(job))
        else:
            self.world.after(seconds, lambda: self._ran(job))

    def _step(self, job: Job, step: int) -> None:
        """Yield the next part of each stream, where its reader keeps up."""
        if self._job is not job or not self.alive:
            return
        farm = self.host.farm
        pause = min(farm.run, 0.3 * job.lease) * self.world.between(0.2, 1.8)
        items, flows = [item for item, _ in _seen(job)], job.streams()
        open_places = [at for at, flow in enumerate(flows) if flow is None or flow.is_open]
        if self.stopped is not None:
            self.world.after(0.01, lambda: self._step(job, step))
            return
        if self.core.are_held_up(job, open_places, self.now()):
            self._progress(job)
            self.world.after(min(0.5, 0.5 * job.lease), lambda: self._step(job, step))
            return
        marks = {item[:1] for item in items}
        is_over = step > 5 or not any(flow is not None and flow.is_open for flow in flows)
        if (step == 1 or is_over) and b"~" in marks and farm.offer.lease is not None:
            return
        if (step == 1 or is_over) and (b"!" in marks or b"~" in marks):
            self._crash(job)
            return
        if is_over:
            self._ran(job)
            return
        parts: list[Any] = []
        ended: list[Any] = []
        for at, item in enumerate(items):
            if flows[at] is None:
                continue
            if item[:1] == b"?" and step == 1:
                ended.append((at, Fault("model_failed", "no")))
            elif step < parts_of(item) or (item[:1] in b"?!~" and step == 0):
                own = [b"y" + one for one in _seen(job)[at][1]]
                parts.append((at, b"y%s/%d@%s" % (item, step, self.name.encode()), own))
            else:
                ended.append((at, None))
        self.note.lease_until = self.world.now + job.lease
        self._perform(self.core.put(job, parts, ended))
        self.world.after(pause, lambda: self._step(job, step + 1))

    def _look_at_names(self, job: Job, items: list[bytes]) -> None:
        """Each item has the request id of the call that it came with, in whatever stage and company."""
        names = list(job.names_at_work()) or [""] * len(items)
        wanted = [self.world.named[root_of(item)] for item in items]
        assert names == wanted, f"{items} have the request ids {names}, wanted {wanted}"

    def _crash(self, job: Job) -> None:
        if self._job is job and self.alive:
            self.end(-11)

    def _progress(self, job: Job) -> None:
        if self._job is job and self.alive and self.stopped is None:
            self.note.lease_until = self.world.now + job.lease
            self._perform(self.core.progress())

    def _ran(self, job: Job) -> None:
        if self._job is not job or not self.alive:
            return
        if self.stopped is not None:
            self.world.after(0.01, lambda: self._ran(job))
            return
        seen = _seen(job)
        self.note.finished = job.number
        if self.world.maybe(self.host.farm.crash_after):
            self.end(-9)
            return
        self._job = None
        failed = [at for at, (item, _) in enumerate(seen) if item[:1] == b"?"]
        errors = [(at, Fault("model_failed", "no")) for at in failed]
        results = [(b"", []) if at in failed else made(*one) for at, one in enumerate(seen)]
        outputs = [output for output, _ in results]
        out = [own for _, own in results] if any(own for _, own in results) else None
        self._perform(self.core.finished(job, outputs, out, errors or None, 0.01))
        if self.world.maybe(self.host.farm.crash_after):
            self.end(-9)
            return
        self.soon()

    def drain(self) -> None:
        """Take nothing new, and leave when all is done."""
        if self.stopped is not None or self.state == "draining":
            return
        if self.state == "loading":
            self.end(0)
            return
        self.state = "draining"
        self._perform(self.core.drain())
        self.host.shown(self)
        self.soon()

    def end(self, status: int) -> None:
        """End, whatever it is doing."""
        if self.alive:
            self.exit = status
            self.die()
            self.host.child_died(self)


def _seen(job: Job) -> list[Made]:
    """Return what the model sees of a batch."""
    items, buffers, *_ = job.work()
    return [opened(item, buffers[at] if buffers else ()) for at, item in enumerate(items)]


class Host(Process):
    """A supervisor with one model process."""

    def __init__(self, world: World, name: str, routers: list[Router], farm: Farm, delay: float) -> None:
        super().__init__(world, name)
        self.routers = routers
        self.farm = farm
        self.delay = delay
        self.born = 0
        self.ran: Counter[tuple[bytes, str, bytes]] = Counter()
        """How often each item began to run, in each life of a broker, in each topic."""
        self.model: Model | None = None
        self._begin()

    def _begin(self) -> None:
        self.alive = True
        self.leaving: float | None = None
        """Until when what runs may go on."""
        self._brake = Brake()
        self._reason = ""
        self._dead: Model | None = None
        core = SupervisorCore(
            len(self.routers), self.world.mint(16), self.world.mint, self.farm.timing, self.farm.offer.topic
        )
        self.core = core
        self.inbox.clear()
        self.dealers = self.connect(self._arrived)
        self._perform(core.start(self.now()))
        self._start_at: float | None = self.now()
        self._look_at = self.now()
        self.soon()

    def connect(self, arrived: Any) -> list[Dealer]:
        """Return a DEALER for each broker."""
        return [
            Dealer(self.world, router, BACK, lambda parcel, index=index: arrived(index, parcel), self.delay)  # type: ignore[misc]
            for index, router in enumerate(self.routers)
        ]

    # --- its loop ----------------------------------------------------------------------------------

    def wakeup(self) -> float | None:
        due = self.core.wakeup()
        if self._start_at is not None:
            due = min(due, self._start_at)
        model = self.model
        if model is not None and (self.leaving is not None or model.note.begun != model.note.finished):
            due = min(due, self._look_at + LOOK)
        return due

    def turn(self) -> None:
        now = self.now()
        if self._start_at is not None and now >= self._start_at and self.leaving is None:
            self._start_at = None
            self._start(now)
        while self.inbox:
            peer, (envelope, frames) = self.inbox.popleft()
            self._perform(self.core.handle(peer, wire.decode(envelope, len(frames)), frames, now))
        self._perform(self.core.tick(now))
        self._look_at = now
        model = self.model
        if model is not None and self._is_overdue(model.note):
            self._reason = LEASE
            model.end(-9)
        if self.leaving is not None and model is not None and model.alive:
            model.drain()
            if now >= self.leaving:
                self._reason = LEFT
                model.end(-9)
        if self._dead is not None:
            self._bury(self._dead, now)
        if self.leaving is not None and self.model is None:
            self._perform(self.core.stop())
            self.die()

    def _is_overdue(self, note: Note) -> bool:
        return note.begun != note.finished and note.lease_until < self.world.now

    def _start(self, now: float) -> None:
        self.born += 1
        self._reason = ""
        incarnation = self.world.mint(8)
        self._perform(self.core.changed(Child(incarnation, True, state="loading"), now))
        self.model = Model(self, incarnation)

    def _bury(self, model: Model, now: float) -> None:
        self._dead = None
        note = model.note
        # What we ended ourselves to leave is nobody's fault.
        finished = note.begun if self._reason == LEFT else note.finished
        reason = self._reason or (KILLED if model.exit == -9 else CRASHED)
        child = Child(
            model.incarnation,
            False,
            note.epoch,
            note.begun,
            finished,
            exit=model.exit,
            reason=reason,
            others=list(note.others.items()),
        )
        self._perform(self.core.changed(child, now))
        if self.leaving is None:
            expected = note.apart and note.begun != note.finished
            finished_some = bool(note.finished or note.others)
            self._start_at = now + (0.0 if expected else self._brake.died(finished=finished_some))

    def _arrived(self, index: int, parcel: Parcel) -> None:
        if self.alive:
            self.inbox.append((bytes([index]), parcel))
            self.soon()

    def _perform(self, actions: Iterable[Send]) -> None:
        for action in actions:
            self.dealers[action.peer[0]].send(action.message, action.frames)

    # --- what its child does -----------------------------------------------------------------------

    def child_died(self, model: Model) -> None:
        """Learn of the death within milliseconds."""
        if self.model is model:
            self.model = None
            if self.alive:
                self._dead = model
                self.soon(self.world.between(0.001, 0.01))

    def shown(self, model: Model) -> None:
        """See that the child is ready, or drains."""
        if self.alive and self.model is model:
            child = Child(model.incarnation, True, state=model.state)
            self._perform(self.core.changed(child, self.now()))

    # --- faults ------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Drain, as on SIGTERM; when the child has left, so does this."""
        if self.alive and self.stopped is None and self.leaving is None:
            self.leaving = self.now() + DRAIN
            self._start_at = None
            self.soon()

    def die(self) -> None:
        """End without a word, and with it its child: the kernel sees to that."""
        super().die()
        self.stopped = None
        self._dead = None
        model, self.model = self.model, None
        if model is not None and model.alive:
            model.die()

    def start_again(self) -> None:
        """Begin another life."""
        if not self.alive:
            self._begin()
