"""One seed, from its first step to its last: a cluster, what is asked of it, and what is done to it.

A seed first decides what kind of life it is: how many of each, which faults and how often, how tight the
bounds.  So some lives know one kind of fault only, and others all at once.  After a while faults stop, and
everything that was asked must end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.simulator.brokers import Broker
from tests.simulator.callers import Asked, Caller
from tests.simulator.checks import Checks
from tests.simulator.faults import Faults
from tests.simulator.hosts import Farm, Host
from tests.simulator.world import World
from zbatch.config import BrokerCoreSettings, Limits, Timing
from zbatch.core import client as client_core
from zbatch.core import dispatch, grouping, stream
from zbatch.core.worker import Offer
from zbatch.pipelines import Pipeline, pipeline

TROUBLE = 12.0
"""Seconds in which faults happen."""

HEALED = 47.0
"""Seconds that heal all wounds: 12 of silence, 4 to come back, leases, brakes, batches apart one by one,
and 12 in which a client still bears a broker without workers."""

SILENCES = 16.0
"""Seconds after which every silence has ended."""

STEPS = 200_000
"""A life that takes more has run into a loop."""


@dataclass
class Report:
    """What became of a life."""

    seed: int
    failure: str = ""
    steps: int = 0
    met: Counter[str] = field(default_factory=Counter)
    """Which faults met what, and which outcomes there were."""
    story: list[str] = field(default_factory=list)


class Life:
    """A cluster and its fate."""

    def __init__(self, seed: int, *, tells: bool = False) -> None:
        world = self.world = World(seed, tells=tells)
        self.met: Counter[str] = Counter()
        self.idempotent = world.maybe(0.7)
        self.batching = world.one_of(("eager", "eager", "window"))
        self.timing = Timing()
        self.limits = Limits()
        self.tight = world.maybe(0.25)
        """Whether bounds are reached."""
        if self.tight:
            self.limits = Limits(
                topic_items=world.random.randint(4, 30),
                client_items=world.random.randint(3, 15),
                client_bytes=world.random.randint(50, 1_000),
                topic_bytes=world.random.randint(50, 2_000),
                unserved_topics=world.random.randint(1, 3),
            )
        settings = BrokerCoreSettings(batching=self.batching, limits=self.limits, timing=self.timing)
        self.checks = Checks(self)
        reads = world.one_of((1, 2, 256))
        self.brokers = [
            Broker(world, f"broker{at}", settings, reads, self._look)
            for at in range(world.one_of((1, 1, 1, 2, 2, 3)))
        ]
        routers = [broker.router for broker in self.brokers]
        delay = world.one_of((0.0002, 0.0002, 0.002, 0.02, 0.2))
        self.farms = {
            topic: Farm(
                Offer(
                    topic,
                    world.random.randint(1, 5),
                    None,
                    world.one_of((0.0, 0.01, 0.2)),
                    world.one_of((1, 2, 2, 3)),
                    world.one_of((None, 0.5, 2.0)),
                    self.idempotent,
                ),
                self.timing,
                world.one_of((0.001, 0.01, 0.1, 0.4)),
                world.one_of((0.05, 0.5, 2.0)),
                world.one_of((0.0, 0.0, 0.1)),
            )
            for topic in ("bert", "clip")[: world.one_of((1, 1, 2))]
        }
        self.pipes: list[Pipeline] = []
        """The pipelines that are asked for, in most of the lives that have two farms."""
        if len(self.farms) > 1 and world.maybe(0.75):
            branches: Any = {"left": "bert", "right": ["clip", "bert"], "item": []}
            self.pipes = [pipeline("bert", "clip"), pipeline(branches, "clip")]
        self.hosts = [
            Host(world, f"host{at}", routers, self._farm(at), delay)
            for at in range(max(len(self.farms), world.random.randint(1, 3)))
        ]
        self.callers = [
            Caller(world, f"c{at}-", routers, self.timing, delay) for at in range(world.random.randint(1, 3))
        ]
        self.gone: list[Caller] = []
        """Clients that left or died."""
        self._routers = routers
        self.delay = delay
        self._asks = world.one_of((1.0, 4.0, 12.0))
        """Calls a second, all clients together."""
        self._marks = world.one_of(("", "", "?", "=", "?=", "!", "~", "!?~="))
        """What items may do to their model."""
        self._streams = world.one_of((0.0, 0.2, 0.6))
        """How many of the calls are streams."""
        self._count = 0
        self._crashes = any(farm.crash_after for farm in self.farms.values())
        self.faults = Faults(self)

    @property
    def calm(self) -> bool:
        """Whether nothing is done to it from outside."""
        return not self.faults.kinds and not self._crashes

    def _farm(self, at: int) -> Farm:
        farms = list(self.farms.values())
        return farms[at % len(farms)]

    @property
    def asked(self) -> list[Asked]:
        """Return every call that was made."""
        return [asked for caller in self.callers + self.gone for asked in caller.asked]

    def live(self) -> None:
        """Run it to its end; raises ``AssertionError`` where a rule is broken."""
        world = self.world
        self._ask()
        self.faults.begin()
        self._run(lambda: world.now >= TROUBLE)
        self.faults.stop()
        enough = self.checks.have_time(HEALED)
        waiting = self.asked

        def all_over() -> bool:
            while waiting and waiting[-1].over:
                waiting.pop()
            return not waiting

        self._run(all_over)
        self.checks.ended_well(enough)
        # What is lost in a wound that has not healed may have run: a model may refuse it then.
        healed = 0.0 if self.idempotent else TROUBLE + SILENCES
        self._run(lambda: world.now >= healed)
        self.checks.work_again()
        quiet = world.now + 2.0
        self._run(lambda: world.now >= quiet)
        patience = world.now + 40.0
        self._run(lambda: world.now >= patience or self.checks.is_empty())
        self.checks.nothing_is_left()

    def _run(self, over: Callable[[], bool]) -> None:
        world = self.world
        while not over():
            world.step()
            self.met["steps"] += 1
            assert self.met["steps"] < STEPS, "it goes round in circles"

    def _look(self) -> None:
        self.checks.hold()

    # --- who asks ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        world = self.world
        if world.now >= TROUBLE:
            return
        world.after(world.random.expovariate(self._asks), self._ask)
        caller = world.one_of(self.callers)
        mine = [one for one in caller.asked if not one.over]
        if mine and world.maybe(0.1):
            asked = world.one_of(mine)
            world.tell(f"{caller.name} gives up {asked.items}")
            self.met[f"cancel while {self.checks.place_of(asked)}"] += 1
            caller.give_up(asked)
            return
        topic: str | Pipeline = world.one_of(list(self.farms) if world.maybe(0.95) else ["nobody"])
        if world.maybe(self._streams):
            self.read(caller, str(topic), world.one_of((0.5, 3.0, 90.0, 90.0)))
            return
        if self.pipes and world.maybe(0.5):
            topic = world.one_of(self.pipes)
        self.ask(
            caller,
            topic,
            world.one_of((1, 1, 1, 2, 3, 7)),
            world.one_of((0.05, 0.5, 3.0, 90.0, 90.0)),
        )

    def ask(
        self, caller: Caller, topic: str | Pipeline, items: int, timeout: float, *, plain: bool = False
    ) -> None:
        """Let a client ask for items, each of its own name."""
        world = self.world
        names = []
        for _ in range(items):
            self._count += 1
            mark = world.one_of(self._marks) if self._marks and not plain and world.maybe(0.08) else ""
            later = ">" if mark and isinstance(topic, Pipeline) and world.maybe(0.5) else ""
            name = topic if isinstance(topic, str) else "bertclip"
            names.append(f"{later}{mark}{caller.name}{name}{self._count}".encode())
        together = world.maybe(0.5)
        rich = world.maybe(0.3)
        key = world.one_of(("", "", "de", "en"))
        priority = world.one_of((0, 0, 0, 5))
        label = topic if isinstance(topic, str) else topic.name
        world.tell(f"{caller.name} asks {label} for {names}, {timeout} s, together={together}")
        caller.ask(names, timeout, together=together, rich=rich, topic=topic, key=key, priority=priority)

    def read(self, caller: Caller, topic: str, timeout: float) -> None:
        """Let a client ask for a stream, of a name of its own."""
        world = self.world
        self._count += 1
        marks = self._marks.replace(">", "")
        mark = world.one_of(marks) if marks and world.maybe(0.08) else ""
        name = f"{mark}{caller.name}{topic}{self._count}".encode()
        slow, rich = world.maybe(0.2), world.maybe(0.3)
        world.tell(f"{caller.name} reads {topic} of {name!r}, {timeout} s, slow={slow}")
        caller.read(name, timeout, topic=topic, slow=slow, rich=rich)

    def new_caller(self, old: Caller) -> None:
        """Put another client in the place of one that went."""
        self.callers.remove(old)
        self.gone.append(old)
        name = f"c{len(self.callers) + len(self.gone)}-"
        self.callers.append(Caller(self.world, name, self._routers, self.timing, self.delay))


@contextmanager
def rare_made_common(seed: int) -> Iterator[None]:
    """Make what needs thousands of items happen with a few, in half of the lives."""
    changed: list[tuple[Any, str, Any]] = [
        (grouping, "GROUP_ITEMS", 2),
        (grouping, "GROUP_BYTES", 40),
        (client_core, "MESSAGE_BYTES", 60),
        (dispatch, "WITHDRAWN", 1),
        (stream, "WINDOW", 150),
        (stream, "KEPT", 200),
    ]
    before = [getattr(module, name) for module, name, _ in changed]
    for module, name, value in changed:
        if seed % 2:
            setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(changed, before, strict=True):
            setattr(module, name, value)


def live(seed: int, *, tells: bool = False) -> Report:
    """Run one life and report on it."""
    with rare_made_common(seed):
        life = Life(seed, tells=tells)
        report = Report(seed)
        try:
            life.live()
        except Exception as error:
            report.failure = f"{type(error).__name__}: {error}"
            life.world.tell(report.failure)
    report.met = life.checks.summary()
    report.steps = report.met.pop("steps")
    report.story = life.world.story
    return report
