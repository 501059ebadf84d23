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
        place = tempfile.gettempdir()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place if len(place) <= PATH_LENGTH else SHORT))
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for other in self.path.parent.glob(f"{PREFIX}*"):
            if _is_abandoned(other):
                shutil.rmtree(other, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder, with whatever lies in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # removed before
            os.close(self._lock)
        self._lock = -1


def _is_abandoned(home: Path) -> bool:
    try:
        lock = os.open(home / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # it is being made, it is another user's, or no home at all
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
