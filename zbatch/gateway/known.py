"""Which topics there are, as far as a gateway can know: it looks at its broker's snapshots now and then.

A question for what nobody ever served is refused at once, and so is one for what lost its workers; a broker
that has just begun may still be found by its workers, so there questions wait as ZClient's do: in the broker
for what this gateway has seen served, here for a name that may prove to be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from zbatch.errors import NoWorkers, UnknownTopic, ZbatchError

YOUNG = 10.0
"""Seconds of a broker's life in which workers may still come back to it."""

STALE = 5.0
"""Seconds after which a snapshot says nothing of what is served now."""

NAMED = 8
"""Topics that an error names at most."""

REMEMBERED = 10_000
"""Topics of the past that are told from those that never were: names may come and go for ever."""


class Known:
    """What was seen in snapshots.

    Args:
        wanted: Topics that must have been seen before the gateway counts as ready.

    """

    def __init__(self, wanted: tuple[str, ...] = ()) -> None:
        self.topics: Mapping[str, Mapping[str, Any]] = {}
        """The last snapshot's topics."""
        self.pipelines: Mapping[str, Mapping[str, Any]] = {}
        """The last snapshot's pipelines, which are asked like topics."""
        self._served: Set[str] = frozenset()
        """What has workers, topics and pipelines."""
        self._lacking: Mapping[str, str] = {}
        """Of each pipeline the first stage that has none."""
        self._seen: dict[str, None] = {}
        """What was served some time; who was last seen being so stands last."""
        self._named = frozenset(wanted)
        """Those whose workers come, as whoever started the gateway says."""
        self._wanted = set(wanted)
        """Of those that must be seen, who was not."""
        self._only: Sequence[str] | None = None
        """All topics that the broker takes; None: any."""
        self._learned: float | None = None
        self._matures: float = 0.0
        """When the broker is no longer young."""

    def learn(self, snapshot: Mapping[str, Any], now: float) -> bool:
        """Take in what the broker says of itself; return whether others are served now than before."""
        before = self._served, self._only, self._lacking, self._learned is None
        self.topics = snapshot["topics"]
        self._only = snapshot.get("only_topics")
        self.pipelines = snapshot.get("pipelines", {})
        whole = [name for name, one in self.pipelines.items() if one["ready"]]
        served = {name for name, topic in self.topics.items() if topic["workers"]} - self.pipelines.keys()
        self._served = served.union(whole)
        self._lacking = {name: self._first_idle(one["stages"]) for name, one in self.pipelines.items()}
        self._learned = now
        self._matures = now - snapshot["uptime_s"] + YOUNG
        self._remember(name for name, topic in self.topics.items() if topic["workers"] or topic["batches"])
        self._remember(whole)
        return before != (self._served, self._only, self._lacking, False)

    def _remember(self, served: Iterable[str]) -> None:
        for name in served:
            self._wanted.discard(name)
            self._seen.pop(name, None)
            self._seen[name] = None
        while len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]

    @property
    def offered(self) -> Mapping[str, Mapping[str, Any]]:
        """Every name that may be asked, and what is known of its models; of a pipeline that is nothing.

        A topic that a pipeline has the name of is left out: it is not the one that gets the item.
        """
        return {**self.topics, **{name: {} for name in self.pipelines}}

    def silence(self, now: float, since: float) -> float:
        """Return for how long no broker has said anything, to who has listened since then."""
        return now - (since if self._learned is None else self._learned)

    def has_workers(self, topic: str) -> bool:
        """Return whether somebody served it when last looked."""
        return topic in self._served

    def _first_idle(self, stages: Sequence[Mapping[str, str]]) -> str:
        """Return the name of the first stage whose topic has no workers; empty: each has some."""
        served = {name for name, topic in self.topics.items() if topic["workers"]}
        return next((stage["name"] for stage in stages if stage["topic"] not in served), "")

    def objection(self, topic: str, now: float) -> ZbatchError | None:
        """Return what is to be said against a question for this topic; None: ask.

        Without a fresh snapshot nothing is: then the question itself finds out.
        """
        if topic in self._served or self._learned is None or now - self._learned > STALE:
            return None
        if self._only is not None and topic not in self._only and topic not in self.pipelines:
            only = _some(self._only)
            return UnknownTopic(f"topic {topic[:100]!r} is not served here; this broker serves {only}")
        if now < self._matures:
            return None
        if topic in self.pipelines:
            return NoWorkers(f"stage {self._lacking[topic]!r} of pipeline {topic!r} has no workers now")
        if topic in self._seen:
            return NoWorkers(f"topic {topic!r} has no workers now; it had before")
        return UnknownTopic(f"nobody has served topic {topic[:100]!r}; there are {_some(self._served)}")

    def is_to_be_asked(self, topic: str, now: float) -> bool:
        """Return whether a question for it may go to the broker at once."""
        if topic in self._served:
            return True
        return self.objection(topic, now) is None and not self.may_come(topic, now)

    def may_come(self, topic: str, now: float) -> bool:
        """Return whether a name that nobody was seen to serve may yet be served.

        That is so while the broker is young, and while it was not heard at all.
        """
        if self._learned is not None and now >= self._matures:
            return False
        return not any(topic in names for names in (self._served, self._seen, self.pipelines, self._named))

    @property
    def has_learned(self) -> bool:
        """Whether a broker was heard."""
        return self._learned is not None

    def youth_left(self, now: float) -> float:
        """Return the seconds until the broker is no longer young."""
        return max(self._matures - now, 0.0)

    def is_ready(self, now: float) -> bool:
        """Return whether a broker answers, a topic has workers, and all that are wanted had some."""
        if self._learned is None or now - self._learned > STALE:
            return False
        return any(map(self.has_workers, self.topics)) and not self._wanted


def _some(names: Collection[str]) -> str:
    """Return some names for an error, and how many more there are."""
    named = ", ".join(map(repr, sorted(names)[:NAMED])) or "none"
    return f"{named} and {len(names) - NAMED} more" if len(names) > NAMED else named
