"""AsyncZClient: ask a broker from an event loop, without a thread.

The same core and sockets as ``client.py``, driven by the loop: it watches the sockets' descriptors, sends
what was submitted once a turn, and sets one timer.  Cancelling the task that awaits a request cancels the
request.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Generic, TypeVar

import zmq

from zbatch import wire
from zbatch.calls import WINDOW, Asking, Future, rows, settle
from zbatch.config import Timing, client_endpoints
from zbatch.core.actions import Send
from zbatch.core.calls import Action, Shown
from zbatch.core.client import ClientCore
from zbatch.errors import BrokerUnreachable, ClientClosed, to_fault
from zbatch.sockets import connect, decode, file_descriptor, is_readable, receive, send

In = TypeVar("In")
Out = TypeVar("Out")


class AsyncZClient(Generic[In, Out]):
    """A client for one event loop: the one in which it is first used.

    Making one needs neither a loop nor a broker.  Use it as an async context manager, or ``close()`` it.
    The arguments are those of :class:`zbatch.ZClient`.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] | None = None,
        *,
        topic: str = "default",
        timeout: float = 30.0,
        timing: Timing | None = None,
    ) -> None:
        self.endpoints = client_endpoints(endpoint)
        self._asking = Asking(topic, timeout)
        self._line = _LoopLine(self.endpoints, timing or Timing())
        self._finalizer = weakref.finalize(self, self._line.close)
        self._finalizer.atexit = False

    async def predict(
        self,
        items: Iterable[In],
        *,
        topic: str | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | Sequence[float] | None = None,
        return_exceptions: bool = False,
    ) -> list[Out]:
        """Return the model's output for each item, in order; see :meth:`zbatch.ZClient.predict`."""
        call = self._ask(
            items, return_exceptions, topic=topic, timeout=timeout, priority=priority, key=key, cost=cost
        )
        if call.settled is not None:
            try:
                await call.settled
            except asyncio.CancelledError:
                self._line.withdraw(call)
                raise
        return call.result()

    async def predict_one(
        self,
        item: In,
        *,
        topic: str | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | None = None,
    ) -> Out:
        """Return the model's output for one item."""
        outputs = await self.predict(
            [item], topic=topic, timeout=timeout, priority=priority, key=key, cost=cost
        )
        return outputs[0]

    def submit(
        self,
        items: Iterable[In],
        *,
        topic: str | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | Sequence[float] | None = None,
        return_exceptions: bool = False,
    ) -> asyncio.Task[list[Out]]:
        """Ask, and return at once; the task can be awaited, cancelled and given to ``asyncio.wait``."""
        return asyncio.ensure_future(
            self.predict(
                items,
                topic=topic,
                timeout=timeout,
                priority=priority,
                key=key,
                cost=cost,
                return_exceptions=return_exceptions,
            )
        )

    async def map(
        self,
        items: Iterable[In],
        *,
        window: int = WINDOW,
        topic: str | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        return_exceptions: bool = False,
    ) -> AsyncIterator[Out]:
        """Yield the output of each item, in order, with at most ``window`` items in flight."""
        underway: deque[asyncio.Task[list[Out]]] = deque()
        try:
            for item in items:
                underway.append(
                    self.submit(
                        [item],
                        topic=topic,
                        timeout=timeout,
                        priority=priority,
                        key=key,
                        return_exceptions=return_exceptions,
                    )
                )
                if len(underway) >= window:
                    yield (await underway.popleft())[0]
            while underway:
                yield (await underway.popleft())[0]
        finally:
            for task in underway:
                task.cancel()

    async def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        """Return the broker's snapshot of itself.

        Raises :class:`BrokerUnreachable` when none answers in time.
        """
        self._line.bind()
        try:
            shown: dict[str, Any] = json.loads(await asyncio.wait_for(self._line.ask_status(), timeout))
        except TimeoutError:
            where = ", ".join(self.endpoints)
            raise BrokerUnreachable(
                f"no broker at {where} answered within {timeout} s; is one running?"
            ) from None
        return shown

    async def close(self) -> None:
        """Say goodbye to the broker; requests without an outcome raise :class:`ClientClosed`."""
        self._finalizer.detach()
        self._line.close()

    async def __aenter__(self) -> AsyncZClient[In, Out]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncZClient({','.join(self.endpoints)!r}, topic={self._asking.topic!r})"

    def _ask(self, items: Iterable[In], return_exceptions: bool, **ask: Any) -> _AsyncCall:
        loop = self._line.bind()
        sequence = rows(items)
        call = _AsyncCall(self._line)
        call._returns_exceptions = return_exceptions
        if sequence:
            self._asking.prepare(call, sequence, time.monotonic(), **ask)
            call.settled = loop.create_future()
            self._line.put(call)
        else:
            call.answer_nothing()
        return call


