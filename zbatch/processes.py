"""Start, watch and end child processes so that none is ever left behind.

A child is tied to its parent twice: the kernel ends it when the parent's thread dies (Linux), and the
lifeline, a pipe that only the parent holds open, ends.  It leads a session of its own, so that what it
started itself can be ended with it, and Ctrl-C at a terminal reaches the parent alone, whose matter it is.
The parent sees a death through a process descriptor, at once, and reads the note that the child left in
shared memory.  When to start whom, and what a death means, is for ``worker.py`` and ``launcher.py`` to say.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

KILL_PATIENCE = 5.0
"""Seconds for the kernel to end a process that was killed; longer only if it hangs in a driver."""

LEAVE = b"d"
"""What a parent writes into the lifeline to have its child leave."""

PR_SET_PDEATHSIG = 1


class Noted(NamedTuple):
    """What a model process was doing when it was last seen; times are nanoseconds of CLOCK_MONOTONIC.

    That is one clock for all processes of a host.
    """

    epoch: bytes
    begun: int
    finished: int
    lease_until: int
    state: str
    begun_at: int = 0
    progress_at: int = 0
    apart: bool = False
    """Whether the batch is tried apart, because a process died under its items."""
    others: tuple[tuple[bytes, int], ...] = ()
    """Other brokers' epochs, the latest first, each with its last batch that began."""


OTHERS = 8
"""Other brokers that a note remembers."""

_NOTHING = Noted(bytes(8), 0, 0, 0, "loading")
_RECORD = struct.Struct("<8sQQQ16sQQ?" + "8sQ" * OTHERS)
_NOBODY = (bytes(8), 0) * OTHERS
_PLACES = (64, 320)
_SIZE = 576

NAMES_BYTES = 32 << 10
"""Request ids that a note holds beside its record: 256 of the longest, of common ones far more."""

_NAMED = struct.Struct("<8sQQ")
"""A broker's epoch, a batch of its, and the bytes of its request ids, which follow."""
_NOT_NAMED = bytes(_NAMED.size)
_REFUSAL = b"refused:"
"""No broker's epoch: why a model is refused stands in the place of request ids."""


