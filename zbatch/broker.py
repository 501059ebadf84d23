"""The broker's body: two ROUTER sockets, a clock and signals around ``core/broker.py``.

It moves frames and decides nothing.  Each turn reads what has arrived (workers first, clients up to a
bound), lets the core tick, and sends what the core wants said, never waiting for a peer: what a slow peer
does not take is kept in a bounded outbox.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import zmq

from zbatch import extras, wire
from zbatch.config import BrokerSettings, describe, version
from zbatch.core.actions import Send
from zbatch.core.broker import BrokerCore
from zbatch.core.figures import Snapshots
from zbatch.core.links import BACK, FRONT
from zbatch.gate import Gate, try_doors
from zbatch.journal import Journal
from zbatch.messages import NOWHERE, Batch, Denied, Fault
from zbatch.metrics import Flow
from zbatch.processes import Alarm, heed_orders
from zbatch.security import AllowList, of_broker
from zbatch.sockets import (
    Bound,
    bind,
    busy_poll,
    decode,
    is_readable,
    receive_from,
    send_to,
    settle_allocator,
    settle_collector,
    widen,
)
from zbatch.watchdog import Watchdog

READS = 256
"""Messages read from the clients' side before the core ticks: none may starve the clock."""

OUTBOX_BYTES = 64 << 20
OUTBOX_MESSAGES = 1_024
"""What is kept for one peer that does not read; beyond it the connection is forgotten."""

RETRY = 0.010
"""Seconds until a full pipe is tried again."""

LAG = 0.5
"""Seconds: a turn that takes this much longer than was meant to be waited was stopped somewhere, or had
so much to do that others waited to be heard; its own sleep is nobody's death."""

ORDINARY = frozenset({"worker ready", "client gone"})
"""Events of the core that come with ordinary work; every other one is a warning."""

LAST_WORDS = 5.0
"""Seconds that a leaving broker waits for what runs."""

SNAPSHOT = 1.0
"""Seconds between two snapshots for /metrics, where that is served."""


