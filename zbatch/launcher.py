"""``zbatch serve``, ``broker --supervise``, ``gateway --processes``: children that are kept alive.

Each child is a process of its own, so a model that takes its worker down leaves the broker standing.  One
that dies is started again, and held back if it does nothing but die; one that says by its exit status that
it will not do better next time (wrong settings, a model that does not load) ends the whole, for whoever
started it to see.  They leave one kind after the other, gateways, workers, broker: what a gateway still asks
must be run, and what a worker still answers must reach its caller.
"""

from __future__ import annotations

import math
import os
import select
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from zbatch import broker, worker
from zbatch.config import BrokerSettings, GatewaySettings, ServeSettings, WorkerSettings, version
from zbatch.core.supervisor import Brake
from zbatch.errors import ConfigError
from zbatch.homes import Home
from zbatch.journal import Journal
from zbatch.model import check_name
from zbatch.model_metrics import Shelf
from zbatch.parts import Role, spawn_part
from zbatch.processes import LEAVE, Alarm, Child, die_with_parent, heed_orders, reap_strangers
from zbatch.sockets import require_free
from zbatch.watchdog import Ear, Watchdog

FAILED = 1
WRONG = 2

STEADY = 60.0
"""Seconds after which a child that dies was no failed start: its brake begins anew."""

LAST_WORDS = 8.0
"""Seconds that a broker gets to leave once its workers have; it waits less than that by itself."""

BROKER_PAUSE = 0.5
"""Seconds that a broker stays away at most when it does nothing but die."""


@dataclass(slots=True, eq=False)
class _Part:
    """The broker, a worker or a gateway: what it is told, and the process that is it."""

    role: Role
    name: str
    settings: BrokerSettings | WorkerSettings | GatewaySettings
    brake: Brake
    child: Child | None = None
    started: float = 0.0
    start_at: float = 0.0
    has_served: bool = False


