"""``zbatch worker``: a supervisor that keeps one model process a slot alive and tells brokers how they are.

The body around ``core/supervisor.py``.  It starts the processes, sees each death within milliseconds, reads
the note that the dead one left (what it was running) and reports it, so that a ``kill -9`` costs no
heartbeat.  It also enforces the lease: a batch that runs too long ends its process.  What a model process
does is in ``model_process.py``.
"""

from __future__ import annotations

import math
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from zbatch import extras, wire
from zbatch.config import WorkerSettings, describe, version
from zbatch.core.actions import Send
from zbatch.core.supervisor import Lease, Restarts, SupervisorCore
from zbatch.errors import ConfigError
from zbatch.gpus import Slot, choose
from zbatch.journal import Journal
from zbatch.messages import Child as Report
from zbatch.messages import Denied
from zbatch.model import check_name
from zbatch.model_metrics import Slate, SlotFigures, WorkerFigures
from zbatch.model_process import LOAD_FAILED, LOAD_REFUSED, Spec
from zbatch.nvml import Gpus
from zbatch.processes import KILL_PATIENCE, LEAVE, Alarm, Child, Note, heed_orders, reap_strangers
from zbatch.security import where_asked
from zbatch.sockets import Dealer, connect, decode, file_descriptor, is_readable, receive, send
from zbatch.watchdog import Watchdog

LOOK = 0.100
"""Seconds between two looks at the leases: a hang costs this much more than its lease."""

LAG = 0.5
"""Seconds: a loop that wakes this much late was stopped, and its children may have been stopped with it."""

SILENCE = 5.0
"""Seconds without a word from a broker that an operator should hear of: a restart takes less."""

SNAPSHOT = 1.0
"""Seconds between two snapshots for /metrics, where that is served."""

LEFT = "left"
"""Why a process was killed that was not done when its supervisor had to leave."""

GAVE_UP = 1
"""Exit status when no slot can be served."""


@dataclass(slots=True, eq=False)
class _Place:
    """A slot and the model process that serves it."""

    slot: Slot
    index: int
    note: Note
    slate: Slate | None = None
    """Where its model process writes what /metrics shows of it; None: nobody scrapes."""
    deaths: dict[str, int] = field(default_factory=dict)
    """Processes that ended and were replaced, by why."""
    child: Child | None = None
    incarnation: bytes = b""
    lease: Lease = field(default_factory=Lease)
    restarts: Restarts = field(default_factory=Restarts)
    reason: str = ""
    """Why it was killed, where we did it."""
    start_at: float = 0.0
    shown: str = ""
    refusal: str = ""
    """Why its last process ended, where what it was to serve is no model."""


