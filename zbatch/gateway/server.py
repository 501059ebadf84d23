"""``zbatch gateway``: a server around the app, its address, limits and signals.

Several processes share an address: the kernel gives each new connection to one of them.  Each has a client of
its own, and batches form in the broker, across them all.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from zbatch.aio import AsyncZClient
from zbatch.config import GatewaySettings, describe, version
from zbatch.errors import ConfigError
from zbatch.gateway.apikeys import ApiKeys
from zbatch.gateway.app import App
from zbatch.gateway.known import Known
from zbatch.journal import Journal
from zbatch.model_metrics import Shelf
from zbatch.processes import heed_orders
from zbatch.sockets import settle_allocator, settle_collector

BACKLOG = 4_096
"""Connections that wait to be accepted."""

QUIET = 0.25
"""Seconds without a request, once leaving, after which nobody is on the way to this process any more."""


class Place:
    """An address that is bound, so that others hear at once that it is taken, and port 0 becomes one."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        # Not listening, it takes no connection from the server's own socket beside it.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            why = "somebody else listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise ConfigError(f"--http {host}:{port} cannot be listened on: {why}") from None
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    @property
    def socket(self) -> socket.socket:
        """What is bound."""
        return self._socket

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()


def split(address: str) -> tuple[str, int]:
    """Return host and port of an address as the settings have it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def run(settings: GatewaySettings, lifeline: int | None = None, shelf: Shelf | None = None) -> int:
    """Run one gateway process until SIGTERM or SIGINT, or until whoever holds the lifeline says so.

    With a ``shelf`` it is one of several at an address, and shows the metrics of all.
    """
    try:
        import granian  # noqa: F401, PLC0415
        import httptools  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(f"the gateway needs {error.name}; install zbatch[http]") from None
    settle_allocator()
    journal = Journal(settings.log_format, "gateway", level=settings.log_level)
    place = Place(*split(settings.http))
    try:
        return _loop_run(_serve(settings, place, journal, lifeline, shelf))
    finally:
        place.close()
        journal.event("gateway ended")
        journal.close()


def _loop_run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(
    settings: GatewaySettings,
    place: Place,
    journal: Journal,
    lifeline: int | None,
    shelf: Shelf | None,
) -> int:
    loop = asyncio.get_running_loop()
    orders = 0
    ordered = asyncio.Event()

    def stop() -> None:
        nonlocal orders
        orders += 1
        loop.call_soon_threadsafe(ordered.set)
        if orders > 1:
            loop.call_soon_threadsafe(at_once.set)

    at_once = asyncio.Event()
    api_keys = ApiKeys(settings.api_keys) if settings.api_keys else None
    if api_keys is not None:
        api_keys.look()
    client: AsyncZClient[Any, Any] = AsyncZClient(
        settings.endpoint, timeout=settings.timeout, keys=settings.keys or None, timing=settings.timing
    )
    app = App(
        client,
        Known(settings.topics or ()),
        journal,
        max_body=settings.max_body,
        body_timeout=settings.body_timeout,
        api_keys=api_keys,
        shelf=shelf,
    )
    front: Plain | Tls = Tls(settings, place, app) if settings.tls_cert else Plain(settings, place, app)
    heed_orders(stop, lifeline)
    watching = loop.create_task(app.watch())
    serving = await front.open()
    journal.event(
        "gateway started", version=version(), pid=os.getpid(), url=_url(settings, place), **describe(settings)
    )
    settle_collector()
    ends: list[asyncio.Future[Any]] = [loop.create_task(ordered.wait()), serving]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    failed = serving.done()
    if not failed:
        journal.event("leaving", waits_s=settings.drain)
        app.leaving = True
        front.leave()
        await _until_quiet(app, loop.time() + settings.drain, at_once)
        await front.close()
    watching.cancel()
    await app.close()
    return 1 if failed else 0


async def _until_quiet(app: App, until: float, at_once: asyncio.Event) -> None:
    """Wait until no request was in flight for a moment: those who were on the way are answered, too."""
    loop = asyncio.get_running_loop()
    quiet_since = loop.time()
    while loop.time() < until and not at_once.is_set():
        if app.in_flight:
            quiet_since = loop.time()
        elif loop.time() - quiet_since >= QUIET:
            return
        await asyncio.sleep(0.02)


class Plain:
    """The server for HTTP: it runs in the event loop, as the app does."""

    def __init__(self, settings: GatewaySettings, place: Place, app: App) -> None:
        from zbatch.gateway.http1 import Server  # noqa: PLC0415  an extra, told of above

        self._place = place
        self._server = Server(
            app,
            max_header=settings.max_header,
            head_timeout=settings.body_timeout,
            max_connections=settings.max_connections,
            backlog=BACKLOG,
        )
        self._serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> asyncio.Future[None]:
        """Take connections; return what ends when none are taken any more."""
        self._server.listen(self._place.socket)
        return self._serving

    def leave(self) -> None:
        """Close what lies idle; what comes is answered still."""
        self._server.leave()

    async def close(self) -> None:
        """Close what is left."""
        self._server.close()


class Tls:
    """The server for HTTPS and HTTP/2: granian's, in threads of its own."""

    def __init__(self, settings: GatewaySettings, place: Place, app: App) -> None:
        from granian.constants import HTTPModes, Interfaces  # noqa: PLC0415  an extra, told of above
        from granian.http import HTTP1Settings  # noqa: PLC0415
        from granian.server.embed import Server  # noqa: PLC0415

        self._place = place
        self._server: Any = Server(
            app,
            address=place.host,
            port=place.port,
            interface=Interfaces.RSGI,
            http=HTTPModes.auto,
            websockets=False,
            log_enabled=False,
            backlog=BACKLOG,
            backpressure=settings.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(settings.body_timeout * 1000),
                max_buffer_size=max(settings.max_header, SMALLEST_BUFFER),
            ),
            ssl_cert=Path(settings.tls_cert),
            ssl_key=Path(settings.tls_key),
        )

    async def open(self) -> asyncio.Future[None]:
        """Take connections; return what ends when none are taken any more."""
        self._serving = asyncio.get_running_loop().create_task(self._server.serve())
        while not self._serving.done():
            # Only when it takes connections is it true that it has started.
            try:
                _, writer = await asyncio.open_connection(self._place.host, self._place.port)
            except OSError:
                await asyncio.sleep(0.005)
            else:
                writer.close()
                break
        return self._serving

    def leave(self) -> None:
        """Do nothing: the app has each connection closed behind its answer."""

    async def close(self) -> None:
        """Close what is left."""
        self._server.stop()
        await asyncio.wait([self._serving], timeout=1.0)


SMALLEST_BUFFER = 8_192
"""Bytes of a connection's buffer, which bounds its headers; granian takes no less."""


def _url(settings: GatewaySettings, place: Place) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{place.port}"