class _AsyncCall(Future[Any]):
    """A call that tells an event loop when it is settled."""

    settled: asyncio.Future[None] | None = None

    def _finish(self, phase: int) -> bool:
        super()._finish(phase)
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)
        return False


class _LoopLine:
    """The connection of one async client, driven by its event loop."""

    def __init__(self, endpoints: Sequence[str], timing: Timing) -> None:
        self._endpoints = endpoints
        self._timing = timing
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._core: ClientCore | None = None
        self._context: zmq.Context[Any] | None = None
        self._sockets: dict[bytes, zmq.Socket[bytes]] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._asked: list[asyncio.Future[bytes]] = []
        self._closed = False

    def bind(self) -> asyncio.AbstractEventLoop:
        """Return the loop that this client belongs to; the running one, if it belongs to none yet."""
        if self._closed:
            raise ClientClosed("this client was closed; make another one")
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            raise ClientClosed("this client was used before a fork; make another one in the child")
        if self._loop is None:
            self._loop = loop
            self._context = zmq.Context()
            self._core = ClientCore(
                len(self._endpoints),
                os.urandom(16),
                os.urandom,
                self._timing,
                where=", ".join(self._endpoints),
                host=platform.node(),
                pid=os.getpid(),
            )
            self._perform(self._core.start(time.monotonic()))
            self._call_soon()
        elif self._loop is not loop:
            raise ClientClosed("this client belongs to another event loop; make one for each loop")
        return loop

    def put(self, call: _AsyncCall) -> None:
        """Take a call over; it leaves with all others of this turn of the loop."""
        assert self._core is not None
        self._core.submit(call)
        self._call_soon()

    def withdraw(self, call: _AsyncCall) -> None:
        """Cancel a call, here and at the broker."""
        if self._core is not None and not call.done():
            call.settle_cancelled()
            self._perform(self._core.cancel(call, time.monotonic()))

    def cancel(self, future: Future[Any]) -> None:
        """Cancel a call (what ``Future.cancel`` asks for)."""
        assert isinstance(future, _AsyncCall)
        self.withdraw(future)

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Refuse to block: a loop that waits here would wait for ever."""
        raise RuntimeError("await this request instead of blocking the event loop for it")

    def ask_status(self) -> asyncio.Future[bytes]:
        """Return what will be the broker's snapshot."""
        assert self._core is not None and self._loop is not None
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked.append(answer)
        self._perform(self._core.ask_status(time.monotonic()))
        self._call_soon()
        return answer

    def close(self) -> None:
        """Say goodbye and let go of everything."""
        if self._closed:
            return
        self._closed = True
        if self._core is None or self._pid != os.getpid():
            return
        closed = to_fault(ClientClosed("the client was closed before this request had an outcome"))
        self._perform(self._core.stop(closed))
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        for socket in self._sockets.values():
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(file_descriptor(socket))
            socket.close(100)
        self._sockets.clear()
        if self._context is not None:
            self._context.term()

    def _call_soon(self) -> None:
        if self._turn is None and self._loop is not None:
            self._turn = self._loop.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        """Send what was submitted, read what has come, set the timer."""
        self._turn = None
        core = self._core
        if core is None or self._closed:
            return
        now = time.monotonic()
        self._perform(core.flush(now))
        due = core.wakeup()
        if due is not None and due <= now:
            self._perform(core.tick(now))
        # The descriptor is edge-triggered, and sending may have swallowed its signal: read after sending.
        self._read(core)
        self._set_timer(core.wakeup())

    def _read(self, core: ClientCore) -> None:
        for peer, socket in list(self._sockets.items()):
            while is_readable(socket):
                envelope, frames = receive(socket)
                try:
                    message = decode(envelope, frames)
                except wire.Malformed:
                    continue
                self._perform(core.handle(peer, message, frames, time.monotonic()))

    def _set_timer(self, due: float | None) -> None:
        if due is None or self._loop is None:
            return
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._run_turn()

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                # A full pipe is a lost message: the next beat finds out, and it is sent again.
                send(self._socket(action.peer), action.message, action.frames)
            elif isinstance(action, Shown):
                asked, self._asked = self._asked, []
                for answer in asked:
                    if not answer.done():
                        answer.set_result(action.snapshot)
            else:
                settle(action)

    def _socket(self, peer: bytes) -> zmq.Socket[bytes]:
        socket = self._sockets.get(peer)
        if socket is None:
            assert self._context is not None and self._loop is not None
            socket = connect(self._context, self._endpoints[peer[0]], self._timing)
            self._sockets[peer] = socket
            self._loop.add_reader(file_descriptor(socket), self._run_turn_now)
        return socket

    def _run_turn_now(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        self._run_turn()
