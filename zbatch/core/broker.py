"""The broker's brain: who speaks, what each message means, and what a turn is.

It ties the smaller brains together: who is who (``links.py``), what clients are owed (``ledger.py``), who
runs what (``dispatch.py``).  It reads no clock and opens no item.  A turn of the body is: ``handle`` every
message that has arrived, then ``tick``, which expires, hands out batches and pays what clients are owed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_never

from zbatch.config import BrokerCoreSettings
from zbatch.core.actions import Send
from zbatch.core.deadlines import Deadlines
from zbatch.core.dispatch import Dispatcher
from zbatch.core.ledger import Ledger
from zbatch.core.links import MAY_BE, Identity, Link, Links, moved
from zbatch.core.orders import Orders
from zbatch.core.session import SLOWEST
from zbatch.core.sizes import Measure, size_of
from zbatch.core.status import snapshot
from zbatch.core.topics import Topics
from zbatch.messages import (
    AnyMessage,
    Batch,
    Beat,
    Bulk,
    Bye,
    Cancel,
    Children,
    Denied,
    Done,
    Draining,
    Fault,
    Hello,
    Message,
    Order,
    Ordered,
    Progress,
    Pulse,
    Ready,
    Request,
    Returned,
    Status,
    StatusAsk,
    Taken,
    Welcome,
    Who,
    Yielded,
)

EVENTS = 256
"""Lines kept for printing: a body that prints each turn never loses one."""

IDLE_CLIENT = 60.0
"""Seconds after which a silent client with nothing open is forgotten; it says HELLO when it comes back."""


class BrokerCore:
    """Everything that a broker decides."""

    def __init__(self, settings: BrokerCoreSettings, epoch: bytes, measure: Measure = size_of) -> None:
        self.settings = settings
        self.epoch = epoch
        self.counters: dict[str, int] = {}
        self.events: list[tuple[str, dict[str, object]]] = []
        """What an operator may want to read; the body prints and clears it."""
        self.draining = False
        self.started: float | None = None
        self.links = Links()
        self.topics = Topics(settings)
        self._out: list[Send] = []
        self.ledger = Ledger(settings, self.topics, measure)
        self.dispatcher = Dispatcher(settings, epoch, self.topics, self.ledger, self._out, self.note)
        self._orders = Orders(self.links, self.topics, self.dispatcher, self._out)
        self._watch: Deadlines[Link] = Deadlines()
        self._handlers: dict[str, dict[type, Callable[[Link, Any, Sequence[Any], float], None]]] = {
            "client": {
                Request: self._on_request,
                Cancel: self._on_cancel,
                Taken: self._on_taken,
                Beat: self._on_client_beat,
                Bye: self._on_client_bye,
                Bulk: self._on_bulk,
                StatusAsk: self._on_status,
                Order: self._on_order,
            },
            "worker": {
                Done: self._on_done,
                Yielded: self._on_yielded,
                Progress: self._on_progress,
                Ready: self._on_ready,
                Beat: self._on_worker_beat,
                Returned: self._on_returned,
                Draining: self._on_draining,
                Bye: self._on_worker_bye,
                Bulk: self._on_bulk,
            },
            "supervisor": {Children: self._on_children, Bye: self._on_supervisor_bye},
        }

    # --- what the body calls -----------------------------------------------------------------------

    def handle(
        self,
        peer: bytes,
        message: AnyMessage,
        frames: Sequence[Any],
        now: float,
        identity: Identity | None = None,
    ) -> list[Send]:
        """Take in one message; return what must be said at once.

        ``identity`` is whose key the connection has; it is read only in a HELLO.
        """
        link = self.links.by_peer.get(peer)
        if link is None or message.conn != link.conn or type(message) is Hello:
            self._on_stranger(peer, message, now, identity)
        else:
            link.heard = now
            link.received = message.number
            if message.ack > link.acked:
                link.acked = message.ack
                if link.role == "client":
                    self.ledger.clients[link.life].acknowledged(message.ack)
            handler = self._handlers[link.role].get(type(message))
            if handler is None:
                self.count(f"unexpected_{type(message).__name__.lower()}")
            else:
                handler(link, message, frames, now)
        return self._taken()

    def tick(self, now: float) -> list[Send]:
        """Let time pass: expire, watch, hand out batches, pay what clients are owed."""
        if self.started is None:
            self.started = now
        self.ledger.expire(now)
        for link in self._watch.due(now):
            self._look_at(link, now)
        self.dispatcher.dispatch(now)
        self._orders.tick()
        self._out += self.ledger.flush()
        return self._taken()

    def wakeup(self) -> float | None:
        """Return when to tick next, at the latest; None: when something happens."""
        times = (self.ledger.wakeup(), self._watch.next(), self.topics.wakeup(), self.dispatcher.wakeup())
        return min((time for time in times if time is not None), default=None)

    def unreachable(self, peer: bytes, now: float, unsent: Message | None = None) -> None:
        """Learn that a peer's connection is gone; its life may come back on another one.

        ``unsent`` is the message that found no connection: what it asks for has certainly not begun.
        """
        if type(unsent) is Batch:
            self.dispatcher.unsent(unsent.batch)
        link = self.links.by_peer.pop(peer, None)
        if link is None:
            return
        self.count("unreachable")
        worker = self.dispatcher.workers.get(link.life)
        if worker is not None:
            self.dispatcher.unreachable(worker, now)
        link.gone = now
        self._watch_from(link, now + self.settings.timing.rejoin)

    def slept(self, since: float, now: float) -> None:
        """Leave our own pause out of every liveness timer: our sleep is nobody's death.

        It lies somewhere between the last tick, ``since``, and now; who could not be heard was not silent.
        """
        for link in self.links.by_life.values():
            link.heard = moved(link.heard, since, now)
            if link.gone is not None:
                link.gone = moved(link.gone, since, now)
        self.dispatcher.slept(since, now)

    def count(self, what: str) -> None:
        """Count something that an operator may ask about."""
        self.counters[what] = self.counters.get(what, 0) + 1

    def note(self, what: str, **facts: object) -> None:
        """Count something and keep a line about it for whoever prints."""
        self.count(what.replace(" ", "_"))
        if len(self.events) < EVENTS:
            self.events.append((what, facts))

    def drain(self) -> list[Send]:
        """Take nothing new, hand back what waits; what runs may finish."""
        self.draining = True
        self.ledger.hand_back()
        self._out += self.ledger.flush()
        return self._taken()

    @property
    def is_drained(self) -> bool:
        """Whether nothing runs any more and nobody is owed anything."""
        return self.draining and not any(topic.items for topic in self.topics.all.values())

    # --- who is who --------------------------------------------------------------------------------

    def _on_stranger(self, peer: bytes, message: AnyMessage, now: float, identity: Identity | None) -> None:
        if type(message) is not Hello:
            self.count("strange_messages")
            if type(message) is not Bye and self.links.may_ask(peer, now):
                self._out.append(Send(peer, Who(message.conn, 0, max(0, message.number - 1))))
            return
        known = self.links.by_life.get(message.life)
        if self.settings.keyed:
            before = self.links.by_peer.get(peer)
            identity = identity or (before.identity if before is not None else None)
            fault = _forbids(identity, message, known)
            if fault is not None:
                self._deny(peer, message, fault, now)
                return
        said_again = known is not None and known.conn == message.conn
        if known is not None and said_again and known.peer != peer:
            # Numbers that began on another connection cannot go on here: some may be lost with it.
            if self.links.may_ask(peer, now):
                self._out.append(Send(peer, Who(message.conn, 0, 0)))
            return
        link = self.links.introduce(peer, message, now, identity)
        if link is None:
            self.count("refused_hellos")
            return
        self._watch_from(link, now + self.settings.timing.suspect)
        missing = []
        if link.role == "client":
            client = self.ledger.welcome(link, anew=not said_again)
            missing = self.ledger.reconcile(client, message.open, message.next)
        elif link.role == "worker":
            named = message.open if message.epoch == self.epoch else []
            self.dispatcher.welcome(link, message.incarnation, named, message.ack if said_again else None)
        limit = self.settings.limits.message_bytes
        welcome = Welcome(*link.stamp(), self.epoch, 1, missing, limit, self._unserved(link))
        self._out.append(Send(peer, welcome))

    def _deny(self, peer: bytes, hello: Hello, fault: Fault, now: float) -> None:
        self.note("peer refused", role=hello.role, host=hello.host, pid=hello.pid, why=fault.text)
        if self.links.may_ask(peer, now):
            self._out.append(Send(peer, Denied(hello.conn, 0, 0, fault)))

    def revoke(self, peers: Sequence[bytes]) -> None:
        """Forget peers whose key is not allowed any more, with all that they asked for or held."""
        for peer in peers:
            link = self.links.by_peer.get(peer)
            if link is not None:
                self._forget(link)

    def _forget(self, link: Link) -> None:
        """Forget a peer, and what it asked for or held."""
        if link.role == "client":
            self.ledger.forget(self.ledger.clients[link.life])
        elif link.role == "worker":
            worker = self.dispatcher.workers.get(link.life)
            if worker is not None:
                self.dispatcher.lose(worker)
            self.dispatcher.forget(link)
        else:
            self.dispatcher.orphan(link)
        self.links.forget(link)

    def _look_at(self, link: Link, now: float) -> None:
        """Decide what a link's silence means, and when to look again."""
        if self.links.by_life.get(link.life) is not link:
            return
        timing = self.settings.timing
        silent = now - link.heard
        gone = link.gone is not None and now - link.gone >= timing.rejoin
        if link.heard > now and not gone:
            # Something large is on its way; whether the connection is there still, a word back will tell.
            self._out.append(Send(link.peer, Pulse(*link.stamp(), [], link.received, self._unserved(link))))
            self._watch_from(link, now + timing.client_silent)
            return
        match link.role:
            case "client":
                client = self.ledger.clients[link.life]
                patience = timing.client_silent if client.items else IDLE_CLIENT
                if gone or silent >= patience:
                    if client.items:
                        self.note("client gone", host=link.host, pid=link.pid, unfinished=client.items)
                    self._forget(link)
                    return
                self._look_again(link, link.heard + patience, now)
            case "worker":
                if gone or silent >= timing.silent:
                    self.note("worker lost", host=link.host, pid=link.pid, silent_s=round(silent, 1))
                    self._forget(link)
                    return
                if silent >= timing.suspect and link.gone is None:
                    worker = self.dispatcher.workers.get(link.life)
                    if worker is not None:
                        self.dispatcher.suspect(worker)
                    # A probe: if the connection is gone, sending says so.
                    self._out.append(Send(link.peer, Pulse(*link.stamp(), [], link.received)))
                self._look_again(link, link.heard + timing.suspect, now)
            case _:
                if gone or silent >= timing.silent:
                    self._forget(link)
                    return
                self._look_again(link, link.heard + timing.silent, now)

    def _look_again(self, link: Link, due: float, now: float) -> None:
        """Look at a silent link later; one whose connection is gone when its time to come back is over."""
        timing = self.settings.timing
        due = max(due, now + timing.beat)
        if link.gone is not None:
            due = min(due, link.gone + timing.rejoin)
        self._watch_from(link, due)

    def _watch_from(self, link: Link, due: float) -> None:
        """Look at a link at this time and not at another."""
        self._watch.discard(link.bucket, link)
        link.bucket = self._watch.add(due, link)
        link.look = due

    def _unserved(self, link: Link) -> list[str]:
        """Return the topics in which a client waits and no worker serves."""
        client = self.ledger.clients.get(link.life) if link.role == "client" else None
        if client is None or not client.items:
            return []
        unserved = set()
        for held in client.groups():
            # A pipeline is served where all the stages are that lie before it.
            ahead = [held.topic] if held.flow is None else held.flow.topics_from(held.stage)
            if not all(len(self.topics.all[topic].roster) for topic in ahead):
                unserved.add(held.topic if held.flow is None else held.flow.name)
        return sorted(unserved)[:64]

    def _taken(self) -> list[Send]:
        if not self._out:
            return []
        taken = self._out[:]
        self._out.clear()
        return taken

    def _on_bulk(self, link: Link, bulk: Bulk, _: Sequence[Any], now: float) -> None:
        """Expect nothing of a peer while something large travels, however long it takes.

        Were it forgotten meanwhile, what then arrives would be a stranger's, and would have to come again.
        That its connection is there still is found out by probes, see :meth:`_look_at`.
        """
        link.heard = now + min(bulk.size, self.settings.limits.message_bytes) / SLOWEST

    # --- clients -----------------------------------------------------------------------------------

    def _on_request(self, link: Link, request: Request, frames: Sequence[Any], now: float) -> None:
        self.ledger.request(self.ledger.clients[link.life], request, frames, now)
        patience = self.settings.timing.client_silent
        if link.look > now + patience:
            # It had nothing open and was left alone; should it die now, somebody must notice.
            self._watch_from(link, now + patience)

    def _on_cancel(self, link: Link, cancel: Cancel, _: Sequence[Any], now: float) -> None:
        client = self.ledger.clients[link.life]
        for ids in cancel.ids:
            if cancel.back:
                self.ledger.give_back(client, ids)
            else:
                self.ledger.drop(client, ids)

    def _on_taken(self, link: Link, taken: Taken, _: Sequence[Any], now: float) -> None:
        client = self.ledger.clients[link.life]
        streams = [self.ledger.relay.taken(client, one, read, now) for one, read in taken.streams]
        self.dispatcher.read([held for held in streams if held is not None])

    def _on_client_beat(self, link: Link, beat: Beat, _: Sequence[Any], now: float) -> None:
        missing = self.ledger.reconcile(self.ledger.clients[link.life], beat.open, beat.next)
        pulse = Pulse(*link.stamp(), missing, link.received, self._unserved(link))
        self._out.append(Send(link.peer, pulse))

    def _on_order(self, link: Link, order: Order, _: Sequence[Any], now: float) -> None:
        answer = self._carry_out(link, order)
        self.note("order", drain=order.what, name=order.name, undo=order.undo, host=link.host, pid=link.pid)
        fault = answer if isinstance(answer, Fault) else None
        text = answer.text if isinstance(answer, Fault) else answer
        self._out.append(Send(link.peer, Ordered(*link.stamp(), text, fault)))

    def _carry_out(self, link: Link, order: Order) -> str | Fault:
        if link.identity is not None and link.identity.role != "admin":
            return Fault("forbidden", f"the key {link.identity.name!r} may not give orders; use an admin's")
        match order.what:
            case "broker":
                # The body sees it, and leaves as on a signal.
                self.draining = True
                return "this broker leaves"
            case "worker":
                return self._orders.worker(order.name)
            case "topic":
                return self._orders.topic(order.name, undo=order.undo)
            case _:
                assert_never(order.what)

    def _on_client_bye(self, link: Link, _: Bye, __: Sequence[Any], now: float) -> None:
        self.ledger.forget(self.ledger.clients[link.life])
        self.links.forget(link)

    def _on_status(self, link: Link, _: StatusAsk, __: Sequence[Any], now: float) -> None:
        self._out.append(Send(link.peer, Status(*link.stamp(), snapshot(self, now))))

    # --- workers and supervisors -------------------------------------------------------------------

    def _on_ready(self, link: Link, ready: Ready, _: Sequence[Any], now: float) -> None:
        self.dispatcher.ready(link, ready, now)

    def _on_progress(self, link: Link, progress: Progress, _: Sequence[Any], now: float) -> None:
        self.dispatcher.progress(link, progress, now)

    def _on_done(self, link: Link, done: Done, frames: Sequence[Any], now: float) -> None:
        self.dispatcher.done(link, done, frames, now)

    def _on_yielded(self, link: Link, yielded: Yielded, frames: Sequence[Any], now: float) -> None:
        self.dispatcher.yielded(link, yielded, frames, now)

    def _on_worker_beat(self, link: Link, beat: Beat, _: Sequence[Any], now: float) -> None:
        self.dispatcher.beat(link, beat, now)
        self._out.append(Send(link.peer, Pulse(*link.stamp(), [], link.received)))

    def _on_returned(self, link: Link, returned: Returned, _: Sequence[Any], now: float) -> None:
        self.dispatcher.returned(link, returned)

    def _on_draining(self, link: Link, _: Draining, __: Sequence[Any], now: float) -> None:
        self.dispatcher.draining(link)
        # It leaves once it knows that its last outcome is here.
        self._out.append(Send(link.peer, Pulse(*link.stamp(), [], link.received)))

    def _on_worker_bye(self, link: Link, _: Bye, __: Sequence[Any], now: float) -> None:
        worker = self.dispatcher.workers.get(link.life)
        if worker is not None:
            self.dispatcher.dismiss(worker)
        self.dispatcher.forget(link)
        self.links.forget(link)

    def _on_children(self, link: Link, children: Children, _: Sequence[Any], now: float) -> None:
        self.dispatcher.supervised(link, children)
        self._out.append(Send(link.peer, Pulse(*link.stamp(), [], link.received)))

    def _on_supervisor_bye(self, link: Link, _: Bye, __: Sequence[Any], now: float) -> None:
        self.dispatcher.orphan(link)
        self.links.forget(link)


def _forbids(identity: Identity | None, hello: Hello, known: Link | None) -> Fault | None:
    """Return why somebody may not introduce itself like this, where keys are asked for."""
    if identity is None:
        return Fault("unauthorized", "this key is not allowed here (any more)")
    if hello.role not in MAY_BE[identity.role]:
        text = (
            f"the key {identity.name!r} is for the role {identity.role!r}, not to come in as {hello.role!r}"
        )
        return Fault("forbidden", text)
    if known is not None and known.identity is not None and known.identity.key != identity.key:
        return Fault("forbidden", f"the key {identity.name!r} is not the one that this life began with")
    return None