class Supervisor:
    """Keeps the model processes of one ``zbatch worker`` alive."""

    def __init__(self, settings: WorkerSettings, journal: Journal) -> None:
        self.settings = settings
        self._journal = journal
        self._context: zmq.Context[Any] = zmq.Context()
        self._sockets: dict[bytes, Dealer] = {}
        self._keys = where_asked(settings.keys, "worker")
        self._core = SupervisorCore(
            len(settings.backend),
            os.urandom(16),
            os.urandom,
            settings.timing,
            settings.topic,
            host=platform.node(),
            pid=os.getpid(),
        )
        slots = choose(settings.gpu, settings.num)
        self._places = [_Place(slot, index, Note.create()) for index, slot in enumerate(slots)]
        self._poll = select.poll()
        self._alarm = Alarm()
        self._missed: set[str] = set()
        """Brokers that say nothing."""
        self._orders = 0
        self._leaving: float | None = None
        self._watchdog = Watchdog()
        self._metrics: _Metrics | None = None
        self._running = True

    @property
    def refusal(self) -> str:
        """Why what is to be served is no model; empty: it is one, or may be."""
        return next((place.refusal for place in self._places if place.refusal), "")

    def stop(self) -> None:
        """Leave: let what runs finish; called again: at once.  May be called from a signal handler."""
        self._alarm.ring()

    def run(self) -> int:
        """Supervise until stopped or nothing can be served; return the exit status."""
        if self.settings.metrics is not None:
            self._metrics = _Metrics(self.settings, self._places, self._core, self._journal)
        for index, endpoint in enumerate(self.settings.backend):
            socket = connect(self._context, endpoint, self.settings.timing, self._keys)
            self._sockets[bytes([index])] = socket
            self._poll.register(file_descriptor(socket), select.POLLIN)
        self._poll.register(self._alarm, select.POLLIN)
        self._perform(self._core.start(time.monotonic()))
        self._watchdog.ready()
        due = math.inf
        while self._running:
            now = time.monotonic()
            if now - due > LAG:
                self._slept(now - due)
            self._watchdog.alive(now)
            self._start_due(now)
            self._read(now)
            self._perform(self._core.tick(now))
            self._check(now)
            self._miss(now)
            if self._metrics is not None:
                self._metrics.leave(now)
            if self._is_over():
                break
            patience = self._patience(now)
            due = now + patience / 1000
            ready = {descriptor for descriptor, _ in self._poll.poll(patience)}
            if self._alarm.fileno() in ready:
                self._heed()
            self._reap(ready)
            if os.getpid() == 1:
                reap_strangers([one.child.pid for one in self._places if one.child is not None])
        self._end_all()
        self._perform(self._core.stop())
        return GAVE_UP if self._leaving is None else 0

    def close(self) -> None:
        """End every model process and let go of everything."""
        if self._metrics is not None:
            self._metrics.close()
        children = [place.child for place in self._places if place.child is not None]
        for child in children:
            child.kill()
        for child in children:
            child.wait(KILL_PATIENCE)
            child.close()
        for place in self._places:
            place.child = None
            place.note.close()
        for socket in self._sockets.values():
            socket.close(200)
        self._context.term()
        self._alarm.close()

    # --- model processes ---------------------------------------------------------------------------

    def _start_due(self, now: float) -> None:
        for place in self._places:
            if place.child is None and self._leaving is None and now >= place.start_at:
                self._start(place, now)

    def _start(self, place: _Place, now: float) -> None:
        settings = self.settings
        place.incarnation = os.urandom(8)
        place.reason = ""
        place.note.clear()
        spec = Spec(
            model=settings.model,
            args=dict(settings.args),
            topic=settings.topic,
            index=place.index,
            device=place.slot.device,
            gpu=place.slot.gpu,
            batch_size=settings.batch_size,
            batch_cost=settings.batch_cost,
            max_latency=settings.max_latency,
            lease=settings.lease,
            slots=settings.slots,
            backend=settings.backend,
            keys=settings.keys,
            incarnation=place.incarnation,
            timing=settings.timing,
            log_format=settings.log_format,
            log_level=settings.log_level,
            slate=place.slate.descriptor if place.slate is not None else None,
        )
        place.child = Child.spawn(
            [sys.executable, "-m", "zbatch.model_process"],
            config=msgspec.json.encode(spec),
            env=os.environ | place.slot.env,
            note=place.note,
            kept=() if place.slate is None else (place.slate.descriptor,),
        )
        self._poll.register(place.child.fileno(), select.POLLIN)
        place.shown = "loading"
        self._tell(place, now, alive=True)

    def _reap(self, ready: set[int]) -> None:
        for place in self._places:
            child = place.child
            if child is not None and child.fileno() in ready and child.poll() is not None:
                self._buried(place, child)

    def _buried(self, place: _Place, child: Child) -> None:
        now = time.monotonic()
        exit_status = child.poll() or 0
        self._poll.unregister(child.fileno())
        child.close()
        place.child = None
        seen = place.note.read()
        self._tell(place, now, alive=False, exit_status=exit_status)
        if self._leaving is not None and (exit_status == 0 or place.reason == LEFT):
            return
        pause = place.restarts.died(
            loaded=seen.state != "loading",
            finished=bool(seen.finished or seen.others),
            apart=seen.apart and seen.begun != seen.finished,
            refused=exit_status == LOAD_REFUSED,
        )
        place.refusal = place.note.refusal() if exit_status == LOAD_REFUSED else ""
        place.start_at = now + pause
        reason = place.reason or _word(exit_status)
        batch = seen.begun if seen.begun != seen.finished else 0
        names = place.note.names(seen.epoch, batch)
        asked: dict[str, Any] = {"request_ids": names} if names else {}
        place.deaths[reason] = place.deaths.get(reason, 0) + 1
        self._journal.event(
            "model process ended",
            level="warning",
            topic=self.settings.topic,
            slot=place.index,
            pid=child.pid,
            exit=exit_status,
            reason=reason,
            batch=batch,
            again_in_s=round(pause, 1),
            **asked,
        )
        if place.restarts.given_up:
            place.start_at = math.inf
            self._journal.event(
                "slot given up",
                level="error",
                slot=place.index,
                tries=place.restarts.failed_loads,
                model=self.settings.model,
            )

    def _end_all(self) -> None:
        """End what still runs because we leave, and say so: what it held need not wait to be missed."""
        left = [(place, place.child) for place in self._places if place.child is not None]
        for _, child in left:
            child.kill()
        for place, child in left:
            place.reason = LEFT
            status = child.wait(KILL_PATIENCE)
            if status is not None:
                self._tell(place, time.monotonic(), alive=False, exit_status=status)

    def _check(self, now: float) -> None:
        """End what runs beyond its lease, and pass on what changed."""
        for place in self._places:
            if place.child is None:
                continue
            seen = place.note.read()
            runs = seen.begun != seen.finished
            if runs and not place.reason and place.lease.is_over(seen.lease_until / 1e9, now):
                place.reason = "lease"
                self._journal.event("lease over", level="warning", slot=place.index, pid=place.child.pid)
                place.child.kill()
            if seen.state != place.shown:
                place.shown = seen.state
                self._tell(place, now, alive=True)

    def _slept(self, lag: float) -> None:
        """Move the leases by our own pause."""
        for place in self._places:
            place.lease.slept(place.note.read().lease_until / 1e9, lag)

    def _miss(self, now: float) -> None:
        """Say which broker is not heard, and that it is heard again."""
        for endpoint, silent in zip(self.settings.backend, self._core.silences(now), strict=True):
            if silent >= SILENCE and endpoint not in self._missed:
                self._missed.add(endpoint)
                self._journal.event(
                    "broker does not answer", level="warning", endpoint=endpoint, silent_s=round(silent, 1)
                )
            elif silent < SILENCE and endpoint in self._missed:
                self._missed.remove(endpoint)
                self._journal.event("broker answers", endpoint=endpoint)

    def _tell(self, place: _Place, now: float, *, alive: bool, exit_status: int = 0) -> None:
        seen = place.note.read()
        report = Report(
            place.incarnation,
            alive,
            seen.epoch,
            seen.begun,
            # What we ended ourselves to leave is nobody's fault: its batch ran, and has no culprit.
            seen.begun if place.reason == LEFT else seen.finished,
            exit_status,
            "" if alive else place.reason or _word(exit_status),
            place.restarts.count,
            place.slot.gpu,
            seen.state if alive else "dead",
            list(seen.others),
        )
        self._perform(self._core.changed(report, now))

    # --- the loop's parts --------------------------------------------------------------------------

    def _heed(self) -> None:
        self._orders += len(self._alarm.words())
        if self._orders > 1:
            self._running = False
        self._leave()

    def _leave(self) -> None:
        if self._leaving is not None:
            return
        self._leaving = time.monotonic() + self.settings.timing.drain
        self._journal.event("leaving", waits_s=self.settings.timing.drain)
        self._watchdog.stopping()
        for place in self._places:
            if place.child is None:
                continue
            if place.note.read().state == "loading":
                # It has nothing to finish, and would not hear an order before it is through.
                place.reason = LEFT
                place.child.kill()
            else:
                place.child.order(LEAVE)

    def _is_over(self) -> bool:
        if self._leaving is not None:
            return all(place.child is None for place in self._places) or time.monotonic() >= self._leaving
        return all(place.restarts.given_up for place in self._places)

    def _patience(self, now: float) -> int:
        due = min(self._core.wakeup(), now + LOOK)
        due = min([due, *(one.start_at for one in self._places if one.child is None)])
        return max(1, int((due - now) * 1000) + 1)

    def _read(self, now: float) -> None:
        for peer, socket in self._sockets.items():
            while is_readable(socket):
                envelope, frames = receive(socket)
                try:
                    message = decode(envelope, frames)
                except wire.Malformed as error:
                    self._journal.event("malformed message", level="warning", why=str(error))
                    continue
                if isinstance(message, Denied):
                    self._journal.event("broker refuses this worker", level="error", why=message.fault.text)
                self._perform(self._core.handle(peer, message, frames, now))
        if self._core.is_dismissed:
            self._leave()

    def _perform(self, actions: Sequence[Send]) -> None:
        for action in actions:
            send(self._sockets[action.peer], action.message, action.frames)


