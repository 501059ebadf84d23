"""A client's body in the simulator, its callers with it: what they asked for and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.models_of_bytes import buffers_of, root_of
from tests.simulator.network import Dealer, Parcel, Router
from tests.simulator.processes import Process
from tests.simulator.world import World
from zbatch import wire
from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.calls import Action, Answered, Call, Came, Failed, Finished
from zbatch.core.client import ClientCore
from zbatch.core.links import FRONT
from zbatch.core.stream import Inflow, Part
from zbatch.messages import Fault, Parts, Result, Route
from zbatch.pipelines import Pipeline


@dataclass(eq=False)
class Asked:
    """A call, and every outcome that it ever had."""

    client: Caller
    call: Call
    items: list[bytes]
    rich: bool
    """Whether its items have buffers."""
    asked: float
    """World time."""
    deadline: float
    """By the client's clock."""
    lag: float
    """For how long its process had not run when it was asked."""
    route: Route | None = None
    """The pipeline that it goes through."""
    outcomes: list[Any] = field(default_factory=list)
    """A code, or one an item: its output and that one's buffers, or a code."""
    cancelled: bool = False
    streamed: bool = False
    slow: bool = False
    """Whether its reader takes its time for each part."""
    parts: list[Part] = field(default_factory=list)
    """Those of a stream that have come."""

    @property
    def over(self) -> bool:
        """Whether nobody waits for it any more."""
        return bool(self.outcomes) or self.cancelled or not self.client.alive


def parts_of(item: bytes) -> int:
    """Return how many parts the model yields for an item."""
    return sum(item) % 5


