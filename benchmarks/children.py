"""Start and end the processes of a measurement, so that none is left behind.

Each child is ended by its own pid, and its process group with it; each also ends by itself when the
benchmark dies.  What a child prints goes to a file, whose end is shown when it fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 20.0
"""Seconds until a child that was asked to leave is killed."""

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Failed(Exception):
    """A measurement that could not be made, with the reason."""


@contextmanager
def child(command: Sequence[str], log: Path, *, piped: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends; ``piped``: we talk through its standard input and output."""
    pipe = subprocess.PIPE if piped else None
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or errors,
            stderr=errors,
            text=True,
            bufsize=1,
            start_new_session=True,
            # A piped child sees its input end and then leaves in good order, with children of its own.
            preexec_fn=None if piped else _leave_with_parent,  # noqa: PLW1509 - no threads here
        )
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Ask a process to leave, wait, and then end whatever is left of its group."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    else:
        os.kill(process.pid, signal.SIGTERM)
    patience = time.monotonic() + PATIENCE
    while not has_ended(process) and time.monotonic() < patience:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has ended, without reaping it: until then its number is nobody else's."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def free_endpoint(transport: str, path: Path) -> str:
    """Return an endpoint that nobody is bound to."""
    if transport == "ipc":
        return f"ipc://{path}"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def tail(log: Path, lines: int = 15) -> str:
    """Return the end of what a child printed."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _leave_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
