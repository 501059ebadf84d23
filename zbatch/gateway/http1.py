"""HTTP/1.1 in the event loop itself: connections, what comes over them, and what goes back.

httptools (llhttp, the parser of Node.js) reads, the loop's transports carry; here is what lies between: one
request of a connection after another, in order, each bounded in size and time.  Why no server of a library:
``docs/adr/0011-http-in-the-event-loop.md``.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

import httptools

from zbatch.errors import BadRequest, ZbatchError
from zbatch.gateway import answers
from zbatch.gateway.answers import Answer, HeadTooLarge, SlowBody, UnsupportedMedia
from zbatch.gateway.awake import Awake
from zbatch.gateway.heads import RequestIds
from zbatch.gateway.repeats import Repeated, Repeats, head_of

SWEEP = 0.25
"""Seconds between two looks for heads that do not come."""

STALLED = 60.0
"""Seconds after which a client is given up that reads nothing of what is sent to it."""

IDLE = 75.0
"""Seconds that a connection may lie idle between two requests: longer than proxies keep theirs by default."""

AHEAD = 256 << 10
"""Bytes of a body, or of requests behind one another, that are read before somebody wants them."""

CRUMB = 4_096
"""Bytes: smaller pieces of a body are put together, since each has a price beside its bytes."""

HEADERS = 256
"""Headers of a request at most: each costs time, however short it is."""

PUNCTUATION = len(": \r\n")
"""Bytes of a header beside its name and its value."""

LINGER = 1.0
"""Seconds in which what a client still sends is read and dropped: closed at once, it might not see why."""

ACCEPTS = 64
"""Connections that are taken in one turn of the loop."""

BREATH = 0.1
"""Seconds without taking connections, where this process has no descriptor left."""


class Application(Protocol):
    """What is asked for each request."""

    def begin(self, request: Any) -> Coroutine[Any, Any, None] | None:
        """Answer one request: in the coroutine returned, or without one in some later turn of the loop."""


class Gone(ConnectionError):
    """The client has left while something was sent to it."""


class Request:
    """A request as its application reads and answers it."""

    # Class attributes are the defaults: most requests set few of them, and there are many requests.
    expects = False
    """Whether the client waits to be told that its body is wanted."""
    has_begun = False
    """Whether the application has it."""
    is_whole = False
    """Whether all of the body has come."""
    is_answered = False
    has_ended = False
    keeps_alive = True
    reads = False
    """Whether the application waits for the body: it bounds what it takes."""
    version = "1.1"
    """Of HTTP."""
    size = 0
    """Bytes of the body that nobody has read yet."""
    stream: BodyStream | None = None
    when_lost: Callable[[], object] | None = None
    """Called if the client leaves before its answer is whole."""
    _waiter: asyncio.Future[None] | None = None
    _error: BaseException | None = None

    def __init__(
        self, connection: Connection, method: str, path: str, query: str, headers: dict[str, str]
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        """By their names in small letters; what came several times is joined by commas."""
        self.notes: dict[str, Any] = {}
        """What the application makes of the head; kept for others that come with the same."""
        self._connection = connection
        self._body: list[bytes | bytearray] = []

    # --- the application's side --------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether the client has left."""
        return self._connection.is_lost

    async def body(self) -> bytes:
        """Return the whole body, once it has come."""
        while not self.is_whole:
            self._wanted()
            await self._more()
        return self.taken()

    def taken(self) -> bytes:
        """Return a body that is whole."""
        body = self._body
        self._body, self.size = [], 0
        return body[0] if len(body) == 1 and type(body[0]) is bytes else b"".join(body)

    async def pieces(self) -> AsyncIterator[bytes | bytearray]:
        """Yield the body piece by piece."""
        while True:
            body, self._body, self.size = self._body, [], 0
            for piece in body:
                yield piece
            if self.is_whole and not self._body:
                return
            if not self._body:
                self._wanted()
                await self._more()

    def answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Answer."""
        self._connection.answer(self, status, headers, body)

    def begin_answer(self, status: int, headers: Sequence[tuple[str, str]]) -> BodyStream:
        """Begin an answer that is sent piece by piece; it ends with the application's coroutine."""
        self.stream = self._connection.begin_stream(self, status, headers)
        return self.stream

    # --- the connection's side -----------------------------------------------------------------------

    def came(self, piece: bytes) -> None:
        """Take a piece of the body."""
        body = self._body
        if len(piece) >= CRUMB or not body:
            body.append(piece)
        elif type(body[-1]) is bytearray:
            body[-1] += piece
        else:
            body.append(bytearray(piece))
        self.size += len(piece)
        self._wake()

    def broken(self, error: BaseException) -> None:
        """Learn that the body will never be whole."""
        self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def ended(self) -> None:
        """Learn that the body is whole."""
        self.is_whole = True
        self._wake()

    def lost(self) -> None:
        """Learn that the client has left."""
        told, self.when_lost = self.when_lost, None
        if told is not None:
            told()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Gone("the client left while it sent its request"))
        if self.stream is not None:
            self.stream.lost()

    def _wanted(self) -> None:
        self.reads = True
        if self.expects:
            self.expects = False
            self._connection.encourage()
        self._connection.go_on()

    async def _more(self) -> None:
        if self._connection.is_lost:
            raise Gone("the client left while it sent its request")
        if self._error is not None:
            raise self._error
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class BodyStream:
    """An answer that is sent piece by piece; who sends waits for its reader."""

    __slots__ = ("_connection", "_waiter", "is_chunked")

    def __init__(self, connection: Connection, *, is_chunked: bool) -> None:
        self._connection = connection
        self._waiter: asyncio.Future[None] | None = None
        self.is_chunked = is_chunked

    @property
    def is_full(self) -> bool:
        """Whether more is on its way than should be: wait for :meth:`room`."""
        return self._connection.is_full and not self._connection.is_lost

    def write(self, data: bytes) -> None:
        """Send a piece; raises :class:`Gone` where nobody is there any more."""
        if self._connection.is_lost:
            raise Gone("the client left while an answer was sent to it")
        if data:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data)

    async def room(self) -> None:
        """Wait until the reader has read; raises :class:`Gone` where it has left."""
        if not self.is_full:
            return
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def has_room(self) -> None:
        """Learn that the reader has read."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def lost(self) -> None:
        """Learn that the reader has left."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Gone("the client left while an answer was sent to it"))


