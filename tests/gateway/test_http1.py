"""HTTP/1.1 as it comes over real connections: in order, bounded, and never half of something as all of it."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

from zbatch.gateway.answers import HeadTooLarge
from zbatch.gateway.http1 import CRUMB, HEADERS, BodyStream, Gone, Request, Server

PATIENCE = 10.0
"""Seconds: only against hanging."""

TEXT = [("content-type", "text/plain")]

Answering = Callable[[Request], Coroutine[Any, Any, None]]


class App:
    """Answers each request as a test says, and remembers what came."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self.seen: list[Request] = []

    def begin(self, request: Request) -> Coroutine[Any, Any, None]:
        self.seen.append(request)
        return self.answering(request)


async def echo(request: Request) -> None:
    """Answer with what came."""
    body = await request.body()
    request.answer(200, TEXT, request.path.encode() + b" " + body)


async def send(stream: BodyStream, piece: bytes) -> None:
    """Send a piece, and wait while the reader is behind."""
    stream.write(piece)
    await stream.room()


class Site:
    """A server, and connections to it."""

    def __init__(self, answering: Answering, listener: socket.socket | None = None, **bounds: Any) -> None:
        self.app = App(answering)
        chosen = {
            "max_header": 4_096,
            "head_timeout": PATIENCE,
            "max_connections": 100,
            "backlog": 10,
        } | bounds
        self.server = Server(self.app, **chosen)
        self.socket = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.server.listen(self.socket)
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def asks(self, sent: bytes) -> bytes:
        """Return all that comes back over one connection, which the server has to end."""
        reader, writer = await self.connect()
        writer.write(sent)
        return await reader.read()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.server.close()
        self.socket.close()


def at_a_site(test: Callable[[Site], Awaitable[None]], answering: Answering = echo, **bounds: Any) -> None:
    async def run() -> None:
        site = Site(answering, **bounds)
        try:
            await asyncio.wait_for(test(site), PATIENCE)
        finally:
            site.close()

    asyncio.run(run())


