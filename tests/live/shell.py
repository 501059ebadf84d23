"""Commands as a person at a shell starts them, for the live tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil

PATIENCE = 60.0
"""Guards against hanging; measures nothing."""

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Return the environment without settings of zbatch."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ZBATCH_")}
    return clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def start(*arguments: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command that runs on."""
    command = [sys.executable, "-m", "zbatch", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, env=environment())


def zbatch(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "zbatch", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )


class Zbatch:
    """A zbatch command that runs; its stderr goes to a file, which can be waited on."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = start(*arguments, stderr=stderr)

    def says(self, words: str, times: int = 1) -> str:
        """Wait until stderr has these words so many times; return the whole of it."""
        until = time.monotonic() + PATIENCE
        while (text := self.log.read_text()).count(words) < times:
            assert self.process.poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.01)
        return text

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ends(self) -> int:
        """Wait for its end; return the exit status."""
        return self.process.wait(PATIENCE)

    def family(self) -> list[psutil.Process]:
        """Return the processes below it."""
        return psutil.Process(self.process.pid).children(recursive=True)


def until(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def all_end(processes: list[psutil.Process]) -> bool:
    """Wait until none of these processes is left."""
    return not psutil.wait_procs(processes, PATIENCE)[1]
