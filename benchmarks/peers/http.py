"""The load generator for peers that are asked over HTTP: keep-alive connections, one request at a time each.

One thread and bare sockets, since whatever an HTTP library costs would be counted as the peer's: requests
are encoded beforehand, of an answer only status and length are read, and its body is compared with what
belongs to the request.  README.md says how near this comes to wrk.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from benchmarks import loads
from benchmarks.children import Failed, child, has_ended, tail
from benchmarks.loads import Caller, Figure, Setup, pictures, rate_of, texts, tokens
from benchmarks.peers import environments, wrk
from benchmarks.peers.items import TOLERANCE, answers

START_SECONDS = 90.0
"""Until a server has answered once: eight processes import their libraries on two cores."""

ANSWER_SECONDS = 35.0
"""Longer than any peer's own timeout as it is set here."""

CHECK_SECONDS = 1.0
"""Of asking over connections that tell their answers apart, before wrk asks."""

ASKED_BY_WRK = 1 << 12
"""Different requests: more would only take wrk longer to read."""

CHUNK = 1 << 16
VECTOR_BYTES = 4000
"""Of the vector that answers a picture."""

LENGTH = re.compile(rb"(?i)\ncontent-length: *(\d+)")

Request = tuple[bytes, Any]
"""The bytes to send, and what tells the answer to them."""


class Refused(Exception):
    """A server answered with something else than 200 and a body."""


@dataclass(slots=True)
class Connection:
    """One connection that is kept alive; what is sent and received may stop half-way."""

    plug: socket.socket
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytes = b""
    request: Request = (b"", None)

    def ask(self, request: Request) -> bool:
        """Begin to send; return whether all of it left."""
        self.request = request
        self.unsent = memoryview(request[0])
        return self.push()

    def push(self) -> bool:
        """Send what is left, as far as the socket takes it; return whether all of it left."""
        try:
            sent = self.plug.send(self.unsent)
        except BlockingIOError:
            return False
        self.unsent = self.unsent[sent:]
        return not self.unsent

    def pull(self) -> bytes | None:
        """Receive; return the body when the answer is whole."""
        data = self.plug.recv(CHUNK)
        if not data:
            raise Refused("the server closed the connection")
        self.received += data
        body = body_of(self.received)
        if body is not None:
            self.received = b""
        return body

    def exchange(self, request: Request) -> bytes:
        """Ask, and wait for the answer; for a socket that blocks."""
        if not self.ask(request):
            while not self.push():
                pass
        while (body := self.pull()) is None:
            pass
        return body


def body_of(answer: bytes) -> bytes | None:
    """Return an answer's body; None until all of it is there.

    Raises :class:`Refused` if it is no success.
    """
    head, mark, body = answer.partition(b"\r\n\r\n")
    if not mark:
        return None
    length = LENGTH.search(head)
    if not head.startswith(b"HTTP/1.1 200") or length is None:
        raise Refused(f"{head.splitlines()[0].decode(errors='replace')} {body[:200]!r}")
    return body if len(body) >= int(length[1]) else None


@dataclass(frozen=True, slots=True)
class Front:
    """A server's front door, and what is asked there; each call makes a caller with its own connection."""

    endpoint: str
    requests: Sequence[Request]
    is_own: Callable[[Request, bytes], bool]

    def __call__(self) -> Caller:
        exchange = dial(self.endpoint).exchange
        return Caller(self.requests, exchange, exchange, lambda body: body, self.is_own)


def connect(setup: Setup, endpoint: str) -> Front:
    """Return what makes a caller for one thread.

    Before wrk asks, as many connections see that each gets its own answer, which wrk cannot.
    """
    front = Front(endpoint, *form(setup.item, endpoint))
    if setup.shape == "wrk":
        checked = over_connections(setup.callers, front, 0.0, CHECK_SECONDS)
        if checked.wrong:
            raise Refused(f"{checked.wrong} of {checked.answers} answers belong to other requests")
    return front


def measure(setup: Setup, front: Front, warm: float, seconds: float) -> Figure:
    """Run a load once: ``connections`` and ``wrk`` are shapes of HTTP, the others those of ``loads.py``."""
    match setup.shape:
        case "connections":
            return over_connections(setup.callers, front, warm, seconds)
        case "wrk":
            return wrk.measure(setup.callers, front.endpoint, with_answers(setup.item, front), warm, seconds)
        case _:
            return loads.measure(setup, front, warm, seconds)


def over_connections(count: int, front: Front, warm: float, seconds: float) -> Figure:
    """Ask over so many connections of their own."""
    lines = [dial(front.endpoint) for _ in range(count)]
    try:
        return many(lines, front.requests, front.is_own, warm, seconds)
    finally:
        for line in lines:
            line.plug.close()


