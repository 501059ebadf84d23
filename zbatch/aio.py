"""AsyncZClient: ask a broker from an event loop, without a thread.

The same core and sockets as ``client.py``, driven by the loop: it watches the sockets' descriptors, sends
what was submitted once a turn, and sets one timer.  Cancelling the task that awaits a request cancels the
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import repeat
from typing import Any, Generic, Self, TypeVar

import zmq

from zbatch import payload, wire
from zbatch.calls import WINDOW, Asking, encode_copied, rows
from zbatch.config import Timing, client_endpoints, keys_folder
from zbatch.core.actions import Send
from zbatch.core.calls import Action, Answered, Call, Came, Finished, Shown
from zbatch.core.client import ClientCore
from zbatch.core.stream import Part
from zbatch.errors import BrokerUnreachable, Cancelled, ClientClosed, ZbatchError, from_fault, to_fault
from zbatch.futures import undecodable, unpack
from zbatch.lines import Askers, Lines, broken_down, new_core, no_status, not_opened
from zbatch.messages import Fault
from zbatch.pipelines import Pipeline
from zbatch.security import Keys, where_asked
from zbatch.sockets import Dealer, connect, decode, file_descriptor, is_readable, receive, send

In = TypeVar("In")
Out = TypeVar("Out")

READS = 64
"""Messages read in one turn of the loop: others want their turn too."""

GOODBYE = 100
"""Milliseconds that goodbye is worth: the broker notices a missing client by itself."""


class AsyncFuture(asyncio.Future[list[Out]], Call):
    """The outcome of one request: await it, cancel it, hand it to ``asyncio.wait`` or ``asyncio.gather``."""

    _line: _LoopLine
    _returns_exceptions = False

    def cancel(self, msg: Any = None) -> bool:
        """Withdraw the request, here, at the broker and at the worker; return whether that was in time."""
        if not super().cancel(msg):
            return False
        self._line.withdraw(self)
        return True

    def settle(self, output: Any, buffers: Sequence[Any]) -> None:
        """Give the output of a call of one item."""
        try:
            self.set_result([payload.decode(output, buffers)])
        except ValueError as error:
            self.fail(undecodable(error))

    def settle_all(self) -> None:
        """Say that every item of a call of several has its outcome."""
        try:
            results = unpack(self, payload.decode, return_exceptions=self._returns_exceptions)
        except ZbatchError as error:
            self.set_exception(error)
        else:
            self.set_result(results)

    def settle_fault(self, fault: Fault) -> None:
        """Give the error that ends the whole call."""
        self.fail(from_fault(fault))

    def fail(self, error: ZbatchError) -> None:
        """End the whole call in an error."""
        if self._returns_exceptions:
            failed: Any = [error] * (1 if self.items is None else len(self.outputs))
            self.set_result(failed)
        else:
            self.set_exception(error)


class AsyncCall(Call):
    """One item whose caller is told of its outcome in the loop, without a future to wait for.

    For who has as many requests as a gateway: see :meth:`AsyncZClient.ask`.
    """

    def arrived(self, output: Any) -> None:
        """Take the output."""
        raise NotImplementedError

    def fail(self, error: ZbatchError) -> None:
        """Take an error in its place."""
        raise NotImplementedError

    def done(self) -> bool:
        """Return whether it is withdrawn; who has its outcome is forgotten by the client."""
        return self.closed

    def settle(self, output: Any, buffers: Sequence[Any]) -> None:
        """Hand over what came."""
        try:
            decoded = payload.decode(output, buffers)
        except ValueError as error:
            self.fail(undecodable(error))
        else:
            self.arrived(decoded)

    def settle_fault(self, fault: Fault) -> None:
        """Hand over the error that ends it."""
        self.fail(from_fault(fault))


class AsyncIncoming(Call):
    """The call of a stream, between its reader and the loop's line."""

    def __init__(self, line: _LoopLine, loop: asyncio.AbstractEventLoop) -> None:
        self._line = line
        self._loop = loop
        self._parts: deque[tuple[Part, int]] = deque()
        self._is_over = False
        self._error: ZbatchError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> Part | None:
        """Return the next part; None: the stream has come to its end.  Raises the error that it ends in."""
        while not self._parts:
            if self._is_over:
                if self._error is not None:
                    raise self._error
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        part, weight = self._parts.popleft()
        assert self.inflow is not None
        self.inflow.taken += weight
        if self.inflow.is_due:
            self._line.read(self)
        return part

    def close(self) -> None:
        """Cancel what is not done."""
        if not self._is_over:
            self._parts.clear()
            self.fail(Cancelled("the caller closed this stream"))
            self._line.withdraw(self)

    def let_go(self) -> None:
        """Cancel what is not done, from any thread: nobody has the stream any more."""
        if not self._is_over:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.close)

    def done(self) -> bool:
        """Return whether nothing more comes."""
        return self._is_over

    def arrive(self, parts: Sequence[tuple[Part, int]]) -> None:
        """Take parts that came."""
        self._parts.extend(parts)
        self._wake()

    def settle_all(self) -> None:
        """Say that the stream has its outcome."""
        self._end(from_fault(self.faults[0]) if self.faults else None)

    def settle_fault(self, fault: Fault) -> None:
        """Give the error that ends it."""
        self._end(from_fault(fault))

    def fail(self, error: ZbatchError) -> None:
        """End it in an error."""
        self._end(error)

    def _end(self, error: ZbatchError | None) -> None:
        self._error = error
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncStream(Generic[Out]):
    """The parts of one item's result, as the model yields them: iterate over it with ``async for``, once.

    It raises and ends as :class:`zbatch.streams.Stream` does; leaving the loop, ``aclose()``, the end of an
    ``async with`` block, cancelling the task and letting go of it cancel what is not done.
    """

    def __init__(self, call: AsyncIncoming) -> None:
        self._call = call
        self._finalizer = weakref.finalize(self, call.let_go)
        self._finalizer.atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Out:
        try:
            part = await self._call.take()
        except BaseException:
            self._call.close()
            raise
        if part is None:
            raise StopAsyncIteration
        try:
            decoded: Out = payload.decode(*part)
        except ValueError as error:
            self._call.close()
            raise undecodable(error) from None
        return decoded

    async def aclose(self) -> None:
        """Cancel what is not done, here, at the broker and at the worker."""
        self._call.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncZClient(Generic[In, Out]):
    """A client for one event loop: the one in which it is first used.

    Making one needs neither a loop nor a broker.  Use it as an async context manager, or ``close()`` it.
    In another loop, also a later one, it raises :class:`ClientClosed`: make one for each loop.  After a
    fork the child's first call opens a connection of its own.  The arguments are those of
    :class:`zbatch.ZClient`.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] | None = None,
        *,
        topic: str | Pipeline = "default",
        timeout: float = 30.0,
        keys: str | os.PathLike[str] | None = None,
        retry: bool = False,
        copy: bool = False,
        timing: Timing | None = None,
    ) -> None:
        self.endpoints = client_endpoints(endpoint)
        own_keys = where_asked(keys_folder(keys), "client", "admin")
        self._asking = Asking(topic, timeout, encode=encode_copied if copy else payload.encode)
        self._line = _LoopLine(self.endpoints, timing or Timing(), own_keys, retry)
        self._finalizer = weakref.finalize(self, self._line.retire)
        self._finalizer.atexit = False

    async def predict(
        self,
        items: Iterable[In],
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | Sequence[float] | None = None,
        request_id: str = "",
        return_exceptions: bool = False,
    ) -> list[Out]:
        """Return the model's output for each item, in order; see :meth:`zbatch.ZClient.predict`."""
        return await self.submit(
            items,
            topic=topic,
            timeout=timeout,
            priority=priority,
            key=key,
            cost=cost,
            request_id=request_id,
            return_exceptions=return_exceptions,
        )

    async def predict_one(
        self,
        item: In,
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | None = None,
        request_id: str = "",
    ) -> Out:
        """Return the model's output for one item."""
        return (await self._ask([item], False, topic, timeout, priority, key, cost, request_id))[0]

    def submit(
        self,
        items: Iterable[In],
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | Sequence[float] | None = None,
        request_id: str = "",
        return_exceptions: bool = False,
    ) -> AsyncFuture[Out]:
        """Ask, and return at once; the future costs no task."""
        return self._ask(items, return_exceptions, topic, timeout, priority, key, cost, request_id)

    def ask(
        self,
        call: AsyncCall,
        item: In,
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        request_id: str = "",
    ) -> None:
        """Ask for one item; exactly one of ``call``'s methods hears of its outcome, in the loop.

        It is to be called in the client's event loop, which is not looked at each time: on some Pythons that
        asks the kernel.  Raises what :meth:`submit` does; then neither hears of anything.
        """
        line = self._line
        if not line.is_bound:
            line.bind()
        now = time.monotonic()
        self._asking.prepare(call, (item,), now, topic, timeout, priority, key, None, request_id)
        line.put_one_of_many(call, now)

    def withdraw(self, call: AsyncCall) -> None:
        """Cancel what :meth:`ask` asked for: nobody hears of it any more."""
        self._line.withdraw(call)

    def _ask(
        self,
        items: Iterable[In],
        return_exceptions: bool,
        topic: str | Pipeline | None,
        timeout: float | None,
        priority: int,
        key: str,
        cost: float | Sequence[float] | None,
        request_id: str,
    ) -> AsyncFuture[Out]:
        line = self._line
        future: AsyncFuture[Out] = AsyncFuture(loop=line.bind())
        sequence = items if type(items) is list else rows(items)
        future._line = line
        if return_exceptions:
            future._returns_exceptions = True
        if not sequence:
            future.set_result([])
            return future
        now = time.monotonic()
        self._asking.prepare(future, sequence, now, topic, timeout, priority, key, cost, request_id)
        line.put(future)
        return future

    def stream(
        self,
        item: In,
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | None = None,
        request_id: str = "",
    ) -> AsyncStream[Out]:
        """Return an async iterator over the parts of an item's result; see :meth:`zbatch.ZClient.stream`.

        It is to be called in the client's event loop.
        """
        line = self._line
        call = AsyncIncoming(line, line.bind())
        now = time.monotonic()
        self._asking.prepare_stream(call, item, now, topic, timeout, priority, key, cost, request_id)
        line.put(call)
        return AsyncStream(call)

    async def map(
        self,
        items: Iterable[In],
        *,
        window: int = WINDOW,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        request_id: str = "",
        return_exceptions: bool = False,
    ) -> AsyncIterator[Out]:
        """Yield the output of each item, in order, with at most ``window`` items in flight.

        Items are taken from the iterable as outputs are taken from the iterator.
        """
        underway: deque[AsyncFuture[Out]] = deque()
        try:
            for item in items:
                underway.append(
                    self.submit(
                        [item],
                        topic=topic,
                        timeout=timeout,
                        priority=priority,
                        key=key,
                        request_id=request_id,
                        return_exceptions=return_exceptions,
                    )
                )
                if len(underway) >= window:
                    yield (await underway.popleft())[0]
            while underway:
                yield (await underway.popleft())[0]
        finally:
            for future in underway:
                if not future.cancel() and not future.cancelled():
                    # Nobody asks for it any more: the loop need not complain that nobody did.
                    future.exception()

    async def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        """Return the broker's snapshot of itself: topics, workers, clients.

        Raises :class:`BrokerUnreachable` when none answers in time.
        """
        self._line.bind()
        answer = self._line.ask_status()
        try:
            shown: dict[str, Any] = json.loads(await asyncio.wait_for(answer, timeout))
        except TimeoutError:
            raise self._line.no_status(timeout) from None
        finally:
            self._line.ask_no_more(answer)
        return shown

    async def close(self) -> None:
        """Say goodbye to the broker; requests without an outcome raise :class:`ClientClosed`."""
        self._finalizer.detach()
        context = self._line.close()
        if context is not None:
            # A goodbye that does not leave at once is waited for, but not by the loop.
            await asyncio.to_thread(context.term)

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncZClient({','.join(self.endpoints)!r}, topic={self._asking.topic!r})"


