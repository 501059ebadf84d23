"""What an operator reads: one line on stderr for each event that matters, as text or JSON.

Writing can stall (stderr may be a pipe that nobody reads, or a full disk) and the broker's loop must not:
:meth:`Journal.event` only puts a line into a bounded queue, a daemon thread writes it.  Lines beyond the
queue, and floods of one event, are counted instead.  What a line holds may come from the network, so nothing
in it can start a new line or speak to a terminal.  Whether an event matters is the caller's to say; no
caller passes a payload.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

LEVELS: dict[str, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}

QUEUE_LINES = 1_000
"""Lines that wait for a stalled stderr: minutes of a bad night, and a few hundred kilobytes at most."""

BURST = 20
"""Lines of one event that are printed at once; beyond it, one each second."""

VALUE_LENGTH = 300
"""Characters of one value: a long topic or error text must not hide the rest of the line."""

DETAIL_LENGTH = 32_768
"""Characters of a detail, such as a traceback; its end is kept, there the reason stands."""


class Journal:
    """Prints events; safe to call from any thread and from signal handlers, never blocks."""

    def __init__(
        self,
        format: str = "text",
        name: str = "zbatch",
        *,
        level: str = "info",
        write: Callable[[bytes], object] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.dropped = 0
        """Lines that were lost because stderr stalled or failed."""
        self._render = _json if format == "json" else _text
        self._name = name
        self._lowest = LEVELS[level]
        self._write = write or _to_stderr
        self._monotonic = monotonic
        self._wall = wall
        self._meters: dict[str, _Meter] = {}
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def event(self, event: str, /, *, level: str = "info", detail: str = "", **values: object) -> None:
        """Print that this happened.

        ``level`` is one of :data:`LEVELS`; ``detail`` a text of several lines, such as a traceback.
        """
        if not self.prints(level):
            return
        if level != "debug":  # who asks for that wants all of it
            meter = self._meters.setdefault(event, _Meter())
            if not meter.admits(self._monotonic()):
                return
            if meter.left_out:
                values["left_out"] = meter.left_out
                meter.left_out = 0
        self._put(level, event, values, detail)

    def prints(self, level: str) -> bool:
        """Return whether events of a level are printed: what only they say need not be made."""
        return LEVELS[level] >= self._lowest

    def close(self, timeout: float = 1.0) -> None:
        """Print what was left out and wait a moment for the lines to be written, not for ever."""
        for event, meter in self._meters.items():
            if meter.left_out:
                self._put("info", event, {"left_out": meter.left_out}, "")
                meter.left_out = 0
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(timeout)
            self._thread = None

    def _put(self, level: str, event: str, values: dict[str, object], detail: str) -> None:
        if self._lines.qsize() >= QUEUE_LINES:
            self.dropped += 1
            return
        if self.dropped:
            values["dropped"] = self.dropped
        line = _Line(_time(self._wall()), level, self._name, event, values, detail[-DETAIL_LENGTH:])
        self._lines.put(self._render(line).encode())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zbatch-journal", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
            except OSError:
                # The reader is gone or the disk is full: there is nobody to tell but the counter.
                self.dropped += 1


class _Meter:
    """How often one event was printed lately."""

    __slots__ = ("left_out", "since", "tokens")

    def __init__(self) -> None:
        self.tokens = float(BURST)
        self.since = 0.0
        self.left_out = 0

    def admits(self, now: float) -> bool:
        self.tokens = min(BURST, self.tokens + (now - self.since))
        self.since = now
        if self.tokens < 1:
            self.left_out += 1
            return False
        self.tokens -= 1
        return True


class _Line(NamedTuple):
    time: str
    level: str
    name: str
    event: str
    values: dict[str, object]
    detail: str


def _text(line: _Line) -> str:
    words = [f"{line.time} {line.level} {line.name}: {line.event}"]
    words += [f"{key}={_quoted(_plain(value))}" for key, value in line.values.items()]
    # A detail keeps its lines, but each is marked: no text from elsewhere can pass for a line of ours.
    return " ".join(words) + "\n" + "".join(f"    | {part}\n" for part in _lines(line.detail))


def _json(line: _Line) -> str:
    fields = {key: _jsonable(value) for key, value in line.values.items()}
    fields |= {"time": line.time, "level": line.level, "from": line.name, "event": line.event}
    if line.detail:
        fields["detail"] = "\n".join(_lines(line.detail))
    return "".join(_escaped(msgspec.json.encode(fields).decode(), r"\u")) + "\n"


def _lines(detail: str) -> Iterator[str]:
    for line in detail.splitlines():
        yield "".join(_escaped(line.replace("\t", "    "), r"\x"))


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _plain(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.6g}"
        case list() | tuple() | set() | frozenset():
            return ",".join(_plain(item) for item in value)
        case _:
            return _cut(str(value))


def _jsonable(value: object) -> object:
    return value if isinstance(value, int | float | None) else _plain(value)


def _cut(text: str) -> str:
    text = text if len(text) <= VALUE_LENGTH else text[:VALUE_LENGTH] + "..."
    # Half a surrogate pair (a file name that is no UTF-8) cannot be written.
    return text.encode("utf-8", "backslashreplace").decode()


def _quoted(text: str) -> str:
    if text and text.isprintable() and not any(mark in text for mark in ' "='):
        return text
    return '"' + "".join(_escaped(text.replace("\\", r"\\").replace('"', r"\""), r"\x")) + '"'


def _escaped(text: str, small: str) -> Iterator[str]:
    """Spell out what is not printable: line ends, the terminal's escapes, marks that turn text round."""
    for letter in text:
        number = ord(letter)
        if letter.isprintable():
            yield letter
        elif number > 0xFFFF and small == r"\u":
            high, low = divmod(number - 0x10000, 0x400)
            yield f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
        elif number > 0xFFFF:
            yield f"\\U{number:08x}"
        elif number > 0xFF or small == r"\u":
            yield f"\\u{number:04x}"
        else:
            yield f"\\x{number:02x}"


def _to_stderr(line: bytes) -> None:
    """Write to the descriptor: a thread stuck inside ``sys.stderr`` would hang the interpreter's exit."""
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        descriptor = 2
    while line:
        try:
            line = line[os.write(descriptor, line) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
