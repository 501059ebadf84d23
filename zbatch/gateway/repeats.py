"""Requests that came before, byte for byte: who asks again in the same words need not be parsed again.

Most requests of a client differ in their bodies alone, and to parse a head is a third of what a request
costs here.  What is remembered was read by the parser, whole, so it means what that took it to mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LONGEST = 1_024
"""Bytes of a head that is remembered."""

MOST = 1_024
"""Heads that are remembered; beyond them all are forgotten: to know the oldest would cost each request."""

END = b"\r\n\r\n"


class Repeated(NamedTuple):
    """What a head said."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Shared by all requests that came with it: only to be read."""
    length: int
    """Bytes of its body."""
    notes: dict[str, Any]
    """What the application made of it: shared in the same way."""


class Repeats:
    """Heads of requests that came in one piece and left their connection as it was."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Repeated] = {}

    def find(self, data: bytes) -> Repeated | None:
        """Return the head of a request, if this is one whole request with a head that came before."""
        end = data.find(END, 0, LONGEST) + len(END)
        known = self._heads.get(data[:end])
        return known if known is not None and len(data) - end == known.length else None

    def learn(self, head: bytes, known: Repeated) -> None:
        """Remember a head."""
        if len(self._heads) >= MOST:
            self._heads.clear()
        self._heads[head] = known


def head_of(data: bytes) -> bytes:
    """Return the head with which this begins; empty: it is too long to be remembered, or not whole."""
    end = data.find(END, 0, LONGEST)
    return data[: end + len(END)] if end >= 0 else b""
