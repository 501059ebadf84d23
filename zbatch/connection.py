"""The connection of one ZClient: its core, its sockets, and the calls that callers hand over.

Callers put calls in, and wait; whoever is at the helm (``helm.py``) submits them to the core, sends what
that says, and settles what comes back.  Nothing here decides about a call.
"""

from __future__ import annotations

import contextlib
import json
import socket as socketpair
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq

from zbatch import wire
from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.calls import Action, Shown
from zbatch.core.client import ClientCore
from zbatch.core.expectation import Expectation
from zbatch.errors import ClientClosed, ZbatchError, to_fault
from zbatch.futures import CLOSED, UNFINISHED, Future, Line, settle
from zbatch.helm import Helm
from zbatch.lines import WATCHER, Askers, Lines, broken_down, new_core, no_status, not_opened
from zbatch.security import Keys
from zbatch.sockets import (
    Dealer,
    busy_poll,
    connect,
    decode,
    is_green,
    is_readable,
    make_poller,
    receive,
    send,
)

LINGER = 0.002
"""Seconds that the thread stays at the helm with nothing open, where several callers come and go."""

SHORTEST_SLEEP = 0.001
"""Seconds in which sleeps are counted."""

GOODBYE = 100
"""Milliseconds that goodbye is worth: the broker notices a missing client by itself."""


