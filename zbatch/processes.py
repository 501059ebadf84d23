"""Start, watch and end child processes so that none is ever left behind.

A child is tied to its parent twice: the kernel signals it when the parent's thread dies (Linux), and the
lifeline, a pipe that only the parent holds open, ends.  The parent sees a death through a process
descriptor, at once, and reads the note that the child left in shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BRAKE_FROM = 5
"""Deaths in a row, without a finished batch between them, from which restarts wait."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
GRACE = 2.0


class Noted(NamedTuple):
    """What a model process was doing when it was last seen."""

    epoch: bytes
    begun: int
    finished: int
    lease_until: int
    """Nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a host."""
    state: str


_LAYOUT = struct.Struct("<Q8sQQQ16s")


class Note:
    """A few bytes of memory that a child writes and its parent can read, even after the child's death.

    Written by one thread at a time.  The first word counts writings and is odd while one is under way.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _LAYOUT.size)
        self._count = 0
        self._noted = Noted(bytes(8), 0, 0, 0, "loading")

    @classmethod
    def create(cls) -> Note:
        """Make a note that a child can inherit."""
        descriptor = os.memfd_create("zbatch-note", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _LAYOUT.size)
        note = cls(descriptor)
        note.clear()
        return note

    @classmethod
    def attach(cls, descriptor: int) -> Note:
        """Open the note that the parent made."""
        return cls(descriptor)

    def clear(self) -> None:
        """Begin anew, for the next child."""
        self._write(Noted(bytes(8), 0, 0, 0, "loading"))

    def begin(self, epoch: bytes, batch: int, lease: float) -> None:
        """Write that a batch begins, and until when it may run."""
        until = time.monotonic_ns() + int(lease * 1e9)
        finished = self._noted.finished if epoch == self._noted.epoch else 0
        self._write(Noted(epoch, batch, finished, until, self._noted.state))

    def finish(self, batch: int) -> None:
        """Write that the batch came to an end."""
        self._write(self._noted._replace(finished=batch))

    def progress(self, lease: float) -> None:
        """Write that the lease begins anew."""
        self._write(self._noted._replace(lease_until=time.monotonic_ns() + int(lease * 1e9)))

    def show(self, state: str) -> None:
        """Write what the child is up to: loading, ready, draining."""
        self._write(self._noted._replace(state=state))

    def read(self) -> Noted:
        """Return what stands there; of a writing that was cut off by death, what was whole before."""
        for _ in range(100):
            before = self._map[:8]
            count, epoch, begun, finished, until, state = _LAYOUT.unpack(self._map[:])
            if count % 2 == 0 and self._map[:8] == before:
                break
        return Noted(epoch, begun, finished, until, state.rstrip(b"\0").decode())

    def close(self) -> None:
        """Let go of the memory."""
        self._map.close()
        os.close(self.descriptor)

    def _write(self, noted: Noted) -> None:
        self._noted = noted
        self._count += 2
        self._map[:8] = (self._count - 1).to_bytes(8, "little")
        self._map[8:] = _LAYOUT.pack(
            0, noted.epoch, noted.begun, noted.finished, noted.lease_until, noted.state.encode()
        )[8:]
        self._map[:8] = self._count.to_bytes(8, "little")


@dataclass(slots=True)
class Brake:
    """How long to wait before a child is started again: not at all, unless it does nothing but die."""

    deaths: int = 0

    def died(self, *, finished: bool) -> float:
        """Count a death and return the pause before the next start, in seconds."""
        self.deaths = 1 if finished else self.deaths + 1
        if self.deaths < BRAKE_FROM:
            return 0.0
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self.deaths - BRAKE_FROM))


class Child:
    """A child process."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int | None) -> None:
        self.pid = process.pid
        self._process = process
        self._lifeline = lifeline
        self._descriptor = os.pidfd_open(process.pid)

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        config: bytes | None = None,
        note: Note | None = None,
    ) -> Child:
        """Start a child; with a config and a note, their descriptors and its lifeline's are its last arguments.

        Call it from the main thread: the kernel's parent-death signal follows the thread that forks.
        """
        if config is None or note is None:
            return cls(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL), None)
        reader, writer = os.pipe()
        told = os.memfd_create("zbatch-config")
        os.write(told, config)
        os.lseek(told, 0, os.SEEK_SET)
        passed = (told, note.descriptor, reader)
        try:
            process = subprocess.Popen(
                [*argv, *map(str, passed)], env=env, pass_fds=passed, stdin=subprocess.DEVNULL
            )
        finally:
            os.close(told)
            os.close(reader)
        return cls(process, writer)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the child has died."""
        return self._descriptor

    def poll(self) -> int | None:
        """Return the exit status (minus the signal that ended it), or None while it lives."""
        return self._process.poll()

    def order(self, what: bytes) -> None:
        """Write an order into the lifeline."""
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, what)

    def terminate(self) -> None:
        """Ask it to leave."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now and wait for it."""
        if self._process.poll() is None:
            self._process.kill()

    def wait(self, timeout: float) -> int | None:
        """Wait a while for its end; return the exit status, or None if it still lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def close(self) -> None:
        """Let go of a dead child's descriptors."""
        os.close(self._descriptor)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def die_with_parent() -> None:
    """Have the kernel end this process when its parent dies; ends it now if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() == 1 and os.environ.get("ZBATCH_PARENT", "1") != "1":
        os._exit(0)