class Note:
    """A few bytes of memory that a child writes and its parent can read, even after the child's death.

    They hold a count and two records; the count says which is whole, and the other is written next.  So a
    writing that death cut off leaves the record before it.  One process writes at a time, from any thread.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE + _NAMED.size + NAMES_BYTES)
        self._count = memoryview(self._map)[:8].cast("Q")
        self._lock = threading.Lock()
        self._noted = _NOTHING

    @classmethod
    def create(cls) -> Note:
        """Make a note that a child can inherit."""
        descriptor = os.memfd_create("zbatch-note", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE + _NAMED.size + NAMES_BYTES)
        note = cls(descriptor)
        note.clear()
        return note

    @classmethod
    def attach(cls, descriptor: int) -> Note:
        """Open the note that the parent made."""
        return cls(descriptor)

    def clear(self) -> None:
        """Begin anew, for the next child."""
        with self._lock:
            self._write(_NOTHING)

    def name(self, epoch: bytes, batch: int, names: Sequence[str]) -> None:
        """Write by which request ids a batch goes that is about to begin, as far as they find room."""
        told = "\n".join(names).encode()
        if len(told) > NAMES_BYTES:
            told = told[: told.rfind(b"\n", 0, NAMES_BYTES + 1)]
        # Whatever a death cuts off here is nobody's: the head, which says whose it is, is written last.
        self._map[_SIZE : _SIZE + _NAMED.size] = _NOT_NAMED
        start = _SIZE + _NAMED.size
        self._map[start : start + len(told)] = told
        _NAMED.pack_into(self._map, _SIZE, epoch, batch, len(told))

    def names(self, epoch: bytes, batch: int) -> list[str]:
        """Return the request ids of a batch, if it is the last that had some."""
        *whose, size = _NAMED.unpack_from(self._map, _SIZE)
        start = _SIZE + _NAMED.size
        if not size or whose != [epoch, batch]:
            return []
        return self._map[start : start + size].decode().split("\n")

    def refuse(self, why: str) -> None:
        """Write why what is asked for is no model."""
        # A character takes at most four bytes; what has none in UTF-8 came from a path.
        self.name(_REFUSAL, 0, [why[: NAMES_BYTES // 4].encode(errors="replace").decode()])

    def refusal(self) -> str:
        """Return why; empty: nothing was refused."""
        return "\n".join(self.names(_REFUSAL, 0))

    def begin(self, epoch: bytes, batch: int, lease: float, *, apart: bool = False) -> None:
        """Write that a batch begins, how many seconds it may run, and whether it is tried apart."""
        now = time.monotonic_ns()
        until = now + int(lease * 1e9)
        with self._lock:
            before = self._noted
            finished, others = before.finished, before.others
            if epoch != before.epoch:
                finished = 0
                others = tuple(one for one in others if one[0] != epoch)
                if before.begun:
                    others = ((before.epoch, before.begun), *others)[:OTHERS]
            self._write(Noted(epoch, batch, finished, until, before.state, now, now, apart, others))

    def finish(self, batch: int) -> None:
        """Write that the batch came to an end."""
        with self._lock:
            self._write(self._noted._replace(finished=batch))

    def progress(self, lease: float) -> None:
        """Write that the lease begins anew."""
        now = time.monotonic_ns()
        with self._lock:
            self._write(self._noted._replace(lease_until=now + int(lease * 1e9), progress_at=now))

    def show(self, state: str) -> None:
        """Write what the child is up to: loading, ready, draining."""
        with self._lock:
            self._write(self._noted._replace(state=state))

    def read(self) -> Noted:
        """Return what stands there; of a writing that was cut off by death, what stood before."""
        for _ in range(100):
            count = self._count[0]
            found = _RECORD.unpack_from(self._map, _PLACES[count % 2])
            if self._count[0] == count:
                break
        epoch, begun, finished, until, state, begun_at, progress_at, apart, *others = found
        told = tuple((one, last) for one, last in zip(others[::2], others[1::2], strict=True) if last)
        state = state.rstrip(b"\0").decode()
        return Noted(epoch, begun, finished, until, state, begun_at, progress_at, apart, told)

    def close(self) -> None:
        """Let go of the memory."""
        self._count.release()
        self._map.close()
        os.close(self.descriptor)

    def _write(self, noted: Noted) -> None:
        self._noted = noted
        count = self._count[0] + 1
        epoch, begun, finished, until, state, begun_at, progress_at, apart, others = noted
        told = _NOBODY if not others else (*(part for one in others for part in one), *_NOBODY)[: 2 * OTHERS]
        _RECORD.pack_into(
            *(self._map, _PLACES[count % 2]),
            *(epoch, begun, finished, until, state.encode(), begun_at, progress_at, apart),
            *told,
        )
        self._count[0] = count


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
        kept: Sequence[int] = (),
        silent: bool = False,
    ) -> Child:
        """Start a child; with a config its last arguments are descriptors.

        They are those of the config, to be read, of the note, if there is one, and of the lifeline.  What is
        ``kept`` is open in the child under the same numbers, which its config may say.  A ``silent`` one does
        not hold this process's output open.

        Call it from the thread that lives as long as the child may, in a program of ours the main thread:
        the kernel's parent-death signal follows the thread that forks, not the process.
        """
        if config is None:
            return cls(
                subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True), None
            )
        reader, writer = os.pipe()
        told = os.memfd_create("zbatch-config")
        passed = (told, reader) if note is None else (told, note.descriptor, reader)
        try:
            os.write(told, config)
            os.lseek(told, 0, os.SEEK_SET)
            os.set_blocking(writer, False)
            process = subprocess.Popen(
                [*argv, *map(str, passed)],
                env=env,
                pass_fds=(*passed, *kept),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if silent else None,
                stderr=subprocess.DEVNULL if silent else None,
                start_new_session=True,
            )
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(told)
            os.close(reader)
        return cls(process, writer)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the child has died."""
        return self._descriptor

    def poll(self) -> int | None:
        """Return the exit status (minus the signal that ended it), or None while it lives.

        What a dead child had started, and did not move into a session of its own, is ended here.
        """
        if self._process.returncode is None and self._is_dead():
            # Before it is reaped: until then nobody else can be given the number of its group.
            self._kill_group()
        return self._process.poll()

    def order(self, what: bytes) -> None:
        """Write an order into the lifeline; one that does not listen is told nothing."""
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._lifeline, what)

    def terminate(self) -> None:
        """Ask it to leave."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now, and what it started; ``wait`` sees it dead a moment later."""
        if self.poll() is None:
            self._kill_group()

    def wait(self, timeout: float) -> int | None:
        """Wait a while for its end; return the exit status, or None if it still lives."""
        if self.poll() is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            ended.poll(max(0, timeout) * 1000)
        return self.poll()

    def stop(self, grace: float) -> int | None:
        """Have it leave, end it if it has not after ``grace`` seconds; return the exit status."""
        if self._lifeline is None:
            self.terminate()
        self.order(LEAVE)
        if self.wait(grace) is None:
            self.kill()
        return self.wait(KILL_PATIENCE)

    def close(self) -> None:
        """Let go of a dead child's descriptors."""
        os.close(self._descriptor)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _is_dead(self) -> bool:
        try:
            ended = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False  # somebody else reaped it: its group may be another's by now
        return ended is not None

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def die_with_parent(lifeline: int | None = None) -> None:
    """Have the kernel end this process when its parent dies; a child calls it first.

    With a lifeline, a parent that died before this call is noticed too, and ends the process here.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if lifeline is None:
        return
    held = select.poll()
    held.register(lifeline, 0)
    if held.poll(0):
        os._exit(0)


class Alarm:
    """Wakes a thread that polls: a signal's handler rings, and the thread reads what it was told."""

    def __init__(self) -> None:
        self._heard, self._bell = os.pipe()
        for descriptor in (self._heard, self._bell):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when it was rung."""
        return self._heard

    def ring(self, word: bytes = b".") -> None:
        """Say a word of one byte; may be called from a signal handler, also after the end."""
        with contextlib.suppress(OSError):  # many were not read yet, or it is closed
            os.write(self._bell, word)

    def words(self) -> bytes:
        """Return what was said since the last time; something was."""
        return os.read(self._heard, 64)

    def close(self) -> None:
        """Be heard no more."""
        # First: a signal may come between, and the number may soon be another file's.
        bell, self._bell = self._bell, -1
        os.close(bell)
        os.close(self._heard)


def heed_orders(stop: Callable[[], None], lifeline: int | None = None) -> None:
    """Have ``stop`` called when this process is told to leave: by SIGTERM or SIGINT, or by its parent.

    Where a parent holds a lifeline, its word alone counts: a service manager may signal every process of a
    service at once, and whose turn it is to leave is the parent's matter.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        # No SIG_IGN: whatever is started from here would inherit that.
        signal.signal(number, lambda *_: stop() if lifeline is None else None)
    if lifeline is not None:
        threading.Thread(target=_obey, args=(stop, lifeline), name="zbatch-orders", daemon=True).start()


def _obey(stop: Callable[[], None], lifeline: int) -> None:
    while os.read(lifeline, 64):
        stop()
    # Nobody is left to say anything: at once.
    stop()
    stop()


def reap_strangers(own: Collection[int]) -> None:
    """As pid 1 of a container, bury the dead whom the kernel handed over; ``own`` are left alone."""
    with contextlib.suppress(ChildProcessError):
        while True:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            # One of our own hides those behind it until it is reaped, which is soon.
            if dead is None or dead.si_pid in own:
                return
            os.waitpid(dead.si_pid, 0)
