"""Folders for private endpoints: only their user may look into them, and none is left behind for long.

Who reaches a backend can pose as a worker.  Whoever makes a home holds a lock in it; who is killed cannot
remove it, so the next one that makes a home does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "zbatch-"

SHORT = "/tmp"
"""Where homes lie when the usual place for such things has too long a path for a socket."""

PATH_LENGTH = 60

LOCK = "lock"


class Home:
    """A folder of one's own, until it is removed or its maker ends."""

    def __init__(self) -> None:
        usual = tempfile.gettempdir()
        place = usual if len(usual) <= PATH_LENGTH else SHORT
        lock = None
        while lock is None:  # between the two another one may take it for abandoned
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            try:
                lock = _lock(self.path, os.O_CREAT)
            except OSError:
                shutil.rmtree(self.path, ignore_errors=True)
                raise
        self._lock = lock
        for other in self.path.parent.glob(f"{PREFIX}*"):
            _sweep(other)

    def remove(self) -> None:
        """Remove the folder, with whatever lies in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # removed before
            os.close(self._lock)
        self._lock = -1


def _lock(home: Path, flags: int = 0) -> int | None:
    """Return the descriptor that holds a home's lock; nothing where another has it, or removed the home."""
    path = home / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except FileNotFoundError:
        return None
    is_held = False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = os.path.samestat(os.fstat(lock), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not is_held:
            os.close(lock)
    return lock if is_held else None


def _sweep(home: Path) -> None:
    """Remove a home whose maker is gone, under its lock: its maker may just be about to take it."""
    with suppress(OSError):  # another user's, or no home at all
        lock = _lock(home)
        if lock is not None:
            shutil.rmtree(home, ignore_errors=True)
            os.close(lock)
