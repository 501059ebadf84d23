"""The helm: of all the threads that could carry a client's calls, one does at a time.

A caller that waits alone takes the helm itself, so its call crosses no thread.  Where several wait, or
nobody does, a thread of the helm's own carries all calls until nothing is open.  Which calls those are, and
what carrying means, this file does not know.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable


class Helm:
    """Who carries the calls now, and who will when that one leaves.

    Args:
        steer: Carries calls until nothing is open; run in the helm's own thread.
        is_needed: Whether anything is open, looked at when somebody leaves.

    """

    def __init__(self, steer: Callable[[], None], is_needed: Callable[[], bool]) -> None:
        self._steer = steer
        self._is_needed = is_needed
        self._taken = threading.Lock()
        self._owner = 0
        self._thread: threading.Thread | None = None
        # The garbage collector may call in the middle of a call.
        self._starting = threading.RLock()
        self._bell = threading.Lock()
        """Held while the thread has nothing to do; released to wake it."""
        self._bell.acquire()
        self._ended = False

    @property
    def is_taken(self) -> bool:
        """Whether somebody is at the helm."""
        return self._taken.locked()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is at the helm, however deep in its stack."""
        return self._owner == threading.get_ident()

    @property
    def has_thread(self) -> bool:
        """Whether there is a thread of the helm's own."""
        return self._thread is not None

    def take(self, *, wait: bool = False) -> bool:
        """Take the helm if it is free, or once it is; return whether the calling thread has it."""
        if not self._taken.acquire(blocking=wait):
            return False
        self._owner = threading.get_ident()
        return True

    def leave(self) -> None:
        """Leave the helm; what is open goes on without this thread."""
        self._owner = 0
        self._taken.release()
        # Whoever came meanwhile saw that somebody was here, and called nobody.
        if self._is_needed():
            self.call()

    def call(self) -> None:
        """Have the helm's own thread take over as soon as nobody else is there."""
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._ended:  # type: ignore[redundant-expr]  # another was first
                    self._thread = threading.Thread(target=self._run, name="zbatch-client", daemon=True)
                    self._thread.start()
        self._ring()

    def end(self) -> None:
        """Let the thread end once it leaves the helm."""
        self._ended = True
        self._ring()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, unless it is the one that waits."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _ring(self) -> None:
        if self._bell.locked():
            with contextlib.suppress(RuntimeError):  # another was first
                self._bell.release()

    def _run(self) -> None:
        while not self._ended:
            self._bell.acquire()
            # Whoever is there now calls again if anything is open when leaving.
            if not self.take():
                continue
            try:
                self._steer()
            finally:
                self.leave()