def many(
    lines: Sequence[Connection],
    requests: Sequence[Request],
    is_own: Callable[[Request, bytes], bool],
    warm: float,
    seconds: float,
) -> Figure:
    """Keep each connection busy with one request at a time until the time is over."""
    poll = select.epoll()
    by_number = {line.plug.fileno(): line for line in lines}
    reading, both = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT
    following = cycle(requests)
    for number, line in by_number.items():
        line.plug.setblocking(False)
        line.plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(number, reading if line.ask(next(following)) else both)
    now = perf_counter()
    opens, closes = now + warm, now + warm + seconds
    times: list[float] = []
    outstanding, wrong = len(lines), 0
    while outstanding:
        happened = poll.poll(ANSWER_SECONDS)
        if not happened:
            raise Refused(f"{outstanding} requests have had no answer for {ANSWER_SECONDS:.0f} s")
        now = perf_counter()
        for number, events in happened:
            line = by_number[number]
            if line.unsent and line.push():
                poll.modify(number, reading)
            if not events & ~select.EPOLLOUT:
                continue
            body = line.pull()
            if body is None:
                continue
            times.append(now)
            if not is_own(line.request, body):
                wrong += 1
            if now >= closes:
                outstanding -= 1
            elif not line.ask(next(following)):
                poll.modify(number, both)
    poll.close()
    return Figure(rate_of([one for one in times if opens <= one <= closes]), answers=len(times), wrong=wrong)


def form(item: str, endpoint: str) -> tuple[list[Request], Callable[[Request, bytes], bool]]:
    """Return the requests of a load, and what says whether a body is the answer to one of them."""
    match item:
        case "picture":
            made = [
                (post(endpoint, picture.tobytes(), "application/octet-stream"), float(number))
                for number, picture in enumerate(pictures())
            ]
            return made, _is_own_vector
        case "tokens":
            import numpy

            right = answers()
            asked = [(post(endpoint, as_json({"tokens": one})), right[tuple(one)]) for one in tokens()]
            return asked, lambda request, body: bool(
                numpy.allclose(json.loads(body), request[1], atol=TOLERANCE)
            )
        case _:
            return [
                (post(endpoint, as_json({"text": text})), f'"{text}"'.encode()) for text in texts()
            ], is_own_text


def with_answers(item: str, front: Front) -> list[wrk.Asked]:
    """Return requests, more than are ever outstanding, each with all of the body that answers it."""
    requests = front.requests[:ASKED_BY_WRK]
    if item == "picture":
        return [(data, struct.pack("<f", number).ljust(VECTOR_BYTES, b"\0")) for data, number in requests]
    # Servers differ in the blanks of their JSON, and in nothing else.
    answer, first = front().ask(requests[0]), requests[0][1]
    return [(data, answer.replace(first, text)) for data, text in requests]


def post(endpoint: str, body: bytes, kind: str = "application/json") -> bytes:
    """Return the bytes of a request."""
    url = urlsplit(endpoint)
    head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: {kind}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def first(item: str, endpoint: str) -> Request:
    """Return a request of the load, to see whether a server answers."""
    match item:
        case "picture":
            return post(endpoint, pictures()[0].tobytes(), "application/octet-stream"), None
        case "tokens":
            return post(endpoint, as_json({"tokens": tokens()[0]})), None
        case _:
            return post(endpoint, as_json({"text": texts()[0]})), None


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def dial(endpoint: str) -> Connection:
    """Return a connection to an endpoint, ``http://host:port/path``."""
    url = urlsplit(endpoint)
    plug = socket.create_connection((url.hostname, url.port), ANSWER_SECONDS)
    plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(plug)


@contextmanager
def serving(peer: str, setup: Setup, folder: Path, path: str, ask: Callable[[str], Request]) -> Iterator[str]:
    """Run ``PEER_server.py``; give its endpoint once it has answered what ``ask`` makes."""
    port, log = environments.free_port(), folder / "server.log"
    command = [*environments.server(peer, f"benchmarks.peers.{peer}_server", setup), str(port)]
    endpoint = f"http://127.0.0.1:{port}{path}"
    with child(command, log) as process:
        await_answer(ask(endpoint), endpoint, process, log)
        yield endpoint


def await_answer(request: Request, endpoint: str, server: subprocess.Popen[str], log: Path) -> None:
    """Return when a server has answered this request."""
    patience = time.monotonic() + START_SECONDS
    said = ""
    while time.monotonic() < patience:
        if has_ended(server):
            raise Failed(f"the server left:\n{tail(log)}")
        try:
            connection = dial(endpoint)
            try:
                connection.exchange(request)
                return
            finally:
                connection.plug.close()
        except (OSError, Refused) as error:
            said = str(error)
            time.sleep(0.1)
    raise Failed(f"no answer within {START_SECONDS:.0f} s ({said}):\n{tail(log)}")


def is_own_text(request: Request, body: bytes) -> bool:
    return request[1] in body


def _is_own_vector(request: Request, body: bytes) -> bool:
    return len(body) == VECTOR_BYTES and struct.unpack_from("<f", body)[0] == request[1]
