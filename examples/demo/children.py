"""The processes of the demo: start them, read what they say, end them, leave none behind."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

PATIENCE = 30.0
"""Seconds between asking a process to leave and killing it: more than a running batch can take."""


class Trouble(Exception):
    """A process of the demo did not do its part; the text says which, and how it ended."""


class Child:
    """One process that was started here, and its lines."""

    def __init__(self, title: str, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        """Start it; what it prints as JSON lines comes back through :meth:`next`, stderr goes to the log."""
        self.title = title
        self.log = log
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=environment,
                # Ctrl-C reaches the demo alone, which then ends them in order.
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def next(self, timeout: float) -> dict[str, Any] | None:
        """Return what it said next, or None if it said nothing for so long."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        if line is None:
            raise Trouble(f"{self.title} ended with {self.process.wait()}:\n{self.last_words()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def require_alive(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            raise Trouble(f"{self.title} ended with {self.process.returncode}:\n{self.last_words()}")

    def go(self) -> None:
        """Send it the line that it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def last_words(self) -> str:
        """Return the end of its stderr."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-20:])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put(None)


class Children:
    """All of them; leaving the ``with`` ends what still runs, in the reverse order of starting."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        """Start nothing yet."""
        self.logs = logs
        self.environment = environment
        self.all: list[Child] = []
        self.left_behind = 0

    def start(self, title: str, command: Sequence[str]) -> Child:
        """Start one."""
        log = self.logs / f"{len(self.all)}-{title.replace(' ', '-')}.log"
        child = Child(title, command, log, self.environment)
        self.all.append(child)
        return child

    def __enter__(self) -> Children:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all, and look whether any of them or of theirs is left."""
        # A second Ctrl-C must not stop the stopping; what hangs is killed anyway.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        family = list(self._descendants())
        for child in reversed(self.all):
            end(child.process)
        signal.signal(signal.SIGINT, before)
        _, left = psutil.wait_procs(family, timeout=5.0)
        self.left_behind = len(left)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _descendants(self) -> Iterator[psutil.Process]:
        for child in self.all:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(child.process.pid)
                yield from process.children(recursive=True)


def end(process: subprocess.Popen[str]) -> None:
    """Ask a process to leave; kill it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def wait_until(what: str, ready: Any, children: Sequence[Child], timeout: float = 120.0) -> float:
    """Wait for a condition, showing every two seconds that it is waited for; return how long it took."""
    began = shown = time.monotonic()
    while not ready():
        for child in children:
            child.require_alive()
        now = time.monotonic()
        if now - began > timeout:
            words = "\n".join(f"  {child.title} said last:\n{child.last_words()}" for child in children)
            raise Trouble(f"waited {timeout:.0f} s, and still {what}\n{words}")
        if now - shown > 2.0:
            shown = now
            print(f"    ... {what}: {now - began:.0f} s", flush=True)
        time.sleep(0.1)
    return time.monotonic() - began