class Caller(Process):
    """One client's process: its core, a DEALER a broker, and who asks."""

    def __init__(self, world: World, name: str, routers: list[Router], timing: Timing, delay: float) -> None:
        super().__init__(world, name)
        self.asked: list[Asked] = []
        self._calls: dict[Call, Asked] = {}
        self.core = ClientCore(len(routers), world.mint(16), world.mint, timing)
        self.dealers = [
            Dealer(world, router, FRONT, lambda parcel, index=index: self._arrived(index, parcel), delay)  # type: ignore[misc]
            for index, router in enumerate(routers)
        ]
        self._perform(self.core.start(self.now()))
        self.soon()

    # --- its loop ----------------------------------------------------------------------------------

    def wakeup(self) -> float | None:
        return self.core.wakeup()

    def turn(self) -> None:
        self._perform(self.core.flush(self.now()))
        while self.inbox:
            peer, (envelope, frames) = self.inbox.popleft()
            message = wire.decode(envelope, len(frames))
            if isinstance(message, Result | Parts):
                self._look_at(message)
            self._perform(self.core.handle(peer, message, frames, self.now()))
        due = self.core.wakeup()
        if due is not None and due <= self.now():
            self._perform(self.core.tick(self.now()))

    def _arrived(self, index: int, parcel: Parcel) -> None:
        if self.alive:
            self.inbox.append((bytes([index]), parcel))
            self.soon()

    def _look_at(self, result: Result | Parts) -> None:
        """Nobody gets what somebody else asked for, not even on the wire."""
        said = (
            [flow.parts for flow in result.flows]
            if isinstance(result, Parts)
            else [span.outputs for span in result.spans]
        )
        for outputs in said:
            for output in outputs:
                assert not output or self.name.encode() in output, f"{self.name} was sent {output!r}"

    # --- those who ask -----------------------------------------------------------------------------

    def ask(
        self,
        items: list[bytes],
        timeout: float,
        *,
        together: bool,
        rich: bool,
        topic: str | Pipeline,
        **more: Any,
    ) -> None:
        """Ask for items, as one call or as one call each."""
        if not self.alive or self.stopped is not None:
            return
        key, priority = more.get("key", ""), more.get("priority", 0)
        for part in [items] if together else [[item] for item in items]:
            call = Call()
            call.deadline = self.now() + timeout
            call.buffers = [buffers_of(item) for item in part] if rich else None
            self._name(call, part)
            if together:
                call.mark = (topic, key, priority, call)
                call.items, call.outputs, call.left = part, [None] * len(part), len(part)
            else:
                call.mark = (topic, key, priority, not rich, True)
                call.item = part[0]
            route = topic.route if isinstance(topic, Pipeline) else None
            asked = Asked(self, call, part, rich, self.world.now, call.deadline, self.lag, route)
            self.asked.append(asked)
            self._calls[call] = asked
            self.core.submit(call)
        self.soon()

    def read(self, item: bytes, timeout: float, *, topic: str, slow: bool, rich: bool) -> None:
        """Ask for a stream."""
        if not self.alive or self.stopped is not None:
            return
        call = Call()
        call.deadline = self.now() + timeout
        call.items, call.outputs, call.left = [item], [None], 1
        call.buffers = [buffers_of(item)] if rich else None
        self._name(call, [item])
        call.inflow = Inflow(timeout)
        call.mark = (topic, "", 0, call)
        asked = Asked(self, call, [item], rich, self.world.now, call.deadline, self.lag)
        asked.streamed, asked.slow = True, slow
        self.asked.append(asked)
        self._calls[call] = asked
        self.core.submit(call)
        self.soon()

    def _name(self, call: Call, items: list[bytes]) -> None:
        """Give two of three calls a request id, which their items must have wherever they run."""
        if sum(items[0]) % 3:
            call.name = f"id of {items[0].decode()}"
        self.world.named.update((root_of(item), call.name) for item in items)

    def _came(self, came: Came) -> None:
        asked, inflow = self._calls[came.call], came.call.inflow
        assert inflow is not None
        assert not asked.over, f"{asked.items} got parts after its end"
        for (payload, buffers), weight in came.parts:
            asked.parts.append((payload, [bytes(one) for one in buffers]))
            if asked.slow:
                self.world.after(self.world.between(0.0, 4.0), partial(self._take, asked, weight))
            else:
                self._take(asked, weight)
        # Each once, in order, and all of one run.
        item, runs = asked.items[0], {payload.rpartition(b"@")[2] for payload, _ in asked.parts}
        wanted = [b"y%s/%d@" % (item, at) for at in range(len(asked.parts))]
        assert [payload.rpartition(b"@")[0] + b"@" for payload, _ in asked.parts] == wanted, asked.parts
        assert len(runs) == 1, f"{item!r} got parts of several runs: {asked.parts}"
        own = [b"y" + one for one in buffers_of(item)] if asked.rich else []
        assert all(buffers == own for _, buffers in asked.parts), asked.parts

    def _take(self, asked: Asked, weight: int) -> None:
        inflow = asked.call.inflow
        assert inflow is not None
        inflow.taken += weight
        if inflow.is_due and self.alive and self.stopped is None and not asked.over:
            self._perform(self.core.read([asked.call], self.now()))

    def _ended(self, call: Call) -> list[Any]:
        """Return what a stream has come to; a whole one is what the model makes of the item."""
        asked = self._calls[call]
        if call.faults:
            return [call.faults[0].code]
        item = asked.items[0]
        assert len(asked.parts) == parts_of(item), f"{item!r} ended after {asked.parts}"
        return [(b"y" + item, [b"y" + one for one in buffers_of(item)] if asked.rich else [])]

    def give_up(self, asked: Asked) -> None:
        """Let a caller give up; what has an outcome keeps it."""
        if self.alive and self.stopped is None and not asked.over:
            asked.cancelled = True
            self._perform(self.core.flush(self.now()))
            self._perform(self.core.cancel(asked.call, self.now()))
            self.soon()

    def leave(self) -> None:
        """Close: every open call ends, and the brokers are told."""
        if self.alive and self.stopped is None:
            self._perform(self.core.stop(Fault("client_closed", "closed")))
            self.die()

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.dealers[action.peer[0]].send(action.message, action.frames)
            elif isinstance(action, Answered):
                for at, call in enumerate(action.calls):
                    if call is not None:
                        buffers = list(action.buffers[at]) if action.buffers is not None else []
                        self._outcome(call, [(action.outputs[at], buffers)])
            elif isinstance(action, Came):
                self._came(action)
            elif isinstance(action, Finished) and action.call.inflow is not None:
                self._outcome(action.call, self._ended(action.call))
            elif isinstance(action, Finished):
                faults = action.call.faults or {}
                self._outcome(
                    action.call,
                    [
                        faults[at].code if at in faults else (one[0], list(one[1]))
                        for at, one in enumerate(action.call.outputs)
                    ],
                )
            elif isinstance(action, Failed):
                for call in action.calls:
                    self._outcome(call, action.fault.code)

    def _outcome(self, call: Call, outcome: Any) -> None:
        asked = self._calls[call]
        asked.outcomes.append(outcome)
        deadline = call.deadline if asked.streamed else asked.deadline
        late = self.now() - deadline - (self.lag - asked.lag)
        assert len(asked.outcomes) == 1, f"{asked.items} ended twice: {asked.outcomes}"
        assert not asked.cancelled, f"{asked.items} was cancelled, and ended: {outcome}"
        assert late <= 0.1, f"{asked.items} ended {late:.3f} s after its deadline: {outcome}"
        self.world.tell(f"{self.name}: {asked.items} ends as {outcome}")