class Connection(Line):
    """One client's way to its brokers."""

    def __init__(self, endpoints: Sequence[str], timing: Timing, keys: Keys | None, retry: bool) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._retry = retry
        self._timing = timing
        super().__init__()
        _connections.add(self)

    def renew(self) -> None:
        """Have nothing to carry, and nobody at the helm."""
        super().renew()
        self._helm = Helm(self._carry_all, self._is_needed)
        self._askers: Askers[_Answer] = Askers()
        self._waiting: list[None] = []
        """One for each thread that waits while another is at the helm."""
        self._expected = Expectation()
        self._retired = False
        self._asleep = False
        self._forget()

    def _forget(self) -> None:
        """Have no core and no sockets; the next one at the helm makes them."""
        self._context: zmq.Context[Any] | None = None
        self._sockets: dict[bytes, Dealer] = {}
        self._core: ClientCore | None = None
        self._wake: socketpair.socket | None = None
        self._alarm: socketpair.socket | None = None
        self._poller = make_poller()
        self._is_green = is_green()

    # --- callers' side -----------------------------------------------------------------------------

    def put(self, future: Any) -> None:
        """Hand a call over to whoever is at the helm, if somebody is."""
        if self._core is None:
            self._adapt()
        self._pending.append(future)
        if self._asleep:
            self._rouse()
        if self.closed:
            self._end_pending()

    def carry(self) -> None:
        """See to it that somebody is at the helm: the caller will not wait."""
        if not self._helm.is_taken:
            self._helm.call()

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Block until a call is settled, at the helm if nobody is there."""
        helm = self._helm
        if self._waiting or not helm.take():
            # Several wait: a helm that changed hands with each of them would cost more than a thread hop.
            self._waiting.append(None)
            self.carry()
            try:
                return future.block(timeout)
            finally:
                self._waiting.pop()
        asked = time.monotonic()
        try:
            self._steer(future, None if timeout is None else asked + timeout, self._expected.watch(asked))
        finally:
            # Also when a signal's handler raised in here: others' calls go on.
            if self.closed:
                self._shut()
            helm.leave()
        self._expected.learn(time.monotonic() - asked)
        return future.done() or future.block(None if timeout is None else 0.0)

    def status(self, timeout: float) -> dict[str, Any]:
        """Ask the broker for its snapshot and wait for it."""
        if self.closed:
            raise ClientClosed(self.closed)
        if self._core is None:
            self._adapt()
        answer = _Answer()
        self._askers.add(answer)
        self._call_carrier()
        if not answer.came.wait(timeout):
            self._askers.withdraw(answer)
            self._call_carrier()
            raise no_status(self._endpoints, self._keys, timeout)
        if not answer.snapshot:
            raise ClientClosed(self._unfinished())
        shown: dict[str, Any] = json.loads(answer.snapshot)
        return shown

    def retire(self) -> None:
        """Close when nothing is open any more: the client object is gone, its futures may not be.

        May be called in any thread, whenever the garbage collector comes by.
        """
        self._retired = True
        if not self._helm.take():
            self._call_carrier()
            return
        try:
            self._end_if_retired()
        finally:
            self._helm.leave()

    def close(self, why: str = CLOSED) -> None:
        """Close now; open calls end in ClientClosed, later ones say ``why``."""
        if self.closed:
            return
        self._end(why)
        if self._asleep:
            self._rouse()
        if self._helm.is_mine:
            # A signal's handler: whom it interrupted lets go of everything on leaving the helm.
            return
        self._helm.take(wait=True)
        try:
            self._shut()
        finally:
            self._helm.leave()
        self._helm.join(2.0)

    def _adapt(self) -> None:
        """Begin anew where gevent took the place of threads since this client was made.

        So gunicorn does it with ``--preload``.  The locks are real ones then: one greenlet that waited for
        another at them would stop both.  Only a client that was not used before in this process does so: one
        that was has a core, and keeps its locks.
        """
        if self._is_green is not is_green() and not self._has_orders() and not self._helm.has_thread:
            self.renew()

    def _rouse(self) -> None:
        self._asleep = False
        alarm = self._alarm
        if alarm is not None:
            with contextlib.suppress(OSError):
                alarm.send(b".")

    def _call_carrier(self) -> None:
        if self._asleep:
            self._rouse()
        else:
            self.carry()

    # --- at the helm -------------------------------------------------------------------------------

    def _is_needed(self) -> bool:
        """Return whether somebody should come to the helm."""
        if self.closed:
            return False
        return self._has_orders() or (self._core is not None and (self._retired or not self._core.is_idle))

    def _has_orders(self) -> bool:
        """Return whether callers left something to be done."""
        return bool(self._pending or self._cancelled or self._advanced or self._askers.is_due)

    def _carry_all(self) -> None:
        """Carry calls in the helm's own thread, until nothing is open."""
        try:
            self._steer(None, None, None)
        except BaseException as error:
            self._break_down(error)
        self._end_if_retired()
        if self.closed:
            self._shut()

    def _steer(
        self, until: Future[Any] | None, deadline: float | None, watch: tuple[float, float] | None
    ) -> None:
        """Carry calls: until one is settled, or (for the thread) until nothing is open.

        Between the times of ``watch``, look for its answer without sleeping: only while no other thread of
        the process could use the time.
        """
        crowd = False
        while not self.closed:
            core = self._core or self._open()
            now = time.monotonic()
            self._take_orders(core, now)
            self._read(core)
            due = core.wakeup()
            if due is not None and due <= now:
                self._perform(core.tick(now))
                due = core.wakeup()
            if until is None:
                crowd = crowd or len(self._waiting) > 1
                if core.is_idle and not self._has_orders():
                    if not crowd:
                        return
                    crowd = False
                    due = now + LINGER
            elif until.done():
                return
            else:
                if deadline is not None:
                    if now >= deadline:
                        return
                    due = deadline if due is None else min(due, deadline)
                if watch is not None and now < watch[1] and self._is_alone():
                    if now + SHORTEST_SLEEP >= watch[0]:
                        busy_poll(list(self._sockets.values()), watch[1])
                        continue
                    # Sleeps end up to a millisecond late.
                    due = watch[0] - SHORTEST_SLEEP if due is None else min(due, watch[0] - SHORTEST_SLEEP)
            self._sleep(due, now)

    def _sleep(self, due: float | None, now: float) -> None:
        self._asleep = True
        try:
            # Whoever hands something over first puts it there and then looks whether we sleep.
            if self._has_orders() or self.closed:
                return
            patience = None if due is None else max(0, int((due - now) * 1000) + 1)
            events = self._poller.poll(patience)
        finally:
            self._asleep = False
        for source, _ in events:
            if type(source) is int and self._wake is not None:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)

    def _is_alone(self) -> bool:
        """Return whether no other thread of this process could use the core; ours sleeps."""
        if self._is_green:
            return False  # the others are no threads
        others = sum(thread.name != WATCHER for thread in threading.enumerate()) - 1
        return others == self._helm.has_thread

    def _take_orders(self, core: ClientCore, now: float) -> None:
        pending = self._pending
        while pending:
            future = pending.popleft()
            if not future.done():
                core.submit(future)
        actions = core.flush(now)
        while self._cancelled:
            actions += core.cancel(self._cancelled.popleft(), now)
        if self._advanced:
            advanced = [self._advanced.popleft() for _ in range(len(self._advanced))]
            actions += core.read(advanced, now)
        if self._askers.is_due:
            self._askers.ask()
            actions += core.ask_status(now)
        elif not self._askers.is_open:
            core.forget_status()
        if actions:
            self._perform(actions)

    def _read(self, core: ClientCore) -> None:
        # libzmq's descriptor is edge-triggered: read until nothing is left, look again after each send.
        for peer, socket in list(self._sockets.items()):
            while is_readable(socket):
                envelope, frames = receive(socket)
                try:
                    message = decode(envelope, frames)
                except wire.Foreign as error:
                    self._perform(core.foreign(peer, str(error)))
                    continue
                except wire.Malformed:
                    continue
                actions = core.handle(peer, message, frames, time.monotonic())
                if actions:
                    self._perform(actions)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                # A full pipe is a lost message: the next beat finds out, and it is sent again.
                send(self._socket(action.peer), action.message, action.frames)
            elif isinstance(action, Shown):
                for answer in self._askers.answer():
                    answer.snapshot = action.snapshot
                    answer.came.set()
            else:
                with self._settling:
                    told = settle(action)
                for future in told:
                    future.announce()

    # --- beginning and ending ----------------------------------------------------------------------

    def _open(self) -> ClientCore:
        try:
            self._context = zmq.Context()
            self._wake, self._alarm = socketpair.socketpair()
            for one in (self._wake, self._alarm):
                one.setblocking(False)
            self._poller.register(self._wake.fileno(), zmq.POLLIN)
            core = new_core(self._endpoints, self._timing, self._keys, retry=self._retry)
            self._perform(core.start(time.monotonic()))
        except (OSError, zmq.ZMQError) as error:
            self._let_go(0)
            raise not_opened(error) from None
        except ZbatchError:
            self._let_go(0)
            raise
        self._core = core
        return core

    def _socket(self, peer: bytes) -> Dealer:
        socket = self._sockets.get(peer)
        if socket is None:
            assert self._context is not None
            socket = connect(self._context, self._endpoints[peer[0]], self._timing, self._keys)
            self._sockets[peer] = socket
            self._poller.register(socket, zmq.POLLIN)
        return socket

    def _end_if_retired(self) -> None:
        is_idle = self._core is None or self._core.is_idle
        if self._retired and is_idle and not self._pending and not self.closed:
            self._end(CLOSED)
            self._shut()

    def _end(self, why: str) -> None:
        self.closed = why
        _connections.discard(self)
        self._helm.end()

    def _break_down(self, error: BaseException) -> None:
        """End every open call with what went wrong in the midst of carrying them; the next begins anew."""
        calls: list[Any] = self._core.open_calls() if self._core is not None else []
        while self._pending:
            calls.append(self._pending.popleft())
        self._settle_with(calls, broken_down(error))
        self._let_go(0)

    def _shut(self) -> None:
        """Say goodbye and let go of everything; whoever calls is at the helm."""
        self._end_pending()
        if self._core is not None:
            self._perform(self._core.stop(to_fault(ClientClosed(self._unfinished()))))
            self._let_go(GOODBYE)

    def _let_go(self, linger: int) -> None:
        for answer in self._askers.clear():
            answer.came.set()
        for socket in self._sockets.values():
            socket.close(linger)
        if self._context is not None:
            self._context.term()
        for one in (self._wake, self._alarm):
            if one is not None:
                one.close()
        self._forget()

    def _end_pending(self) -> None:
        """End what was handed over to a client that is closed."""
        calls = []
        with contextlib.suppress(IndexError):  # of several threads each takes some
            while True:
                calls.append(self._pending.popleft())
        if calls:
            self._settle_with(calls, ClientClosed(self._unfinished()))

    def _unfinished(self) -> str:
        return UNFINISHED if self.closed in ("", CLOSED) else self.closed

    def _settle_with(self, calls: Sequence[Future[Any]], error: BaseException) -> None:
        with self._settling:
            told = [call for call in calls if not call.done() and call.settle_error(error)]
        for call in told:
            call.announce()

    def after_fork(self) -> None:
        """Start anew in a child: sockets, locks and threads belong to the parent."""
        lost = ClientClosed("this request was asked before a fork; its outcome belongs to the parent process")
        calls: list[Any] = list(self._pending) + (self._core.open_calls() if self._core is not None else [])
        for call in calls:
            if not call.done():
                call.settle_error(lost)
        _connections.abandon(self._context, self._sockets, self._poller)
        for one in (self._wake, self._alarm):
            if one is not None:
                one.close()
        self.renew()


class _Answer:
    """A thread that waits for the broker's status."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.snapshot = b""


_connections: Lines[Connection] = Lines(Connection.close, Connection.after_fork)
