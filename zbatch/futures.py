"""The outcome of a request, now or later, and who is told of it.

A future is filled by whoever carries its call (a *line*: ``connection.py``, ``embedded.py``); what callers
may ask for is ``calls.py``'s matter.
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeVar

from zbatch import payload
from zbatch.core.calls import Answered, Call, Came, Failed, Finished
from zbatch.errors import BadOutput, BatchError, Cancelled, ZbatchError, from_fault
from zbatch.messages import Fault

Out = TypeVar("Out")

OVERDUE = 0.100
"""Seconds past the deadline after which a thread that waits ends its call itself: nothing that happens to
whoever carries it may keep a caller longer."""

CLOSED = "this client was closed; make another one"
UNFINISHED = "the client was closed before this request had an outcome"
NOT_CARRIED = Fault("deadline_exceeded", "the deadline passed, and nobody in this process carried the call")

Decode = Callable[[Any, Sequence[Any]], Any]


class Line:
    """Whoever carries a call to its outcome."""

    closed = ""
    """Why nothing more is carried; empty while it is."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Have nothing to carry; also in a child of a fork, where what a lock protected is the parent's."""
        # An outcome and a caller's cancel must not both settle a call; the garbage collector may cancel one
        # in the middle of another's outcome.
        self._settling = threading.RLock()
        self._pending: deque[Any] = deque()
        self._cancelled: deque[Any] = deque()
        self._advanced: deque[Call] = deque()
        """Streams of which so much was read that the broker should know."""

    def put(self, future: Any) -> None:
        """Take a call over."""
        raise NotImplementedError

    def carry(self) -> None:
        """See to it that calls go on though nobody waits for them."""
        raise NotImplementedError

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Block until the future is settled or the time is over; return whether it is settled."""
        raise NotImplementedError

    def read(self, call: Call) -> None:
        """Have the broker told how much of a stream was read."""
        self._advanced.append(call)
        self._call_carrier()

    def cancel(self, future: Any) -> None:
        """Withdraw a call that is not settled: it is settled here and now, the broker is told soon."""
        with self._settling:
            if future.done():
                return
            tell = future.settle_cancelled()
        self._withdrawn(future, tell)

    def overdue(self, future: Any) -> None:
        """End a call that was not ended in time: whoever should have, broke down or was stopped."""
        with self._settling:
            if future.done():
                return
            tell = future.settle_fault(NOT_CARRIED)
        self._withdrawn(future, tell)

    def _withdrawn(self, future: Any, tell: bool) -> None:
        if tell:
            future.announce()
        self._cancelled.append(future)
        self._call_carrier()

    def _call_carrier(self) -> None:
        """Have whoever carries calls look at what was cancelled."""
        raise NotImplementedError


def unpack(call: Call, decode: Decode, *, return_exceptions: bool) -> list[Any]:
    """Return the results of a finished call of several items.

    Raises :class:`BatchError` where some failed, the one error where all failed alike.
    """
    faults = call.faults or {}
    errors: dict[int, ZbatchError] = {place: from_fault(fault) for place, fault in sorted(faults.items())}
    results: list[Any] = []
    for place, output in enumerate(call.outputs):
        if place in errors:
            results.append(errors[place] if return_exceptions else None)
            continue
        try:
            results.append(decode(*output))
        except ValueError as error:
            errors[place] = undecodable(error)
            results.append(errors[place] if return_exceptions else None)
    if not errors or return_exceptions:
        return results
    kinds = {fault.code for fault in faults.values()}
    if len(errors) == len(results) and len(kinds) == 1:
        raise next(iter(errors.values()))
    raise BatchError(errors, results)


def undecodable(error: Exception) -> BadOutput:
    """Return the error for an output that arrived and is none."""
    return BadOutput(f"the output cannot be decoded: {error}")


_WAITING, _SETTLED, _CANCELLED = 0, 1, 2
_UNSET: Any = object()


class Future(concurrent.futures.Future[list[Out]], Call):
    """The outcome of one request, now or later.

    It has the interface of ``concurrent.futures.Future`` and is accepted wherever one is (``wait``,
    ``as_completed``, ``asyncio.wrap_future``), but costs a fraction of it: a lock is made only when a
    thread blocks, and outputs are decoded in the thread that asks for them.
    """

    # Class attributes are the defaults, as in ``Call``.
    _decode: Decode = staticmethod(payload.decode)
    _returns_exceptions = False
    _phase = _WAITING
    _value: Any = _UNSET
    _raw: Any = None
    _raw_buffers: Sequence[Any] = ()
    _error: BaseException | None = None
    _one_fault: Fault | None = None
    _blocker: Any = None
    """The lock of the first thread that waits; others use the condition."""
    _calls_back: list[Callable[[Any], object]] | None = None
    _cond: threading.Condition | None = None
    _watchers: list[Any] | None = None

    def __init__(self, line: Line) -> None:
        # The base's constructor is left out: everything it makes is made here when it is needed.
        self._line: Line | None = line

    # --- what callers use --------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> list[Out]:
        """Return the outputs, one an item, in order; wait for them first.

        Raises the request's error (see ``zbatch.errors``), and a plain ``TimeoutError`` when ``timeout``
        seconds are over, which leaves the request alive.
        """
        if not self._phase:
            self._await(timeout)
        if self._value is _UNSET and self._error is None:
            self._unpack()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the request's error, or None; wait for the outcome first."""
        self._await(timeout)
        if self._phase == _CANCELLED:
            raise Cancelled("the caller cancelled this request")
        if self._value is _UNSET and self._error is None:
            self._unpack()
        return self._error

    def done(self) -> bool:
        """Return whether there is an outcome."""
        return self._phase != _WAITING

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._phase == _CANCELLED

    def running(self) -> bool:
        """Return whether it waits for its outcome; whether the model has it cannot be seen from here."""
        return self._phase == _WAITING

    def cancel(self) -> bool:
        """Withdraw the request, here, at the broker and at the worker; return whether that was in time."""
        line = self._line
        if self._phase == _WAITING and line is not None:
            line.cancel(self)
        return self._phase == _CANCELLED

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(self)`` once there is an outcome, at once if there is.

        It runs in a thread for callbacks, one after another: one that blocks delays the others, and nothing
        else.
        """
        with self._condition:
            if self._phase == _WAITING:
                if self._calls_back is None:
                    self._calls_back = []
                self._calls_back.append(fn)
                return
        _call_back(fn, self)

    # --- what carries the call -----------------------------------------------------------------------

    def answer_nothing(self) -> None:
        """Settle a request of no items: its answer is the empty list, without a round trip."""
        self.items = ()
        self.outputs = []
        self._finish(_SETTLED)

    def settle(self, output: Any, buffers: Sequence[Any] = ()) -> bool:
        """Give the output of a call of one item; return whether somebody is to be told.

        Of several threads only one may settle a call: whoever carries it holds a lock around this.
        """
        self._raw = output
        self._raw_buffers = buffers
        return self._finish(_SETTLED)

    def settle_all(self) -> bool:
        """Say that every item of a call of several has its outcome."""
        return self._finish(_SETTLED)

    def settle_fault(self, fault: Fault) -> bool:
        """Give the error that ends the whole call."""
        self._one_fault = fault
        return self._finish(_SETTLED)

    def settle_error(self, error: BaseException) -> bool:
        """Give an error of this process."""
        self._error = error
        return self._finish(_SETTLED)

    def settle_cancelled(self) -> bool:
        """Say that the call was withdrawn."""
        self._error = Cancelled("the caller cancelled this request")
        return self._finish(_CANCELLED)

    def announce(self) -> None:
        """Tell those who wait for a call that was just settled."""
        if self._blocker is not None:
            self._blocker.release()
        if self._cond is not None:
            self._tell_watchers()

    def block(self, timeout: float | None) -> bool:
        """Wait in this thread until another one settles the call; return whether it did."""
        lock = threading.Lock()
        lock.acquire()
        with _shared.making:
            first = self._blocker is None
            if first:
                self._blocker = lock
        line, patience = self._line, max(0.0, self.deadline + OVERDUE - time.monotonic())
        if timeout is not None and timeout < patience:
            return self._wait(lock if first else None, max(0.0, timeout))
        if not self._wait(lock if first else None, min(patience, threading.TIMEOUT_MAX)) and line is not None:
            line.overdue(self)
        return bool(self._phase)

    def _wait(self, lock: Any, seconds: float) -> bool:
        if lock is not None:
            return bool(self._phase) or lock.acquire(timeout=seconds)
        with self._condition:
            return self._condition.wait_for(lambda: self._phase != _WAITING, seconds)

    def _finish(self, phase: int) -> bool:
        # The phase first, then the look at who waits: those who begin to wait look at it last.
        self._phase = phase
        self._line = None
        return self._blocker is not None or self._cond is not None

    def _tell_watchers(self) -> None:
        with self._condition:
            for watcher in self._watchers or ():
                if self._phase == _CANCELLED:
                    watcher.add_cancelled(self)
                elif self._error is not None or self._one_fault is not None or self.faults:
                    watcher.add_exception(self)
                else:
                    watcher.add_result(self)
            self._condition.notify_all()
            calls_back, self._calls_back = self._calls_back, None
        for fn in calls_back or ():
            _shared.call_back(fn, self)

    def _await(self, timeout: float | None) -> None:
        line = self._line
        if self._phase == _WAITING and line is not None and not line.wait(self, timeout):
            raise TimeoutError(f"no outcome within {timeout} s; the request goes on")

    def _unpack(self) -> None:
        value, error = self._unpacked()
        if self._value is not _UNSET or self._error is not None:
            # Another thread was first, and what it let go of may have been missing here.
            return
        self._error = error
        self._value = value
        self._raw = self._raw_buffers = None  # type: ignore[assignment]
        self.outputs = []

    def _unpacked(self) -> tuple[Any, ZbatchError | None]:
        try:
            if self._one_fault is not None:
                error = from_fault(self._one_fault)
                count = 1 if self.items is None else len(self.items)
                return ([error] * count, None) if self._returns_exceptions else (_UNSET, error)
            if self.items is None:
                return [self._decode(self._raw, self._raw_buffers)], None
            return unpack(self, self._decode, return_exceptions=self._returns_exceptions), None
        except ZbatchError as error:
            return _UNSET, error
        except (ValueError, TypeError) as error:  # TypeError: what another thread let go of meanwhile
            undecoded = undecodable(error)
            return ([undecoded], None) if self._returns_exceptions else (_UNSET, undecoded)

    # --- what the functions of concurrent.futures reach for ----------------------------------------

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._cond is None:
            with _shared.making:
                if self._cond is None:
                    self._cond = threading.Condition()
        return self._cond

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._watchers is None:
            self._watchers = []
        return self._watchers

    @property
    def _state(self) -> str:  # type: ignore[override]
        return ("PENDING", "FINISHED", "CANCELLED_AND_NOTIFIED")[self._phase]

    def __repr__(self) -> str:
        return f"<zbatch.Future {('waiting', 'settled', 'cancelled')[self._phase]}>"


def settle(action: Answered | Finished | Came | Failed) -> list[Any]:
    """Give calls their outcomes, or parts of them; return those that somebody waits for, to be told."""
    told: list[Any] = []
    if isinstance(action, Answered):
        buffers = action.buffers or repeat(())
        call: Any
        for call, output, own in zip(action.calls, action.outputs, buffers, strict=False):
            if call is not None and not call._phase:
                call._raw = output
                call._raw_buffers = own
                if call._finish(_SETTLED):
                    told.append(call)
    elif isinstance(action, Finished):
        call = action.call
        if not call.done() and call.settle_all():
            told.append(call)
    elif isinstance(action, Came):
        call = action.call
        if not call.done():
            call.arrive(action.parts)
            told.append(call)
    else:
        for call in action.calls:
            if not call.done() and call.settle_fault(action.fault):
                told.append(call)
    return told


class _Shared:
    """What the futures of this process share."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew, also in a child of a fork: a lock that was held, and the thread, are the parent's."""
        # Around making what few futures need; the garbage collector may come by and want it again.
        self.making = threading.RLock()
        self._queue: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call_back(self, fn: Callable[[Any], object], future: Any) -> None:
        """Have ``fn(future)`` called soon: whoever carries calls must not wait for what users do there."""
        if self._thread is None:
            with self.making:
                if self._thread is None:
                    # Not before: gevent may have put another kind in its place since this was imported.
                    self._queue = queue.SimpleQueue()
                    self._thread = threading.Thread(target=self._run, name="zbatch-callbacks", daemon=True)
                    self._thread.start()
        self._queue.put((fn, future))

    def _run(self) -> None:
        while True:
            try:
                _call_back(*self._queue.get())
            except BaseException:  # sys.exit() ends no thread that others need
                concurrent.futures._base.LOGGER.exception("a callback wanted its thread to end")


_shared = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.renew)


def _call_back(fn: Callable[[Any], object], future: Any) -> None:
    try:
        fn(future)
    except Exception:
        # As concurrent.futures does: a callback's failure is the callback's, not the client's.
        concurrent.futures._base.LOGGER.exception("exception calling callback for %r", future)