class Connection(asyncio.Protocol):
    """One client's connection, over which one request comes after another."""

    def __init__(self, server: Server) -> None:
        self.loop = server.loop
        self.is_lost = False
        self.is_full = False
        """Whether the client reads slower than is sent."""
        self.since = server.now
        """Since when it does what it does: lies idle, or sends the head of a request."""
        self._server = server
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        """The request that is answered, and those behind it."""
        self._coming: Request | None = None
        """The one whose body comes."""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._in_head = False
        self._head_size = 0
        self._header_count = 0
        self._raw_size = 0
        self._unsent = 0
        """Bytes that waited for the client to read at the last look."""
        self._reads = server.now
        """When it was last seen reading."""
        self._is_paused = False
        self._is_closing = False
        """Nothing more is read: what comes is dropped."""
        self._has_asked = False
        self._last_head = 0
        """Of the last request that came in one piece: the hash of its head."""
        self._is_declining = False
        """The parser takes what comes for another protocol, which is not spoken here."""

    # --- what the transport calls --------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let everybody know that nobody is there any more."""
        self.is_lost = True
        self._server.left(self)
        for request in self._queue:
            request.lost()
        self._queue.clear()

    def eof_received(self) -> None:
        """Take a client that sends no more for one that has left."""

    def pause_writing(self) -> None:
        """Learn that the client does not read as fast as is sent."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Learn that it has read."""
        self.is_full = False
        if self._queue and self._queue[0].stream is not None:
            self._queue[0].stream.has_room()
        self._begin_next()

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        self._server.awake.touch()
        if self._is_closing:
            return
        is_between = not self._queue and not self._in_head and self._coming is None
        if is_between:
            known = self._server.repeats.find(data)
            if known is not None:
                self._repeat(known, data)
                return
        was_in_head, coming = self._in_head, self._coming
        size = 0 if coming is None else coming.size
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            self._refuse(error.__context__ if isinstance(error.__context__, ZbatchError) else error)
        except httptools.HttpParserError as error:
            self._refuse(BadRequest(f"this is not HTTP/1.1: {error}"))
        else:
            if (was_in_head and self._in_head) or (coming is not None and coming is self._coming):
                # A single endless header is not told of before it is complete, and one behind a body in
                # chunks brings no more of that.
                if coming is not None and coming.size != size:
                    self._raw_size = 0
                else:
                    self._raw_size += len(data)
                if self._raw_size > self._server.max_header:
                    self._refuse(self._head_too_large())
                    return
            if not self._is_paused and (len(self._queue) > 1 or self._is_ahead()):
                self._is_paused = True
                self._transport.pause_reading()
            if is_between and len(self._queue) == 1:
                self._learn(self._queue[0], data)
        self._begin_next()

    def _repeat(self, known: Repeated, data: bytes) -> None:
        """Take a whole request whose head is known; the parser, between two requests, need not hear of it."""
        request = Request(self, known.method, known.path, known.query, known.headers)
        request.notes = known.notes
        if known.length:
            request.came(data[-known.length :])
        request.is_whole = True
        self._has_asked = True
        self._queue.append(request)
        self._begin_next()

    def _learn(self, request: Request, data: bytes) -> None:
        """Remember the head of a request that came in one piece, once it came twice in a row.

        Heads with an id of their own never do, and take no place from those that come again.
        """
        head = head_of(data)
        if not request.is_whole or not head or len(data) - len(head) != request.size:
            return
        if hash(head) != self._last_head:
            self._last_head = hash(head)
        elif request.keeps_alive and not request.expects and request.version == "1.1":
            told = request.method, request.path, request.query, request.headers
            self._server.repeats.learn(head, Repeated(*told, request.size, request.notes))

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._declined(data[offer.args[0] :])
            else:
                return

    def _declined(self, rest: bytes) -> bytes:
        """Return what came behind a head that offers another protocol, to be read as if none were offered.

        A client that offers one goes on in HTTP/1.1 when it is answered in that.  The parser has stopped
        reading, at the body; another one is told by a head of ours how long that is.
        """
        assert self._coming is not None
        told = self._coming.headers
        framing = [
            f"{name}: {told[name]}" for name in ("content-length", "transfer-encoding") if name in told
        ]
        self._is_declining = False
        self._parser = httptools.HttpRequestParser(_Behind(self))
        return "\r\n".join(["POST / HTTP/1.1", *framing, "", ""]).encode("latin-1") + rest

    # --- what the parser calls -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url = b""
        self._headers = {}
        self._in_head = True
        self._head_size = self._header_count = self._raw_size = 0
        self.since = self._server.now

    def on_url(self, url: bytes) -> None:
        """Take a piece of what is asked for."""
        self._url += url
        self._head_size += len(url)
        if self._head_size > self._server.max_header:
            raise self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._head_size += len(name) + len(value) + PUNCTUATION
        self._header_count += 1
        if self._head_size > self._server.max_header:
            raise self._head_too_large()
        if self._header_count > HEADERS:
            raise HeadTooLarge(f"the request has more than {HEADERS} headers; send fewer")
        if not self._in_head:
            return  # behind a body in chunks: what a proxy looked for in the head must not come in here
        key = _small(name) if len(name) < SHORT else name.decode("latin-1").lower()
        headers, text = self._headers, value.decode("latin-1")
        if key in headers:
            if key == "host":
                raise BadRequest("the request has two Host headers; send one")
            text = f"{headers[key]}, {text}"
        headers[key] = text

    def on_headers_complete(self) -> None:
        """Have a request answered; its body may still be coming."""
        parser, headers = self._parser, self._headers
        path, query = known_url(self._url) if len(self._url) < SHORT else split_url(self._url)
        if "host" not in headers and parser.get_http_version() == "1.1":
            raise BadRequest("the request has no Host header, which HTTP/1.1 wants")
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            coding = headers["transfer-encoding"][:100]
            raise UnsupportedMedia(f"transfer-encoding is {coding!r}, wanted chunked or none")
        self._in_head = False
        self._has_asked = True
        method = _text(parser.get_method())
        request = self._coming = Request(self, method, path, query, headers)
        if "expect" in headers:
            request.expects = headers["expect"].lower() == "100-continue"
        if "upgrade" in headers or method == "CONNECT":
            self._is_declining = parser.should_upgrade()
        request.keeps_alive = parser.should_keep_alive()
        request.version = parser.get_http_version()
        self._queue.append(request)

    def on_body(self, piece: bytes) -> None:
        """Take a piece of a body."""
        if self._coming is not None and not self._coming.is_answered:
            self._coming.came(piece)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._is_declining:
            return  # it has not: its body is still to be read
        request, self._coming = self._coming, None
        assert request is not None
        request.ended()
        if request.has_ended:
            self._leave_behind(request)

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(
            f"the request's line and headers have more than {self._server.max_header} bytes; send fewer"
        )

    # --- a request's way ---------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        request.has_begun = True
        coroutine = self._server.app.begin(request)
        if coroutine is not None:
            task = self.loop.create_task(coroutine)
            task.add_done_callback(lambda done: self._ended(request, done))

    def _ended(self, request: Request, task: asyncio.Task[None]) -> None:
        """See that a request has an answer, and that an answer in pieces has its end."""
        has_failed = task.cancelled() or task.exception() is not None
        if self.is_lost:
            return
        if request.stream is not None and not has_failed:
            if request.stream.is_chunked:
                self.write(b"0\r\n\r\n")
            self._after(request)
        elif request.stream is not None or not request.is_answered:
            # Never as a clean end: what was sent is not all.
            self._transport.abort()

    def answer(self, request: Request, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send an answer, and go on with the next request."""
        if self.is_lost or request.is_answered:
            return
        request.is_answered = True
        if not request.is_whole or self._server.is_leaving:
            request.keeps_alive = False
        head = f"{_status_line(status)}{self._server.date}content-length: {len(body)}\r\n"
        for name, value in headers:
            if name == "connection":
                request.keeps_alive = False
            else:
                head += f"{name}: {value}\r\n"
        if not request.keeps_alive:
            head += "connection: close\r\n"
        elif request.version == "1.0":  # which takes a connection for one that ends, unless it is told
            head += "connection: keep-alive\r\n"
        told = f"{head}\r\n".encode("latin-1")
        if request.method == "HEAD":
            self.write(told)
        elif len(body) < SMALL:
            self.write(told + body)
        else:
            self.write(told)
            self.write(body)
        self._after(request)

    def begin_stream(self, request: Request, status: int, headers: Sequence[tuple[str, str]]) -> BodyStream:
        """Send the head of an answer that comes piece by piece."""
        request.is_answered = True
        is_chunked = request.version != "1.0"
        if not request.is_whole or self._server.is_leaving or not is_chunked:
            request.keeps_alive = False
        if not self.is_lost:
            told = [*headers, ("transfer-encoding", "chunked")] if is_chunked else list(headers)
            if not request.keeps_alive:
                told = [*(one for one in told if one[0] != "connection"), ("connection", "close")]
            lines = "".join(f"{name}: {value}\r\n" for name, value in told)
            self.write(f"{_status_line(status)}{self._server.date}{lines}\r\n".encode("latin-1"))
        return BodyStream(self, is_chunked=is_chunked)

    def write(self, data: bytes) -> None:
        """Send, unless nobody is there any more."""
        if not self.is_lost:
            self._transport.write(data)

    def encourage(self) -> None:
        """Tell the client that its body is wanted."""
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def go_on(self) -> None:
        """Read on: what has come is wanted."""
        if self._is_paused and not self.is_lost:
            self._is_paused = False
            self._transport.resume_reading()

    def _after(self, request: Request) -> None:
        """Go on with the next request, once this one is over on both ways."""
        request.has_ended = True
        if not request.keeps_alive:
            self._close_gently()
        elif request.is_whole:
            self._leave_behind(request)

    def _leave_behind(self, request: Request) -> None:
        self.since = self._server.now
        queue = self._queue
        if queue and queue[0] is request:
            queue.popleft()
        if not queue:
            self.go_on()
        elif not queue[0].has_begun:
            # Not at once: a client that sends a thousand requests together would be a thousand calls deep.
            self.loop.call_soon(self._begin_next)

    def _begin_next(self) -> None:
        # Not while answers lie unread: a short question may have a long one, and they would pile up.
        if self._queue and not self._queue[0].has_begun and not (self.is_lost or self.is_full):
            self._begin(self._queue[0])

    def _is_ahead(self) -> bool:
        return self._coming is not None and self._coming.size > AHEAD and not self._coming.reads

    # --- endings ---------------------------------------------------------------------------------------

    def _refuse(self, error: BaseException) -> None:
        """Answer what cannot be read, behind what could."""
        self._is_closing = True
        if self._coming is not None:
            # Its application waits for the rest of a body that will never be whole.
            self._coming.broken(error)
            if self._coming.has_begun:
                return
            self._queue.remove(self._coming)
        if self._queue:
            # What came before has its answer yet to come; then the connection ends.
            self._queue[-1].keeps_alive = False
            return
        answer = self._server.refusal(error)
        self._say(answer)
        self._close_gently()

    def _say(self, answer: Answer) -> None:
        told = [("content-length", str(len(answer.body))), *answer.headers, ("connection", "close")]
        lines = "".join(f"{name}: {value}\r\n" for name, value in told)
        head = f"{_status_line(answer.status)}{self._server.date}{lines}\r\n"
        self.write(head.encode("latin-1") + answer.body)

    @property
    def unsent(self) -> int:
        """Bytes that wait for the client to read."""
        return 0 if self.is_lost else int(self._transport.get_write_buffer_size())

    def look(self, now: float, patience: float) -> None:
        """End what has waited too long for a head, or for its client to read."""
        unsent = self.unsent
        if not unsent or unsent != self._unsent:
            self._unsent, self._reads = unsent, now
        elif now - self._reads > STALLED:
            self.abort()
            return
        if self._queue or self._is_closing:
            return
        if self._in_head or self._coming is not None:
            if now - self.since > patience:
                self._refuse(SlowBody(f"the request's head did not come within {patience:g} s"))
        elif now - self.since > IDLE:
            self._transport.close()

    def leave(self) -> None:
        """Close a connection over which nothing is asked any more; over a new one something soon will be."""
        if self._has_asked and not self._queue and not self._in_head and not self.is_lost:
            self._transport.close()

    def abort(self) -> None:
        """Close, whatever is under way."""
        if not self.is_lost:
            self._transport.abort()

    def _close_gently(self) -> None:
        """Close once the client has had time to read why."""
        self._is_closing = True
        if self.is_lost:
            return
        if self._coming is None and not self._in_head and not self._is_paused:
            self._transport.close()
            return
        self.go_on()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.loop.call_later(LINGER, self._transport.close)


class _Behind:
    """Hears what a parser reads behind a head that was read before: a body first, then requests as ever."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_over = False
        self.on_body = connection.on_body

    def on_message_begin(self) -> None:
        if self._is_over:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_over:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_over:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_over:
            self._connection.on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_over = True
        self._connection.on_message_complete()


SHORT = 256
"""Bytes of what is remembered, so that it need not be taken apart again."""

SMALL = 16 << 10
"""Bytes of an answer that is sent in one piece with its head."""


class Server:
    """Takes connections at an address, and has an application answer what comes over them.

    Args:
        app: Answers each request.
        max_header: Bytes of a request's line and headers.
        head_timeout: Seconds within which they are to come.
        max_connections: Connections that are open at a time; more wait to be taken.
        backlog: How many may wait.
        busy_poll: Seconds for which the loop stays awake after something came.
        tls: Encrypts them; None: they come in the clear.

    """

    def __init__(
        self,
        app: Application,
        *,
        max_header: int,
        head_timeout: float,
        max_connections: int,
        backlog: int,
        busy_poll: float = 0.0,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.max_header = max_header
        self.connections: set[Connection] = set()
        self.loop = asyncio.get_running_loop()
        self.awake = Awake(self.loop, busy_poll)
        self.repeats = Repeats()
        self.is_leaving = False
        self.now = clock()
        """The time of the last look: near enough for what is bounded in seconds."""
        self.date = _date()
        self._clock = clock
        self._head_timeout = head_timeout
        self._max_connections = max_connections
        self._backlog = backlog
        self._tls = tls
        self._socket: socket.socket | None = None
        self._is_taking = False
        self._opening: set[asyncio.Task[Any]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._request_ids = RequestIds()

    def listen(self, bound: socket.socket) -> None:
        """Take connections from a socket that is bound."""
        bound.setblocking(False)
        bound.listen(self._backlog)
        self._socket = bound
        self._take()
        self._sweep()

    def refusal(self, error: BaseException) -> Answer:
        """Return what is said to somebody whose request cannot be read."""
        return answers.of_error(error, self._request_ids.of({}))

    @property
    def is_sending(self) -> bool:
        """Whether some answer has not reached its client's host yet."""
        return any(connection.unsent for connection in self.connections)

    def left(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self._take()

    def leave(self) -> None:
        """End each connection as it falls idle; who still comes is answered."""
        self.is_leaving = True
        for connection in list(self.connections):
            connection.leave()

    def take_no_more(self) -> None:
        """Take no more connections."""
        self._pause()
        self._socket = None

    def close(self) -> None:
        """Close everything."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.take_no_more()
        for task in self._opening:
            task.cancel()
        for connection in list(self.connections):
            connection.abort()

    # --- taking connections ----------------------------------------------------------------------------

    def _take(self) -> None:
        open_now = len(self.connections) + len(self._opening)
        if not self._is_taking and self._socket is not None and open_now < self._max_connections:
            self._is_taking = True
            self.loop.add_reader(self._socket, self._accept)

    def _pause(self) -> None:
        if self._is_taking and self._socket is not None:
            self._is_taking = False
            self.loop.remove_reader(self._socket)

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(ACCEPTS):
            if len(self.connections) + len(self._opening) >= self._max_connections:
                self._pause()
                return
            try:
                client, _ = self._socket.accept()
            except OSError as error:
                # What else there is has gone wrong with one who wanted to come: the next may do better.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause()
                    self.loop.call_later(BREATH, self._take)
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self.loop.create_task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket) -> None:
        try:
            # Its class has a bound for the time of a handshake, too.
            await self.loop.connect_accepted_socket(lambda: Connection(self), client, ssl=self._tls)
        except OSError:
            client.close()  # it has left already, or speaks no TLS

    def _sweep(self) -> None:
        self.now = self._clock()
        self.date = _date()
        for connection in list(self.connections):
            connection.look(self.now, self._head_timeout)
        self._take()
        self._sweeper = self.loop.call_later(SWEEP, self._sweep)


def _date() -> str:
    return f"date: {formatdate(usegmt=True)}\r\n"


@lru_cache(maxsize=64)
def _status_line(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n"


@lru_cache(maxsize=256)
def _small(name: bytes) -> str:
    """Return a header's name in small letters."""
    return name.decode("latin-1").lower()


@lru_cache(maxsize=64)
def _text(method: bytes) -> str:
    return method.decode("latin-1")


def split_url(url: bytes) -> tuple[str, str]:
    """Return the path and the query of what is asked for.

    Raises :class:`BadRequest` where it is neither a path nor an address.
    """
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise BadRequest(f"what is asked for is {url[:100]!r}, wanted a path") from None
    return (parsed.path or b"/").decode("latin-1"), (parsed.query or b"").decode("latin-1")


known_url = lru_cache(maxsize=1_024)(split_url)
