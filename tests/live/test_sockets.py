"""What every socket of the project has in common, seen at real connections."""

from __future__ import annotations

import socket as tcp
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from zbatch import wire
from zbatch.config import Timing
from zbatch.messages import Bye, Hello, Message
from zbatch.sockets import Dealer, bind, connect, receive, receive_from, send, send_to, widen

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much is told by Linux"),
]

PATIENCE = 10_000
"""Milliseconds: only against hanging."""

AGAIN = 50
"""Times that what may be lost is said, within that patience."""

GREETING: Message = Hello(b"c" * 8, 1, 1, b"l" * 16, "client", 1, host="here", pid=1)


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(0)


def room(frame: zmq.Frame) -> int:
    """Return how many bytes may be on their way over the connection that a frame came over."""
    connection = tcp.socket(fileno=int(frame.get(zmq.SRCFD)))
    try:
        return connection.getsockopt(tcp.SOL_SOCKET, tcp.SO_SNDBUF)
    finally:
        connection.detach()


def default_room() -> int:
    with tcp.socket(tcp.AF_UNIX) as fresh:
        return fresh.getsockopt(tcp.SOL_SOCKET, tcp.SO_SNDBUF)


def wait(socket: zmq.Socket[bytes]) -> None:
    assert socket.poll(PATIENCE), "nothing came"


def peek(socket: zmq.Socket[bytes]) -> zmq.Frame:
    """Read a message as it is, and return its last frame."""
    wait(socket)
    return socket.recv_multipart(copy=False)[-1]


def test_both_sides_of_an_ipc_connection_are_widened_by_the_first_message(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/front"
    bound = bind(context, [endpoint], 1 << 20)
    dealer = connect(context, endpoint, Timing())
    send(dealer, GREETING, ())
    wait(bound.socket)
    peer, _, _, first = receive_from(bound.socket, b"F", {})
    assert first is not None
    assert room(first) == default_room()
    widen(first)
    assert room(first) > default_room()

    envelope = wire.encode(Bye(b"c" * 8, 1, 1))
    for _ in range(2):
        send_to(bound.socket, peer, envelope, ())
    wait(dealer)
    receive(dealer)
    assert room(peek(dealer)) > default_room()
    bound.close()


def test_a_connection_that_libzmq_made_anew_is_widened_after_the_next_greeting(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/front"
    dealer = connect(context, endpoint, Timing())
    for _ in range(2):
        bound = bind(context, [endpoint], 1 << 20)
        for _ in range(AGAIN):
            # What was sent before the end of the old connection was seen is lost with it.
            send(dealer, GREETING, ())
            if bound.socket.poll(PATIENCE // AGAIN):
                break
        peer, *_ = receive_from(bound.socket, b"F", {})
        for _ in range(2):
            send_to(bound.socket, peer, wire.encode(Bye(b"c" * 8, 1, 1)), ())
        wait(dealer)
        receive(dealer)
        assert room(peek(dealer)) > default_room()
        bound.close(-1)


def test_who_is_known_is_not_looked_at_again(context: zmq.Context[Any], tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/front"
    bound = bind(context, [endpoint], 1 << 20)
    dealer = connect(context, endpoint, Timing())
    for _ in range(2):
        send(dealer, GREETING, ())
    wait(bound.socket)
    peer, _, _, first = receive_from(bound.socket, b"F", {})
    assert first is not None
    wait(bound.socket)
    again = receive_from(bound.socket, b"F", {b"F" + peer: object()})
    assert (again[0], again[3]) == (peer, None)
    bound.close()


def test_a_tcp_connection_and_a_frame_that_came_over_none_stay_as_they_are(
    context: zmq.Context[Any],
) -> None:
    bound = bind(context, ["tcp://127.0.0.1:0"], 1 << 20)
    dealer: Dealer = connect(context, bound.endpoints[0], Timing())
    send(dealer, GREETING, ())
    wait(bound.socket)
    *_, first = receive_from(bound.socket, b"F", {})
    assert first is not None
    before = room(first)
    widen(first)
    assert room(first) == before
    widen(zmq.Frame(b"made here"))
    bound.close()
