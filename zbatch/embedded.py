"""zbatch.local: a model in this process, asked through the same calls and batched by the same core.

The three cores (client, broker, worker) joined by function calls: messages are handed over as they are,
items by reference, nothing is encoded.  One thread loads and runs the model and drives the cores; callers
only leave their calls, which are taken along when it is free.  A second thread keeps deadlines while the
model runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from zbatch.calls import Asking, Caller
from zbatch.config import BrokerCoreSettings, Limits, Timing
from zbatch.core.actions import Send
from zbatch.core.batching import POLICIES
from zbatch.core.broker import BrokerCore
from zbatch.core.calls import Action, Shown
from zbatch.core.client import ClientCore
from zbatch.core.sizes import Buffers
from zbatch.core.status import snapshot
from zbatch.core.worker import Job, JobSink, Offer, WorkerCore
from zbatch.errors import ClientClosed, ConfigError, to_fault
from zbatch.futures import CLOSED, UNFINISHED, Future, Line, settle
from zbatch.lines import Lines
from zbatch.model import Context, LoadedModel, load, wrap
from zbatch.runner import Runner, Work

In = TypeVar("In")
Out = TypeVar("Out")

CLIENT, WORKER = b"F\0\0\0\0c", b"B\0\0\0\0w"
"""What the broker's core calls the two; the letter is the side, as in ``broker.py``."""

BROKER = b"\0"

NEVER = 1e9
"""Seconds: nobody in this process falls silent or is lost without the process."""

TIMING = Timing(
    beat=NEVER, quiet=NEVER, suspect=NEVER, rejoin=NEVER, silent=NEVER, client_silent=NEVER, drain=NEVER
)

LOOK = 0.020
"""Seconds between two looks at the clock while the model runs: deadlines must hold meanwhile."""

RETURN = 0.001
"""Seconds that callers who were just told get to ask again, where runs take no longer than that themselves:
under one interpreter's lock, a thread that goes on at once would run a batch of the first few of them."""

PAUSE = 0.000_1
"""Seconds in which several callers get their turn, and after which nobody more came if nobody comes."""

LAST_RUN = 2.0
"""Seconds that ``close`` waits for the model's thread; a longer run ends by itself, or with the process."""


def local(
    model: Any,
    batch_size: int = 32,
    max_latency: float = 0.010,
    *,
    args: Mapping[str, Any] | None = None,
    topic: str = "default",
    timeout: float = 30.0,
    batching: str = "eager",
    batch_cost: float | None = None,
    limits: Limits | None = None,
) -> LocalClient[Any, Any]:
    """Return a client of a model in this process; it batches what the process's threads ask for.

    ``model`` is a function, a class, an object or a name like ``pkg.mod:Name``.  It is loaded, warmed up
    and run in one thread of its own.  Items and outputs pass by reference.  Any topic but ``topic`` is
    unknown.  After a fork the child's calls raise :class:`ClientClosed`: the model is the parent's.

    Raises what loading the model raises, and :class:`ConfigError` for what is no model.
    """
    _check(batch_size, max_latency, batching)
    settings = BrokerCoreSettings(
        topics=(topic,), batching=batching, limits=limits or Limits(), timing=TIMING
    )
    asking = Asking(topic, timeout, encode=_by_reference)
    line = _LocalLine(settings)
    # One slot: a batch is handed over when the model is free, so nothing leaves the queue early.
    line.start(
        model, dict(args or {}), Offer(topic, batch_size, batch_cost, max_latency, slots=1, lease=NEVER)
    )
    return LocalClient(asking, line)


class _LocalFuture(Future[Out]):
    """A future whose outputs arrive as they are."""

    _decode = staticmethod(lambda item, _=(): item)


