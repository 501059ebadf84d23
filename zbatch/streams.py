"""A result that comes part by part: what its reader holds, and what the one who carries it fills.

Parts are kept until they are read, and the broker is told how much was; who reads nothing holds back only
this stream (``core/stream.py`` says how far).  What may be asked for is ``calls.py``'s matter.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from zbatch.core.calls import Call
from zbatch.core.stream import Part
from zbatch.errors import Cancelled, ZbatchError, from_fault
from zbatch.futures import OVERDUE, Decode, Line, undecodable
from zbatch.messages import Fault

Out = TypeVar("Out")


class Incoming(Call):
    """The call of a stream, between its reader and whoever carries it."""

    def __init__(self) -> None:
        self._parts: deque[tuple[Part, int]] = deque()
        self._is_over = False
        self._error: BaseException | None = None
        self._came = threading.Condition()

    # --- the reader's side -------------------------------------------------------------------------

    def take(self, line: Line) -> Part | None:
        """Return the next part, once it is there; None: the stream has come to its end.

        Raises the error that the stream ends in, once everything before it was read.
        """
        while not self._parts:
            if self._is_over and not self._parts:
                if self._error is not None:
                    raise self._error
                return None
            line.carry()
            self._wait(line)
        part, weight = self._parts.popleft()
        inflow = self.inflow
        assert inflow is not None
        inflow.taken += weight
        if inflow.is_due:
            line.read(self)
        return part

    def _wait(self, line: Line) -> None:
        patience = min(max(0.0, self.deadline + OVERDUE - time.monotonic()), threading.TIMEOUT_MAX)
        with self._came:
            if self._came.wait_for(lambda: self._parts or self._is_over, patience):
                return
        # Parts move the deadline; only where nobody in this process sees to it, it passes unheard.
        if time.monotonic() >= self.deadline + OVERDUE:
            line.overdue(self)

    # --- what carries the call -----------------------------------------------------------------------

    def done(self) -> bool:
        """Return whether nothing more comes."""
        return self._is_over

    def arrive(self, parts: Sequence[tuple[Part, int]]) -> None:
        """Take parts that came."""
        self._parts.extend(parts)

    def settle_all(self) -> bool:
        """Say that the stream has its outcome."""
        return self._end(from_fault(self.faults[0]) if self.faults else None)

    def settle_fault(self, fault: Fault) -> bool:
        """Give the error that ends it."""
        return self._end(from_fault(fault))

    def settle_error(self, error: BaseException) -> bool:
        """Give an error of this process."""
        return self._end(error)

    def settle_cancelled(self) -> bool:
        """Say that its reader has left."""
        self._parts.clear()
        return self._end(Cancelled("the caller closed this stream"))

    def announce(self) -> None:
        """Tell the reader that something came."""
        with self._came:
            self._came.notify_all()

    def _end(self, error: BaseException | None) -> bool:
        self._error = error
        self._is_over = True
        return True


class Stream(Generic[Out]):
    """The parts of one item's result, as the model yields them: iterate over it, once.

    It raises the request's error (see ``zbatch.errors``) in the place of what does not come; its end is only
    ever what the model's author made the end.  Leaving the loop, ``close()``, the end of a ``with`` block or
    letting go of it cancels what is not done.
    """

    def __init__(self, call: Incoming, line: Line, decode: Decode) -> None:
        self._call = call
        self._line = line
        self._decode = decode
        self._finalizer = weakref.finalize(self, line.cancel, call)
        self._finalizer.atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Out:
        try:
            part = self._call.take(self._line)
        except (ZbatchError, KeyboardInterrupt):
            self.close()
            raise
        if part is None:
            self._finalizer.detach()
            raise StopIteration
        try:
            decoded: Out = self._decode(*part)
        except ValueError as error:
            self.close()
            raise undecodable(error) from None
        return decoded

    def close(self) -> None:
        """Cancel what is not done, here, at the broker and at the worker."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
