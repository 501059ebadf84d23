"""ZClient: ask a broker from any number of threads.

The body around ``core/client.py``: one DEALER a broker, and one thread at a time at its helm.  A lone caller
that waits takes the helm itself, so its request crosses no thread; as soon as others have something open, a
background thread takes over, and callers hand their calls to it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import socket as socketpair
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

import zmq

from zbatch import payload, wire
from zbatch.calls import Asking, Caller, Future, encode_copied, settle
from zbatch.config import Timing, client_endpoints, keys_folder
from zbatch.core.actions import Send
from zbatch.core.calls import Action, Shown
from zbatch.core.client import ClientCore
from zbatch.errors import BrokerUnreachable, ClientClosed, to_fault
from zbatch.security import Keys, where_asked
from zbatch.sockets import busy_poll, connect, decode, is_readable, receive, send

In = TypeVar("In")
Out = TypeVar("Out")

LINGER = 0.002
"""Seconds that the thread stays at the helm with nothing open, where several callers come and go."""

BUSY_POLL = 0.001
"""Seconds that a lone caller looks for its answer before it sleeps, where the last one came as soon: to wake
a sleeping thread costs 30 us and more.  Only while no other thread of the process could use the time."""


class ZClient(Caller[In, Out]):
    """A client of one or more brokers; safe from any number of threads, usable after a fork.

    Making one returns at once and needs no broker yet.  Use it as a context manager, or ``close()`` it.

    Args:
        endpoint: ``tcp://host:port`` or ``ipc://path`` of a broker's frontend; several in a list or with
            commas, the next is used when one goes quiet.  None: ``$ZBATCH_BROKER``, else the default.
        topic: The model to ask, where a call names no other.
        timeout: Seconds a request may take, where a call names no other.
        keys: A folder with ``client.key_secret`` and the broker's public key, for brokers that ask for keys.
            None: ``$ZBATCH_KEYS``, else no key.
        retry: Where a broker is :class:`Overloaded`, ask again when it says, or a little later, while the
            deadline allows it.
        copy: Copy large arrays when they are submitted.  Without it they travel uncopied, and must not
            change before the outcome.

    """

    def __init__(
        self,
        endpoint: str | Sequence[str] | None = None,
        *,
        topic: str = "default",
        timeout: float = 30.0,
        keys: str | os.PathLike[str] | None = None,
        retry: bool = False,
        copy: bool = False,
        timing: Timing | None = None,
    ) -> None:
        self.endpoints = client_endpoints(endpoint)
        own_keys = where_asked(keys_folder(keys), "client", "admin")
        self._copies = copy
        self._line: _Line = _Line(self.endpoints, timing or Timing(), own_keys, retry)
        super().__init__(Asking(topic, timeout, encode=encode_copied if copy else payload.encode), self._line)
        self._finalizer = weakref.finalize(self, self._line.retire)
        self._finalizer.atexit = False

    def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        """Return the broker's snapshot of itself: topics, workers, clients.

        Raises :class:`BrokerUnreachable` when none answers in time.
        """
        return self._line.status(timeout)

    def close(self) -> None:
        """Say goodbye to the broker; requests without an outcome raise :class:`ClientClosed`."""
        self._finalizer.detach()
        self._line.close()

    def __repr__(self) -> str:
        return f"ZClient({','.join(self.endpoints)!r}, topic={self._asking.topic!r})"


class _Line:
    """The connection of one client: its core, its sockets, and whoever is at the helm."""

    def __init__(self, endpoints: Sequence[str], timing: Timing, keys: Keys | None, retry: bool) -> None:
        self.closed = False
        self._endpoints = endpoints
        self._keys = keys
        self._retry = retry
        self._timing = timing
        self._reset()
        _lines.add(self)

    def _reset(self) -> None:
        self._pending: deque[Future[Any]] = deque()
        self._cancelled: deque[Future[Any]] = deque()
        self._asked: list[_Answer] = []
        self._helm = threading.Lock()
        self._settling = threading.Lock()
        """Held while calls are settled: an outcome and a caller's cancel must not both do it."""
        self._starting = threading.Lock()
        self._bell = threading.Lock()
        """Held while nothing is to be done by the thread; released to wake it."""
        self._bell.acquire()
        self._thread: threading.Thread | None = None
        self._waiting: list[None] = []
        """One for each thread that waits while another is at the helm."""
        self._is_quick = False
        """Whether the last caller at the helm had its answer within BUSY_POLL."""
        self._retired = False
        self._asleep = False
        self._asking_status = False
        self._context: zmq.Context[Any] | None = None
        self._sockets: dict[bytes, zmq.Socket[bytes]] = {}
        self._core: ClientCore | None = None
        self._wake: socketpair.socket | None = None
        self._alarm: socketpair.socket | None = None
        self._poller = zmq.Poller()

    # --- callers' side -----------------------------------------------------------------------------

    def put(self, future: Future[Any]) -> None:
        """Hand a call over to whoever is at the helm, if somebody is."""
        self._pending.append(future)
        if self._asleep:
            self._rouse()

    def carry(self) -> None:
        """See to it that somebody is at the helm: the caller will not wait."""
        if not self._helm.locked():
            self._call_thread()

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Block until a call is settled, at the helm if nobody is there."""
        if self._waiting or not self._helm.acquire(blocking=False):
            # Several wait: a helm that changed hands with each of them would cost more than a thread hop.
            self._waiting.append(None)
            self.carry()
            try:
                return future.block(timeout)
            finally:
                self._waiting.pop()
        asked = time.monotonic()
        try:
            self._steer(future, None if timeout is None else asked + timeout)
        finally:
            self._helm.release()
        self._is_quick = time.monotonic() - asked < BUSY_POLL
        # What others handed over meanwhile goes on without this thread.
        if self._pending or self._core is None or not self._core.is_idle:
            self._call_thread()
        return future.done() or future.block(None if timeout is None else 0.0)

    def cancel(self, future: Future[Any]) -> None:
        """Withdraw a call: it is settled here and now, the broker is told by whoever steers."""
        with self._settling:
            if future.done():
                return
            tell = future.settle_cancelled()
        if tell:
            future.announce()
        self._cancelled.append(future)
        self._call_helm()

    def status(self, timeout: float) -> dict[str, Any]:
        """Ask the broker for its snapshot and wait for it."""
        if self.closed:
            raise ClientClosed("this client was closed; make another one")
        answer = _Answer()
        self._asked.append(answer)
        self._call_helm()
        if not answer.came.wait(timeout):
            with contextlib.suppress(ValueError):
                self._asked.remove(answer)
            raise BrokerUnreachable(
                f"no broker at {', '.join(self._endpoints)} answered within {timeout} s; is one running?"
            )
        shown: dict[str, Any] = json.loads(answer.snapshot)
        return shown

    def retire(self) -> None:
        """Close when nothing is open any more: the client object is gone, its futures may not be."""
        self._retired = True
        if self._helm.acquire(blocking=False):
            try:
                if not self._pending and (self._core is None or self._core.is_idle):
                    self.closed = True
                    self._shut()
                    self._ring()
                    return
            finally:
                self._helm.release()
        self._call_helm()

    def close(self) -> None:
        """Close now; open calls end in ClientClosed."""
        if self.closed:
            return
        self.closed = True
        _lines.discard(self)
        if self._asleep:
            self._rouse()
        self._ring()
        with self._helm:
            self._shut()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def _rouse(self) -> None:
        self._asleep = False
        alarm = self._alarm
        if alarm is not None:
            with contextlib.suppress(OSError):
                alarm.send(b".")

    def _call_helm(self) -> None:
        if self._asleep:
            self._rouse()
        elif not self._helm.locked():
            self._call_thread()

    def _call_thread(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self.closed:  # type: ignore[redundant-expr]  # another was first
                    self._thread = threading.Thread(target=self._run, name="zbatch-client", daemon=True)
                    self._thread.start()
        self._ring()

    def _ring(self) -> None:
        if self._bell.locked():
            with contextlib.suppress(RuntimeError):
                self._bell.release()

    # --- at the helm -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.closed:
            self._bell.acquire()
            # Whoever is at the helm now rings again when leaving something open.
            if not self._helm.acquire(blocking=False):
                continue
            try:
                self._steer(None, None)
                if self._retired and not self._pending and not self.closed:
                    self.closed = True
                    self._shut()
            finally:
                self._helm.release()

    def _steer(self, until: Future[Any] | None, deadline: float | None) -> None:
        """Carry calls: until one is settled, or (for the thread) until nothing is open."""
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
                if core.is_idle and not self._pending and not self._cancelled and not self._asked:
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
                if (
                    self._is_quick
                    and self._is_alone()
                    and busy_poll(list(self._sockets.values()), now + BUSY_POLL)
                ):
                    continue
            self._sleep(due, now)

    def _sleep(self, due: float | None, now: float) -> None:
        self._asleep = True
        if self._pending or self._cancelled or (self._asked and not self._asking_status) or self.closed:
            self._asleep = False
            return
        patience = None if due is None else max(0, int((due - now) * 1000) + 1)
        events = self._poller.poll(patience)
        self._asleep = False
        for source, _ in events:
            if type(source) is int and self._wake is not None:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)

    def _is_alone(self) -> bool:
        """Return whether no other thread of this process could use the core; ours sleeps."""
        return threading.active_count() == (1 if self._thread is None else 2)

    def _take_orders(self, core: ClientCore, now: float) -> None:
        pending = self._pending
        while pending:
            future = pending.popleft()
            if not future.done():
                core.submit(future)
        actions = core.flush(now)
        while self._cancelled:
            actions += core.cancel(self._cancelled.popleft(), now)
        if self._asked and not self._asking_status:
            self._asking_status = True
            actions += core.ask_status(now)
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
                self._asking_status = False
                asked, self._asked = self._asked, []
                for answer in asked:
                    answer.snapshot = action.snapshot
                    answer.came.set()
            else:
                with self._settling:
                    told = settle(action)
                for future in told:
                    future.announce()

    def _open(self) -> ClientCore:
        self._context = zmq.Context()
        self._wake, self._alarm = socketpair.socketpair()
        for one in (self._wake, self._alarm):
            one.setblocking(False)
        self._poller.register(self._wake.fileno(), zmq.POLLIN)
        core = self._core = ClientCore(
            len(self._endpoints),
            os.urandom(16),
            os.urandom,
            self._timing,
            where=", ".join(self._endpoints),
            host=platform.node(),
            pid=os.getpid(),
            keyed=self._keys is not None,
            retry=self._retry,
        )
        self._perform(core.start(time.monotonic()))
        return core

    def _socket(self, peer: bytes) -> zmq.Socket[bytes]:
        socket = self._sockets.get(peer)
        if socket is None:
            assert self._context is not None
            socket = connect(self._context, self._endpoints[peer[0]], self._timing, self._keys)
            self._sockets[peer] = socket
            self._poller.register(socket, zmq.POLLIN)
        return socket

    def _shut(self) -> None:
        """Say goodbye and let go of everything; whoever calls is at the helm."""
        if self._core is None:
            closed_early = ClientClosed("the client was closed before this request had an outcome")
            while self._pending:
                future = self._pending.popleft()
                if not future.done() and future.settle_error(closed_early):
                    future.announce()
            return
        while self._pending:
            self._core.submit(self._pending.popleft())
        closed = to_fault(ClientClosed("the client was closed before this request had an outcome"))
        self._perform(self._core.stop(closed))
        self._core = None
        for socket in self._sockets.values():
            # Goodbye is worth a moment, not more: the broker notices a missing client by itself.
            socket.close(100)
        self._sockets.clear()
        if self._context is not None:
            self._context.term()
            self._context = None
        for one in (self._wake, self._alarm):
            if one is not None:
                one.close()
        self._wake = self._alarm = None

    def after_fork(self) -> None:
        """Start anew in a child: sockets, locks and threads belong to the parent."""
        lost = ClientClosed("this request was asked before a fork; its outcome belongs to the parent process")
        calls: list[Any] = list(self._pending) + (self._core.open_calls() if self._core is not None else [])
        for call in calls:
            call.settle_error(lost)
        _abandoned.append((self._context, self._sockets, self._poller))
        for one in (self._wake, self._alarm):
            if one is not None:
                one.close()
        self._reset()


class _Answer:
    """A thread that waits for the broker's status."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.snapshot = b""


_lines: weakref.WeakSet[_Line] = weakref.WeakSet()
_abandoned: list[Any] = []
"""What a forked child must neither use nor close."""


def _close_all() -> None:
    for line in list(_lines):
        line.close()


def _after_fork() -> None:
    for line in list(_lines):
        line.after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