class Broker:
    """A broker in this process."""

    def __init__(self, settings: BrokerSettings, journal: Journal) -> None:
        self.settings = settings
        self.core = BrokerCore(settings.core(), os.urandom(8))
        self.running = False
        self._journal = journal
        self._context: zmq.Context[Any] = zmq.Context()
        self._sides: dict[bytes, Bound] = {}
        self._gate: Gate | None = None
        self._outboxes: dict[bytes, _Outbox] = {}
        self._alarm = Alarm()
        self._leaving: float | None = None
        self._watchdog = Watchdog()
        self._flows = {FRONT: Flow(), BACK: Flow()}
        self._metrics: _Metrics | None = None

    def start(self) -> None:
        """Listen; raises :class:`ConfigError` where an endpoint cannot be listened on, or anybody gets in."""
        _shuffle_routing_ids()
        settings = self.settings
        keys = of_broker(settings.keys) if settings.keys else None
        if keys is not None:
            # Before the doors: who is not asked about does not get in.
            self._gate = Gate(self._context, keys, AllowList(settings.keys), self._journal)
        listen = partial(bind, self._context, keys=keys, group=settings.ipc_group)
        try:
            self._sides[FRONT] = listen(settings.frontend, settings.limits.message_bytes)
            self._sides[BACK] = listen(settings.backend, settings.limits.message_bytes)
            if self._gate is not None:
                try_doors(self._gate, [end for bound in self._sides.values() for end in bound.endpoints])
                self._gate.start()
            if settings.metrics is not None:
                self._metrics = _Metrics(settings.metrics, self.core, self._flows, self._journal)
        except Exception:
            self.close()
            raise
        self.running = True

    def stop(self, *, at_once: bool = False) -> None:
        """Leave: let what runs finish, or at once.  A signal handler may call it, also after the end."""
        self._alarm.ring(b"!" if at_once else b".")

    def run(self) -> None:
        """Serve until stopped."""
        poller = zmq.Poller()
        back, front = self._sides[BACK].socket, self._sides[FRONT].socket
        poller.register(back, zmq.POLLIN)
        poller.register(front, zmq.POLLIN)
        wake = self._alarm.fileno()
        poller.register(wake, zmq.POLLIN)
        gate = self._gate
        if gate is not None:
            poller.register(gate.socket, zmq.POLLIN)
        comes_soon = False
        turned = time.monotonic()
        self._watchdog.ready()
        while self.running:
            patience = self._patience()
            asked = time.monotonic()
            if comes_soon and patience != 0 and busy_poll((back, front), asked + self.settings.busy_poll):
                patience = 0
            ready: dict[Any, int] = dict(poller.poll(patience))
            now = time.monotonic()
            waited = now - asked
            comes_soon = waited < self.settings.busy_poll
            meant = waited if patience is None else min(waited, patience / 1000)
            if wake in ready:
                self._heed(self._alarm.words())
            if gate is not None:
                self._watch_gate(gate, now)
            if back in ready:
                self._read(BACK, 4 * READS)
            if front in ready:
                self._read(FRONT, READS)
            now = time.monotonic()
            if now - turned - meant > LAG:
                # From turn to turn, for a process is stopped anywhere; and all of it, for nobody knows when
                # it began.  Silence is judged by the tick, from what is read in turns that went well.
                self.core.slept(turned, now)
            turned = now
            self._perform(self.core.tick(now), now)
            self._show(now)
            if self._outboxes:
                self._empty_outboxes(now)
            if self.core.draining and self._leaving is None:
                self._leave(now)
            if self._leaving is not None:
                self._leave_when_done(now, self._leaving)

    def close(self) -> None:
        """Let go of every socket."""
        if self._metrics is not None:
            self._metrics.close()
        for bound in self._sides.values():
            bound.close()
        if self._gate is not None:
            self._gate.close()
        self._context.destroy(0)
        self._alarm.close()

    def _patience(self) -> int | None:
        """Return how many milliseconds to wait for input; None: until some comes."""
        due = self.core.wakeup()
        now = time.monotonic()
        if self._outboxes:
            due = min(due or now + RETRY, now + RETRY)
        if self._leaving is not None:
            due = min(due or self._leaving, self._leaving)
        if self._gate is not None:
            due = min(due or self._gate.look_at, self._gate.look_at)
        if self._metrics is not None:
            due = min(due or self._metrics.due, self._metrics.due)
        due = self._watchdog.sooner(due)
        return None if due is None else max(0, int((due - now) * 1000) + 1)

    def _read(self, side: bytes, most: int) -> None:
        socket = self._sides[side].socket
        flow = self._flows[side]
        for _ in range(most):
            if not is_readable(socket):
                return
            identity = None
            peer, envelope, frames, first = receive_from(socket, side, self.core.links.by_peer)
            if first is not None:
                widen(first)
                if self._gate is not None:
                    identity = self._gate.identify(side + peer, first)
            flow.received_messages += 1
            flow.received_bytes += len(envelope) + (sum(map(len, frames)) if frames else 0)
            now = time.monotonic()
            try:
                message = decode(envelope, frames)
            except wire.Foreign as error:
                self._answer_foreign(side + peer, error, now)
                continue
            except wire.Malformed as error:
                self.core.count("malformed")
                self._journal.event("malformed message", level="warning", side=side.decode(), why=str(error))
                continue
            actions = self.core.handle(side + peer, message, frames, now, identity)
            if actions:
                self._perform(actions, now)

    def _show(self, now: float) -> None:
        """Let others see how it is: the service manager, who scrapes, who reads the log."""
        self._watchdog.alive(now)
        if self._metrics is not None:
            self._metrics.leave(now)
        if self.core.events:
            self._print()

    def _watch_gate(self, gate: Gate, now: float) -> None:
        gate.answer()
        revoked = gate.look(now, self.core.links.by_peer)
        if revoked:
            self.core.revoke(revoked)

    def _answer_foreign(self, peer: bytes, error: wire.Foreign, now: float) -> None:
        """Tell who speaks another version, in ours: the first byte alone says which that is."""
        self.core.count("foreign_version")
        self._journal.event("peer of another version", level="warning", why=str(error))
        if self.core.links.may_ask(peer, now):
            fault = Fault("protocol_mismatch", str(error))
            self._perform([Send(peer, Denied(NOWHERE, 0, 0, fault))], now)

    def _perform(self, actions: Sequence[Send], now: float) -> None:
        for action in actions:
            peer = action.peer
            envelope = wire.encode(action.message)
            outbox = self._outboxes.get(peer)
            if outbox is not None:
                self._keep(outbox, action, envelope, now)
                continue
            try:
                send_to(self._sides[peer[:1]].socket, peer[1:], envelope, action.frames)
                self._sent(peer, envelope, action.frames)
            except zmq.Again:
                outbox = self._outboxes[peer] = _Outbox(peer)
                self._keep(outbox, action, envelope, now)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self.core.unreachable(peer, now, action.message)

    def _sent(self, peer: bytes, envelope: bytes, frames: Sequence[Any]) -> None:
        flow = self._flows[peer[:1]]
        flow.sent_messages += 1
        flow.sent_bytes += len(envelope) + (sum(map(len, frames)) if frames else 0)

    def _keep(self, outbox: _Outbox, action: Send, envelope: bytes, now: float) -> None:
        outbox.put(action, envelope)
        if outbox.bytes > OUTBOX_BYTES or len(outbox.messages) > OUTBOX_MESSAGES:
            # If it is alive, its next message makes it a stranger, and its HELLO says what it lacks.
            del self._outboxes[outbox.peer]
            self.core.note("peer does not read", kept_bytes=outbox.bytes)
            self.core.unreachable(outbox.peer, now, outbox.first_batch())

    def _empty_outboxes(self, now: float) -> None:
        for outbox in list(self._outboxes.values()):
            socket = self._sides[outbox.peer[:1]].socket
            try:
                while outbox.messages:
                    envelope, frames, _ = outbox.messages[0]
                    send_to(socket, outbox.peer[1:], envelope, frames)
                    self._sent(outbox.peer, envelope, frames)
                    outbox.sent()
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self.core.unreachable(outbox.peer, now, outbox.first_batch())
            del self._outboxes[outbox.peer]

    def _heed(self, orders: bytes) -> None:
        if self._leaving is not None or b"!" in orders:
            self.running = False
            return
        self._leave(time.monotonic())

    def _leave(self, now: float) -> None:
        self._journal.event("leaving", waits_s=LAST_WORDS)
        self._watchdog.stopping()
        self._leaving = now + LAST_WORDS
        self._perform(self.core.drain(), now)

    def _leave_when_done(self, now: float, leaving: float) -> None:
        if now >= leaving or (self.core.is_drained and not self._outboxes):
            self.running = False

    def _print(self) -> None:
        events, self.core.events = self.core.events, []
        for what, facts in events:
            level = "info" if what in ORDINARY else "warning"
            self._journal.event(what, level=level, **facts)  # type: ignore[arg-type]


