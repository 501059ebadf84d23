"""Serve /metrics: figures that a loop has left here are made into Prometheus' text by a thread of their own.

The loop never waits for whoever scrapes.  One connection is answered at a time, and none for longer than
:data:`PATIENCE`: who opens many, or says nothing, keeps others from the figures and from nothing else.  What
is shown is in ``series.py``.
"""

from __future__ import annotations

import gzip
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, Protocol

from prometheus_client import exposition as prometheus

from zbatch.errors import ConfigError
from zbatch.journal import Journal
from zbatch.notation import host_and_port

PATH = "/metrics"

PATIENCE = 10.0
"""Seconds that one who scrapes may take; Prometheus itself gives up after ten."""

SWITCH = 0.000_5
"""Seconds that a thread keeps the interpreter while another wants it: by default 5 ms, and the loop would be
late by so much whenever a page is made."""


MOMENT = 1.0
"""Seconds that a page is kept, where that is done: what counts in seconds is no older for it."""

FORMS = 8
"""Forms of a page that are kept at a time: more than scrapers have, fewer than an Accept header can name."""


class Source(Protocol):
    """What has metrics: a collector, or a registry of them, of prometheus-client."""

    def collect(self) -> Iterable[Any]:
        """Return families of metrics as they are now."""


class Page(NamedTuple):
    """An answer to a scrape."""

    headers: list[tuple[str, str]]
    body: bytes


def page(source: Source, accept: str = "", accept_encoding: str = "") -> Page:
    """Return the metrics in the format that the headers Accept and Accept-Encoding ask for."""
    return _made(source, _form(accept, accept_encoding))


class Pages:
    """The pages of one source, each kept for a moment: who scrapes without end costs a page a moment.

    Args:
        source: What has metrics.
        clock: Seconds.

    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._kept: dict[tuple[str, bool], tuple[Page, float]] = {}

    def page(self, accept: str = "", accept_encoding: str = "") -> Page:
        """Return a page as :func:`page` does, at most :data:`MOMENT` old."""
        now = self._clock()
        form = _form(accept, accept_encoding)
        if form.key not in self._kept and len(self._kept) >= FORMS:
            self._kept = {key: one for key, one in self._kept.items() if now - one[1] < MOMENT}
            if len(self._kept) >= FORMS:
                form = _form("", "")  # every scraper reads it, and it may be there already
        kept = self._kept.get(form.key)
        if kept is None or now - kept[1] >= MOMENT:
            kept = self._kept[form.key] = (_made(self._source, form), now)
        return kept[0]


class _Form(NamedTuple):
    """How a page is written."""

    encode: Callable[[Any], bytes]
    content_type: str
    is_packed: bool

    @property
    def key(self) -> tuple[str, bool]:
        """What tells it from others."""
        return self.content_type, self.is_packed


def _form(accept: str, accept_encoding: str) -> _Form:
    is_packed = prometheus.gzip_accepted(accept_encoding)
    try:
        return _Form(*prometheus.choose_encoder(accept), is_packed)
    except (TypeError, ValueError):  # it names a version that is none
        return _Form(*prometheus.choose_encoder(""), is_packed)


def _made(source: Source, form: _Form) -> Page:
    body = form.encode(source)
    headers = [("Content-Type", form.content_type), ("Vary", "Accept, Accept-Encoding")]
    if form.is_packed:
        # The quick level: the page goes to the next rack at most, and is ten times smaller anyway.
        body = gzip.compress(body, 1)
        headers.append(("Content-Encoding", "gzip"))
    return Page(headers, body)


class Exposition:
    """The thread that serves one process's metrics."""

    def __init__(self, address: str, source: Source, journal: Journal) -> None:
        self._address = address
        self._source = source
        self._journal = journal
        self._server: _Server | None = None
        self._thread = threading.Thread(target=self._serve, name="zbatch-metrics", daemon=True)

    def start(self) -> None:
        """Listen; raises :class:`ConfigError` where that cannot be."""
        try:
            self._server = _Server(*host_and_port(self._address), self._source, self._journal)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"metrics: cannot listen on {self._address}: {why.lower()}") from None
        sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
        self._thread.start()
        host = self._address.rpartition(":")[0]  # in the brackets that a URL wants, where it is IPv6
        self._journal.event("metrics served", at=f"http://{host}:{self._server.server_address[1]}{PATH}")

    def close(self) -> None:
        """Serve no more."""
        server, self._server = self._server, None
        if server is not None:
            # Who waits for somebody to come is woken, too, and finds nobody.
            server.leaves = True
            for connection in (server.open, server.socket):
                _cut(connection)
            self._thread.join(PATIENCE)
            server.server_close()

    def _serve(self) -> None:
        while (server := self._server) is not None:
            server.handle_request()


class _Server(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, host: str, port: int, source: Source, journal: Journal) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.source = source
        self.journal = journal
        self.open: socket.socket | None = None
        self.leaves = False
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave alone who did not wait for the answer; what else fails is ours."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.journal.event("metrics failed", level="warning", why=f"{type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "zbatch", ""
    timeout = PATIENCE

    def setup(self) -> None:
        """Give whoever came so much time, and no more."""
        self._late = threading.Timer(PATIENCE, _cut, [self.request])
        self._late.daemon = True
        self._late.start()
        self.server.open = self.request
        if self.server.leaves:
            _cut(self.request)
        super().setup()

    def finish(self) -> None:
        """Be done with it."""
        self._late.cancel()
        self.server.open = None
        super().finish()

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != PATH:
            self._answer(404, [("Content-Type", "text/plain")], f"the metrics are at {PATH}\n".encode())
            return
        try:
            headers, body = page(
                self.server.source, self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")
            )
        except Exception:
            self._answer(500, [("Content-Type", "text/plain")], b"the metrics cannot be shown\n")
            raise
        self._answer(200, headers, body)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: somebody scrapes all the time."""


def _cut(connection: socket.socket | None) -> None:
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
