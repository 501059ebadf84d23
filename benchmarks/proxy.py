"""The baseline that says what the machine can do: an echo behind C ``zmq.proxy``, without any batching.

Two processes as a user would start them (this file is their program) and a DEALER per calling thread.
No deadline, no retry, no bound, no fairness: only frames from socket to socket.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from benchmarks.children import child, free_endpoint
from benchmarks.loads import Caller, Setup, pictures, texts
from benchmarks.models import OUTPUTS


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Run a proxy and an echo; give the endpoint that callers connect to."""
    front, back = free_endpoint(setup.transport, folder / "f"), free_endpoint(setup.transport, folder / "b")
    program = [sys.executable, "-m", "benchmarks.proxy"]
    with (
        child([*program, "proxy", front, back], folder / "proxy.log"),
        child([*program, setup.item, back], folder / "echo.log"),
    ):
        yield front


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread, each with a socket of its own."""
    context = zmq.Context()
    requests: list[Any]
    if setup.item == "picture":
        requests = [memoryview(picture).cast("B") for picture in pictures()]
    else:
        requests = [text.encode() for text in texts()]

    def caller() -> Caller:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.set_hwm(0)
        socket.connect(endpoint)
        if setup.item == "picture":
            return Caller(
                requests, partial(_ask_for_picture, socket), _no_window, _no_window, _is_own_picture
            )
        window = _Window(socket)
        return Caller(requests, partial(_ask, socket), window.unsent.append, window.finish)

    return caller


class _Window:
    """Many requests outstanding on one socket: sends what has gathered once nothing more has come in.

    Sending and receiving by turns, one message at a time, wakes libzmq's thread for each and costs a third
    of the rate; this is the strongest plain loop that we found.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self.unsent: list[bytes] = []
        self.received: deque[bytes] = deque()

    def finish(self, _: None) -> bytes:
        if not self.received:
            self._turn()
        return self.received.popleft()

    def _turn(self) -> None:
        socket, receive = self.socket, self.socket.recv
        for request in self.unsent:
            socket.send(request)
        self.unsent.clear()
        self.received.append(receive())
        while int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self.received.append(receive())


def _ask(socket: zmq.Socket[bytes], request: bytes) -> bytes:
    socket.send(request)
    return socket.recv()


def _ask_for_picture(socket: zmq.Socket[bytes], request: memoryview) -> bytes:
    socket.send(request, copy=False)
    return socket.recv()


def _no_window(_: Any) -> Any:
    raise NotImplementedError("pictures are asked for by blocking threads")


def _is_own_picture(request: memoryview, reply: bytes) -> bool:
    return len(reply) == 4 * OUTPUTS and reply[:4] == request[:4]


def _proxy(front: str, back: str) -> None:
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket, endpoint in ((router, front), (dealer, back)):
        socket.set_hwm(0)
        socket.bind(endpoint)
    zmq.proxy(router, dealer)


def _echo(item: str, endpoint: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.connect(endpoint)
    if item == "picture":
        rest = bytes(4 * OUTPUTS - 4)
        while True:
            peer = socket.recv()
            picture = socket.recv(copy=False)
            socket.send_multipart([peer, bytes(picture.buffer[:4]) + rest])
    while True:
        socket.send_multipart(socket.recv_multipart())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["proxy", front, back]:
            _proxy(front, back)
        case [item, endpoint]:
            _echo(item, endpoint)
