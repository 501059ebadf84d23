"""What the lines of all clients share: a core of their own, one end with the process, a new start in a child.

How calls are carried is for ``connection.py`` (threads), ``aio.py`` (an event loop) and ``embedded.py``
(inside one process) to say.
"""

from __future__ import annotations

import atexit
import os
import platform
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from zbatch.config import Timing
from zbatch.core.client import ClientCore
from zbatch.errors import BrokerUnreachable, ZbatchError
from zbatch.security import Keys

L = TypeVar("L")
A = TypeVar("A")

WATCHER = "zbatch-cluster"
"""The name of threads that sleep until a cluster of this process's ends: they want no core meanwhile."""


class Lines(Generic[L]):
    """The lines of one kind in this process: closed when it ends, told when it is a fork's child."""

    def __init__(self, close: Callable[[L], object], after_fork: Callable[[L], object]) -> None:
        self._living: weakref.WeakSet[L] = weakref.WeakSet()
        self._close, self._after_fork = close, after_fork
        self._abandoned: list[Any] = []
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_in_child)

    def add(self, line: L) -> None:
        """Close this one at the end, too."""
        self._living.add(line)

    def discard(self, line: L) -> None:
        """Forget one that was closed."""
        self._living.discard(line)

    def abandon(self, *things: object) -> None:
        """Keep what a forked child must neither use nor close."""
        self._abandoned.append(things)

    def _end(self) -> None:
        for line in list(self._living):
            self._close(line)

    def _begin_in_child(self) -> None:
        for line in list(self._living):
            self._after_fork(line)


class Askers(Generic[A]):
    """Those who wait for a broker's snapshot.

    One question is open at a time.  Its answer is for those who were there when it was asked: to who came
    later it could tell of a time before.
    """

    def __init__(self) -> None:
        self._new: list[A] = []
        self._heard: list[A] = []
        """Those whom the answer to the open question is for."""

    def add(self, asker: A) -> None:
        """Have one more wait."""
        self._new.append(asker)

    def withdraw(self, asker: A) -> None:
        """Have one wait no longer."""
        for askers in (self._new, self._heard):
            with suppress(ValueError):
                askers.remove(asker)

    @property
    def is_due(self) -> bool:
        """Whether a question is to be asked now."""
        return bool(self._new and not self._heard)

    @property
    def is_open(self) -> bool:
        """Whether somebody waits for the answer to one that was asked."""
        return bool(self._heard)

    def ask(self) -> None:
        """Have the question that is asked now be that of all who are here."""
        self._heard, self._new = self._new, []

    def answer(self) -> list[A]:
        """Return those whom an answer is for; they wait no longer."""
        answered, self._heard = list(self._heard), []
        return answered

    def clear(self) -> list[A]:
        """Return all of them; nobody waits any longer."""
        return self.answer() + [self._new.pop() for _ in range(len(self._new))]


def new_core(endpoints: Sequence[str], timing: Timing, keys: Keys | None, *, retry: bool) -> ClientCore:
    """Return the core of a client of these brokers, with a life of its own."""
    return ClientCore(
        len(endpoints),
        os.urandom(16),
        os.urandom,
        timing,
        where=", ".join(endpoints),
        host=platform.node(),
        pid=os.getpid(),
        keyed=keys is not None,
        retry=retry,
    )


def not_opened(error: Exception) -> BrokerUnreachable:
    """Return the error for a connection that the system did not allow."""
    return BrokerUnreachable(f"no connection can be opened: {error}")


def broken_down(error: BaseException) -> ZbatchError:
    """Return the error that ends calls in the midst of which something went wrong."""
    if isinstance(error, ZbatchError):
        return error
    text = f"this client broke down and begins anew ({type(error).__name__}: {error})"
    return BrokerUnreachable(text)


def no_status(endpoints: Sequence[str], keys: Keys | None, timeout: float) -> BrokerUnreachable:
    """Return the error where no broker said in time how it is."""
    advice = "is this key allowed there" if keys is not None else "does it ask for a key"
    where = ", ".join(endpoints)
    return BrokerUnreachable(
        f"no broker at {where} answered within {timeout} s; is one running, or {advice}?"
    )