async def turn() -> None:
    """Let everybody else have a turn of the loop; no time needs to pass."""
    await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition; bounded by what the whole test may take."""
    while not holds():
        await turn()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    if "transfer-encoding" not in headers:
        return int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return int(first.split()[1]), headers, body


def post(path: str, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers, "", ""])
    return head.encode() + body


# --- requests ------------------------------------------------------------------------------------


def test_requests_behind_one_another_are_answered_in_order() -> None:
    site_of: list[Site] = []

    async def slower_first(request: Request) -> None:
        body = await request.body()
        if request.path == "/0":
            await until(lambda: any(len(one._queue) > 1 for one in site_of[0].server.connections))
            for _ in range(100):
                await turn()
        request.answer(200, TEXT, body)

    async def test(site: Site) -> None:
        site_of.append(site)
        reader, writer = await site.connect()
        writer.write(b"".join(post(f"/{at}", b"%d" % at) for at in range(1_000)))
        answers = [await answer_of(reader) for _ in range(1_000)]
        assert [int(body) for _, _, body in answers] == list(range(1_000))

    at_a_site(test, slower_first)


def test_a_request_may_come_byte_by_byte() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        for byte in post("/slowly?a=b", b"hello", "X-Own: one"):
            writer.write(bytes([byte]))
            await writer.drain()
            await turn()
        assert (await answer_of(reader))[2] == b"/slowly hello"
        (head,) = site.app.seen
        assert (head.method, head.query, head.headers["x-own"]) == ("POST", "a=b", "one")

    at_a_site(test)


def test_what_stands_behind_a_body_in_chunks_is_no_header() -> None:
    chunks = b"2\r\nab\r\n0\r\nAuthorization: Bearer other\r\nX-Own: two\r\n\r\n"

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\nx-own: one\r\ntransfer-encoding: chunked\r\n\r\n" + chunks
        )
        assert (await answer_of(reader))[2] == b"/ ab"
        (head,) = site.app.seen
        assert head.headers == {"host": "x", "x-own": "one", "transfer-encoding": "chunked"}

    at_a_site(test)


def test_a_body_in_chunks_is_read_as_it_comes() -> None:
    pieces: list[bytes | bytearray] = []

    async def in_pieces(request: Request) -> None:
        async for piece in request.pieces():
            pieces.append(piece)
        request.answer(200, TEXT, b"".join(pieces))

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await until(lambda: pieces == [b"hello"])
        writer.write(b"6\r\n world\r\n0\r\n\r\n")
        assert (await answer_of(reader))[2] == b"hello world"

    at_a_site(test, in_pieces)


def test_a_body_without_bytes_is_whole() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(b"GET /it HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await answer_of(reader))[2] == b"/it "

    at_a_site(test)


def test_who_asks_whether_its_body_is_wanted_is_told_when_it_is_read() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(
            post("/", b"", "Expect: 100-continue").replace(b"content-length: 0", b"content-length: 2")
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await answer_of(reader))[2] == b"/ ok"

    at_a_site(test)


def test_headers_that_come_twice_are_joined() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(post("/", b"", "accept: a", "accept: b"))
        await answer_of(reader)
        assert site.app.seen[0].headers["accept"] == "a, b"

    at_a_site(test)


def test_what_nobody_reads_is_not_taken_in() -> None:
    async def never(_: Request) -> None:
        await asyncio.Event().wait()

    async def test(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(post("/", bytes(64_000_000)))
        await until(lambda: any(one._is_paused for one in site.server.connections))
        (connection,) = site.server.connections
        assert connection._coming is not None
        assert connection._coming.size < 1_000_000

    at_a_site(test, never)


def test_a_large_body_comes_whole() -> None:
    async def sizes(request: Request) -> None:
        body = await request.body()
        request.answer(200, TEXT, body)

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        large = bytes(range(256)) * 20_000
        writer.write(post("/", large))
        assert (await answer_of(reader))[2] == large

    at_a_site(test, sizes)


# --- answers -------------------------------------------------------------------------------------


def test_an_answer_before_the_body_has_come_is_read_and_ends_the_connection() -> None:
    async def refuses(request: Request) -> None:
        request.answer(413, TEXT, b"too much")

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(
            post("/", b"").replace(b"content-length: 0", b"content-length: 9000000") + bytes(500_000)
        )
        status, headers, body = await answer_of(reader)
        assert (status, headers["connection"], body) == (413, "close", b"too much")
        assert await reader.read() == b""

    at_a_site(test, refuses)


def test_head_has_an_answers_head_alone() -> None:
    async def test(site: Site) -> None:
        told = await site.asks(b"HEAD /it HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"content-length: 4\r\n" in told
        assert told.endswith(b"\r\n\r\n")

    at_a_site(test)


@pytest.mark.parametrize("asked", ["HTTP/1.0\r\n", "HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"])
def test_a_connection_ends_as_its_client_wants(asked: str) -> None:
    async def test(site: Site) -> None:
        told = await site.asks(f"GET /it {asked}\r\n".encode())
        assert told.endswith(b"/it ")

    at_a_site(test)


def test_an_application_may_end_the_connection() -> None:
    async def closes(request: Request) -> None:
        request.answer(200, [("connection", "close")], b"bye")

    async def test(site: Site) -> None:
        told = await site.asks(post("/", b"") + post("/", b""))
        assert told.count(b"bye") == told.count(b"connection: close") == 1

    at_a_site(test, closes)


def test_an_application_that_does_not_answer_ends_the_connection() -> None:
    async def fails(_: Request) -> None:
        return

    async def test(site: Site) -> None:
        assert await site.asks(post("/", b"")) == b""

    at_a_site(test, fails)


OFFER = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
"""As Java's client and curl --http2 send it with their first request."""


