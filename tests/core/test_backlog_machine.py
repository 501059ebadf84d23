"""The backlog against a table that is looked through: whatever is done, in whatever order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.core.queueing import make_held
from zbatch.core.backlog import CLOSED, RUNNING, WAITING, Backlog, Held, Room, Span

SHORT_TURN = 2
"""A quantum so short that turns matter within a few steps."""

PRINCIPALS = (b"a", b"b", b"c")


@dataclass(eq=False)
class Item:
    """One item as the table knows it."""

    held: Held
    at: int
    state: int = WAITING
    back: int = 0
    """The later it was put back, the further ahead of its class it stands."""

    @property
    def queue(self) -> tuple[int, bytes, str]:
        return self.held.priority, self.held.principal, self.held.key

    @property
    def cost(self) -> float:
        return self.held.costs[self.at] if self.held.costs is not None else 0.0


@dataclass
class Table:
    """Every item that ever came, in the order they came."""

    items: list[Item] = field(default_factory=list)

    def waiting(self) -> list[Item]:
        waiting = [item for item in self.items if item.state == WAITING]
        return sorted(waiting, key=lambda item: -item.back)

    def of(self, span: Span) -> list[Item]:
        return [item for item in self.items if item.held is span.held and span.start <= item.at < span.stop]


class BacklogMachine(RuleBasedStateMachine):
    """Items come, are taken, put back and closed."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(quantum=SHORT_TURN)
        self.table = Table()
        self.passed_over: Counter[tuple[int, bytes]] = Counter()
        self.puts = 0

    def teardown(self) -> None:
        while (key := self.backlog.head_key()) is not None:
            self.take(key, Room(7))
        assert not self.table.waiting()
        assert (self.backlog.items, self.backlog.oldest()) == (0, None)

    @rule(
        items=st.integers(1, 6),
        principal=st.sampled_from(PRINCIPALS),
        key=st.sampled_from(["", "k"]),
        priority=st.integers(0, 1),
        costs=st.none() | st.lists(st.integers(0, 4).map(float), min_size=6, max_size=6),
        size=st.sampled_from([0, 0, 30]),
    )
    def push(
        self, items: int, principal: bytes, key: str, priority: int, costs: list[float] | None, size: int
    ) -> None:
        held = make_held(
            len(self.table.items),
            items,
            of=principal,
            key=key,
            priority=priority,
            costs=costs[:items] if costs is not None else None,
            size=size,
            arrived=float(len(self.table.items)),
        )
        self.table.items += [Item(held, at) for at in range(items)]
        self.backlog.push(Span(held, 0, items))

    @rule(
        target=taken,
        items=st.integers(1, 8),
        cost=st.none() | st.integers(1, 8).map(float),
        size=st.sampled_from([1000, 40]),
    )
    def hand_out(self, items: int, cost: float | None, size: int) -> object:
        key = self.backlog.head_key()
        if key is None:
            assert not self.table.waiting()
            return multiple()
        return multiple(*self.take(key, Room(items, cost, size)))

    @rule(span=consumes(taken))
    def put_back(self, span: Span) -> None:
        before = (span.start, span.stop)
        self.backlog.put_back(span)
        assert (span.start, span.stop) == before
        self.puts += 1
        self.passed_over.clear()
        for item in self.table.of(span):
            if item.state == RUNNING:
                item.state, item.back = WAITING, self.puts

    @precondition(lambda self: bool(self.table.items))
    @rule(which=st.integers(0, 1_000), start=st.integers(0, 6), items=st.integers(0, 6))
    def close(self, which: int, start: int, items: int) -> None:
        held = self.table.items[which % len(self.table.items)].held
        start = min(start, len(held.state))
        stop = min(start + items, len(held.state))
        ended = [item for item in self.table.of(Span(held, start, stop)) if item.state != CLOSED]
        assert self.backlog.close(held, start, stop) == len(ended)
        for item in ended:
            item.state = CLOSED
        # Who has nothing left loses its turn, and stands last when it comes again.
        self.passed_over.pop((held.priority, held.principal), None)

    def take(self, key: str, room: Room) -> list[Span]:
        """Take a batch and hold it against what the table says about every rule."""
        waiting = self.table.waiting()
        top = max(item.held.priority for item in waiting)
        spans = self.backlog.take(key, room)
        batch = [item for span in spans for item in self.table.of(span)]
        assert batch, "what waits is handed out"
        assert all(item.state == WAITING and item.held.key == key for item in batch)
        assert len(set(batch)) == len(batch) <= room.items
        self.holds_together(batch, room)
        self.keeps_order(batch, [item for item in waiting if item.held.key == key])
        self.takes_turns(batch, {item.queue[:2] for item in waiting if item.held.priority == top})
        for item in batch:
            item.state = RUNNING
        return spans

    def holds_together(self, batch: list[Item], room: Room) -> None:
        alone = len(batch) == 1
        assert alone or room.cost is None or sum(item.cost for item in batch) <= room.cost
        assert alone or sum(item.held.size // len(item.held.state) for item in batch) <= room.size

    def keeps_order(self, batch: list[Item], waiting: list[Item]) -> None:
        """First in, first out within a queue; a lower class only once the higher ones have nothing."""
        for queue in {item.queue for item in batch}:
            own = [item for item in batch if item.queue == queue]
            assert own == [item for item in waiting if item.queue == queue][: len(own)]
        lowest = min(item.held.priority for item in batch)
        assert all(item in batch for item in waiting if item.held.priority > lowest)
        priorities = [item.held.priority for item in batch]
        assert priorities == sorted(priorities, reverse=True)

    def takes_turns(self, batch: list[Item], contenders: set[tuple[int, bytes]]) -> None:
        """Whoever waits in the highest class gets something before the others have had their turn twice."""
        served = {item.queue[:2] for item in batch}
        for contender in contenders:
            self.passed_over[contender] = 0 if contender in served else self.passed_over[contender] + 1
            assert self.passed_over[contender] <= (len(PRINCIPALS) - 1) * SHORT_TURN
        for absent in set(self.passed_over) - contenders:
            del self.passed_over[absent]

    @invariant()
    def counts_are_right(self) -> None:
        waiting = self.table.waiting()
        assert self.backlog.items == len(waiting)
        for key in ("", "k"):
            cost = sum(item.cost for item in waiting if item.held.key == key)
            ready = sum(item.held.key == key for item in waiting)
            assert self.backlog.ready(key) == ready
            assert self.backlog.fills(key, Room(1000, cost))
            assert not self.backlog.fills(key, Room(ready + 1, cost + 0.5))
        assert self.backlog.oldest() == min((item.held.arrived for item in waiting), default=None)

    @invariant()
    def nobody_is_lost_or_in_two_places(self) -> None:
        for item in self.table.items:
            held = item.held
            assert held.state[item.at] == item.state
            assert held.open == sum(state != CLOSED for state in held.state)
            assert held.waiting == held.state.count(WAITING)


# The same lives in every run: a build that turns red must be somebody's change.
BacklogMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestBacklogMachine = BacklogMachine.TestCase
