"""A model process: one model, run in the main thread, and what talks to the brokers around it.

The body around ``core/worker.py``.  While it waits, the main thread itself reads the sockets, so a batch
crosses no thread on its way into the model and out again.  While the model runs (or loads) for longer than
a moment, a second thread reads and beats in its place: a busy model must not look dead.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import msgspec
import zmq

from zbatch import model_metrics, wire
from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.worker import Job, JobSink, Offer, WorkerCore
from zbatch.errors import ConfigError
from zbatch.journal import Journal
from zbatch.messages import Done, Fault, Room, Skip, Yielded
from zbatch.model import Context, LoadedModel, load
from zbatch.processes import LEAVE, Note, die_with_parent
from zbatch.runner import Ran, Runner, Work, place_of
from zbatch.schema import SCHEMA_BYTES
from zbatch.security import where_asked
from zbatch.sockets import (
    Dealer,
    connect,
    decode,
    file_descriptor,
    is_readable,
    receive,
    send,
    settle_allocator,
    settle_collector,
)

TAKE_OVER = 0.010
"""Seconds that the model runs before the second thread reads and beats for it: then the next batch is there
when this one ends.  Shorter runs gain nothing by it."""

LOOK = 0.100
"""Seconds between two looks of the second thread at whether it is needed, while the model is idle."""

FULL = 0.001
"""Seconds until a way that is full is tried again."""

FAILURES_EVERY = 10.0
"""Seconds between two lines about a model that raises: enough to see that it does, too few to fill a log."""

LAST_WORDS = 5.0
"""Seconds that a model gets to close, and its threads to end, once everything it did has arrived."""

LAST_PRINTS = 1.0
"""Seconds that a process that failed gives what its model printed: whoever reads stdout may have stopped."""

CRASHED = 1
"""Exit status: an exception ended the process; the traceback is on stderr."""

LOAD_FAILED = 3
"""Exit status: the model could not be loaded or warmed up; the traceback is on stderr."""

LOAD_REFUSED = 4
"""Exit status: what is asked for is no model; the note says why."""


class Spec(msgspec.Struct, frozen=True):
    """What a supervisor tells a model process."""

    model: str
    args: dict[str, Any]
    topic: str
    index: int
    device: str
    gpu: str
    batch_size: int
    batch_cost: float | None
    max_latency: float
    lease: float | None
    slots: int
    backend: tuple[str, ...]
    keys: str
    incarnation: bytes
    timing: Timing
    log_format: str
    log_level: str
    slate: int | None = None
    """The descriptor of what /metrics shows of it; None: nobody scrapes."""


class _Failure(NamedTuple):
    """What is said of items that failed alike."""

    code: str
    kind: str
    """The class of what the model raised."""
    at: str
    """The line where it did."""


@dataclass(slots=True, eq=False)
class _Asked:
    """The requests that a batch is run for, and where the model failed at some of its items."""

    names: Sequence[str]
    """One for each item, empty where it has none."""
    lines: dict[int, str] = field(default_factory=dict)

    def distinct(self) -> list[str]:
        """Return each request id once."""
        found = dict.fromkeys(self.names)
        found.pop("", None)
        return list(found)

    def failed(self, faults: Iterable[tuple[int, Fault]]) -> dict[_Failure, list[str]]:
        """Return which requests some items failed for, those of one failure together."""
        found: dict[_Failure, dict[str, None]] = {}
        for place, fault in faults:
            if self.names[place]:
                failure = _Failure(fault.code, fault.kind, self.lines.get(place, ""))
                found.setdefault(failure, {})[self.names[place]] = None
        return {failure: list(names) for failure, names in found.items()}


@dataclass(slots=True)
class _Failures:
    """What the model failed at since a line said so; the first stands for all."""

    items: int = 0
    kind: str = ""
    at: str = ""
    due: float = 0.0
    """When the next line may be printed."""


class ModelProcess:
    """The process in which a model lives."""

    def __init__(self, spec: Spec, note: Note, lifeline: int, journal: Journal) -> None:
        self.spec = spec
        self._note = note
        self._lifeline = lifeline
        self._journal = journal
        self._lock = threading.Lock()
        """Around the core and the sockets: whoever reads or sends holds it, for microseconds."""
        self._context: zmq.Context[Any] = zmq.Context()
        self._sockets: dict[bytes, Dealer] = {}
        self._core = WorkerCore(
            len(spec.backend),
            os.urandom(16),
            spec.incarnation,
            os.urandom,
            spec.timing,
            host=platform.node(),
            pid=os.getpid(),
        )
        # One for each thread: a poll object cannot be used by two at once.
        self._poll, self._stand_in_poll = select.poll(), select.poll()
        self._busy: float | None = None
        """Since when the main thread has not read the sockets; None: it reads them now."""
        self._ended = threading.Event()
        self._leaving: float | None = None
        self._failures = _Failures()
        self._asked: _Asked | None = None
        """Of the batch that runs; None: its items have no request ids."""
        self._work = model_metrics.Work()
        self._news = threading.Event()
        """Something was read while the model ran."""
        self._says_progress = 0.0
        """When the broker is told again that a generator advances."""

    def run(self) -> int:
        """Load the model and serve until told to leave; return the exit status."""
        self._connect()
        self._busy = time.monotonic()
        threading.Thread(target=self._stand_in, name="zbatch-io", daemon=True).start()
        if self.spec.slate is not None:
            slate = model_metrics.Slate(self.spec.slate)
            model_metrics.Reporter(slate, self._work, self._metrics_failed).start()
        try:
            model = self._load()
        except ConfigError as error:
            self._journal.event("model cannot be loaded", level="error", why=str(error))
            self._note.refuse(str(error))
            return LOAD_REFUSED
        except BaseException:
            self._journal.event("model cannot be loaded", level="error", detail=traceback.format_exc())
            return LOAD_FAILED
        # What raises here is a crash.  It says no goodbye: a broker that heard one before the supervisor's
        # word of the death would find nobody guilty, and lose the neighbours with the guilty.
        self._serve(model)
        self._say_failures(math.inf)
        self._say_goodbye()
        _end_within(LAST_WORDS, self._journal)
        with contextlib.suppress(BaseException):
            model.close()
        return 0

    def _load(self) -> LoadedModel:
        spec = self.spec
        self._note.show("loading")
        started = time.monotonic()
        gpu = "" if spec.device == "cpu" else spec.gpu
        model = load(spec.model, spec.args, Context(spec.device, spec.index, spec.topic, gpu))
        model.warm_up()
        settle_collector()
        if len(model.schema) > SCHEMA_BYTES:
            size = len(model.schema)
            self._journal.event("schema left out", level="warning", bytes=size, at_most=SCHEMA_BYTES)
        offer = Offer(
            spec.topic,
            spec.batch_size,
            spec.batch_cost,
            spec.max_latency,
            spec.slots,
            spec.lease,
            model.idempotent,
            msgspec.structs.replace(model.facts(), gpu=spec.gpu),
        )
        with self._lock:
            self._perform(self._core.ready(offer))
        self._note.show("ready")
        seconds = round(time.monotonic() - started, 2)
        self._journal.event("model ready", model=spec.model, topic=spec.topic, gpu=spec.gpu, seconds=seconds)
        return model

    def _serve(self, model: LoadedModel) -> None:
        runner = Runner(
            model,
            topic=self.spec.topic,
            on_progress=self._progress,
            on_short=self._short,
            on_failed=self._failed,
        )
        while not self._ended.is_set():
            with self._lock:
                now = time.monotonic()
                self._turn(now)
                job, actions = self._core.begin(now)
                self._perform(actions)
                due = now + FULL if self._core.is_choked else self._core.wakeup()
                if job is None and self._core.is_drained(now):
                    return
                if job is None and not actions:
                    # Under the lock: from here on the other thread reads nothing more.
                    self._busy = None
            if job is not None:
                self._busy = now
                self._run_job(runner, job)
            elif not actions:
                self._wait(due, now)
                self._busy = time.monotonic()

    def _run_job(self, runner: Runner, job: Job) -> None:
        names = job.names_at_work()
        work = Work(*job.work(), joined=job.joined, sink=JobSink(job, self.put, self.wait), names=names)
        asked = self._asked = _Asked(names) if names else None
        if asked is not None:
            self._note.name(job.epoch, job.number, asked.distinct())
        self._note.begin(job.epoch, job.number, job.lease, apart=job.apart)
        ran = runner.run(work)
        self._note.finish(job.number)
        self._work.ran(len(ran.outputs), len(ran.errors or ()), ran.seconds)
        with self._lock:
            self._perform(self._core.finished(job, ran.outputs, ran.buffers, ran.errors, ran.seconds))
        self._say_failures(time.monotonic())
        if asked is not None and (ran.errors or job.flows):
            self._say_requests(asked, job, ran)
        if self._journal.prints("debug"):
            self._journal.event(
                "batch ran",
                level="debug",
                topic=self.spec.topic,
                batch=job.number,
                items=len(work.items),
                seconds=round(ran.seconds, 6),
                request_ids=[] if asked is None else asked.distinct(),
            )

    def _metrics_failed(self, error: BaseException) -> None:
        self._journal.event(
            "model metrics failed", level="warning", kind=type(error).__name__, at=place_of(error)
        )

    def _short(self, items: int, limit: int) -> None:
        self._work.short += 1
        self._journal.event("memory is short", level="warning", items=items, from_now_on_at_most=limit)

    def _failed(self, error: BaseException, places: Sequence[int]) -> None:
        if not self._failures.items:
            # Not its text: that often quotes the item.
            self._failures.kind, self._failures.at = type(error).__name__, place_of(error)
        self._failures.items += len(places)
        if self._asked is not None:
            self._asked.lines.update(dict.fromkeys(places, place_of(error)))

    def _say_requests(self, asked: _Asked, job: Job, ran: Ran) -> None:
        """Say which requests have items that failed here, those of one failure in one line."""
        streams = enumerate(job.streams()) if job.flows else ()
        ended = [(at, flow.fault) for at, flow in streams if flow is not None and flow.fault is not None]
        for failure, names in asked.failed([*(ran.errors or ()), *ended]).items():
            told: dict[str, Any] = {key: value for key, value in failure._asdict().items() if value}
            self._journal.event(
                "requests failed", level="warning", topic=self.spec.topic, request_ids=names, **told
            )

    def _say_failures(self, now: float) -> None:
        failures = self._failures
        if not failures.items or now < failures.due:
            return
        at = failures.at or "what predict returned"
        self._journal.event("model failed", level="warning", kind=failures.kind, at=at, items=failures.items)
        self._failures = _Failures(due=now + FAILURES_EVERY)

    def _progress(self) -> None:
        """Renew the lease of the batch that runs: its model says that it advances."""
        job = self._core.running
        if job is not None:
            self._note.progress(job.lease)
            with self._lock:
                self._perform(self._core.progress())

    # --- streams -----------------------------------------------------------------------------------

    def put(self, job: Job, parts: Any, ended: Any) -> None:
        """Send what a step of the model yielded, as far as its readers keep up."""
        self._note.progress(job.lease)
        with self._lock:
            self._perform(self._core.put(job, parts, ended))
        now = time.monotonic()
        if now >= self._says_progress:
            # What is gathered for those who wait for all of it is not sent yet, and no sign of anything.
            self._says_progress = now + self.spec.timing.beat
            with self._lock:
                self._perform(self._core.progress())

    def wait(self, job: Job, places: Sequence[int]) -> None:
        """Wait while only readers that are behind want what the model would yield next."""
        since = time.monotonic()
        while self._core.are_held_up(job, places, since):
            self._news.clear()
            if self._core.are_held_up(job, places, time.monotonic()):
                self._news.wait(FULL if self._core.is_choked else LOOK)
            since, before = time.monotonic(), since
            if not self._core.is_choked:
                job.waited += since - before
            self.put(job, (), ())

    # --- sockets -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        keys = where_asked(self.spec.keys, "worker")
        for index, endpoint in enumerate(self.spec.backend):
            socket = connect(self._context, endpoint, self.spec.timing, keys)
            self._sockets[bytes([index])] = socket
            for poll in (self._poll, self._stand_in_poll):
                poll.register(file_descriptor(socket), select.POLLIN)
        os.set_blocking(self._lifeline, False)
        for poll in (self._poll, self._stand_in_poll):
            poll.register(self._lifeline, select.POLLIN | select.POLLHUP)
        with self._lock:
            self._perform(self._core.start(time.monotonic()))

    def _wait(self, due: float, now: float) -> None:
        """Wait for input in the main thread."""
        patience = max(0, int((due - now) * 1000) + 1)
        if any(descriptor == self._lifeline for descriptor, _ in self._poll.poll(patience)):
            self._heed()

    def _stand_in(self) -> None:
        """Read and beat while the main thread cannot."""
        while not self._ended.is_set():
            busy = self._busy
            now = time.monotonic()
            if busy is None or now - busy < TAKE_OVER:
                self._ended.wait(LOOK if busy is None else busy + TAKE_OVER - now)
                continue
            due = now if self._core.is_choked else self._core.wakeup()
            patience = max(0, int((due - now) * 1000) + 1)
            ready = self._stand_in_poll.poll(patience)
            if any(descriptor == self._lifeline for descriptor, _ in ready):
                self._heed()
            with self._lock:
                if self._busy is not None and not self._ended.is_set():
                    # Else what came wakes the main thread; reading it here would put that to sleep again,
                    # for poll looks once more at what woke it.
                    self._turn(time.monotonic())

    def _turn(self, now: float) -> None:
        # Tick first: the descriptor is edge-triggered, and reading sees what sending has swallowed.
        self._perform(self._core.tick(now))
        self._read(now)

    def _heed(self) -> None:
        """Read the supervisor's order; the end of the lifeline is the supervisor's end."""
        try:
            order = os.read(self._lifeline, 64)
        except BlockingIOError:
            return  # the other thread was first
        if not order:
            # No lock, no goodbye: whoever may hold them could hang, and an orphan must not live on.
            os._exit(0)
        if LEAVE in order and self._leaving is None:
            self._leaving = time.monotonic()
            self._note.show("draining")
            with self._lock:
                self._perform(self._core.drain())

    def _read(self, now: float) -> None:
        for peer, socket in self._sockets.items():
            while is_readable(socket):
                envelope, frames = receive(socket)
                try:
                    message = decode(envelope, frames)
                except wire.Malformed as error:
                    self._journal.event("malformed message", level="warning", why=str(error))
                    continue
                self._perform(self._core.handle(peer, message, frames, now))
                if type(message) is Room or type(message) is Skip:
                    self._news.set()

    def _perform(self, actions: Sequence[Send]) -> None:
        full: set[bytes] = set()
        for action in actions:
            message = action.message
            if not isinstance(message, Yielded | Done):
                send(self._sockets[action.peer], message, action.frames)
            elif action.peer in full or not send(self._sockets[action.peer], message, action.frames):
                full.add(action.peer)
                self._core.unsent(action.peer, message)

    def _say_goodbye(self) -> None:
        self._ended.set()
        with self._lock:
            self._perform(self._core.stop())
            for socket in self._sockets.values():
                socket.close(500)
            self._context.term()


def main(config: int, note: int, lifeline: int) -> int:
    """Be the model process that a supervisor started with these descriptors."""
    die_with_parent(lifeline)
    settle_allocator()
    _leave_signals_to_the_supervisor()
    with os.fdopen(config, "rb") as stream:
        spec = msgspec.json.decode(stream.read(), type=Spec)
    journal = Journal(spec.log_format, f"worker {spec.topic}/{spec.index}", level=spec.log_level)
    process = ModelProcess(spec, Note.attach(note), lifeline, journal)
    try:
        status = process.run()
    except BaseException:
        journal.event("model process crashed", level="error", detail=traceback.format_exc())
        status = CRASHED
    journal.close()
    if status != 0:
        _fail(status)
    sys.stdout.flush()
    return status


def _leave_signals_to_the_supervisor() -> None:
    """Ignore what is sent to a whole service: it means the worker, and orders come by the lifeline."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not SIG_IGN: programs that the model starts would inherit that, and its terminate() would not end them.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(before=_hold_sigterm, after_in_parent=_let_go_sigterm, after_in_child=_heed_sigterm)


def _hold_sigterm() -> None:
    """Keep what is sent to a forked child before that can heed it; else it would be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_go_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _heed_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go_sigterm()


def _end_within(seconds: float, journal: Journal) -> None:
    """Have this process end by then, in order, though its model hangs or left a thread running."""

    def end() -> None:
        try:
            time.sleep(seconds)
            journal.event("model does not end", level="warning", waited_s=seconds)
            journal.close()
        finally:
            os._exit(0)

    threading.Thread(target=end, name="zbatch-end", daemon=True).start()


def _fail(status: int) -> NoReturn:
    """End now: what ran waits for the word of this death, and so does the next process.

    Python's own end could take for ever: it waits for threads of the model, and for whoever reads its prints.
    """
    printing = threading.Thread(target=sys.stdout.flush, daemon=True)
    printing.start()
    printing.join(LAST_PRINTS)
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