class _Metrics:
    """What the loop does for whoever scrapes: it leaves a snapshot now and then."""

    def __init__(
        self, settings: WorkerSettings, places: Sequence[_Place], core: SupervisorCore, journal: Journal
    ) -> None:
        parts = extras.metrics()
        self._places = places
        self._core = core
        self._brokers = settings.backend
        self._due = 0.0
        for place in places:
            place.slate = Slate.create()
        slates = {str(one.index): one.slate for one in places if one.slate is not None}
        gpus = Gpus(one.slot.gpu for one in places if one.slot.gpu != "cpu")
        self._shown = parts.series.WorkerSeries(settings.topic, slates, gpus)
        self._exposition = parts.exposition.Exposition(settings.metrics, self._shown, journal)
        self._exposition.start()

    def leave(self, now: float) -> None:
        """Leave a snapshot, if it is time."""
        if now >= self._due:
            self._due = now + SNAPSHOT
            slots = tuple(
                SlotFigures(str(one.index), _state(one), one.slot.gpu, dict(one.deaths))
                for one in self._places
            )
            silences = dict(zip(self._brokers, self._core.silences(now), strict=True))
            self._shown.leave(WorkerFigures(slots, silences), now)

    def close(self) -> None:
        """Serve no more."""
        self._exposition.close()
        for place in self._places:
            if place.slate is not None:
                place.slate.close()
                place.slate = None


def _state(place: _Place) -> str:
    if place.child is not None:
        return place.shown
    return "given_up" if place.restarts.given_up else "dead"


def _word(exit_status: int) -> str:
    if exit_status in (LOAD_FAILED, LOAD_REFUSED):
        return "load failed"
    if exit_status >= 0:
        return "exit"
    try:
        return signal.Signals(-exit_status).name
    except ValueError:
        return f"signal {-exit_status}"


def run(settings: WorkerSettings, lifeline: int | None = None) -> int:
    """Run the model processes of a worker until told to leave, as a broker is; twice: at once.

    Raises :class:`ConfigError` for a GPU or a model's file that is not there, and for what is no model once
    no process is left that serves it.
    """
    check_name(settings.model)
    journal = Journal(settings.log_format, "worker", level=settings.log_level)
    supervisor = Supervisor(settings, journal)
    heed_orders(supervisor.stop, lifeline)
    journal.event("worker started", version=version(), pid=os.getpid(), **describe(settings))
    try:
        status = supervisor.run()
    finally:
        supervisor.close()
        journal.event("worker ended")
        journal.close()
    if status == GAVE_UP and supervisor.refusal:
        raise ConfigError(supervisor.refusal)
    return status
