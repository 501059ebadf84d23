"""The supervisor's brain: when a process is started again or ended, and what the brokers are told of it.

A supervisor's beat lists its children, the dead ones until every broker has acknowledged them; so a death
that is told late, or twice, or on a new connection still counts, and counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.session import Mint, Session
from zbatch.messages import AnyMessage, Bye, Child, Children, Hello, Leave, Welcome, Who

BRAKE_FROM = 5
"""Deaths in a row, without a finished batch between them, from which restarts wait."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

LOAD_TRIES = 3
"""A model that fails to load this often in a row will not load."""

LOAD_PAUSE = 0.5
"""Seconds before a failed load is tried again; it doubles: what was missing may be on its way."""


@dataclass(slots=True)
class Brake:
    """How long to wait before a child is started again: not at all, unless it does nothing but die."""

    deaths: int = 0

    def died(self, *, finished: bool) -> float:
        """Count a death and return the pause before the next start, in seconds."""
        self.deaths = 1 if finished else self.deaths + 1
        if self.deaths < BRAKE_FROM:
            return 0.0
        # Bounded before it is raised: after a night of deaths the power is no float any more.
        doublings = min(self.deaths - BRAKE_FROM, 16)
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**doublings)


@dataclass(slots=True)
class Restarts:
    """When the process of a slot is started again, and when no more."""

    brake: Brake = field(default_factory=Brake)
    count: int = 0
    failed_loads: int = 0
    has_loaded: bool = False
    """Whether the model loaded some time, so that its name and its arguments are right."""
    is_no_model: bool = False
    """Whether what was asked for is no model, and never was one."""

    @property
    def given_up(self) -> bool:
        """Whether the model will not load, however often it is tried."""
        return self.is_no_model or self.failed_loads >= LOAD_TRIES

    def died(self, *, loaded: bool, finished: bool, apart: bool, refused: bool = False) -> float:
        """Count a death and return the pause before the next start, in seconds.

        ``apart`` says that it ran what is tried apart: a poison item ends several processes until it is
        found, and that says nothing of the model.  ``refused`` says that what was asked for is no model,
        which another try does not change.
        """
        self.count += 1
        pause = 0.0 if apart else self.brake.died(finished=finished)
        if loaded:
            self.failed_loads = 0
            self.has_loaded = True
            return pause
        self.failed_loads += 1
        if refused and not self.has_loaded:
            self.is_no_model = True
            return pause
        return max(pause, LOAD_PAUSE * 2.0 ** (self.failed_loads - 1))


@dataclass(slots=True)
class Lease:
    """Until when a model process may run its batch: what it noted, moved by our own sleeps.

    A supervisor that was stopped, or whose host slept, was so together with its children, as far as it can
    know; that time was no time to run in.
    """

    until: float = 0.0
    moved: float = 0.0

    def is_over(self, until: float, now: float) -> bool:
        """Return whether the batch that may run ``until`` then, as its process noted, has run too long."""
        self._follow(until)
        return now > self.until + self.moved

    def slept(self, until: float, lag: float) -> None:
        """Move it by our own pause; a lease that begins later, or anew, is not moved."""
        self._follow(until)
        self.moved += lag

    def _follow(self, until: float) -> None:
        if until != self.until:
            self.until, self.moved = until, 0.0


@dataclass(slots=True, eq=False)
class _Listed:
    """A child on the list, and which message first told each broker of its death."""

    child: Child
    told: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    heard: set[bytes] = field(default_factory=set)


class SupervisorCore:
    """Everything that a supervisor says to brokers."""

    def __init__(
        self,
        brokers: int,
        life: bytes,
        mint: Mint,
        timing: Timing,
        topic: str,
        *,
        host: str = "",
        pid: int = 0,
    ) -> None:
        self._life = life
        self._topic = topic
        self._host = host
        self._pid = pid
        self._silent = timing.silent
        self._sessions = [Session(bytes([index]), mint, timing.beat) for index in range(brokers)]
        self._children: dict[bytes, _Listed] = {}
        self._started = 0.0
        self.is_dismissed = False
        """Whether an operator ordered this worker to leave."""

    def start(self, now: float) -> list[Send]:
        """Introduce this supervisor to its brokers."""
        self._started = now
        for session in self._sessions:
            session.renew()
        return [self._hello(session, now) for session in self._sessions]

    def changed(self, child: Child, now: float) -> list[Send]:
        """Tell the brokers at once that a child was started, changed or died."""
        listed = self._children.get(child.incarnation)
        if listed is None:
            self._children[child.incarnation] = _Listed(child)
        else:
            listed.child = child
        return [self._list(session, now) for session in self._sessions if session.welcomed]

    def handle(self, peer: bytes, message: AnyMessage, frames: Sequence[Any], now: float) -> list[Send]:
        """Take in what a broker says."""
        session = self._sessions[peer[0]]
        if not session.accepts(message, now):
            return []
        self._take_note(session)
        match message:
            case Welcome():
                session.epoch = message.epoch
                return [self._list(session, now)]
            case Leave():
                self.is_dismissed = True
                return []
            case Who():
                session.renew()
                return [self._hello(session, now)]
            case _:
                return []

    def tick(self, now: float) -> list[Send]:
        """Let time pass: introduce again, or list the children."""
        self._forget(now)
        actions = []
        for session in self._sessions:
            if now >= session.speaks:
                actions.append(self._list(session, now) if session.welcomed else self._hello(session, now))
        return actions

    def wakeup(self) -> float:
        """Return when to tick next, at the latest."""
        return min(session.speaks for session in self._sessions)

    def silences(self, now: float) -> list[float]:
        """Return for how long each broker has said nothing."""
        return [now - (self._started if one.heard is None else one.heard) for one in self._sessions]

    def stop(self) -> list[Send]:
        """Say goodbye."""
        return [Send(one.peer, Bye(*one.stamp())) for one in self._sessions if one.welcomed]

    def _hello(self, session: Session, now: float) -> Send:
        session.sent = 0
        session.spoke(now)
        hello = Hello(*session.stamp(), self._life, "supervisor", 1, host=self._host[:64], pid=self._pid)
        return Send(session.peer, hello)

    def _list(self, session: Session, now: float) -> Send:
        session.spoke(now)
        message = Children(
            *session.stamp(), self._topic, [listed.child for listed in self._children.values()]
        )
        for listed in self._children.values():
            if not listed.child.alive:
                told = listed.told.get(session.peer)
                if told is None or told[0] != session.conn:
                    listed.told[session.peer] = (session.conn, message.number)
        return Send(session.peer, message)

    def _take_note(self, session: Session) -> None:
        """See which deaths a broker has heard of."""
        for listed in self._children.values():
            told = listed.told.get(session.peer)
            if told is not None and told[0] == session.conn and told[1] <= session.acked:
                listed.heard.add(session.peer)

    def _forget(self, now: float) -> None:
        """Forget the deaths that every broker has heard of.

        One that is silent this long has lost the child, too; waiting for it would keep all deaths for ever.
        """
        there = {
            one.peer for one in self._sessions if one.heard is not None and now - one.heard < self._silent
        }
        for incarnation, listed in list(self._children.items()):
            if not listed.child.alive and there <= listed.heard:
                del self._children[incarnation]
