"""A whole cluster in memory: real brains, a network that loses what is in a broken connection, its own clock.

Messages of one connection stay in order, those of different ones overtake each other as the test wants.
Every message goes through the wire format, its buffers beside it.  What the model answers is said in
``models_of_bytes.py``; an item that begins with ``!`` ends the process that runs it, one that begins with
``?`` fails.  Of an item that is streamed it yields some parts, one a step, each with the incarnation of its
process; what else the item does happens behind the first of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.models_of_bytes import Made, buffers_of, made, made_along, opened
from zbatch import wire
from zbatch.config import BrokerCoreSettings, Timing
from zbatch.core.actions import Send
from zbatch.core.broker import BrokerCore
from zbatch.core.calls import Answered, Call, Came, Failed, Finished
from zbatch.core.client import ClientCore
from zbatch.core.stream import Inflow
from zbatch.core.supervisor import SupervisorCore
from zbatch.core.worker import Job, Offer, WorkerCore
from zbatch.messages import Child, Fault, Route
from zbatch.pipelines import Pipeline, pipeline

BROKER = b"\0"
TOPIC, OTHER = "bert", "clip"
LINE = pipeline(TOPIC, OTHER, TOPIC)
BRANCHES = pipeline({"left": TOPIC, "right": OTHER, "item": []}, TOPIC)

Parcel = tuple[bytes, list[Any]]
"""What travels: an envelope and its buffers."""


def parts_of(item: bytes) -> int:
    """Return how many parts the model yields for an item that is streamed; of a bad one, that is too many."""
    return 9 if item[:1] in b"!?" else sum(item) % 4


@dataclass(eq=False)
class Line:
    """One node's connection to the broker: what travels each way."""

    side: bytes
    core: Any
    peer: bytes
    up: deque[Parcel] = field(default_factory=deque)
    down: deque[Parcel] = field(default_factory=deque)


@dataclass(eq=False)
class Asked:
    """A call of the test's, and all outcomes that it ever had."""

    call: Call
    items: list[bytes]
    rich: bool
    """Whether its items have buffers."""
    deadline: float
    route: Route | None = None
    outcomes: list[Any] = field(default_factory=list)
    """A code, or one an item: its output and that one's buffers, or a code."""
    cancelled: bool = False
    parts: list[bytes] = field(default_factory=list)
    """Those of a stream that have come."""

    def own(self) -> list[Any]:
        """Return what the model makes of the items."""
        return [made_along(self.route, item, buffers_of(item) if self.rich else []) for item in self.items]


class Gone:
    """A process that has left; what it said last may still travel."""

    def handle(self, *_: Any) -> list[Send]:
        return []

    def tick(self, now: float) -> list[Send]:
        return []

    def wakeup(self) -> None:
        return None


@dataclass(eq=False)
class Host:
    """A supervisor and its one model process."""

    supervisor: Line
    worker: Line
    incarnation: bytes
    offer: Offer
    job: Job | None = None
    step: int = 0
    begun: tuple[bytes, int] = (b"", 0)
    finished: int = 0


