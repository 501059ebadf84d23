"""``zbatch gateway``: a server around the app, its address, limits and signals.

Several processes share an address: the kernel gives each new connection to one of them.  Each has a client of
its own, and batches form in the broker, across them all.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from zbatch.aio import AsyncZClient
from zbatch.config import GatewaySettings, describe, version
from zbatch.errors import ConfigError
from zbatch.gateway.apikeys import ApiKeys
from zbatch.gateway.known import Known
from zbatch.journal import Journal
from zbatch.model_metrics import Shelf
from zbatch.notation import host_and_port
from zbatch.processes import heed_orders
from zbatch.sockets import cannot_listen, settle_allocator, settle_collector
from zbatch.watchdog import Watchdog

if TYPE_CHECKING:
    from zbatch.gateway.app import App
    from zbatch.gateway.http1 import Server

NEEDED = ("httptools", "jsonschema_rs", "prometheus_client")
"""What the extra brings that no gateway can do without."""

BACKLOG = 4_096
"""Connections that wait to be accepted."""

QUIET = 0.25
"""Seconds without a request, once leaving, after which nobody is on the way to this process any more."""

FAREWELL = 0.5
"""Seconds in which what could not be ended is told so, before its connection is cut."""

LAST_CALL = 0.8
"""The share of a drain after which no new connection is taken."""

SILENCE = 5.0
"""Seconds without a word from a broker that an operator should hear of: a restart takes less."""


class Place:
    """An address that is bound, so that others hear at once that it is taken, and port 0 becomes one.

    Args:
        host: An IP address.
        port: Its port.
        is_shared: Other processes of this gateway listen there as well.  Else nobody may: two gateways at an
            address would each get some of the connections, and neither would say so.

    """

    def __init__(self, host: str, port: int, *, is_shared: bool = False) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise cannot_listen(f"{host}:{port}", error) from None
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    @property
    def socket(self) -> socket.socket:
        """What is bound."""
        return self._socket

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()


def run(settings: GatewaySettings, lifeline: int | None = None, shelf: Shelf | None = None) -> int:
    """Run one gateway process until SIGTERM or SIGINT, or until whoever holds the lifeline says so.

    With a ``shelf`` it is one of several at an address, and shows the metrics of all.
    """
    _want_extra()
    settle_allocator()
    journal = Journal(settings.log_format, "gateway", level=settings.log_level)
    place = Place(*host_and_port(settings.http), is_shared=settings.processes > 1)
    try:
        return _loop_run(_serve(settings, place, journal, lifeline, shelf))
    finally:
        place.close()
        journal.event("gateway ended")
        journal.close()


def _want_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the gateway needs {', '.join(missing)}; install zbatch[http]")


def _loop_run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class _Orders:
    """Orders to leave: the first in order, a second at once.  Any thread may give them."""

    def __init__(self) -> None:
        self.ordered = asyncio.Event()
        self.at_once = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._count = 0

    def stop(self) -> None:
        """Leave."""
        self._count += 1
        self._loop.call_soon_threadsafe((self.ordered if self._count == 1 else self.at_once).set)


async def _serve(
    settings: GatewaySettings,
    place: Place,
    journal: Journal,
    lifeline: int | None,
    shelf: Shelf | None,
) -> int:
    loop = asyncio.get_running_loop()
    orders = _Orders()
    known = Known(settings.topics or ())
    app = _app(settings, known, journal, shelf)
    server = _server(settings, app)
    try:
        server.listen(place.socket)
    except OSError as error:  # somebody else was bound there, too, and has begun to listen first
        await app.close()
        raise cannot_listen(f"{place.host}:{place.port}", error) from None
    heed_orders(orders.stop, lifeline)
    watchdog = Watchdog()
    watching = [
        loop.create_task(app.watch()),
        loop.create_task(_miss(known, settings, journal)),
        loop.create_task(_stay_watched(watchdog)),
    ]
    journal.event(
        "gateway started", version=version(), pid=os.getpid(), url=_url(settings, place), **describe(settings)
    )
    settle_collector()
    watchdog.ready()
    await orders.ordered.wait()
    watchdog.stopping()
    journal.event("leaving", waits_s=settings.drain)
    app.leaving = True
    server.leave()
    await _until_quiet(app, server, loop.time() + settings.drain * LAST_CALL, orders.at_once)
    # Who is never quiet would never end: what is in flight now is the last.
    server.take_no_more()
    place.close()
    await _until_quiet(app, server, loop.time() + settings.drain * (1 - LAST_CALL), orders.at_once)
    for one in watching:
        one.cancel()
    # What is still open ends in an error, which is sent before the connections are cut.
    await app.close()
    await _until_told(app, server, loop.time() + FAREWELL)
    server.close()
    return 0


def _app(settings: GatewaySettings, known: Known, journal: Journal, shelf: Shelf | None) -> App:
    from zbatch.gateway.app import App  # noqa: PLC0415  an extra, told of above

    api_keys = ApiKeys(settings.api_keys) if settings.api_keys else None
    if api_keys is not None:
        api_keys.look()
    client: AsyncZClient[Any, Any] = AsyncZClient(
        settings.endpoint, timeout=settings.timeout, keys=settings.keys or None, timing=settings.timing
    )
    return App(
        client,
        known,
        journal,
        max_body=settings.max_body,
        body_timeout=settings.body_timeout,
        timeout=settings.timeout,
        api_keys=api_keys,
        shelf=shelf,
    )


async def _miss(known: Known, settings: GatewaySettings, journal: Journal) -> None:
    """Say that no broker is heard, and that one is heard again; until cancelled."""
    begun = time.monotonic()
    asked = ",".join(settings.endpoint)
    is_missed = False
    while True:
        silent = known.silence(time.monotonic(), begun)
        if silent >= SILENCE and not is_missed:
            is_missed = True
            journal.event(
                "broker does not answer", level="warning", endpoint=asked, silent_s=round(silent, 1)
            )
        elif silent < SILENCE and is_missed:
            is_missed = False
            journal.event("broker answers", endpoint=asked)
        await asyncio.sleep(1.0)


async def _stay_watched(watchdog: Watchdog) -> None:
    """Tell the service manager that the loop turns, where it asked; until cancelled."""
    while True:
        now = time.monotonic()
        watchdog.alive(now)
        due = watchdog.sooner(None)
        if due is None:
            return
        await asyncio.sleep(due - now)


async def _until_quiet(app: App, server: Server, until: float, at_once: asyncio.Event) -> None:
    """Wait until no request was in flight for a moment: those who were on the way are answered, too."""
    loop = asyncio.get_running_loop()
    quiet_since = loop.time()
    while loop.time() < until and not at_once.is_set():
        if app.in_flight or server.is_sending:
            quiet_since = loop.time()
        elif loop.time() - quiet_since >= QUIET:
            return
        await asyncio.sleep(0.02)


async def _until_told(app: App, server: Server, until: float) -> None:
    """Wait until each request has an answer that has left this host, as far as its reader reads."""
    loop = asyncio.get_running_loop()
    while (app.in_flight or server.is_sending) and loop.time() < until:
        await asyncio.sleep(0.005)


def _server(settings: GatewaySettings, app: App) -> Server:
    from zbatch.gateway.http1 import Server  # noqa: PLC0415  an extra, told of above

    return Server(
        app,
        max_header=settings.max_header,
        head_timeout=settings.body_timeout,
        max_connections=settings.max_connections,
        backlog=BACKLOG,
        busy_poll=settings.busy_poll,
        tls=_tls(settings) if settings.tls_cert else None,
    )


def _tls(settings: GatewaySettings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    files = f"--tls-cert {settings.tls_cert} and --tls-key {settings.tls_key}"
    try:
        # No password: else OpenSSL would ask for one, at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"{files} cannot be used ({error.reason or error}): "
            "wanted a certificate and its key, both in PEM, without a password"
        ) from None
    except OSError as error:
        raise ConfigError(f"{files} cannot be read: {error.strerror}") from None
    return context


def _url(settings: GatewaySettings, place: Place) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{place.port}"
