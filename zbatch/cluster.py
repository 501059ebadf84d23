"""A broker and workers of one's own: processes that end with the one that started them.

They are kept alive by a launcher, as those of ``zbatch serve`` are.  The launcher hangs on a lifeline, a
pipe that this process holds open, not on the thread that made it: that may end earlier.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from zbatch.config import ServeSettings
from zbatch.lines import WATCHER
from zbatch.parts import spawn_part

GRACE = 5.0
"""Seconds for a batch that runs when the cluster is closed; nobody waits for its outcome any more."""


class Cluster:
    """A broker and workers in processes that a launcher supervises.

    Args:
        settings: What to run; the frontend's endpoint is the caller's choice.
        home: A folder of this user's for the private endpoint; the launcher removes it when it ends.
        on_end: Called with a sentence, in a thread of its own, when the launcher gives up or dies.

    """

    def __init__(self, settings: ServeSettings, home: Path, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self._closing = threading.Lock()
        self._is_closed = False
        self._ended = threading.Event()
        self._child = spawn_part("serve", str(home), settings)
        self._owner = os.getpid()
        self._watcher = threading.Thread(target=self._watch, name=WATCHER, daemon=True)
        self._watcher.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the cluster; return whether it has come."""
        return self._ended.wait(seconds)

    @property
    def is_mine(self) -> bool:
        """Whether this process started it, and not one that it is a fork of."""
        return os.getpid() == self._owner

    def close(self) -> None:
        """End the processes."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._child.stop(GRACE)
            self._watcher.join(GRACE)
            self._child.close()

    def _watch(self) -> None:
        ended = select.poll()
        ended.register(self._child.fileno(), select.POLLIN)
        ended.poll()
        self._ended.set()
        if not self._is_closed:
            self._on_end("the model processes gave up; what went wrong stands on stderr")
