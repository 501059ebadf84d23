"""Streams through the broker: which parts are handed on to a reader, and when one ends.

A part is handed on once; how far a worker may be ahead of the reader is said in ``stream.py``.  What a
worker's end costs its streams is decided in ``dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from zbatch.core.actions import Send
from zbatch.core.backlog import Held
from zbatch.core.books import Books
from zbatch.core.clients import Client
from zbatch.core.session import announce
from zbatch.core.stream import Through, cut, messages_of, weight_of, without_known
from zbatch.messages import Fault, Flow, Parts

BROKEN = Fault(
    "worker_lost", "some of it was delivered, the rest was lost with its worker: it cannot run again"
)
"""How a stream ends whose worker does not end it."""


class Relay:
    """What lies between the workers that yield and the clients that read."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def forward(self, held: Held, flow: Flow, frames: Sequence[Any], now: float) -> None:
        """Owe a client parts of a stream, and its end where that has come."""
        stream = held.stream
        if stream is None or not held.open:
            return
        known = without_known(flow, stream.parts)
        parts = cut(flow, frames)[known:]
        stream.sent += sum(weight_of(part, self._books.measure) for part in parts)
        if known is None or stream.is_overfull:
            text = "parts of it were lost" if known is None else "its worker sends more than is read"
            self._books.fail(held, (0, 1), Fault("worker_lost", text))
            return
        client: Client = held.owner
        if parts or flow.ended:
            counts = [len(own) for _, own in parts] if flow.buffers is not None else None
            fresh = Flow(held.base, stream.parts, [one for one, _ in parts], counts, flow.ended)
            client.flows.append((fresh, [frame for _, own in parts for frame in own]))
            self._books.owed[client.link.life] = client
            stream.parts += len(parts)
            held.deadline = now + stream.patience
        if flow.fault is not None:
            stream.handed = None
            self._books.fail(held, (0, 1), flow.fault)
        elif flow.ended:
            stream.handed = None
            self._books.count_answered(held, 1, now)
            self._books.end(held, (0, 1))

    def taken(self, client: Client, base: int, taken: int, now: float) -> Held | None:
        """Learn how much of a stream was read; return it if it is one that runs."""
        for held, _, _ in client.find(base, base + 1):
            stream = held.stream
            if stream is not None and held.open:
                if stream.taken < min(taken, stream.sent):
                    stream.taken = min(taken, stream.sent)
                    held.deadline = now + stream.patience
                return held
        return None

    def flush(self, client: Client) -> Iterator[Send]:
        """Yield the parts that a client is owed."""
        link = client.link
        flowing, client.flows = client.flows, []
        place = 0
        for flows, frames in messages_of(flowing, self._books.measure):
            yield from announce(link.peer, link.stamp, sum(map(len, frames)))
            parts = Parts(*link.stamp(), flows)
            client.flowed(parts.number, flowing[place : place + len(flows)])
            place += len(flows)
            yield Send(link.peer, parts, frames)


def broken_off(stream: Through) -> Fault:
    """Return why a stream ends of which some parts have come: it is its reader's fault, or its model's."""
    if stream.is_full:
        return Fault("reader_too_slow", f"nothing of what had come was read for {stream.patience:.3f} s")
    return Fault("deadline_exceeded", f"no further part came within {stream.patience:.3f} s")
