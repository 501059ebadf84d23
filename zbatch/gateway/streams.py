"""Streams of a model's parts to readers behind HTTP: as fast as each reads, and to an end that is said.

What they look like is in ``events.py``, what carries them in ``http1.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from zbatch.aio import AsyncStream
from zbatch.errors import ReaderTooSlow, ZbatchError
from zbatch.gateway import answers
from zbatch.gateway.events import Framing, written
from zbatch.journal import Journal

ALIVE = 5.0
"""Seconds without a part after which the headers are sent, and then something that says nothing."""

GONE = 499
"""The status under which a request is counted whose client had gone: nobody saw it."""


class Pieces(Protocol):
    """An answer that is sent piece by piece."""

    is_full: bool

    def write(self, data: bytes) -> None:
        """Send a piece; raises :class:`ConnectionError` where nobody is there any more."""

    async def room(self) -> None:
        """Wait until the reader has read."""


class Request(Protocol):
    """A request, as far as a stream needs it."""

    def begin_answer(self, status: int, headers: list[tuple[str, str]]) -> Any:
        """Begin an answer in pieces, a :class:`Pieces`."""


class Sent(NamedTuple):
    """What became of an answer that was sent already."""

    status: int
    """What it is counted as; once the headers are sent they have said 200."""
    size: int


class Outlet:
    """The way to one reader.

    Args:
        request: Whose answer it is.
        headers: Makes the headers, when the first piece goes out.
        alive: What is sent when nothing else was for ``every`` seconds, beginning with the headers.

    """

    def __init__(
        self, request: Request, headers: Callable[[], list[tuple[str, str]]], alive: bytes, every: float
    ) -> None:
        self._request = request
        self._headers = headers
        self._alive = alive
        self._every = every
        self._pieces: Pieces | None = None
        self._loop = asyncio.get_running_loop()
        self._put = self._loop.time()
        self._timer = self._loop.call_later(every, self._keep_alive)
        self.sent = 0
        """Bytes."""

    @property
    def is_open(self) -> bool:
        """Whether the headers went out, so that no status can be told any more."""
        return self._pieces is not None

    async def put(self, piece: bytes, patience: float) -> None:
        """Send a piece; waits while its reader is behind.

        Raises :class:`ReaderTooSlow` where that reads nothing for so many seconds, and
        :class:`ConnectionError` where it has left.
        """
        pieces = self.say(piece)
        self._put = self._loop.time()
        if not pieces.is_full:
            return
        try:
            await asyncio.wait_for(pieces.room(), patience)
        except TimeoutError:
            raise ReaderTooSlow(f"the reader has read nothing for {patience:g} s") from None

    def say(self, piece: bytes) -> Pieces:
        """Send a piece, however much waits for the reader already."""
        if self._pieces is None:
            self._pieces = self._request.begin_answer(200, self._headers())
        self._pieces.write(piece)
        self.sent += len(piece)
        return self._pieces

    def close(self) -> None:
        """Send nothing more."""
        self._timer.cancel()

    def _keep_alive(self) -> None:
        self._timer = self._loop.call_later(self._every, self._keep_alive)
        is_full = self._pieces is not None and self._pieces.is_full
        if self._loop.time() - self._put >= self._every and not is_full:
            with contextlib.suppress(ConnectionError):  # who puts the next piece hears of it
                self.say(self._alive)


async def send(
    stream: AsyncStream[Any],
    outlet: Outlet,
    framing: Framing,
    request_id: str,
    patience: float,
    journal: Journal,
) -> Sent:
    """Send a stream to its end.

    Raises the error that it ends in, if that comes before anything was sent.
    """
    try:
        async with stream:
            status = await _tell(stream, outlet, framing, request_id, patience, journal)
    except ConnectionError:
        status = GONE
    finally:
        outlet.close()
    return Sent(status, outlet.sent)


async def _tell(
    stream: AsyncStream[Any],
    outlet: Outlet,
    framing: Framing,
    request_id: str,
    patience: float,
    journal: Journal,
) -> int:
    """Send the parts, and how the stream ends; return its status."""
    parts = 0
    try:
        async for part in stream:
            await outlet.put(framing.part(parts, written(part)), patience)
            parts += 1
    except ConnectionError:
        raise
    except Exception as error:
        if not outlet.is_open:
            raise
        if not isinstance(error, ZbatchError):
            detail = traceback.format_exc()
            journal.event("request failed", level="error", request_id=request_id, detail=detail)
        answer = answers.of_error(error, request_id)
        outlet.say(framing.failed(answer.body))
        return answer.status
    outlet.say(framing.done(parts))
    return 200
