"""Results that come part by part: what each side of a stream remembers, and how far one may run ahead.

The parts of a stream are numbered from 0.  Who gets a part twice drops it, and a gap is an error: a stream
ends as what its model made of it, or in an error, never as less.

A reader says how much it has read in all.  What was sent and not read yet is at most ``WINDOW``; what the
model yields beyond that is kept at its worker, at most ``KEPT``, and then the stream ends, for it holds up
neither the batch nor other readers.  Nothing here knows connections, batches or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from zbatch.core.sizes import HEAD, Measure
from zbatch.messages import MAX_FRAMES, Fault, Flow

WINDOW = 256 << 10
"""Bytes on the way to a reader: with 1 ms between the hosts a link of 100 MB/s has always some to carry."""

KEPT = 1 << 20
"""Bytes kept at the worker for a reader that is slower than the model: a pause is borne, no more."""

PART_BYTES = 16 << 20
"""One part has at most so much: it travels beside other streams."""

MESSAGE_BYTES = 1 << 20
"""A message of parts is closed beyond this, as one of requests is."""

Part = tuple[Any, Sequence[Any]]
"""A payload and its buffers."""


def weight_of(part: Part, measure: Measure) -> int:
    """Return what a part counts for, at either end."""
    payload, buffers = part
    return HEAD + measure((payload,), (buffers,) if buffers else None)


@dataclass(slots=True, eq=False)
class Inflow:
    """A stream as its client knows it."""

    patience: float
    """Seconds within which the next part is wanted."""
    parts: int = 0
    """How many have come."""
    taken: int = 0
    """What the reader has read, in all."""
    told: int = 0
    """What of that the broker was told."""

    @property
    def is_due(self) -> bool:
        """Whether the broker should be told how much was read."""
        return self.taken - self.told >= WINDOW // 2


@dataclass(slots=True, eq=False)
class Through:
    """A stream as the broker knows it, which hands it on."""

    patience: float
    parts: int = 0
    """How many were handed on; with the first the item can no longer run again."""
    sent: int = 0
    taken: int = 0
    handed: Any = None
    """The batch that it runs in, and its place there."""
    place: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it is the reader's turn."""
        return self.sent - self.taken >= WINDOW

    @property
    def is_overfull(self) -> bool:
        """Whether a worker sent more than it may."""
        return self.sent - self.taken > WINDOW + KEPT + 2 * PART_BYTES


@dataclass(slots=True, eq=False)
class Outflow:
    """A stream as its worker knows it, where the parts come from."""

    place: int
    parts: int = 0
    """How many were sent."""
    sent: int = 0
    taken: int = 0
    kept: int = 0
    ended: bool = False
    fault: Fault | None = None
    is_over: bool = False
    """Nothing more is sent: its end was, or nobody reads it."""
    _waiting: deque[tuple[int, Part]] = field(default_factory=deque)

    @property
    def is_full(self) -> bool:
        """Whether it is the reader's turn."""
        return self.sent - self.taken >= WINDOW

    @property
    def is_open(self) -> bool:
        """Whether its model may still yield something for it."""
        return not (self.ended or self.is_over)

    def put(self, part: Part, weight: int) -> None:
        """Take what the model yielded."""
        if not self.is_open:
            return
        if weight > PART_BYTES:
            self.end(
                Fault("bad_output", f"a part has {weight:,} bytes, at most {PART_BYTES:,} may be yielded")
            )
        elif self.kept + weight > KEPT and self._waiting:
            text = (
                f"the reader is more than {WINDOW + KEPT:,} bytes behind the model, which goes on for others"
            )
            self.end(Fault("reader_too_slow", text))
        else:
            self._waiting.append((weight, part))
            self.kept += weight

    def end(self, fault: Fault | None = None) -> None:
        """Let nothing more be yielded."""
        if self.is_open:
            self.ended, self.fault = True, fault

    def stop(self) -> None:
        """Let nothing more be sent: nobody reads it."""
        self.is_over = True
        self._waiting.clear()
        self.kept = 0

    def flow(self, frames: list[Any], *, everything: bool = False) -> Flow | None:
        """Return what is to be sent now; its buffers are put behind ``frames``.

        At most as many buffers as one message has; who gets something asks again.  With ``everything`` also
        beyond the window, for the batch has ended.
        """
        if self.is_over:
            return None
        first, own = self.parts, 0
        parts: list[Any] = []
        counts: list[int] = []
        while self._waiting and (everything or not self.is_full):
            weight, (payload, buffers) = self._waiting[0]
            if parts and own + len(buffers) > MAX_FRAMES:
                break
            self._waiting.popleft()
            parts.append(payload)
            counts.append(len(buffers))
            frames += buffers
            own += len(buffers)
            self.kept -= weight
            self.sent += weight
        self.parts += len(parts)
        ends = self.ended and not self._waiting
        if not parts and not ends:
            return None
        self.is_over = ends
        fault = self.fault if ends else None
        return Flow(self.place, first, parts, counts if own else None, ends and fault is None, fault)


def without_known(flow: Flow, known: int) -> int | None:
    """Return how many of these parts are known already; None where some before them are missing."""
    if flow.first > known:
        return None
    return min(known - flow.first, len(flow.parts))


def cut(flow: Flow, frames: Sequence[Any]) -> list[Part]:
    """Return the parts of a flow, each with its own of the frames that came for all."""
    if flow.buffers is None:
        return [(part, ()) for part in flow.parts]
    parts: list[Part] = []
    place = 0
    for part, count in zip(flow.parts, flow.buffers, strict=True):
        parts.append((part, frames[place : place + count]))
        place += count
    return parts


def messages_of(
    flows: Sequence[tuple[Flow, Sequence[Any]]], measure: Measure
) -> Iterator[tuple[list[Flow], list[Any]]]:
    """Cut what is to be said of streams into messages of a bounded size."""
    own: list[Flow] = []
    frames: list[Any] = []
    size = 0
    for flow, buffers in flows:
        weight = HEAD + measure(flow.parts, (buffers,) if buffers else None)
        if own and (size + weight > MESSAGE_BYTES or len(frames) + len(buffers) > MAX_FRAMES):
            yield own, frames
            own, frames, size = [], [], 0
        own.append(flow)
        frames += buffers
        size += weight
    if own:
        yield own, frames