class Network:
    """Broker, clients and hosts, and what travels between them."""

    def __init__(self, clients: int, hosts: int, settings: BrokerCoreSettings, *offers: Offer) -> None:
        self.now = 0.0
        self.settings = settings
        self.begun: Counter[tuple[str, bytes]] = Counter()
        """How often each item began to run in each topic."""
        self.lives = count(1)
        self.lines: dict[bytes, Line] = {}
        self.asked: list[Asked] = []
        self.calls: dict[Call, Asked] = {}
        self.broker = self._broker()
        self.clients = [self._line(b"F", self._client()) for _ in range(clients)]
        self.hosts = [self._host(offer) for offer in offers for _ in range(hosts)]

    # --- what the test does ------------------------------------------------------------------------

    def ask(
        self,
        client: int,
        items: list[bytes],
        timeout: float,
        *,
        together: bool,
        rich: bool,
        key: str = "",
        pipe: Pipeline | None = None,
    ) -> None:
        """Let a client ask for items, as one call or as one call each."""
        core: ClientCore = self.clients[client].core
        for part in [items] if together else [[item] for item in items]:
            call = Call()
            call.deadline = self.now + timeout
            call.buffers = [buffers_of(item) for item in part] if rich else None
            if together:
                call.mark = (pipe or TOPIC, key, 0, call)
                call.items, call.outputs, call.left = part, [None] * len(part), len(part)
            else:
                call.mark = (pipe or TOPIC, key, 0, not rich, True)
                call.item = part[0]
            asked = Asked(call, part, rich, call.deadline, pipe.route if pipe is not None else None)
            self.asked.append(asked)
            self.calls[call] = asked
            core.submit(call)
        self._perform(self.clients[client], core.flush(self.now))

    def read(self, client: int, item: bytes, timeout: float) -> None:
        """Let a client ask for a stream."""
        call = Call()
        call.deadline = self.now + timeout
        call.mark = (TOPIC, "", 0, call)
        call.items, call.outputs, call.left = [item], [None], 1
        call.inflow = Inflow(timeout)
        asked = Asked(call, [item], False, call.deadline)
        self.asked.append(asked)
        self.calls[call] = asked
        line = self.clients[client]
        line.core.submit(call)
        self._perform(line, line.core.flush(self.now))

    def cancel(self, client: int, asked: Asked) -> None:
        """Let a caller give up; what has an outcome keeps it."""
        if not asked.outcomes and not asked.cancelled:
            asked.cancelled = True
            line = self.clients[client]
            self._perform(line, line.core.cancel(asked.call, self.now))

    def deliver(self, which: int) -> bool:
        """Deliver the next message of one connection; return whether there was any."""
        waiting = [(line, way) for line in self.lines.values() for way in (line.up, line.down) if way]
        if not waiting:
            return False
        line, way = waiting[which % len(waiting)]
        envelope, frames = way.popleft()
        message = wire.decode(envelope, len(frames))
        if way is line.up:
            self._route(self.broker.handle(line.peer, message, frames, self.now))
            self._route(self.broker.tick(self.now))
        else:
            self._perform(line, line.core.handle(BROKER, message, frames, self.now))
        return True

    def run_model(self, which: int) -> None:
        """Let a host begin a batch, or end the one that runs."""
        host = self.hosts[which % len(self.hosts)]
        core: WorkerCore = host.worker.core
        if host.job is None:
            host.job, actions = core.begin(self.now)
            host.step = 0
            self._perform(host.worker, actions)
            if host.job is not None:
                host.begun = (host.job.epoch, host.job.number)
                self.begun.update((host.offer.topic, item) for item, _ in self._seen(host.job))
            elif core.is_drained(self.now):
                self._perform(host.worker, core.stop())
                host.worker.core = Gone()
                self._replace(host, 0, "left")
            return
        seen = self._seen(host.job)
        if any(host.job.streams()) and self._yield(host, host.job, seen):
            return
        if any(item.startswith(b"!") for item, _ in seen):
            self.kill(which)
            return
        failed = [at for at, (item, _) in enumerate(seen) if item[:1] == b"?"]
        errors = [(at, Fault("model_failed", "no")) for at in failed]
        results = [(b"", []) if at in failed else made(*one) for at, one in enumerate(seen)]
        outputs = [output for output, _ in results]
        out = [own for _, own in results] if any(own for _, own in results) else None
        job, host.job = host.job, None
        host.finished = job.number
        self._perform(host.worker, core.finished(job, outputs, out, errors or None, 0.01))

    def _yield(self, host: Host, job: Job, seen: list[Made]) -> bool:
        """Let a host's model take a step; return whether another one follows."""
        items, flows, core = [item for item, _ in seen], job.streams(), host.worker.core
        waited_for = [at for at, flow in enumerate(flows) if flow is None or flow.is_open]
        if core.are_held_up(job, waited_for, self.now):
            self._perform(host.worker, core.progress())
            return True
        if host.step and any(item.startswith(b"!") for item in items):
            return False
        parts: list[tuple[int, bytes, Any]] = []
        ended: list[tuple[int, Fault | None]] = []
        for at, item in enumerate(items):
            if flows[at] is None:
                continue
            if item[:1] == b"?" and host.step:
                ended.append((at, Fault("model_failed", "no")))
            elif host.step < parts_of(item):
                part = b"y%s/%d@%s" % (item, host.step, host.incarnation.hex().encode())
                parts.append((at, part, ()))
            else:
                ended.append((at, None))
        host.step += 1
        self._perform(host.worker, core.put(job, parts, ended))
        return any(flow is not None and flow.is_open for flow in flows)

    def kill(self, which: int) -> None:
        """End a model process; its supervisor tells, and starts another."""
        host = self.hosts[which % len(self.hosts)]
        self._cut(host.worker)
        del self.lines[host.worker.peer]
        self._replace(host, -9, "killed")

    def retire(self, which: int) -> None:
        """Let a model process take nothing new; it leaves when what runs has ended."""
        host = self.hosts[which % len(self.hosts)]
        self._perform(host.worker, host.worker.core.drain())

    def break_link(self, which: int, *, noticed: bool) -> None:
        """Break a connection: what it carried is lost, and there is another one."""
        line = list(self.lines.values())[which % len(self.lines)]
        self._cut(line)
        del self.lines[line.peer]
        if noticed:
            self.broker.unreachable(line.peer, self.now)
        line.peer = self._name(line.side)
        self.lines[line.peer] = line

    def restart_broker(self) -> None:
        """Kill the broker and start another one in its place."""
        for line in list(self.lines.values()):
            self._cut(line)
            del self.lines[line.peer]
            line.peer = self._name(line.side)
            self.lines[line.peer] = line
        self.broker = self._broker()

    def wait(self, seconds: float) -> None:
        """Let time pass, with everybody awake when they want to be."""
        until = self.now + seconds
        while True:
            wakeups = [self.broker.wakeup(), *(line.core.wakeup() for line in self.lines.values())]
            due = min((one for one in wakeups if one is not None), default=until)
            self.now = min(until, max(due, self.now))
            self._route(self.broker.tick(self.now))
            for line in list(self.lines.values()):
                self._perform(line, line.core.tick(self.now))
            if self.now >= until:
                return
            if due <= self.now:
                self.now += 0.001

    def settle(self, seconds: float) -> None:
        """Let everything work as it should for a while."""
        until = self.now + seconds
        while self.now < until:
            while self.deliver(0):
                pass
            for which in range(len(self.hosts)):
                self.run_model(which)
            self.wait(0.0 if any(line.up or line.down for line in self.lines.values()) else 0.05)

    # --- inside ------------------------------------------------------------------------------------

    def _perform(self, line: Line, actions: Iterable[Any]) -> None:
        for action in actions:
            if isinstance(action, Send):
                line.up.append((wire.encode(action.message), list(action.frames)))
            elif isinstance(action, Answered):
                for at, call in enumerate(action.calls):
                    if call is not None:
                        buffers = list(action.buffers[at]) if action.buffers is not None else []
                        self.calls[call].outcomes.append([(action.outputs[at], buffers)])
            elif isinstance(action, Came):
                self._came(line, action)
            elif isinstance(action, Finished) and action.call.inflow is not None:
                self.calls[action.call].outcomes.append(self._ended(action.call))
            elif isinstance(action, Finished):
                faults = action.call.faults or {}
                self.calls[action.call].outcomes.append(
                    [
                        faults[at].code if at in faults else (one[0], list(one[1]))
                        for at, one in enumerate(action.call.outputs)
                    ]
                )
            elif isinstance(action, Failed):
                for call in action.calls:
                    self.calls[call].outcomes.append(action.fault.code)

    def _came(self, line: Line, came: Came) -> None:
        """Check that parts come each once, in order, and all of one run."""
        asked, inflow = self.calls[came.call], came.call.inflow
        assert inflow is not None
        assert not asked.outcomes
        for (payload, _), weight in came.parts:
            asked.parts.append(payload)
            inflow.taken += weight
        runs = {payload.rpartition(b"@")[2] for payload in asked.parts}
        wanted = [b"y%s/%d" % (asked.items[0], at) for at in range(len(asked.parts))]
        assert [payload.rpartition(b"@")[0] for payload in asked.parts] == wanted
        assert len(runs) == 1
        if inflow.is_due:
            self._perform(line, line.core.read([came.call], self.now))

    def _ended(self, call: Call) -> list[Any]:
        """Return what became of a stream; a whole one is what the model makes of the item."""
        asked = self.calls[call]
        if call.faults:
            return [call.faults[0].code]
        assert len(asked.parts) == parts_of(asked.items[0])
        return asked.own()

    def _route(self, actions: Iterable[Send]) -> None:
        for action in actions:
            line = self.lines.get(action.peer)
            if line is None:
                self.broker.unreachable(action.peer, self.now)
            else:
                line.down.append((wire.encode(action.message), list(action.frames)))

    def _cut(self, line: Line) -> None:
        line.up.clear()
        line.down.clear()

    def _broker(self) -> BrokerCore:
        return BrokerCore(self.settings, next(self.lives).to_bytes(8))

    def _mint(self, size: int) -> bytes:
        return next(self.lives).to_bytes(size)

    def _name(self, side: bytes) -> bytes:
        return side + b"\0" + next(self.lives).to_bytes(4)

    def _client(self) -> ClientCore:
        return ClientCore(1, self._mint(16), self._mint, Timing())

    def _line(self, side: bytes, core: Any) -> Line:
        line = Line(side, core, self._name(side))
        self.lines[line.peer] = line
        self._perform(line, core.start(self.now))
        return line

    def _seen(self, job: Job) -> list[Made]:
        """Return what the model sees of a batch."""
        items, buffers, *_ = job.work()
        return [opened(item, buffers[at] if buffers else ()) for at, item in enumerate(items)]

    def _host(self, offer: Offer) -> Host:
        core = SupervisorCore(1, self._mint(16), self._mint, Timing(), offer.topic)
        supervisor = self._line(b"B", core)
        host = Host(supervisor, supervisor, b"", offer)
        self._start_worker(host)
        return host

    def _replace(self, host: Host, code: int, reason: str) -> None:
        epoch, begun = host.begun
        dead = Child(host.incarnation, False, epoch, begun, host.finished, exit=code, reason=reason)
        self._perform(host.supervisor, host.supervisor.core.changed(dead, self.now))
        self._start_worker(host)

    def _start_worker(self, host: Host) -> None:
        host.incarnation = self._mint(8)
        host.job, host.begun, host.finished = None, (b"", 0), 0
        core = WorkerCore(1, self._mint(16), host.incarnation, self._mint, Timing())
        child = Child(host.incarnation, True)
        self._perform(host.supervisor, host.supervisor.core.changed(child, self.now))
        host.worker = self._line(b"B", core)
        self._perform(host.worker, core.ready(host.offer))
