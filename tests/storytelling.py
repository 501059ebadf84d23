"""Replays a story against the broker's brain: what happens, and what each one hears of it.

A story is a text.  Lines that begin with a time are told, all others are for the reader.  What somebody does
comes first (``0.000  ada asks for 1 2``), then everything that anybody hears because of it (``0.000  w1 gets
ada:1 ada:2``): a line too many or too few fails.  Who says what to whom is ``tests/core/driving.py``'s;
:data:`DEEDS` is the whole language.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.core.driving import Cluster, Peer, beats, dies, gives_back, group, ready
from tests.core.hearing import batches
from zbatch.config import BrokerCoreSettings, Limits
from zbatch.core.broker import BrokerCore
from zbatch.messages import (
    Batch,
    Beat,
    Bye,
    Cancel,
    Draining,
    Fault,
    Pulse,
    Recall,
    Refused,
    Request,
    Result,
    Skip,
    Welcome,
    Who,
)

TOLD = re.compile(r"(\d+\.\d+)\s+(.*\S)\s*")
FAILED = Fault("model_failed", "the model raised")


class Untrue(AssertionError):
    """What the story tells is not what happens."""


@dataclass
class Story:
    """A cluster that lives through a story."""

    cluster: Cluster = field(default_factory=Cluster)
    peers: dict[str, Peer] = field(default_factory=dict)
    held: dict[str, list[Batch]] = field(default_factory=dict)
    """By worker: the batches in its hands, oldest first."""
    names: dict[bytes, str] = field(default_factory=dict)
    """Of clients, by their origin."""
    now: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    lives: int = 1
    """Of the broker."""

    # --- what happens ------------------------------------------------------------------------------

    def broker_waits(self, milliseconds: str) -> None:
        self._restart(batching="window", max_latency=int(milliseconds) / 1000)

    def broker_serves(self, topics: str) -> None:
        self._restart(topics=tuple(topics.split()))

    def broker_allows(self, items: str) -> None:
        self._restart(limits=Limits(client_items=int(items)))

    def broker_restarts(self) -> None:
        self._restart()

    def broker_leaves(self) -> None:
        self.cluster.deliver(self.cluster.core.drain())

    def time_passes(self) -> None:
        self.cluster.turn(self.now)

    def supervisor_joins(self, name: str) -> None:
        self.peers[name] = self.cluster.supervisor(name, now=self.now)

    def worker_joins(
        self, name: str, size: str, slots: str | None, once: str | None, lease: str | None
    ) -> None:
        worker = self.cluster.worker(
            name,
            now=self.now,
            size=int(size),
            slots=int(slots or 2),
            idempotent=once is None,
            lease_ms=int(lease or 60) * 1000,
        )
        self.peers[name], self.held[name] = worker, []
        self._reread(worker)

    def client_asks(self, name: str, ids: str, *more: str | None) -> None:
        seconds, key, priority = more
        self._client(name)
        ms = int(float(seconds or 30) * 1000)
        groups = [
            group(base, stop - base, ms=ms, key=key or "", priority=int(priority or 0))
            for base, stop in _ranges(ids)
        ]
        self._say(name, Request, groups)

    def client_asks_again(self, name: str, ids: str) -> None:
        self._say(name, Request, [group(base, stop - base, again=True) for base, stop in _ranges(ids)])

    def client_cancels(self, name: str, ids: str) -> None:
        self._say(name, Cancel, _ranges(ids))

    def client_beats(self, name: str, ids: str | None) -> None:
        self._say(name, Beat, _ranges(ids or ""), 1_000)

    def client_comes_back(self, name: str, ids: str) -> None:
        self.peers[name] = self.cluster.again(self.peers[name], now=self.now, open=_ranges(ids), next=1_000)
        self._reread(self.peers[name])

    def worker_comes_back(self, name: str) -> None:
        holds = [(one.batch, one.batch + 1) for one in self.held[name]]
        epoch = self.held[name][0].epoch if holds else self.cluster.core.epoch
        worker = self.cluster.again(self.peers[name], now=self.now, open=holds, epoch=epoch)
        self.peers[name] = worker
        self._reread(worker)
        if epoch != self.cluster.core.epoch:
            self.held[name].clear()
        ready(worker, now=self.now)
        worker.inbox += worker.read

    def worker_answers(self, name: str, failed: str | None) -> None:
        batch = self.held[name].pop(0)
        guilty = (failed or "").split()
        places = [place for place, item in enumerate(self._items(batch)) if item in guilty]
        self.peers[name].answers(batch, now=self.now, errors=[(place, FAILED) for place in places] or None)
        self._reread(self.peers[name])

    def worker_dies(self, name: str, idle: str | None) -> None:
        held = self.held.pop(name)
        begun = 0 if idle or not held else held[0].batch
        supervisor = next(peer for peer in self.peers.values() if peer.role == "supervisor")
        dies(supervisor, self.peers.pop(name), begun=begun, now=self.now)
        self._reread(supervisor)

    def worker_beats(self, name: str) -> None:
        held = self.held[name]
        beats(self.peers[name], *held, running=held[0].batch if held else 0, now=self.now)
        self._reread(self.peers[name])

    def worker_forgets(self, name: str) -> None:
        self.held[name].pop()
        self.worker_beats(name)

    def worker_returns(self, name: str) -> None:
        gives_back(self.peers[name], self.held[name].pop(), now=self.now)
        self._reread(self.peers[name])

    def worker_drains(self, name: str) -> None:
        self._say(name, Draining)

    def leaves(self, name: str) -> None:
        self._say(name, Bye)
        del self.peers[name]

    def vanishes(self, name: str) -> None:
        self.cluster.core.unreachable(self.peers[name].peer, self.now)
        self.cluster.turn(self.now)

    # --- what they hear ----------------------------------------------------------------------------

    def heard(self) -> list[str]:
        """Return what everybody was told since the last look, as the story would tell it."""
        lines = []
        for name, peer in list(self.peers.items()):
            told = peer.told()
            self.held.get(name, []).extend(batches(told))
            lines += [f"{name} {line}" for message in told for line in self._told(name, message)]
        return lines

    def _told(self, name: str, message: Any) -> list[str]:
        match message:
            case Batch():
                return [f"gets {' '.join(self._items(message))}"]
            case Result():
                ids = [span.base + at for span in message.spans for at in range(len(span.outputs))]
                return [f"has answers to {_shown(ids)}"]
            case Refused():
                return [
                    f"hears of {_shown([one for start, stop in refusal.ids for one in range(start, stop)])}: "
                    f"{refusal.fault.code}"
                    for refusal in message.refusals
                ]
            case Recall():
                return [f"is asked to give back {' '.join(self._items(self._batch(name, message.batch)))}"]
            case Skip():
                items = self._items(self._batch(name, message.batch))
                gone = [items[at] for start, stop in message.positions for at in range(start, stop)]
                return [f"is told to leave out {' '.join(gone)}"]
            case Who():
                return ["is asked who it is"]
            case Pulse() | Welcome() if message.missing:
                missing = [one for start, stop in message.missing for one in range(start, stop)]
                return [f"is told that {_shown(missing)} are missing"]
            case _:
                return []

    def _items(self, batch: Batch) -> list[str]:
        return [
            f"{self.names[span.origin]}:{span.base + at}"
            for span in batch.spans
            for at in range(len(span.items))
        ]

    def _batch(self, name: str, number: int) -> Batch:
        return next(one for one in self.held[name] if one.batch == number)

    # --- small things ------------------------------------------------------------------------------

    def _client(self, name: str) -> None:
        if name not in self.peers:
            self.peers[name] = self.cluster.client(name, now=self.now)
            self.names[self.peers[name].origin] = name

    def _say(self, name: str, kind: type[Any], *body: Any) -> None:
        self.peers[name].says(kind, *body, now=self.now)
        self._reread(self.peers[name])

    def _reread(self, peer: Peer) -> None:
        """Put back what the driver has read already: the story tells it."""
        peer.inbox += peer.read
        peer.read = []

    def _restart(self, **settings: Any) -> None:
        self.settings |= settings
        self.lives += 1
        self.cluster.core = BrokerCore(BrokerCoreSettings(**self.settings), b"epoch%03d" % self.lives)
        self.cluster.turn(self.now)


IDS = r"((?:\d+(?:\.\.\d+)?\s?)+)"
ITEMS = r"((?:\w+:\d+\s?)+)"
DEEDS: list[tuple[str, Callable[..., None]]] = [
    (r"the broker waits (\d+) ms for company", Story.broker_waits),
    (r"the broker serves only (.+)", Story.broker_serves),
    (r"the broker allows a client (\d+) items", Story.broker_allows),
    (r"the broker is killed and started again", Story.broker_restarts),
    (r"the broker leaves", Story.broker_leaves),
    (r"time passes", Story.time_passes),
    (r"supervisor (\w+) joins", Story.supervisor_joins),
    (
        r"worker (\w+) joins with batches of (\d+)(?: and (\d+) slots?)?(, never to run twice)?"
        r"(?:, a lease of (\d+) s)?",
        Story.worker_joins,
    ),
    (
        rf"(\w+) asks for {IDS}(?:within ([\d.]+) s)?(?:under key (\w+))?(?:at priority (-?\d+))?",
        Story.client_asks,
    ),
    (rf"(\w+) asks again for {IDS}", Story.client_asks_again),
    (rf"(\w+) cancels {IDS}", Story.client_cancels),
    (rf"(\w+) beats, waiting for (?:nothing|{IDS})", Story.client_beats),
    (rf"(\w+) comes back, waiting for {IDS}", Story.client_comes_back),
    (r"(\w+) comes back with what it holds", Story.worker_comes_back),
    (rf"(\w+) answers(?:, {ITEMS}failed)?", Story.worker_answers),
    (r"(\w+) dies over its batch()", lambda story, name, _: story.worker_dies(name, None)),
    (r"(\w+) dies before it begins()", lambda story, name, _: story.worker_dies(name, "idle")),
    (r"(\w+) beats", Story.worker_beats),
    (r"(\w+) never got its last batch", Story.worker_forgets),
    (r"(\w+) gives its last batch back", Story.worker_returns),
    (r"(\w+) wants no more work", Story.worker_drains),
    (r"(\w+) says goodbye", Story.leaves),
    (r"(\w+) vanishes", Story.vanishes),
]

HEARD = re.compile(
    r"\w+ (gets |has answers to |hears of |is asked to give back |is told |is asked who it is).*"
)


def tell(text: str, name: str = "story") -> None:
    """Replay a story; raises :class:`Untrue` where something else happens."""
    story = Story()
    expected: list[str] = []
    last = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = TOLD.fullmatch(line)
        if match is None:
            continue
        where = f"{name}:{number}"
        if HEARD.fullmatch(match[2]):
            if float(match[1]) != story.now:
                raise Untrue(f"{where}: what is heard at {match[1]} needs something that happens then")
            expected.append(match[2])
            continue
        _compare(story, expected, last)
        expected, last = [], f"{where}: {match[2]}"
        story.now = float(match[1])
        _do(story, match[2], where)
    _compare(story, expected, last)


def _do(story: Story, deed: str, where: str) -> None:
    for pattern, does in DEEDS:
        match = re.fullmatch(pattern, deed)
        if match is not None:
            does(story, *(one.strip() if one else one for one in match.groups()))
            return
    raise Untrue(f"{where}: nobody knows what this means: {deed}")


def _compare(story: Story, expected: list[str], last: str) -> None:
    heard = story.heard()
    if sorted(heard) != sorted(expected):
        told = "\n  ".join(sorted(expected)) or "nothing"
        happens = "\n  ".join(sorted(heard)) or "nothing"
        raise Untrue(f"after {last}\nthe story tells\n  {told}\nand what happens is\n  {happens}")


def _ranges(ids: str) -> list[tuple[int, int]]:
    ranges = []
    for one in ids.split():
        first, _, last = one.partition("..")
        ranges.append((int(first), int(last or first) + 1))
    return ranges


def _shown(ids: list[int]) -> str:
    return " ".join(map(str, sorted(ids)))


def stories() -> dict[str, Path]:
    """Return every story of this folder by its name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "stories").glob("*.txt"))}