class Launcher:
    """Keeps a broker, its workers and gateways alive."""

    def __init__(
        self,
        journal: Journal,
        broker: BrokerSettings | None,
        workers: Sequence[WorkerSettings] = (),
        gateways: Sequence[GatewaySettings] = (),
    ) -> None:
        self._journal = journal
        self._brokers = [] if broker is None else [_Part("broker", "broker", broker, Brake())]
        self._workers = [_Part("worker", one.name or one.topic, one, Brake()) for one in workers]
        self._gateways = [_Part("gateway", f"gateway {one.http}", one, Brake()) for one in gateways]
        self._shelf = Shelf.create(len(gateways)) if len(gateways) > 1 else None
        """Where gateways that share an address show each other what they count: who is scraped shows all."""
        self._alarm = Alarm()
        self._watchdog = Watchdog()
        self._is_ready = False
        self._ear = Ear() if self._watchdog.is_heard else None
        """Hears of the parts that serve; all of them make the whole."""
        self._poll = select.poll()
        self._poll.register(self._alarm, select.POLLIN)
        if self._ear is not None:
            self._poll.register(self._ear, select.POLLIN)
        self._orders = 0
        self._leaves_until: float | None = None
        """While one kind after the other leaves."""
        self._turns: list[list[_Part]] = []
        """Those whose turn to leave has not come."""
        self._left: list[list[_Part]] = []
        self._status = 0

    def stop(self) -> None:
        """Leave: let what runs finish; called again: at once.  May be called from a signal handler."""
        self._alarm.ring()

    def run(self) -> int:
        """Supervise until stopped, or until a child gives up; return the exit status."""
        while not self._is_over():
            now = time.monotonic()
            self._watchdog.alive(now)
            self._start_due(now)
            ready = {descriptor for descriptor, _ in self._poll.poll(self._patience(now))}
            if self._alarm.fileno() in ready:
                self._orders += len(self._alarm.words())
                if self._orders > 1:
                    self._end_now()
                self._leave()
            if self._ear is not None and self._ear.fileno() in ready:
                self._hear(self._ear.serving())
            for part in self._parts():
                if part.child is not None and part.child.fileno() in ready:
                    self._bury(part)
            if os.getpid() == 1:
                reap_strangers([part.child.pid for part in self._parts() if part.child is not None])
        return self._status

    def close(self) -> None:
        """End whatever still runs and let go of everything."""
        for part in self._parts():
            if part.child is not None:
                part.child.kill()
                part.child.wait(LAST_WORDS)
                part.child.close()
                part.child = None
        if self._shelf is not None:
            self._shelf.close()
        self._alarm.close()
        if self._ear is not None:
            self._ear.close()

    def _hear(self, serving: set[int]) -> None:
        """Say that all of it serves when the last part does, for the first time."""
        for part in self._parts():
            part.has_served |= part.child is not None and part.child.pid in serving
        self._say_ready()

    def _say_ready(self) -> None:
        # A part that was ordered to leave is not started again.
        awaited = [part for part in self._parts() if not part.has_served and part.start_at < math.inf]
        if not awaited and not self._is_ready and self._leaves_until is None:
            self._is_ready = True
            self._watchdog.ready()

    def _parts(self) -> list[_Part]:
        return [*self._brokers, *self._workers, *self._gateways]

    # --- start, death, restart ---------------------------------------------------------------------

    def _start_due(self, now: float) -> None:
        for part in self._parts():
            if part.child is None and self._leaves_until is None and now >= part.start_at:
                self._start(part, now)

    def _start(self, part: _Part, now: float) -> None:
        part.started = now
        shelf = None
        if self._shelf is not None and part in self._gateways:
            shelf = self._shelf, self._gateways.index(part)
        tells = "" if self._ear is None else self._ear.address
        part.child = spawn_part(part.role, part.name, part.settings, shelf=shelf, tells=tells)
        self._poll.register(part.child.fileno(), select.POLLIN)

    def _bury(self, part: _Part) -> None:
        child, part.child = part.child, None
        assert child is not None
        status = child.wait(LAST_WORDS)
        self._poll.unregister(child.fileno())
        child.close()
        if self._leaves_until is not None:
            self._next_leave()
            return
        now = time.monotonic()
        if status == 0 and part.role == "broker":
            # An operator drained it: nobody ends a broker by mistake with an orderly goodbye.
            self._leave()
            return
        if status == 0:
            self._journal.event(
                "gateway left" if part.role == "gateway" else "worker left",
                name=part.name,
                pid=child.pid,
            )
            part.start_at = math.inf
            self._say_ready()
            return
        if status is not None and status > 0:
            # It ended itself and said why: wrong settings, or a model that does not load after several tries.
            self._journal.event(f"{part.role} gave up", level="error", name=part.name, exit=status)
            self._status = WRONG if status == WRONG else FAILED
            self._leave()
            return
        pause = part.brake.died(finished=now - part.started > STEADY)
        if part.role == "broker":
            # Everybody waits for it; and a broker has no model of its own to die of.
            pause = min(pause, BROKER_PAUSE)
        part.start_at = now + pause
        self._journal.event(
            f"{part.role} died", level="warning", name=part.name, pid=child.pid, exit=status, again_in_s=pause
        )

    # --- leaving -----------------------------------------------------------------------------------

    def _end_now(self) -> None:
        """End every part at once."""
        for part in self._parts():
            if part.child is not None:
                part.child.kill()
        now = time.monotonic()
        self._leaves_until = min(self._leaves_until or now, now + LAST_WORDS)

    def _leave(self) -> None:
        if self._leaves_until is not None:
            return
        self._watchdog.stopping()
        now = time.monotonic()
        self._turns = [self._gateways, self._workers, self._brokers]
        self._leaves_until = now
        self._journal.event("leaving", waits_s=sum(map(_longest_leave, self._turns)))
        self._next_leave()

    def _next_leave(self) -> None:
        """Have the next kind leave, once nobody is left of the one before."""
        while self._turns and all(part.child is None for parts in self._left for part in parts):
            leaving = self._turns.pop(0)
            self._left.append(leaving)
            if any(part.child is not None for part in leaving):
                self._leaves_until = time.monotonic() + _longest_leave(leaving) + LAST_WORDS
            for part in leaving:
                if part.child is not None:
                    part.child.order(LEAVE)

    def _is_over(self) -> bool:
        if self._leaves_until is None:
            return False
        return all(part.child is None for part in self._parts()) or time.monotonic() >= self._leaves_until

    def _patience(self, now: float) -> int | None:
        if self._leaves_until is not None:
            due = self._leaves_until
        else:
            due = min((part.start_at for part in self._parts() if part.child is None), default=now + 3600.0)
        due = self._watchdog.sooner(due) or due
        return max(0, int((min(due, now + 3600.0) - now) * 1000) + 1)


