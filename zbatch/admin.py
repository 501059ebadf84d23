"""Give a broker an order and wait for its answer: ``zbatch drain``.

It needs no client's core: one question, said again until it is answered, on a connection of its own.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import zmq

from zbatch import wire
from zbatch.config import Timing
from zbatch.core.session import Session
from zbatch.errors import BrokerUnreachable, from_fault
from zbatch.messages import Bye, Denied, Fault, Hello, Order, Ordered, Target, Welcome, Who
from zbatch.security import Keys
from zbatch.sockets import Dealer, connect, decode, receive, send


def give(
    endpoint: str, what: Target, name: str = "", *, undo: bool = False, keys: Keys | None, timeout: float
) -> str:
    """Order a broker to drain something; return what it says.

    Raises what the broker answers (:class:`Forbidden`, :class:`BadRequest`, ...) or
    :class:`BrokerUnreachable`.
    """
    context: zmq.Context[Any] = zmq.Context()
    try:
        socket = connect(context, endpoint, Timing(), keys)
        answer = _Asking(socket, what, name, undo).ask(timeout)
        socket.close(200)
    finally:
        context.destroy()
    if answer is None:
        raise BrokerUnreachable(f"no broker at {endpoint} answered within {timeout} s; is one running there?")
    if answer.fault is not None:
        raise from_fault(answer.fault)
    return answer.text


class _Asking:
    """One order, until it is answered."""

    def __init__(self, socket: Dealer, what: Target, name: str, undo: bool) -> None:
        self._socket = socket
        self._order = (what, name, undo)
        self._session = Session(b"", os.urandom, 1.0)

    def ask(self, timeout: float) -> Ordered | None:
        """Say it again and again; return the answer, None where there is none."""
        until = time.monotonic() + timeout
        life = os.urandom(16)
        self._session.renew()
        while (now := time.monotonic()) < until:
            session = self._session
            if now >= session.speaks:
                session.spoke(now)
                if session.welcomed:
                    self._say()
                else:
                    session.sent = 0
                    hello = Hello(
                        *session.stamp(), life, "client", 1, host=platform.node()[:64], pid=os.getpid()
                    )
                    send(self._socket, hello, [])
            if self._socket.poll(max(1, int((min(until, session.speaks) - now) * 1000))):
                answer = self._hear(time.monotonic())
                if answer is not None:
                    return answer
        return None

    def _hear(self, now: float) -> Ordered | None:
        envelope, frames = receive(self._socket)
        try:
            message = decode(envelope, frames)
        except wire.Foreign as error:
            raise from_fault(Fault("protocol_mismatch", str(error))) from None
        except wire.Malformed:
            return None
        if not self._session.accepts(message, now):
            return None
        match message:
            case Welcome():
                self._say()
            case Who():
                self._session.renew()
                self._session.speaks = now
            case Denied():
                raise from_fault(message.fault)
            case Ordered():
                send(self._socket, Bye(*self._session.stamp()), [])
                return message
            case _:
                pass
        return None

    def _say(self) -> None:
        send(self._socket, Order(*self._session.stamp(), *self._order), [])