class LocalClient(Caller[In, Out]):
    """Asks the model in this process; the calls are those of :class:`zbatch.ZClient`."""

    _future = _LocalFuture
    _decode = staticmethod(lambda part, _=(): part)

    def __init__(self, asking: Asking, line: _LocalLine) -> None:
        self._line: _LocalLine = line
        super().__init__(asking, line)
        self._finalizer = weakref.finalize(self, line.retire)
        self._finalizer.atexit = False

    def status(self) -> dict[str, Any]:
        """Return the snapshot that a broker would give."""
        return self._line.status()

    def close(self) -> None:
        """End the model's thread; requests without an outcome raise :class:`ClientClosed`."""
        self._finalizer.detach()
        self._line.close()

    def __repr__(self) -> str:
        return f"LocalClient(topic={self._asking.topic!r})"


def _no_size(items: Sequence[Any], buffers: Buffers) -> int:
    """Return what items weigh that are handed on by reference."""
    return 0


class _LocalLine(Line):
    """The three cores, the model's thread and the clock's."""

    def __init__(self, settings: BrokerCoreSettings) -> None:
        super().__init__()
        self._retired = False
        self._lock = threading.Lock()
        """Around the cores: whoever drives them holds it, for microseconds."""
        self._broker = BrokerCore(settings, os.urandom(8), _no_size)
        self._client = ClientCore(1, os.urandom(16), os.urandom, TIMING, measure=_no_size)
        self._worker = WorkerCore(
            1, os.urandom(16), b"", os.urandom, TIMING, pid=os.getpid(), measure=_no_size
        )
        self._bell = _Bell()
        """For the model's thread: there is something to do."""
        self._clock = _Bell()
        """For the clock's thread: the model runs."""
        self._says_progress = 0.0
        """When the broker is told next that a model waits for readers."""
        self._busy = False
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failed: BaseException | None = None

    def start(self, model: Any, args: dict[str, Any], offer: Offer) -> None:
        """Load the model in its thread and wait until it is ready."""
        thread = self._thread = threading.Thread(
            target=self._run, args=(model, args, offer), name="zbatch-model", daemon=True
        )
        thread.start()
        try:
            self._ready.wait()
        except BaseException:
            self.closed = CLOSED
            raise
        if self._failed is not None:
            raise self._failed
        threading.Thread(target=self._watch, name="zbatch-clock", daemon=True).start()
        _lines.add(self)

    # --- callers' side -----------------------------------------------------------------------------

    def put(self, future: Any) -> None:
        """Take a call over."""
        self._pending.append(future)
        if self._bell.is_awaited:
            self._bell.ring()
        if self.closed:
            self._end_calls(UNFINISHED)

    def carry(self) -> None:
        """Do nothing: the model's thread carries every call."""

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Block until a call is settled or the time is over."""
        return future.block(timeout)

    def _call_carrier(self) -> None:
        self._bell.ring()

    def status(self) -> dict[str, Any]:
        """Return the broker's snapshot."""
        if self.closed:
            raise ClientClosed(self.closed)
        with self._lock:
            told = self._drive(time.monotonic())
            encoded = snapshot(self._broker, time.monotonic())
        _announce(told)
        shown: dict[str, Any] = msgspec.json.decode(encoded)
        return shown

    def retire(self) -> None:
        """Close when nothing is open any more: the client object is gone, its futures may not be.

        Takes no lock: the garbage collector calls it, whatever the thread at hand is doing.
        """
        self._retired = True
        self._bell.ring()

    def close(self, why: str = CLOSED) -> None:
        """End the threads; open calls end in ClientClosed."""
        if self.closed:
            return
        self.closed = why
        _lines.discard(self)
        self._clock.ring()
        self._bell.ring()
        self._end_calls(UNFINISHED if why is CLOSED else why)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LAST_RUN)

    def after_fork(self) -> None:
        """Be closed, in a child of a fork: the threads, and what the locks protect, are the parent's."""
        self.closed = "a local client stays with the process that made it; make one in the child"
        self._lock = threading.Lock()
        self._settling = threading.RLock()
        lost = ClientClosed("this request was asked before a fork; its outcome belongs to the parent process")
        calls: list[Any] = [*self._pending, *self._client.open_calls()]
        for call in calls:
            if not call.done():
                call.settle_error(lost)

    def _end_calls(self, why: str) -> None:
        closed = to_fault(ClientClosed(why))
        with self._lock:
            while self._pending:
                self._client.submit(self._pending.popleft())
            told = self._deliver(CLIENT, self._client.stop(closed), time.monotonic())
        _announce(told)

    # --- the threads -------------------------------------------------------------------------------

    def _run(self, model: Any, args: dict[str, Any], offer: Offer) -> None:
        try:
            loaded = self._load(model, args, offer)
        except BaseException as error:
            self._failed = error
            self._ready.set()
            return
        del model, args
        self._ready.set()
        runner = Runner(loaded, topic=offer.topic, decode=_as_it_is, encode=_by_reference)
        try:
            while not self.closed:
                job, due = self._next()
                if job is not None:
                    self._run_job(runner, job)
                elif self._retired and self._client.is_idle and not self._pending:
                    self.close()
                else:
                    self._sleep(due)
        except BaseException as error:
            # Nobody may wait for what will not come.
            self.close(f"the model ended its thread: {type(error).__name__}")
            raise
        finally:
            loaded.close()

    def _load(self, model: Any, args: dict[str, Any], offer: Offer) -> LoadedModel:
        context = Context(topic=offer.topic)
        loaded = load(model, args, context) if isinstance(model, str) else wrap(model, args, context)
        loaded.warm_up()
        now = time.monotonic()
        with self._lock:
            self._deliver(CLIENT, self._client.start(now), now)
            self._deliver(WORKER, self._worker.start(now), now)
            offer = replace(offer, idempotent=loaded.idempotent, facts=loaded.facts())
            self._deliver(WORKER, self._worker.ready(offer), now)
        return loaded

    def _next(self) -> tuple[Job | None, float | None]:
        """Return the batch to run now, or when to look again."""
        with self._lock:
            now = time.monotonic()
            told = self._drive(now)
            job, actions = self._worker.begin(now)
            told += self._deliver(WORKER, actions, now)
            due = None if job is not None else self._due()
        _announce(told)
        return job, due

    def _run_job(self, runner: Runner, job: Job) -> None:
        self._busy = True
        if self._clock.is_awaited:
            self._clock.ring()
        sink = JobSink(job, self.put_parts, self.wait_for_readers)
        ran = runner.run(Work(*job.work(), joined=job.joined, sink=sink, names=job.names_at_work()))
        self._busy = False
        with self._lock:
            done = self._worker.finished(job, ran.outputs, None, ran.errors, ran.seconds)
            told = self._deliver(WORKER, done, time.monotonic())
            # Those who waited for this batch learn of it before the next one is looked for.
            told += self._deliver(BROKER, list(self._broker.ledger.flush()), time.monotonic())
        _announce(told)
        if len(told) > 1 and ran.seconds < RETURN:
            self._let_return(len(told))

    def put_parts(self, job: Job, parts: Any, ended: Any) -> None:
        """Hand on what a step of the model yielded."""
        with self._lock:
            now = time.monotonic()
            told = self._deliver(WORKER, self._worker.put(job, parts, ended), now)
            told += self._drive(now)
        _announce(told)

    def wait_for_readers(self, job: Job, places: Sequence[int]) -> None:
        """Wait while only readers that are behind want what the model would yield next."""
        since = time.monotonic()
        while self._worker.are_held_up(job, places, since) and not self.closed:
            with self._bell.awaited():
                if not self._advanced and not self._cancelled:
                    self._bell.wait(LOOK)
            since, before = time.monotonic(), since
            job.waited += since - before
            self.put_parts(job, (), ())
            if since >= self._says_progress:
                self._says_progress = since + LOOK
                with self._lock:
                    told = self._deliver(WORKER, self._worker.progress(), since) + self._drive(since)
                _announce(told)

    def _let_return(self, told: int) -> None:
        """Let those who were just told ask again, as long as more of them come."""
        until = time.monotonic() + RETURN
        came = -1
        while came < len(self._pending) < told and time.monotonic() < until:
            came = len(self._pending)
            time.sleep(PAUSE)

    def _sleep(self, due: float | None) -> None:
        with self._bell.awaited():
            if not (self._pending or self._cancelled or self._advanced or self.closed):
                self._bell.wait(None if due is None else max(0.0, due - time.monotonic()))

    def _watch(self) -> None:
        """Keep deadlines while the model runs."""
        while not self.closed:
            with self._clock.awaited():
                if not self._busy:
                    self._clock.wait(None)
            # Not ended by the end of the run: many short ones would wake this thread for nothing.
            time.sleep(LOOK)
            if self._busy and not self.closed:
                with self._lock:
                    told = self._drive(time.monotonic())
                _announce(told)

    # --- the cores, under the lock -------------------------------------------------------------------

    def _drive(self, now: float) -> list[Future[Any]]:
        """Take in what callers left, let time pass in every core, and return who is to be told."""
        pending = self._pending
        while pending:
            future = pending.popleft()
            if not future.done():
                self._client.submit(future)
        actions: list[Action] = self._client.flush(now)
        while self._cancelled:
            actions += self._client.cancel(self._cancelled.popleft(), now)
        if self._advanced:
            advanced = [self._advanced.popleft() for _ in range(len(self._advanced))]
            actions += self._client.read(advanced, now)
        actions += self._client.tick(now)
        told = self._deliver(CLIENT, actions, now)
        return told + self._deliver(BROKER, self._broker.tick(now), now)

    def _deliver(self, sender: bytes, actions: Sequence[Action], now: float) -> list[Future[Any]]:
        """Hand messages to the core they are for, and what that says to the next, until nobody says more."""
        told: list[Future[Any]] = []
        queue = deque((sender, action) for action in actions)
        while queue:
            sender, action = queue.popleft()
            if isinstance(action, Send):
                receiver, said = self._hand_over(sender, action, now)
                queue.extend((receiver, one) for one in said)
            elif not isinstance(action, Shown):
                with self._settling:
                    told += settle(action)
        return told

    def _hand_over(self, sender: bytes, action: Send, now: float) -> tuple[bytes, Sequence[Action]]:
        message: Any = action.message
        if sender is not BROKER:
            return BROKER, self._broker.handle(sender, message, action.frames, now)
        if action.peer == WORKER:
            return WORKER, self._worker.handle(BROKER, message, action.frames, now)
        return CLIENT, self._client.handle(BROKER, message, action.frames, now)

    def _due(self) -> float | None:
        times = (self._client.wakeup(), self._broker.wakeup())
        return min((time for time in times if time is not None), default=None)


