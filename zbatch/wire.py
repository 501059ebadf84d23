"""The wire format: a message and its buffers become frames, and frames become a message or a refusal.

One frame is the envelope: a version byte, then the message as msgpack.  Array buffers follow it, a frame
each.  Nothing here knows a socket; nothing here opens an item.  ``docs/protocol.md`` describes the same
bytes in words, ``tests/test_wire.py`` pins them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zbatch.messages import (
    MAX_FRAMES,
    AnyMessage,
    Batch,
    Done,
    Flow,
    Group,
    Message,
    Part,
    Parts,
    Request,
    Result,
    Span,
    Yielded,
)

VERSION = 1
"""The first byte of every envelope."""

MAX_ID = 2**53
"""Ids stay exact in languages whose numbers are doubles."""


class Malformed(ValueError):
    """These frames are no message; the text says why and repeats none of the sender's bytes."""


class Foreign(Malformed):
    """The envelope is of another version of the protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"protocol version {version} was sent, version {VERSION} is spoken here")
        self.version = version


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_VERSION_BYTE = bytes([VERSION])


def encode(message: Message) -> bytes:
    """Return the envelope of a message; its buffers travel beside it, unchanged."""
    return _VERSION_BYTE + _encoder.encode(message)


def decode(envelope: bytes | memoryview, buffers: int = 0) -> AnyMessage:
    """Return the message of an envelope that came with so many buffers.

    Raises :class:`Foreign` for another protocol version and :class:`Malformed` for everything that is
    no message of this one, a wrong number of buffers included.
    """
    if not envelope:
        raise Malformed("the envelope is empty")
    if envelope[0] != VERSION:
        raise Foreign(envelope[0])
    try:
        message = _decoder.decode(memoryview(envelope)[1:])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(f"no message of version {VERSION}: {_without_values(str(error))}") from None
    if _buffers_of(message) != buffers:
        raise Malformed(f"the envelope speaks of {_buffers_of(message)} buffers, {buffers} came with it")
    return message


def _without_values(text: str) -> str:
    # msgspec's texts name types and places; a value only stands in them where a word is not known, in quotes.
    before, _, after = text.partition(" '")
    return before + after.rpartition("'")[2]


def _buffers_of(message: AnyMessage) -> int:
    if isinstance(message, Request):
        return sum(map(_group_buffers, message.groups))
    if isinstance(message, Result):
        return sum(_counted(span.outputs, span.buffers) for span in message.spans)
    if isinstance(message, Batch):
        return sum(_span_buffers(span) for span in message.spans)
    if isinstance(message, Done):
        if message.errors is not None and any(place >= len(message.outputs) for place, _ in message.errors):
            raise Malformed("an error names a position beyond the batch")
        return _counted(message.outputs, message.buffers)
    if isinstance(message, Parts | Yielded):
        return _flow_buffers(message.flows)
    return 0


def _flow_buffers(flows: Sequence[Flow]) -> int:
    if any(flow.first + len(flow.parts) > MAX_ID for flow in flows):
        raise Malformed("parts beyond 2**53")
    total = sum(_counted(flow.parts, flow.buffers) for flow in flows)
    if total > MAX_FRAMES:
        raise Malformed(f"{total} buffers, at most {MAX_FRAMES} travel in one message")
    return total


def _span_buffers(span: Span) -> int:
    if span.names is not None:
        _check_names(span.names, span.items)
    if span.later_ms is not None and len(span.later_ms) != len(span.items):
        raise Malformed(f"{len(span.later_ms)} deadlines for {len(span.items)} items")
    buffers = span.buffers
    own = 0 if buffers is None else _counted(span.items, buffers)
    return own if span.parts is None else own + sum(_part_buffers(span, part) for part in span.parts)


def _part_buffers(span: Span, part: Part) -> int:
    if len(part.items) != len(span.items):
        raise Malformed(f"{len(part.items)} parts for {len(span.items)} items")
    return _counted(part.items, part.buffers)


def _group_buffers(group: Group) -> int:
    items = group.items
    if group.costs is not None and len(group.costs) != len(items):
        raise Malformed(f"{len(group.costs)} costs for {len(items)} items")
    if group.later_ms is not None and len(group.later_ms) != len(items):
        raise Malformed(f"{len(group.later_ms)} deadlines for {len(items)} items")
    if group.names is not None:
        _check_names(group.names, items)
    if group.base + len(items) > MAX_ID:
        raise Malformed("ids beyond 2**53")
    if group.patience_ms and len(items) != 1:
        raise Malformed(f"one stream for {len(items)} items")
    buffers = group.buffers
    return 0 if buffers is None else _counted(items, buffers)


def _check_names(names: Sequence[str], items: Sequence[bytes]) -> None:
    if len(names) not in {1, len(items)}:
        raise Malformed(f"{len(names)} request ids for {len(items)} items")


def _counted(items: Sequence[bytes], buffers: Sequence[int] | None) -> int:
    if buffers is None:
        return 0
    if len(buffers) != len(items):
        raise Malformed(f"{len(buffers)} buffer counts for {len(items)} items")
    total = sum(buffers)
    if total > MAX_FRAMES:
        raise Malformed(f"{total} buffers, at most {MAX_FRAMES} travel in one message")
    return total