def _longest_leave(parts: Sequence[_Part]) -> float:
    """Return how many seconds parts take at most for what they have begun."""
    longest = 0.0
    for part in parts:
        if isinstance(part.settings, WorkerSettings):
            longest = max(longest, part.settings.timing.drain)
        elif isinstance(part.settings, GatewaySettings):
            longest = max(longest, part.settings.drain)
    return longest


def serve(settings: ServeSettings) -> int:
    """Run a broker and workers until told to leave, as a broker is; twice: at once.

    Raises :class:`ConfigError` for a model's file that is not there.
    """
    for one in settings.workers:
        check_name(one.model)
    home = Home()
    try:
        return _serve_in(home.path, settings)
    finally:
        home.remove()


def _serve_in(home: Path, settings: ServeSettings, lifeline: int | None = None) -> int:
    """Run a broker and workers with their private endpoint in a folder.

    With a lifeline they end with the process that holds its other end, and the folder with them.
    """
    private = f"ipc://{home}/backend"
    broker = structs.replace(settings.broker, backend=(private, *settings.broker.backend))
    gateways: list[GatewaySettings] = []
    if settings.gateway is not None:
        front = f"ipc://{home}/frontend"
        broker = structs.replace(broker, frontend=(*broker.frontend, front))
        one = structs.replace(settings.gateway, endpoint=(front,), keys=settings.gateway.keys or broker.keys)
        gateways = [one] * one.processes
    workers = [
        structs.replace(one, backend=(private,), keys=one.keys or broker.keys) for one in settings.workers
    ]
    try:
        return _keep_alive(
            Launched("serve", broker, workers, gateways),
            lifeline=lifeline,
            home=home,
            models=[f"{one.topic}: {one.model}" for one in workers],
        )
    finally:
        if lifeline is not None:
            shutil.rmtree(home, ignore_errors=True)


def supervise(settings: BrokerSettings) -> int:
    """Run a broker that is started again when it dies, until SIGTERM or SIGINT."""
    return _keep_alive(Launched("supervisor", settings))


def keep_gateways(settings: GatewaySettings) -> int:
    """Run the gateway processes that share an address, until SIGTERM or SIGINT."""
    return _keep_alive(
        Launched("gateways", None, gateways=[settings] * settings.processes), http=settings.http
    )


class Launched(NamedTuple):
    """What is kept alive, and under which name it writes its log."""

    who: str
    broker: BrokerSettings | None
    workers: Sequence[WorkerSettings] = ()
    gateways: Sequence[GatewaySettings] = ()


def _keep_alive(launched: Launched, *, lifeline: int | None = None, **facts: Any) -> int:
    if len(launched.gateways) > 1:
        require_free(launched.gateways[0].http)
    first = launched.broker or launched.gateways[0]
    journal = Journal(first.log_format, launched.who, level=first.log_level)
    launcher = Launcher(journal, *launched[1:])
    heed_orders(launcher.stop, lifeline)
    journal.event("launcher started", version=version(), pid=os.getpid(), **facts)
    try:
        return launcher.run()
    finally:
        launcher.close()
        journal.event("launcher ended")
        journal.close()


def main(role: str, name: str, config: int, lifeline: int) -> int:
    """Be the child that was started with these descriptors: a broker, a worker, or the launcher of both."""
    if role != "serve":
        die_with_parent(lifeline)
    with os.fdopen(config, "rb") as stream:
        told = stream.read()
    try:
        if role == "serve":
            return _serve_in(Path(name), msgspec.json.decode(told, type=ServeSettings), lifeline)
        if role == "broker":
            return broker.run(msgspec.json.decode(told, type=BrokerSettings), lifeline)
        return worker.run(msgspec.json.decode(told, type=WorkerSettings), lifeline)
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        return WRONG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