class _LoopLine:
    """The connection of one async client, driven by its event loop."""

    def __init__(self, endpoints: Sequence[str], timing: Timing, keys: Keys | None, retry: bool) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._retry = retry
        self._timing = timing
        self._closed = False
        self._reset()
        _lines.add(self)

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._core: ClientCore | None = None
        self._context: zmq.Context[Any] | None = None
        self._sockets: dict[bytes, Dealer] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._askers: Askers[asyncio.Future[bytes]] = Askers()
        self._retired = False

    @property
    def is_bound(self) -> bool:
        """Whether a loop drives it."""
        return self._core is not None

    def bind(self) -> asyncio.AbstractEventLoop:
        """Return the loop that this client belongs to; the running one, if it belongs to none yet."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and not self._closed:
            return loop
        if self._closed:
            raise ClientClosed("this client was closed; make another one")
        if self._loop is not None:
            raise ClientClosed("this client belongs to another event loop; make one for each loop")
        self._loop = loop
        try:
            self._open()
        except BaseException as error:
            self._let_go(0)
            self._reset()
            if isinstance(error, OSError | zmq.ZMQError):
                raise not_opened(error) from None
            raise
        return loop

    def _open(self) -> None:
        self._context = zmq.Context()
        self._core = new_core(self._endpoints, self._timing, self._keys, retry=self._retry)
        self._perform(self._core.start(time.monotonic()))
        self._call_soon()

    def put(self, future: AsyncFuture[Any] | AsyncIncoming | AsyncCall) -> None:
        """Take a call over; it leaves with all others of this turn of the loop."""
        assert self._core is not None
        self._core.submit(future)
        if self._turn is None:
            self._call_soon()

    def put_one_of_many(self, call: AsyncCall, now: float) -> None:
        """Take a call over where each takes long to come by: those before it may leave within the turn."""
        core = self._core
        assert core is not None
        if core.is_burst:
            try:
                self._perform(core.flush(now))
            except Exception as error:
                self._break_down(core, error)
                self.bind()
        self.put(call)

    def read(self, call: Call) -> None:
        """Tell the broker how much of a stream was read."""
        if self._core is not None:
            self._perform(self._core.read([call], time.monotonic()))
            self._call_soon()

    def withdraw(self, future: AsyncFuture[Any] | AsyncIncoming | AsyncCall) -> None:
        """Tell the broker that nobody waits for a call any more."""
        if self._core is not None and self._loop is not None and not self._loop.is_closed():
            self._perform(self._core.cancel(future, time.monotonic()))
            self._call_soon()

    def no_status(self, timeout: float) -> BrokerUnreachable:
        """Return the error where none came in time."""
        return no_status(self._endpoints, self._keys, timeout)

    def ask_status(self) -> asyncio.Future[bytes]:
        """Return what will be the broker's snapshot."""
        assert self._loop is not None
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._askers.add(answer)
        self._call_soon()
        return answer

    def ask_no_more(self, answer: asyncio.Future[bytes]) -> None:
        """Have nobody wait for this snapshot any longer."""
        self._askers.withdraw(answer)
        self._call_soon()

    def retire(self) -> None:
        """Close when nothing is open any more: the client object is gone, its futures may not be.

        May be called in any thread, whenever the garbage collector comes by.
        """
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self._retire)
                return
        context = self.close()
        if context is not None:
            context.term()

    def _retire(self) -> None:
        self._retired = True
        self._run_turn()

    def close(self) -> zmq.Context[Any] | None:
        """Say goodbye and let go of everything; return the context, which the caller ends."""
        if self._closed:
            return None
        self._closed = True
        _lines.discard(self)
        core, loop, context = self._core, self._loop, self._context
        if core is None or loop is None:
            return None
        linger = 0
        if not loop.is_closed():
            closed = to_fault(ClientClosed("the client was closed before this request had an outcome"))
            self._perform(core.stop(closed))
            for answer in self._askers.clear():
                if not answer.done():
                    answer.set_exception(ClientClosed("the client was closed before the broker answered"))
            linger = GOODBYE
        self._let_go(linger)
        return context

    def _let_go(self, linger: int) -> None:
        """Close every socket; the context is left to who can wait for it."""
        loop = self._loop
        is_alive = loop is not None and not loop.is_closed()
        for handle in (self._turn, self._timer):
            if handle is not None and is_alive:
                handle.cancel()
        for socket in self._sockets.values():
            if loop is not None and is_alive:
                loop.remove_reader(file_descriptor(socket))
            socket.close(linger)
        self._sockets.clear()
        self._core = self._context = None

    def abandon(self) -> None:
        """Start anew in a child of a fork: sockets and loop belong to the parent."""
        _lines.abandon(self._context, self._sockets, self._loop)
        self._reset()

    # --- the loop's side ---------------------------------------------------------------------------

    def _call_soon(self) -> None:
        if self._turn is None and self._loop is not None:
            self._turn = self._loop.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        """Carry calls for one turn of the loop."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        core = self._core
        if core is None:
            return
        try:
            self._carry(core)
        except Exception as error:
            self._break_down(core, error)

    def _break_down(self, core: ClientCore, error: Exception) -> None:
        """End every open call with what went wrong in the midst of carrying them; the next begins anew."""
        context = self._context
        self._let_go(0)
        self._reset()
        calls: list[Any] = core.open_calls()
        for future in calls:
            if not future.done():
                future.fail(broken_down(error))
        if context is not None:
            context.term()

    def _carry(self, core: ClientCore) -> None:
        """Send what was submitted, read what has come, set the timer."""
        now = time.monotonic()
        self._perform(core.flush(now))
        if self._askers.is_due:
            self._askers.ask()
            self._perform(core.ask_status(now))
        elif not self._askers.is_open:
            core.forget_status()
        due = core.wakeup()
        if due is not None and due <= now:
            self._perform(core.tick(now))
        # The descriptor is edge-triggered, and sending may have swallowed its signal: read after sending.
        self._read(core)
        if self._askers.is_due:
            self._call_soon()
        if self._retired and core.is_idle:
            self._leave()
            return
        due = core.wakeup()
        if due is not None and (self._timer is None or due < self._timer_due):
            self._set_timer(due)

    def _read(self, core: ClientCore) -> None:
        left = READS
        has_sent = True
        while has_sent:
            has_sent = False
            for peer, socket in tuple(self._sockets.items()):
                while is_readable(socket):
                    if not left:
                        self._call_soon()
                        return
                    left -= 1
                    envelope, frames = receive(socket)
                    try:
                        message = decode(envelope, frames)
                    except wire.Foreign as error:
                        self._perform(core.foreign(peer, str(error)))
                        continue
                    except wire.Malformed:
                        continue
                    has_sent |= self._perform(core.handle(peer, message, frames, time.monotonic()))

    def _set_timer(self, due: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._run_turn()

    def _leave(self) -> None:
        context = self.close()
        if context is not None:
            # Not in the loop, which must not wait for the goodbye to leave.
            threading.Thread(target=context.term, name="zbatch-goodbye", daemon=True).start()

    def _perform(self, actions: Sequence[Action]) -> bool:
        """Do what the core wants done; return whether something was sent."""
        has_sent = False
        for action in actions:
            if isinstance(action, Send):
                # A full pipe is a lost message: the next beat finds out, and it is sent again.
                send(self._socket(action.peer), action.message, action.frames)
                has_sent = True
            elif isinstance(action, Shown):
                for answer in self._askers.answer():
                    if not answer.done():
                        answer.set_result(action.snapshot)
            else:
                _settle(action)
        return has_sent

    def _socket(self, peer: bytes) -> Dealer:
        socket = self._sockets.get(peer)
        if socket is None:
            assert self._context is not None and self._loop is not None
            socket = self._sockets[peer] = connect(
                self._context, self._endpoints[peer[0]], self._timing, self._keys
            )
            self._loop.add_reader(file_descriptor(socket), self._run_turn)
        return socket


def _settle(action: Any) -> None:
    """Give futures their outcomes."""
    future: Any
    if isinstance(action, Answered):
        buffers = action.buffers or repeat(())
        for future, output, own in zip(action.calls, action.outputs, buffers, strict=False):
            if future is not None and not future.done():
                future.settle(output, own)
    elif isinstance(action, Finished):
        future = action.call
        if not future.done():
            future.settle_all()
    elif isinstance(action, Came):
        future = action.call
        if not future.done():
            future.arrive(action.parts)
    else:
        for future in action.calls:
            if not future.done():
                future.settle_fault(action.fault)


def _close(line: _LoopLine) -> None:
    context = line.close()
    if context is not None:
        context.term()


_lines: Lines[_LoopLine] = Lines(_close, _LoopLine.abandon)