@pytest.mark.parametrize(
    ("framing", "answer"),
    [
        ("\r\n", b"/it "),
        ("content-length: 5\r\n\r\nhello", b"/it hello"),
        ("transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nx-late: 1\r\n\r\n", b"/it hello"),
    ],
)
def test_who_offers_another_protocol_is_answered_in_this_one(framing: str, answer: bytes) -> None:
    offers = f"POST /it HTTP/1.1\r\nhost: x\r\n{OFFER}{framing}".encode()
    last = post("/last", b"end", "connection: close")

    async def at_once(site: Site) -> None:
        told = await site.asks(offers * 3 + last)
        assert told.count(b"HTTP/1.1 200 ") == 4
        assert told.count(answer) == 3
        assert told.endswith(b"/last end")

    async def byte_by_byte(site: Site) -> None:
        reader, writer = await site.connect()
        for one in offers + last:
            writer.write(bytes([one]))
            await writer.drain()
            await asyncio.sleep(0)
        told = await reader.read()
        assert told.count(b"HTTP/1.1 200 ") == 2
        assert told.count(answer) == 1
        assert told.endswith(b"/last end")

    at_a_site(at_once)
    at_a_site(byte_by_byte)


def test_what_follows_an_offer_in_another_protocol_ends_the_connection() -> None:
    async def test(site: Site) -> None:
        preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        told = await site.asks(f"GET /it HTTP/1.1\r\nhost: x\r\n{OFFER}\r\n{preface}".encode())
        assert told.startswith(b"HTTP/1.1 200 ")
        assert told.endswith(b"/it ")

    at_a_site(test)


# --- answers in pieces ---------------------------------------------------------------------------


def test_an_answer_may_come_in_pieces_and_the_connection_goes_on() -> None:
    async def counts(request: Request) -> None:
        stream = request.begin_answer(200, TEXT)
        for at in range(3):
            await send(stream, f"{at} ".encode())
        await send(stream, b"")

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(post("/", b"") * 2)
        for _ in range(2):
            assert (await answer_of(reader))[2] == b"0 1 2 "

    at_a_site(test, counts)


def test_pieces_for_a_client_that_knows_no_chunks_end_with_the_connection() -> None:
    async def counts(request: Request) -> None:
        stream = request.begin_answer(200, TEXT)
        await send(stream, b"all of it")

    async def test(site: Site) -> None:
        told = await site.asks(b"GET / HTTP/1.0\r\n\r\n")
        assert told.endswith(b"\r\n\r\nall of it")
        assert b"chunked" not in told

    at_a_site(test, counts)


def test_pieces_that_break_off_are_no_whole_answer() -> None:
    async def breaks(request: Request) -> None:
        stream = request.begin_answer(200, TEXT)
        await send(stream, b"some")
        raise asyncio.CancelledError

    async def test(site: Site) -> None:
        told = await site.asks(post("/", b""))
        assert told == b"" or told.endswith(b"4\r\nsome\r\n")

    at_a_site(test, breaks)


def test_who_reads_slowly_holds_back_who_sends() -> None:
    sent = 0

    async def sends(request: Request) -> None:
        nonlocal sent
        stream = request.begin_answer(200, TEXT)
        for _piece in range(200):
            await send(stream, bytes(100_000))
            sent += 1

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(post("/", b""))
        await until(lambda: any(one.is_full for one in site.server.connections))
        assert sent < 200
        assert len((await answer_of(reader))[2]) == 20_000_000

    at_a_site(test, sends)


