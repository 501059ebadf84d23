"""What an operator orders: a broker, a worker or a topic to be drained.

Draining means: take nothing new, end what was begun, leave.  An order that is given twice does what it does
once, so whoever misses the answer may repeat it.
"""

from __future__ import annotations

from zbatch.core.actions import Send
from zbatch.core.dispatch import Dispatcher
from zbatch.core.links import Link, Links
from zbatch.core.topics import Topics
from zbatch.messages import Fault, Leave


class Orders:
    """Carries out orders that concern workers and topics."""

    def __init__(self, links: Links, topics: Topics, dispatcher: Dispatcher, out: list[Send]) -> None:
        self._links = links
        self._topics = topics
        self._dispatcher = dispatcher
        self._out = out
        self._ending: set[str] = set()
        """Drained topics whose workers have not been told to leave yet."""

    def worker(self, name: str) -> str | Fault:
        """Let the workers of a host leave, or the one that has this process: ``host`` or ``host:pid``."""
        host, colon, pid = name.rpartition(":") if name.rpartition(":")[2].isdigit() else (name, "", "")
        told = [
            link
            for link in self._supervisors()
            if link.host == host and (not colon or int(pid) in (link.pid, *self._pids(link)))
        ]
        if not told:
            there = sorted({f"{one.host}:{one.pid}" for one in self._supervisors()})
            known = f"there are {', '.join(there[:20])}" if there else "there is none"
            return Fault("bad_request", f"no worker is {name!r}; {known}")
        self._leave(told)
        return f"told to leave: {', '.join(f'{link.host}:{link.pid}' for link in told)}"

    def topic(self, name: str, *, undo: bool) -> str | Fault:
        """Take no new requests for a topic; when the last one has ended, its workers leave."""
        if undo:
            if name not in self._topics.drained:
                return Fault("bad_request", f"topic {name!r} is not being drained")
            self._topics.drained.discard(name)
            self._ending.discard(name)
            return f"topic {name!r} takes requests again"
        topic = self._topics.all.get(name)
        if topic is None:
            return Fault("bad_request", f"topic {name!r} is not known here")
        self._topics.drained.add(name)
        self._ending.add(name)
        return f"topic {name!r} takes no new requests; {topic.items + topic.coming} items are to be finished"

    def tick(self) -> None:
        """Let the workers of drained topics leave once nothing is left for them."""
        for name in list(self._ending):
            topic = self._topics.all.get(name)
            if topic is None or not (topic.items or topic.coming):
                self._ending.discard(name)
                self._leave([link for link in self._supervisors() if self._serves(link, name)])

    def _supervisors(self) -> list[Link]:
        return [link for link in self._links.by_life.values() if link.role == "supervisor"]

    def _pids(self, link: Link) -> list[int]:
        workers = self._dispatcher.workers_of(link.life)
        return [worker.link.pid for worker in workers]

    def _serves(self, link: Link, topic: str) -> bool:
        return any(worker.ready.topic == topic for worker in self._dispatcher.workers_of(link.life))

    def _leave(self, links: list[Link]) -> None:
        for link in links:
            self._out.append(Send(link.peer, Leave(*link.stamp())))
            for worker in self._dispatcher.workers_of(link.life):
                worker.told_to_leave = True