class _Metrics:
    """What the loop does for whoever scrapes: it leaves a snapshot now and then."""

    def __init__(self, address: str, core: BrokerCore, flows: Mapping[bytes, Flow], journal: Journal) -> None:
        parts = extras.metrics()
        self.due = 0.0
        self._snapshots = Snapshots(core)
        self._flows = {"clients": flows[FRONT], "workers": flows[BACK]}
        self._shown = parts.series.BrokerSeries()
        self._exposition = parts.exposition.Exposition(address, self._shown, journal)
        # Nobody who scrapes finds an empty page.
        self.leave(time.monotonic())
        self._exposition.start()

    def leave(self, now: float) -> None:
        """Leave a snapshot, if it is time."""
        if now >= self.due:
            self.due = now + SNAPSHOT
            flows = {side: copy(flow) for side, flow in self._flows.items()}
            self._shown.leave(self._snapshots.take(now), flows, now)

    def close(self) -> None:
        """Serve no more."""
        self._exposition.close()


class _Outbox:
    """What one slow peer has not taken yet."""

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self.messages: deque[tuple[bytes, Sequence[Any], Batch | None]] = deque()
        self.bytes = 0

    def put(self, action: Send, envelope: bytes) -> None:
        # A batch's items are held by the core anyway; what else was said need not be kept twice.
        batch = action.message if isinstance(action.message, Batch) else None
        self.messages.append((envelope, action.frames, batch))
        self.bytes += len(envelope) + sum(map(len, action.frames))

    def sent(self) -> None:
        envelope, frames, _ = self.messages.popleft()
        self.bytes -= len(envelope) + sum(map(len, frames))

    def first_batch(self) -> Batch | None:
        """Return the first batch that has not been sent: it and those behind it cannot have begun."""
        return next((batch for *_, batch in self.messages if batch is not None), None)


def _shuffle_routing_ids() -> None:
    # libzmq counts routing ids up from one rand() of the C library, which is the same in every process until
    # it is seeded; a guessed id of a peer that left could be taken over.
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "big"))


def run(settings: BrokerSettings, lifeline: int | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT, or until whoever holds the lifeline says so; twice: at once."""
    settle_allocator()
    journal = Journal(settings.log_format, "broker", level=settings.log_level)
    broker = Broker(settings, journal)
    broker.start()
    heed_orders(broker.stop, lifeline)
    settle_collector()
    journal.event("broker started", version=version(), pid=os.getpid(), **describe(settings))
    try:
        broker.run()
    finally:
        broker.close()
        journal.event("broker ended")
        journal.close()
    return 0
