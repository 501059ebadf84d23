"""How large things are, and what one message can carry.

A socket of the broker ends the connection over a frame beyond its ``message_bytes``, and a message of more
than ``MAX_FRAMES`` buffers is none; whoever went on sending it would never get anything else across.  So
what is to leave is made to fit here, or refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zbatch.messages import MAX_FRAMES, Fault, Results

Buffers = Sequence[Sequence[Any]] | None
"""Of each item its buffers; None: there are none at all."""

Measure = Callable[[Sequence[Any], Buffers], int]
"""Returns the bytes of items and their buffers."""

LEAST = 4_096
"""Bytes that a buffer counts for at least: a frame costs its holders about as much, however short it is."""

HEAD = 64
"""Bytes that the envelope may need for an item beside its payload."""


def size_of(items: Sequence[Any], buffers: Buffers) -> int:
    """Return the bytes of encoded items and their buffers."""
    size = sum(map(len, items))
    if buffers is not None:
        size += sum(max(len(frame), LEAST) for frames in buffers for frame in frames)
    return size


def cannot_travel(size: int, items: Sequence[Any], buffers: Buffers, most: int) -> Fault | None:
    """Return why a request of ``size`` bytes cannot be one message; None: it can."""
    if size + HEAD * len(items) > most:
        text = (
            f"the request has {size:,} bytes in {len(items):,} items, a message may have {most:,}: "
            "send fewer items at a time, or raise the broker's limits.message_bytes"
        )
        return Fault("too_large", text)
    frames = 0 if buffers is None else sum(map(len, buffers))
    if frames > MAX_FRAMES:
        text = f"the request has {frames:,} buffers, a message may have {MAX_FRAMES:,}: send fewer at a time"
        return Fault("too_large", text)
    return None


class Answer:
    """The outcome of a batch, item by item, on its way to a broker."""

    def __init__(
        self, outputs: list[Any], buffers: list[Sequence[Any]] | None, errors: list[tuple[int, Fault]]
    ) -> None:
        self.outputs, self.buffers, self.errors = outputs, buffers, errors

    def fit(self, most: int, measure: Measure) -> None:
        """Make it one message of frames of at most ``most`` bytes.

        An output that is larger than that is a ``bad_output``.  Where the others together are too much for
        one envelope they travel as buffers, each before its own.
        """
        size = measure(self.outputs, self.buffers) + HEAD * len(self.outputs)
        if size + sum(_weight(fault) for _, fault in self.errors) <= most and not self._has_many_frames():
            return
        self._refuse_large(most, measure)
        if sum(map(len, self.outputs)) + HEAD * len(self.outputs) > most // 2:
            self._spread()
        self._refuse_beyond_the_last_frame()
        if sum(_weight(fault) for _, fault in self.errors) > most // 4:
            self.errors = [(place, _shortened(fault)) for place, fault in self.errors]

    def _has_many_frames(self) -> bool:
        return self.buffers is not None and sum(map(len, self.buffers)) > MAX_FRAMES

    def _refuse_large(self, most: int, measure: Measure) -> None:
        for place, output in enumerate(self.outputs):
            size = measure((output,), None if self.buffers is None else (self.buffers[place],))
            if size + HEAD > most:
                self._refuse(place, f"the output has {size:,} bytes, a message may have {most:,}")

    def _spread(self) -> None:
        buffers = self.buffers or [()] * len(self.outputs)
        self.buffers = [
            (output, *own) if output else own for output, own in zip(self.outputs, buffers, strict=True)
        ]
        self.outputs = [b""] * len(self.outputs)

    def _refuse_beyond_the_last_frame(self) -> None:
        count = 0
        for place, own in enumerate(self.buffers or ()):
            if count + len(own) > MAX_FRAMES:
                text = f"the outputs of one batch have more than {MAX_FRAMES:,} buffers"
                self._refuse(place, f"{text}: a smaller batch size would do")
                continue
            count += len(own)

    def _refuse(self, place: int, text: str) -> None:
        self.outputs[place] = b""
        if self.buffers is not None:
            self.buffers[place] = ()
        self.errors.append((place, Fault("bad_output", text)))


def _weight(fault: Fault) -> int:
    return HEAD + len(fault.text) + len(fault.traceback)


def _shortened(fault: Fault) -> Fault:
    return Fault(fault.code, fault.text[:1_000], fault.retry_after_ms, fault.kind)


def messages_of(spans: list[Results], frames: list[Any]) -> Iterator[tuple[list[Results], list[Any]]]:
    """Cut what one client is owed into messages that have not too many buffers."""
    if len(frames) <= MAX_FRAMES:
        yield spans, frames
        return
    first = place = taken = 0
    for at, span in enumerate(spans):
        own = sum(span.buffers or ())
        if taken + own > MAX_FRAMES:
            yield spans[first:at], frames[place : place + taken]
            first, place, taken = at, place + taken, 0
        taken += own
    yield spans[first:], frames[place:]
