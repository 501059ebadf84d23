"""What a stream looks like over HTTP: its parts, its end and its error, as events (SSE) or as lines of JSON.

In either form the end is said: what stops without it was cut off.  Nothing here reads from a connection or
writes to one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from zbatch.gateway import bodies
from zbatch.gateway.answers import JSON

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
LINES_TOO = "application/jsonl"

ORDINARY = ("", "*/*", JSON)
"""What most requests accept; it need not be taken apart."""


class Framing(NamedTuple):
    """One form of a stream; what it holds is JSON already."""

    kind: str
    part: Callable[[int, bytes], bytes]
    """One part, by its number and what it says."""
    done: Callable[[int], bytes]
    """The end, after so many parts."""
    failed: Callable[[bytes], bytes]
    """The error that it ends in, of which the body of an answer is given."""
    alive: bytes
    """What may stand between any two of them and says nothing, so that nobody cuts a quiet connection."""


def framing_of(accept: str) -> Framing | None:
    """Return in which form a stream is wanted; None: what is wanted is one answer.

    Of what an Accept header names, the first that can be had decides, be it a stream or a body.
    """
    if accept in ORDINARY:
        return None
    for kind in bodies.wanted(accept):
        if kind in _FRAMINGS:
            return _FRAMINGS[kind]
        if bodies.is_written(kind):
            return None
    return None


def _event(number: int, part: bytes) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (number, part)


def _last_event(parts: int) -> bytes:
    # Without data nobody is told of an event.
    return b'event: done\ndata: {"parts":%d}\n\n' % parts


def _failed_event(body: bytes) -> bytes:
    return b"event: error\ndata: %b\n\n" % body


def _line(number: int, part: bytes) -> bytes:
    return b'{"part":%b}\n' % part


def _last_line(parts: int) -> bytes:
    return b'{"done":true,"parts":%d}\n' % parts


def _failed_line(body: bytes) -> bytes:
    return b"%b\n" % body


_AS_EVENTS = Framing(EVENTS, _event, _last_event, _failed_event, b":\n\n")
# A blank before a value is JSON, too; an empty line would be none.
_AS_LINES = Framing(LINES, _line, _last_line, _failed_line, b" ")
_FRAMINGS = {
    EVENTS: _AS_EVENTS,
    LINES: _AS_LINES,
    LINES_TOO: _AS_LINES._replace(kind=LINES_TOO),
}


def written(part: object) -> bytes:
    """Return a part as JSON; raises :class:`NotAcceptable` for what has no such form."""
    return bodies.write(JSON, part).data
