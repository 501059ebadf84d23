"""``--max-connections``: what is beyond it waits at a real gateway, and is served when another leaves."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable

import pytest

from tests.live.conftest import Certificate
from tests.live.shell import PATIENCE, Zbatch

pytestmark = pytest.mark.live

pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

Run = Callable[..., Zbatch]
Dial = Callable[[], http.client.HTTPConnection]

LIMIT = 2

OTHERS = 20
"""Answers that others get while one waits: so many that it would have had its own long before."""


class Visitor:
    """A connection that is kept alive."""

    def __init__(self, dial: Dial) -> None:
        self.connection = dial()

    def asks(self) -> int:
        """Ask whether the gateway lives; return the status."""
        self.begins()
        return self.ends()

    def begins(self) -> None:
        """Send a request."""
        self.connection.request("GET", "/health/live")

    def ends(self) -> int:
        """Wait for its answer; return the status."""
        answer = self.connection.getresponse()
        answer.read()
        return answer.status

    def leaves(self) -> None:
        """Close the connection."""
        self.connection.close()


def a_gateway(run: Run, frontend: str, *more: str) -> int:
    """Start a gateway that holds two connections; return its port."""
    options = ("--http", "127.0.0.1:0", "--endpoint", frontend, "--max-connections", str(LIMIT))
    said = run("gateway", *options, *more).says("gateway started")
    return int(said.partition("://127.0.0.1:")[2].split()[0])


def plain(port: int) -> Dial:
    """Return what connects without TLS."""
    return lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)


def has_been_answered(plug: socket.socket) -> bool:
    """Return whether anything has come over a connection."""
    plug.setblocking(False)
    try:
        return bool(plug.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        plug.settimeout(PATIENCE)


def test_a_connection_beyond_the_limit_waits_until_another_closes(run: Run, frontend: str) -> None:
    dial = plain(a_gateway(run, frontend))
    first, second = Visitor(dial), Visitor(dial)
    assert (first.asks(), second.asks()) == (200, 200)

    third = Visitor(dial)
    third.begins()
    assert [first.asks() for _ in range(OTHERS)] == [200] * OTHERS
    assert not has_been_answered(third.connection.sock)

    second.leaves()
    assert third.ends() == 200
    assert (first.asks(), third.asks()) == (200, 200)


def test_many_more_connections_than_the_limit_are_all_served_in_the_end(run: Run, frontend: str) -> None:
    dial = plain(a_gateway(run, frontend))
    visitors = [Visitor(dial) for _ in range(20 * LIMIT)]
    for one in visitors:
        one.begins()

    for one in visitors:
        assert one.ends() == 200
        one.leaves()


def test_those_who_hold_a_connection_and_send_half_a_head_do_not_keep_others_out(
    run: Run, frontend: str
) -> None:
    port = a_gateway(run, frontend, "--body-timeout", "1s")
    holders = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(LIMIT)]
    for one in holders:
        one.sendall(b"GET /health/live HTTP/1.1\r\n")

    visitor = Visitor(plain(port))

    assert visitor.asks() == 200
    for one in holders:
        assert one.recv(64).startswith(b"HTTP/1.1 408 ")
        one.close()


def test_those_who_wait_for_a_connection_and_give_up_cost_nobody_a_place(run: Run, frontend: str) -> None:
    dial = plain(a_gateway(run, frontend))
    held = [Visitor(dial) for _ in range(LIMIT)]
    assert [one.asks() for one in held] == [200] * LIMIT
    for _ in range(20 * LIMIT):
        impatient = Visitor(dial)
        impatient.begins()
        impatient.leaves()

    patient = Visitor(dial)
    patient.begins()
    held[0].leaves()

    assert patient.ends() == 200
    assert held[1].asks() == 200


def test_over_tls_a_connection_beyond_the_limit_waits_too(
    run: Run, frontend: str, certificate: Certificate
) -> None:
    port = a_gateway(run, frontend, *certificate.options)
    trusted = ssl.create_default_context(cafile=certificate.path)

    def dial() -> http.client.HTTPConnection:
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=trusted)

    first, second = Visitor(dial), Visitor(dial)
    assert (first.asks(), second.asks()) == (200, 200)

    # What waits to be taken is not even greeted, so it says its first word in TLS by hand.
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as third:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        greeting = trusted.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            greeting.do_handshake()
        third.sendall(outgoing.read())
        assert [first.asks() for _ in range(OTHERS)] == [200] * OTHERS
        assert not has_been_answered(third)

        second.leaves()
        assert third.recv(64)
