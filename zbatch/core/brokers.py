"""Which of its brokers a client asks, and what it still expects of those that it has left.

Brokers share nothing, so a client asks one of them.  It moves on to the next when that one is quiet while
something waits, when it hands back what it has not begun, and it asks back what no worker there serves.
A broker that was left in order keeps what it runs, until that has ended or the broker is quiet, too.
What is sent, and when, is decided in ``client.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from zbatch.config import Timing
from zbatch.core.session import Mint, Session

LONGEST_PATIENCE = 15.0
"""Seconds that a broker without workers is borne at most, when the others had none either: half of the
default timeout, so that a request that comes late still sees another broker."""


class Brokers:
    """The sessions of one client, one a broker."""

    def __init__(self, count: int, mint: Mint, timing: Timing) -> None:
        self._quiet = timing.quiet
        self._sessions = [Session(bytes([index]), mint, timing.beat) for index in range(count)]
        self._place = 0
        self.asked = self._sessions[0]
        """Who gets what is sent."""
        self.left: list[Session] = []
        """Who was left with something of ours."""
        self._moved: float | None = None
        self._since: dict[str, float] = {}
        """Since when topics in which something waits have no worker here."""
        self._patience: dict[str, float] = {}
        """How long that is borne; longer after each move, since each move sends all anew."""

    @property
    def are_several(self) -> bool:
        """Whether there is anyone else to ask."""
        return len(self._sessions) > 1

    def session(self, peer: bytes) -> Session:
        """Return the session with a broker."""
        return self._sessions[peer[0]]

    def holder(self, conn: bytes) -> Session:
        """Return of whom is wanted what went over a connection: who was left with it, or who is asked now."""
        for session in self.left:
            if session.conn == conn:
                return session
        return self.asked

    def move(self, now: float) -> Session:
        """Ask the next broker from now on; return the one that was asked."""
        before = self.asked
        self._moved = now
        self._since = dict.fromkeys(self._since, now)
        self._place = (self._place + 1) % len(self._sessions)
        self.asked = self._sessions[self._place]
        if self.asked not in self.left:
            self.asked.renew()
        self.forsake(self.asked)
        return before

    def leave(self, now: float) -> None:
        """Ask the next broker from now on; what runs at this one may end there."""
        for topic in self._since:
            self._patience[topic] = min(2 * self._patience[topic], LONGEST_PATIENCE)
        self.left.append(self.asked)
        self.move(now)

    def forsake(self, session: Session) -> None:
        """Expect nothing more of a broker that was left: what it had is wanted of the one that is asked."""
        if session in self.left:
            self.left.remove(session)

    def is_lost(self, session: Session, now: float) -> bool:
        """Return whether a broker that was left has gone quiet."""
        return session.heard is None or now - session.heard >= self._quiet

    def is_quiet(self, waited_since: float, now: float) -> bool:
        """Return whether the broker that is asked has said nothing for too long."""
        since = max(waited_since, self.asked.heard or waited_since, self._moved or waited_since)
        return now - since >= self._quiet

    def heard_since(self, time: float) -> bool:
        """Return whether any broker has spoken since then."""
        return any(one.heard is not None and one.heard >= time for one in self._sessions)

    def lacks_workers(self, topic: str) -> bool:
        """Return whether the last broker that spoke of a topic had no worker for it."""
        return topic in self._since

    def unbearable(self, unserved: Sequence[str], now: float) -> set[str]:
        """Take note of which topics have no worker; return those that are better asked elsewhere."""
        self._since = {topic: self._since.get(topic, now) for topic in unserved}
        self._patience = {topic: self._patience.get(topic, self._quiet) for topic in unserved}
        tired = {topic for topic, since in self._since.items() if now - since >= self._patience[topic]}
        self._since.update(dict.fromkeys(tired, now))
        return tired