def test_who_sends_hears_that_its_reader_has_left() -> None:
    heard: list[BaseException] = []

    async def sends(request: Request) -> None:
        stream = request.begin_answer(200, TEXT)
        for _time in range(2):
            try:
                while True:
                    await send(stream, bytes(100_000))
            except Gone as gone:
                heard.append(gone)

    async def test(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(post("/", b""))
        await until(lambda: any(one.is_full for one in site.server.connections))
        writer.transport.abort()
        await until(lambda: len(heard) == 2)

    at_a_site(test, sends)


# --- clients that leave --------------------------------------------------------------------------


def test_a_client_that_leaves_is_noticed_while_its_answer_is_made() -> None:
    gone: list[bool] = []

    async def waits(request: Request) -> None:
        await request.body()
        left = asyncio.Event()
        request.when_lost = left.set
        await left.wait()
        gone.append(request.is_lost)
        request.answer(200, TEXT, b"for nobody")

    async def test(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(post("/", b""))
        await until(lambda: bool(site.app.seen))
        writer.close()
        await until(lambda: gone == [True] and not site.server.connections)

    at_a_site(test, waits)


def test_a_client_that_leaves_in_the_midst_of_its_body_is_noticed() -> None:
    heard: list[BaseException] = []

    async def reads(request: Request) -> None:
        for _time in range(2):
            try:
                await request.body()
            except Gone as gone:
                heard.append(gone)

    async def test(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(post("/", b"half")[:-2])
        await until(lambda: bool(site.app.seen))
        writer.close()
        await until(lambda: len(heard) == 2)

    at_a_site(test, reads)


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\n" + "".join(f"x-{at}: {'y' * 50}\r\n" for at in range(200)),
        f"GET /{'a' * 5_000} HTTP/1.1\r\n",
    ],
)
def test_a_head_beyond_its_bound_is_refused(head: str) -> None:
    async def test(site: Site) -> None:
        told = await site.asks(head.encode() + b"\r\n")
        assert told.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"head_too_large"' in told
        assert not site.app.seen

    at_a_site(test)


def test_a_header_without_end_is_refused() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        answer = asyncio.create_task(reader.readline())
        while not answer.done():
            writer.write(b"y" * 1_000)
            await writer.drain()
            await turn()
        assert answer.result().startswith(b"HTTP/1.1 431 ")

    at_a_site(test)


def test_a_head_that_does_not_come_is_refused_and_an_idle_connection_is_not() -> None:
    async def test(site: Site) -> None:
        idle, _ = await site.connect()
        told = await site.asks(b"GET / HTTP/1.1\r\nhost")
        assert told.startswith(b"HTTP/1.1 408 ")
        assert not idle.at_eof()

    at_a_site(test, head_timeout=0.1)


def test_a_coding_of_a_body_that_is_not_read_here_is_told() -> None:
    async def test(site: Site) -> None:
        told = await site.asks(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
        )
        assert told.startswith(b"HTTP/1.1 415 ")
        assert b"wanted chunked or none" in told

    at_a_site(test)


@pytest.mark.parametrize(
    "sent",
    [
        b"no http at all\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnot hex\r\n",
        b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nHost: y\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(sent: bytes) -> None:
    async def test(site: Site) -> None:
        told = await site.asks(sent)
        assert told.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 500 ")) or told == b""
        assert b" 200 " not in told

    at_a_site(test)


def test_a_body_that_breaks_is_an_error_of_who_reads_it() -> None:
    from zbatch.errors import BadRequest

    async def reads(request: Request) -> None:
        try:
            await request.body()
        except BadRequest:
            request.answer(400, TEXT, b"broken")

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
        await until(lambda: bool(site.app.seen))
        writer.write(b"zz\r\n")
        assert (await answer_of(reader))[0] == 400
        assert await reader.read() == b""

    at_a_site(test, reads)


def test_a_trailer_without_end_is_refused_as_an_endless_header_is() -> None:
    async def reads(request: Request) -> None:
        try:
            await request.body()
        except HeadTooLarge as error:
            request.answer(error.http_status, TEXT, b"too long")

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nx: ")
        await until(lambda: bool(site.app.seen))
        for _ in range(20):
            writer.write(b"a" * 100)
            await writer.drain()
            await turn()
        assert (await answer_of(reader))[0] == 431
        assert await reader.read() == b""

    at_a_site(test, reads, max_header=1_000)


def test_a_body_in_many_small_chunks_is_not_taken_for_a_head() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(500):
            writer.write(b"1\r\na\r\n")
            await writer.drain()
            await turn()
        writer.write(b"0\r\n\r\n")
        assert (await answer_of(reader))[2] == b"/ " + b"a" * 500

    at_a_site(test, max_header=1_000)


def test_what_cannot_be_read_behind_a_request_does_not_cost_it_its_answer() -> None:
    async def test(site: Site) -> None:
        told = await site.asks(post("/it", b"good") + b"rubbish\r\n\r\n")
        assert b"/it good" in told
        assert told.count(b"HTTP/1.1 ") == 1

    at_a_site(test)


def test_connections_beyond_the_bound_wait_to_be_taken() -> None:
    async def test(site: Site) -> None:
        _, first = await site.connect()
        _, second = await site.connect()
        await until(lambda: len(site.server.connections) == 2)
        reader, third = await site.connect()
        third.write(post("/third", b""))
        first.close()
        assert (await answer_of(reader))[2] == b"/third "
        assert len(site.server.connections) == 2
        second.close()

    at_a_site(test, max_connections=2)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Have no descriptor left in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_nobody_is_taken_and_those_who_are_there_go_on() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(post("/before", b""))
        assert (await answer_of(reader))[2] == b"/before "
        late = socket.socket()
        with no_descriptors():
            late.connect(("127.0.0.1", site.port))
            await until(lambda: not site.server._is_taking)
            writer.write(post("/meanwhile", b""))
            assert (await answer_of(reader))[2] == b"/meanwhile "
        taken, asking = await asyncio.open_connection(sock=late)
        site.writers.append(asking)
        asking.write(post("/late", b""))
        assert (await answer_of(taken))[2] == b"/late "

    at_a_site(test)


class Listener(socket.socket):
    """Says of the first who comes what a kernel may say of one that has left already."""

    error: int | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        error, self.error = self.error, None
        if error is not None:
            raise OSError(error, os.strerror(error))
        return super().accept()


@pytest.mark.parametrize("error", [errno.ECONNABORTED, errno.EPROTO, errno.EPERM])
def test_who_cannot_be_taken_costs_the_next_nothing(error: int) -> None:
    listener = Listener()
    listener.bind(("127.0.0.1", 0))
    listener.error = error

    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(post("/next", b""))
        assert (await answer_of(reader))[2] == b"/next "
        assert listener.error is None

    at_a_site(test, listener=listener)


def test_who_resets_its_connection_before_it_is_taken_costs_the_next_nothing() -> None:
    async def test(site: Site) -> None:
        with socket.create_connection(("127.0.0.1", site.port)) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader, writer = await site.connect()
        writer.write(post("/next", b""))
        assert (await answer_of(reader))[2] == b"/next "
        await until(lambda: len(site.server.connections) == 1)

    at_a_site(test)


def test_who_speaks_no_tls_is_sent_away_and_holds_no_place() -> None:
    async def test(site: Site) -> None:
        told = await site.asks(post("/", b""))
        assert b"HTTP/1.1" not in told
        await until(lambda: not site.server._opening)
        assert (site.server.connections, site.app.seen) == (set(), [])

    at_a_site(test, tls=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))


def test_a_client_that_does_not_read_is_not_answered_further_until_it_does() -> None:
    was_full: list[bool] = []

    async def at_length(request: Request) -> None:
        was_full.append(any(one.is_full for one in site_of[0].server.connections))
        request.answer(200, TEXT, bytes(1 << 20))

    site_of: list[Site] = []

    async def test(site: Site) -> None:
        site_of.append(site)
        reader, writer = await site.connect()
        writer.write(post("/", b"") * 100)
        await until(lambda: any(one.is_full for one in site.server.connections))
        for _ in range(100):
            assert len((await answer_of(reader))[2]) == 1 << 20
        assert was_full == [False] * 100

    at_a_site(test, at_length)


def test_a_client_that_reads_nothing_for_too_long_is_let_go() -> None:
    now = [0.0]

    async def at_length(request: Request) -> None:
        request.answer(200, TEXT, bytes(16 << 20))

    def has_gone_an_hour_later(site: Site) -> bool:
        now[0] += 3_600.0
        return not site.server.connections

    async def test(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(post("/", b""))
        await until(lambda: any(one.is_full for one in site.server.connections))
        await until(lambda: has_gone_an_hour_later(site))

    at_a_site(test, at_length, clock=lambda: now[0])


# --- leaving -------------------------------------------------------------------------------------


def test_a_server_that_leaves_closes_what_is_idle_and_answers_what_comes() -> None:
    async def test(site: Site) -> None:
        idle, asking = await site.connect()
        asking.write(post("/first", b""))
        assert (await answer_of(idle))[0] == 200
        fresh, about_to = await site.connect()
        reader, writer = await site.connect()
        writer.write(post("/it", b"half")[:-2])
        await until(lambda: len(site.server.connections) == 3 and len(site.app.seen) == 2)
        site.server.leave()
        assert await idle.read() == b""
        about_to.write(post("/on-its-way", b""))
        assert (await answer_of(fresh))[0] == 200
        assert await fresh.read() == b""
        writer.write(b"lf")
        status, headers, body = await answer_of(reader)
        assert (status, headers["connection"], body) == (200, "close", b"/it half")
        told = await site.asks(post("/new", b""))
        assert b"/new " in told

    at_a_site(test)


# --- what costs more than its bytes ----------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 300])
def test_crumbs_of_a_body_are_put_together(many: int) -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"2\r\nab\r\n" * many
        )
        await until(lambda: bool(site.app.seen) and site.app.seen[0].size == 2 * many)
        assert len(site.app.seen[0]._body) == min(many, 2)
        large = b"c" * CRUMB
        writer.write(b"%x\r\n%b\r\n1\r\nd\r\n0\r\n\r\n" % (CRUMB, large))
        assert (await answer_of(reader))[2] == b"ab" * many + large + b"d"

    async def late(request: Request) -> None:
        await until(lambda: request.is_whole)
        request.answer(200, TEXT, await request.body())

    at_a_site(test, late)


def test_a_request_has_a_bounded_number_of_headers() -> None:
    async def test(site: Site) -> None:
        fits = post("/", b"", *["x-a:"] * (HEADERS - 2))
        assert (await answer_of_one(site, fits))[0] == 200
        status, _, body = await answer_of_one(site, fits.replace(b"x-a:", b"x-a:\r\nx-b:", 1))
        assert (status, b"more than 256 headers" in body) == (431, True)

    at_a_site(test, max_header=65_536)


def test_the_bytes_between_headers_count() -> None:
    async def test(site: Site) -> None:
        status, _, body = await answer_of_one(site, post("/", b"", *["a:"] * 60))
        assert (status, b"more than 300 bytes" in body) == (431, True)

    at_a_site(test, max_header=300)


async def answer_of_one(site: Site, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Ask over a connection of its own."""
    reader, writer = await site.connect()
    writer.write(request)
    return await answer_of(reader)


# --- HTTP/1.0 ----------------------------------------------------------------------------------------

OLD = b"GET /old HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"


def test_who_speaks_http_1_0_and_wants_to_go_on_is_told_that_it_may() -> None:
    async def test(site: Site) -> None:
        reader, writer = await site.connect()
        for _ in range(2):
            writer.write(OLD)
            status, headers, body = await answer_of(reader)
            assert (status, headers["connection"], body) == (200, "keep-alive", b"/old ")
        writer.write(OLD.replace(b"connection: keep-alive\r\n", b""))
        assert (await answer_of(reader))[1]["connection"] == "close"
        assert await reader.read() == b""

    at_a_site(test)


@pytest.mark.parametrize(
    ("requests", "answer"),
    [
        (OLD + post("/new", b""), b"connection: close\r\n\r\n/old"),
        (post("/new", b"") + OLD, b"4\r\n/new\r\n0\r\n\r\n"),
    ],
    ids=["1.0 before 1.1", "1.1 before 1.0"],
)
def test_a_stream_has_the_form_of_its_own_request_whatever_came_behind_it(
    requests: bytes, answer: bytes
) -> None:
    async def first_streamed(request: Request) -> None:
        if request._connection._queue[0] is not request or request.path == "/last":
            request.answer(200, [("connection", "close")], b"")
            return
        await until(lambda: len(request._connection._queue) > 1)
        await send(request.begin_answer(200, TEXT), request.path.encode())

    async def test(site: Site) -> None:
        assert answer in await site.asks(requests + post("/last", b"", "connection: close"))

    at_a_site(test, first_streamed)


# --- heads that came before ------------------------------------------------------------------------


async def exchange(site: Site, *requests: bytes) -> list[bytes]:
    """Ask for one after the other over one connection; return the bodies of the answers."""
    reader, writer = await site.connect()
    bodies = []
    for request in requests:
        writer.write(request)
        bodies.append((await answer_of(reader))[2])
    return bodies


def are_shared(site: Site) -> list[bool]:
    """Return of each request whether its head was taken from the one before."""
    seen = site.app.seen
    return [after.headers is before.headers for before, after in pairwise(seen)]


def test_a_head_that_came_twice_is_not_parsed_again_and_each_body_is_its_own() -> None:
    async def test(site: Site) -> None:
        bodies = await exchange(site, *(post("/a", b"%d" % number) for number in range(5)))
        bodies += await exchange(site, post("/a", b"5"), post("/a", b"66"), post("/b", b"7"))

        assert bodies == [*(b"/a %d" % number for number in range(6)), b"/a 66", b"/b 7"]
        assert are_shared(site) == [False, True, True, True, True, False, False]
        assert [request.notes is site.app.seen[1].notes for request in site.app.seen[2:6]] == [True] * 4

    at_a_site(test)


def test_a_head_without_a_body_is_remembered_too() -> None:
    async def test(site: Site) -> None:
        assert await exchange(site, *[b"GET /g?q=1 HTTP/1.1\r\nhost: x\r\n\r\n"] * 4) == [b"/g "] * 4
        assert are_shared(site) == [False, True, True]
        assert {(request.method, request.query) for request in site.app.seen} == {("GET", "q=1")}

    at_a_site(test)


@pytest.mark.parametrize(
    "request_",
    [
        post("/a", b"1", "expect: 100-continue"),
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
        b"POST /a HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\n1",
        post("/a", b"1", "x: " + "y" * 1_024),
    ],
    ids=["expects", "in chunks", "of HTTP/1.0", "long"],
)
def test_a_head_that_is_out_of_the_common_is_parsed_each_time(request_: bytes) -> None:
    async def test(site: Site) -> None:
        assert await exchange(site, *[request_] * 4) == [b"/a 1"] * 4
        assert are_shared(site) == [False] * 3

    at_a_site(test)


def test_heads_with_an_id_of_their_own_are_not_remembered() -> None:
    async def test(site: Site) -> None:
        await exchange(site, *(post("/a", b"1", f"x-request-id: {number}") for number in range(20)))
        assert site.server.repeats._heads == {}

    at_a_site(test)


def test_a_known_head_changes_nothing_wherever_the_stream_is_cut() -> None:
    stream = post("/a", b"1") + post("/a", b"2") + post("/a", b"3")

    async def test(site: Site) -> None:
        await exchange(site, post("/a", b"0"), post("/a", b"0"))
        reader, writer = await site.connect()
        writer.write(post("/a", b"0"))
        await answer_of(reader)
        connection = site.app.seen[-1]._connection
        for cut in range(1, len(stream)):
            # As the transport would, with what came so far; how a kernel cuts cannot be said.
            connection.data_received(stream[:cut])
            connection.data_received(stream[cut:])
            assert [(await answer_of(reader))[2] for _ in range(3)] == [b"/a 1", b"/a 2", b"/a 3"]

    at_a_site(test)


def test_what_comes_behind_a_known_request_and_is_none_ends_the_connection_behind_its_answer() -> None:
    async def test(site: Site) -> None:
        await exchange(site, post("/a", b"0"), post("/a", b"0"), post("/a", b"0"))
        answered = await site.asks(post("/a", b"1") + b"!!!\r\n\r\n")
        assert answered.count(b"HTTP/1.1 200 OK") == 1
        assert answered.endswith(b"/a 1")

    at_a_site(test)
