"""``zbatch.local``: broker, worker and client inside one process.

The same three cores as in a cluster, joined by function calls: messages are handed over as they are, items
by reference, nothing is encoded.  One thread loads and runs the model; whoever holds the lock drives the
cores.  While the model runs, callers only leave their calls to be taken along when it comes back.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import msgspec

from zbatch.calls import WINDOW, Asking, Future, rows, settle
from zbatch.config import BrokerCoreSettings, Limits, Timing
from zbatch.core.actions import Send
from zbatch.core.broker import BrokerCore
from zbatch.core.calls import Action, Answered, Failed, Finished, Shown
from zbatch.core.client import ClientCore
from zbatch.core.status import snapshot
from zbatch.core.worker import Job, Offer, WorkerCore
from zbatch.errors import ClientClosed, to_fault
from zbatch.model import Context, LoadedModel, load, wrap
from zbatch.runner import Runner, Work

In = TypeVar("In")
Out = TypeVar("Out")

CLIENT, WORKER = b"F\0\0\0\0c", b"B\0\0\0\0w"
"""What the broker's core calls the two; the letter is the side, as in ``broker.py``."""

BROKER = b"\0"

LOOK = 0.020
"""Seconds between two looks at the clock while the model runs: deadlines must hold meanwhile."""


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
    and run in one thread of its own.  Items and outputs pass by reference.

    Raises what loading the model raises, and :class:`ConfigError` for what is no model.
    """
    settings = BrokerCoreSettings(batching=batching, limits=limits or Limits())
    line = _LocalLine(settings)
    offer = Offer(topic, batch_size, batch_cost, max_latency, slots=1)
    line.start(model, dict(args or {}), offer)
    return LocalClient(line, topic, timeout)


class LocalClient(Generic[In, Out]):
    """Asks the model in this process; the calls are those of :class:`zbatch.ZClient`."""

    def __init__(self, line: _LocalLine, topic: str, timeout: float) -> None:
        self._line = line
        self._asking = Asking(topic, timeout, encode=_by_reference, message_bytes=None)
        self._finalizer = weakref.finalize(self, line.close)
        self._finalizer.atexit = False

    def predict(self, items: Iterable[In], *, return_exceptions: bool = False, **ask: Any) -> list[Out]:
        """Return the model's output for each item, in order; see :meth:`zbatch.ZClient.predict`."""
        return self.submit(items, return_exceptions=return_exceptions, **ask).result()

    def predict_one(self, item: In, **ask: Any) -> Out:
        """Return the model's output for one item."""
        return self.predict([item], **ask)[0]

    def submit(self, items: Iterable[In], *, return_exceptions: bool = False, **ask: Any) -> Future[Out]:
        """Ask, and return at once; ``topic``, ``timeout``, ``priority``, ``key``, ``cost`` as elsewhere."""
        line = self._line
        if line.closed:
            raise ClientClosed("this client was closed, or belongs to the process before a fork")
        sequence = rows(items)
        future: Future[Out] = Future(line)
        future._decode = _as_it_is
        future._returns_exceptions = return_exceptions
        if sequence:
            self._asking.prepare(future, sequence, time.monotonic(), **ask)
            line.put(future)
        else:
            future.answer_nothing()
        return future

    def map(self, items: Iterable[In], *, window: int = WINDOW, **ask: Any) -> Iterator[Out]:
        """Yield the output of each item, in order, with at most ``window`` items in flight."""
        underway: deque[Future[Out]] = deque()
        try:
            for item in items:
                underway.append(self.submit([item], **ask))
                if len(underway) >= window:
                    yield underway.popleft().result()[0]
            while underway:
                yield underway.popleft().result()[0]
        finally:
            for future in underway:
                future.cancel()

    def status(self) -> dict[str, Any]:
        """Return the snapshot that a broker would give."""
        return self._line.status()

    def close(self) -> None:
        """End the model's thread; requests without an outcome raise :class:`ClientClosed`."""
        self._finalizer.detach()
        self._line.close()

    def __enter__(self) -> LocalClient[In, Out]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ClientByReference(ClientCore):
    """A client's core whose items have no size: they are not copied."""

    @staticmethod
    def size_of(items: Sequence[Any], buffers: Sequence[Sequence[Any]] | None) -> int:
        return 0