class _Bell:
    """Wakes the one thread that waits for it; rung before the wait, it is not missed."""

    def __init__(self) -> None:
        self.is_awaited = False
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def ring(self) -> None:
        """Wake the thread; may be called anywhere, also by the garbage collector."""
        self.is_awaited = False
        with contextlib.suppress(RuntimeError):  # rung already
            self._quiet.release()

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Say that the thread is about to wait; what it looks at inside cannot change unheard."""
        self.is_awaited = True
        try:
            yield
        finally:
            self.is_awaited = False

    def wait(self, timeout: float | None) -> None:
        """Block until rung, or until the time is over."""
        self._quiet.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))


def _check(batch_size: int, max_latency: float, batching: str) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size!r}, wanted at least 1")
    if max_latency < 0:
        raise ConfigError(f"max_latency is {max_latency!r}, wanted seconds, at least 0")
    if batching not in POLICIES:
        raise ConfigError(f"batching is {batching!r}, wanted {' or '.join(POLICIES)}")


def _announce(told: Sequence[Future[Any]]) -> None:
    for future in told:
        future.announce()


def _by_reference(item: Any, place: int | None = None) -> tuple[Any, Sequence[Any]]:
    return item, ()


def _as_it_is(item: Any, _: Sequence[Any] = ()) -> Any:
    return item


_lines: Lines[_LocalLine] = Lines(_LocalLine.close, _LocalLine.after_fork)