class _LocalLine:
    """The three cores, the model's thread and the clock's."""

    def __init__(self, settings: BrokerCoreSettings) -> None:
        timing = Timing()
        self.closed = False
        self._lock = threading.Lock()
        """Around the cores: whoever drives them holds it, for microseconds."""
        self._settling = threading.Lock()
        self._broker = BrokerCore(settings, os.urandom(8), lambda items, buffers: 0)
        self._client = _ClientByReference(1, os.urandom(16), os.urandom, timing)
        self._worker = WorkerCore(1, os.urandom(16), b"", os.urandom, timing)
        self._pending: deque[Future[Any]] = deque()
        self._cancelled: deque[Future[Any]] = deque()
        self._idle = False
        self._bell = threading.Lock()
        """Held while the model's thread has nothing to do; released to wake it."""
        self._bell.acquire()
        self._busy = threading.Event()
        """Set while the clock's thread is to look after deadlines."""
        self._ready = threading.Event()
        self._failed: BaseException | None = None

    def start(self, model: Any, args: dict[str, Any], offer: Offer) -> None:
        """Load the model in its thread and wait until it is ready."""
        thread = threading.Thread(
            target=self._run, args=(model, args, offer), name="zbatch-model", daemon=True
        )
        thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        threading.Thread(target=self._watch, name="zbatch-clock", daemon=True).start()
        _lines.add(self)

    # --- callers' side -----------------------------------------------------------------------------

    def put(self, future: Future[Any]) -> None:
        """Take a call over."""
        self._pending.append(future)
        if self._idle:
            self._ring()

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Block until a call is settled or the time is over."""
        return future.block(timeout)

    def cancel(self, future: Future[Any]) -> None:
        """Withdraw a call."""
        with self._settling:
            if future.done():
                return
            tell = future.settle_cancelled()
        if tell:
            future.announce()
        self._cancelled.append(future)
        self._ring()

    def status(self) -> dict[str, Any]:
        """Return the broker's snapshot."""
        with self._lock:
            told = self._drive(time.monotonic())
            encoded = snapshot(self._broker, time.monotonic())
        _announce(told)
        shown: dict[str, Any] = msgspec.json.decode(encoded)
        return shown

    def close(self) -> None:
        """End the threads; open calls end in ClientClosed."""
        if self.closed:
            return
        self.closed = True
        _lines.discard(self)
        self._busy.set()
        self._ring()
        closed = to_fault(ClientClosed("the client was closed before this request had an outcome"))
        with self._lock:
            while self._pending:
                self._client.submit(self._pending.popleft())
            told = self._deliver(CLIENT, self._client.stop(closed), time.monotonic())
        _announce(told)

    def forget(self) -> None:
        """Be closed, in a child of a fork: the threads are the parent's."""
        self.closed = True

    def _ring(self) -> None:
        self._idle = False
        if self._bell.locked():
            with contextlib.suppress(RuntimeError):
                self._bell.release()

    # --- the threads -------------------------------------------------------------------------------

    def _run(self, model: Any, args: dict[str, Any], offer: Offer) -> None:
        try:
            loaded = self._load(model, args, offer)
        except BaseException as error:
            self._failed = error
            self._ready.set()
            return
        self._ready.set()
        runner = Runner(loaded, topic=offer.topic, decode=_as_it_is, encode=_by_reference)
        try:
            while not self.closed:
                job, due = self._next()
                if job is not None:
                    self._run_job(runner, job)
                elif self._idle:
                    self._sleep(due)
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
            self._idle = True
            told = self._drive(now)
            job, actions = self._worker.begin(now)
            told += self._deliver(WORKER, actions, now)
            due = self._due()
        _announce(told)
        return job, due

    def _run_job(self, runner: Runner, job: Job) -> None:
        self._idle = False
        self._busy.set()
        ran = runner.run(Work(*job.work()))
        self._busy.clear()
        with self._lock:
            now = time.monotonic()
            done = self._worker.finished(job, ran.outputs, None, ran.errors, ran.seconds)
            told = self._deliver(WORKER, done, now)
            told += self._drive(now)
        _announce(told)

    def _sleep(self, due: float | None) -> None:
        if self._pending or self._cancelled:
            return
        patience = -1.0 if due is None else max(0.0, due - time.monotonic())
        self._bell.acquire(timeout=patience)

    def _watch(self) -> None:
        """Keep deadlines while the model runs."""
        while not self.closed:
            self._busy.wait()
            time.sleep(LOOK)
            if self._busy.is_set() and not self.closed:
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
        actions += self._client.tick(now)
        # Worker and client first: a broker that looks at the clock before they have spoken would miss them.
        told = self._deliver(WORKER, self._worker.tick(now), now)
        told += self._deliver(CLIENT, actions, now)
        return told + self._deliver(BROKER, self._broker.tick(now), now)

    def _deliver(self, sender: bytes, actions: Sequence[Action], now: float) -> list[Future[Any]]:
        """Hand messages to the core they are for, and what that says to the next, until nobody says more."""
        told: list[Future[Any]] = []
        queue = deque((sender, action) for action in actions)
        while queue:
            sender, action = queue.popleft()
            if not isinstance(action, Send):
                told += self._settle(action)
                continue
            said: Sequence[Action]
            message: Any = action.message
            if sender is not BROKER:
                receiver, said = BROKER, self._broker.handle(sender, message, action.frames, now)
            elif action.peer == WORKER:
                receiver, said = WORKER, self._worker.handle(BROKER, message, action.frames, now)
            else:
                receiver, said = CLIENT, self._client.handle(BROKER, message, action.frames, now)
            queue.extend((receiver, one) for one in said)
        return told

    def _settle(self, action: Answered | Finished | Failed | Shown) -> list[Future[Any]]:
        with self._settling:
            return [] if isinstance(action, Shown) else settle(action)

    def _due(self) -> float | None:
        times = (self._client.wakeup(), self._worker.wakeup(), self._broker.wakeup())
        return min((time for time in times if time is not None), default=None)


def _announce(told: Sequence[Future[Any]]) -> None:
    for future in told:
        future.announce()


def _by_reference(item: Any) -> tuple[Any, Sequence[Any]]:
    return item, ()


def _as_it_is(item: Any, _: Sequence[Any] = ()) -> Any:
    return item


_lines: weakref.WeakSet[_LocalLine] = weakref.WeakSet()


def _close_all() -> None:
    for line in list(_lines):
        line.close()


def _after_fork() -> None:
    for line in list(_lines):
        line.forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
