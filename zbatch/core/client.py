"""The client's brain: requests become groups, outcomes find their calls, and what was lost is sent again.

A call is what the caller waits for.  Consecutive calls that agree in topic, key, priority and deadline
travel as one group under consecutive ids.  Everything stays here until its outcome, so a broker may be
killed at any time: after a new HELLO it says what it misses, and only that is sent again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import Any

from zbatch.config import Timing
from zbatch.core import intervals
from zbatch.core.actions import Send
from zbatch.core.brokers import Brokers
from zbatch.core.calls import Action, Answered, Call, Came, Failed, Finished, Sent, Shown
from zbatch.core.deadlines import Deadlines
from zbatch.core.grouping import for_the_wire, groups_of
from zbatch.core.intervals import Range
from zbatch.core.pipeline import BEGUN
from zbatch.core.session import Mint, Session
from zbatch.core.sizes import Measure, cannot_travel, size_of
from zbatch.core.stream import Part, cut, weight_of, without_known
from zbatch.messages import (
    AnyMessage,
    Beat,
    Bye,
    Cancel,
    Denied,
    Fault,
    Flow,
    Group,
    Hello,
    Parts,
    Pulse,
    Refused,
    Request,
    Result,
    Results,
    Status,
    StatusAsk,
    Taken,
    Welcome,
    Who,
)

WORD = 0.050
"""Seconds past a deadline in which the broker may still say which error it is; the caller has 100 ms."""

MESSAGE_BYTES = 1 << 20
"""A message is closed beyond this: one long message would hold up the beats behind it."""

BURST = 64
"""Calls that make a message of their own where it costs long to gather more: a batch of many models."""

SHARE = 4
"""A burst is also this part of all that waits, at least: many small messages cost more than they gain."""

RANGES = 4_096

MOVES = 6
"""Times that a group leaves a broker without workers: no other knows how many workers were lost under it."""

RETRY = 0.050
"""Seconds, times how often it was sent, until what found no room is offered again; a beat at most."""

BROKEN = Fault(
    "worker_lost", "some of it was delivered, the rest was lost with the broker: it cannot run again"
)
"""How a stream ends that its broker does not know any more."""

_MARK = attrgetter("mark")


class ClientCore:
    """Everything that a client decides."""

    def __init__(
        self,
        brokers: int,
        life: bytes,
        mint: Mint,
        timing: Timing,
        *,
        where: str = "",
        host: str = "",
        pid: int = 0,
        keyed: bool = False,
        retry: bool = False,
        measure: Measure = size_of,
    ) -> None:
        self._timing = timing
        self._life = life
        self._where = where
        """What people call the brokers, for an error that says that none answered."""
        self._advice = "is this key allowed there" if keyed else "does it ask for a key"
        self._retry = retry
        """Whether a refusal for want of room is no outcome while the deadline allows another try."""
        self._mint = mint
        self._measure = measure
        self._host = host
        self._pid = pid
        self._brokers = Brokers(brokers, mint, timing)
        self._pending: list[Call] = []
        self._unsent: list[Sent] = []
        self._groups: dict[int, Sent] = {}
        self._waiting = 0
        """Items of groups without an outcome."""
        self._bases: list[int] = []
        """Bases of open groups, ascending; those that ended are swept now and then."""
        self._next = 1
        self._deadlines: Deadlines[Sent] = Deadlines()
        self._later: list[tuple[float, int, int]] = []
        """Ids that a broker had no room for: when to offer them again."""
        self._streams: set[int] = set()
        """Bases of open streams; those that ended are swept with the next beat."""
        self._beat_owed = False
        self._asked_status = False
        self._status_since = (b"", 0)
        """The connection, and the number on it, of the first question that an answer may be for."""
        self._status_again = 0.0
        """When the question is repeated."""

    # --- what the body calls -----------------------------------------------------------------------

    @property
    def open_groups(self) -> int:
        """How many groups wait for an outcome, calls not sent yet left out."""
        return len(self._groups)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for an outcome."""
        return not self._groups and not self._pending and not self._asked_status

    @property
    def is_burst(self) -> bool:
        """Whether so much was submitted that it should leave before more is, where that takes its time.

        Broker and worker can begin while the rest is still read.
        """
        count = len(self._pending)
        return count >= BURST and count * SHARE >= self._waiting and self._brokers.asked.welcomed

    def start(self, now: float) -> list[Action]:
        """Introduce this client to its broker."""
        self._brokers.asked.renew()
        return [self._hello(now)]

    def submit(self, call: Call) -> None:
        """Take a call over; it leaves with the next :meth:`flush`."""
        self._pending.append(call)

    def flush(self, now: float) -> list[Action]:
        """Send what was submitted since the last flush."""
        if self._pending:
            for mark, calls in groupby(self._pending, _MARK):
                for sent in groups_of(mark, [call for call in calls if not call.closed], now, self._measure):
                    self._hold(sent)
            self._pending = []
        if not self._unsent or not self._brokers.asked.welcomed:
            return []
        unsent, self._unsent = self._unsent, []
        return self._send([(sent, 0, len(sent.items)) for sent in unsent], now)

    def handle(self, peer: bytes, message: AnyMessage, frames: Sequence[Any], now: float) -> list[Action]:
        """Take in what a broker says."""
        session = self._brokers.session(peer)
        if not session.accepts(message, now):
            return []
        match message:
            case Result():
                return self._on_result(message, frames)
            case Parts():
                return self._on_parts(session, message, frames, now)
            case Refused():
                return self._on_refused(session, message, now)
            case Pulse():
                return self._on_pulse(session, message, now)
            case Welcome():
                return self._on_welcome(session, message, now)
            case Who():
                self._not_taken(session.conn, message.ack)
                session.renew()
                self._brokers.forsake(session)
                return [self._hello(now)] if session is self._brokers.asked else []
            case Denied():
                return self._on_denied(session, message)
            case Status():
                return self._on_status(message)
            case _:
                return []

    def tick(self, now: float) -> list[Action]:
        """Let time pass: expire, beat, look for another broker, offer again."""
        actions: list[Action] = []
        for sent in self._deadlines.due(now):
            self._expire(sent, now, actions)
        while self._later and self._later[0][0] <= now:
            _, start, stop = heappop(self._later)
            if self._brokers.asked.welcomed:
                actions += self._offer_again(start, stop, now)
            else:
                heappush(self._later, (now + self._timing.beat, start, stop))
        for session in list(self._brokers.left):
            self._look_back(session, now, actions)
        self._move_if_quiet(now, actions)
        session = self._brokers.asked
        if now >= session.speaks and (self._groups or self._beat_owed or self._asked_status):
            actions.append(self._beat(session, now) if session.welcomed else self._hello(now))
            if session.welcomed and self._streams:
                actions += self._say_again(session, now)
        if self._asked_status and session.welcomed and now >= self._status_again:
            # Unlike a request it is named in no beat; lost, it would be waited for in vain, and for ever.
            actions.append(self._question(session, now))
        return actions

    def wakeup(self) -> float | None:
        """Return when to tick next, at the latest."""
        times = [self._deadlines.next(), self._later[0][0] if self._later else None]
        if self._groups or self._beat_owed or self._asked_status:
            times.append(self._brokers.asked.speaks)
        if self._asked_status and self._brokers.asked.welcomed:
            times.append(self._status_again)
        times += [session.speaks for session in self._brokers.left]
        return min((time for time in times if time is not None), default=None)

    def cancel(self, call: Call, now: float) -> list[Action]:
        """Withdraw a call: it has no outcome any more, here and at the broker."""
        call.closed = True
        sent = call.group
        if sent is None or sent.base not in self._groups:
            return []
        if sent.whole:
            ids = [(sent.base, sent.base + len(sent.items))]
            self._end(sent, sent.open)
        else:
            try:
                position = sent.calls.index(call)
            except ValueError:
                # Its outcome came first; that of others in its group has yet to come.
                return []
            sent.calls[position] = None
            ids = [(sent.base + position, sent.base + position + 1)]
            self._end(sent, 1)
        session = self._brokers.holder(sent.conn)
        if not sent.times or not session.welcomed:
            return []
        return [Send(session.peer, Cancel(*session.stamp(), ids))]

    def read(self, calls: Sequence[Call], now: float) -> list[Action]:
        """Tell brokers how much of these streams was read."""
        told: dict[bytes, list[tuple[int, int]]] = {}
        for call in calls:
            sent, inflow = call.group, call.inflow
            if sent is None or inflow is None or sent.base not in self._groups:
                continue
            session = self._brokers.holder(sent.conn)
            inflow.told = inflow.taken
            sent.deadline = call.deadline = now + inflow.patience
            if session.welcomed:
                told.setdefault(session.peer, []).append((sent.base, inflow.taken))
        return [action for peer, streams in told.items() for action in self._say_taken(peer, streams)]

    def _say_taken(self, peer: bytes, streams: list[tuple[int, int]]) -> list[Action]:
        session = self._brokers.session(peer)
        starts = range(0, len(streams), RANGES)
        return [Send(peer, Taken(*session.stamp(), streams[start : start + RANGES])) for start in starts]

    def ask_status(self, now: float) -> list[Action]:
        """Ask the broker how it is; one question is open at a time."""
        self._asked_status = True
        session = self._brokers.asked
        if not session.welcomed:
            return []
        self._status_since = (session.conn, session.sent + 1)
        return [self._question(session, now)]

    def forget_status(self) -> None:
        """Wait no longer for the answer to that."""
        self._asked_status = False

    def open_calls(self) -> list[Call]:
        """Return every call without an outcome."""
        calls = [call for sent in self._groups.values() for call in sent.calls if call is not None]
        return calls + [call for call in self._pending if not call.closed and call.group is None]

    def stop(self, fault: Fault) -> list[Action]:
        """Say goodbye; every open call ends in the error given."""
        actions: list[Action] = []
        calls = self.open_calls()
        if calls:
            actions.append(Failed(calls, fault))
        for session in (self._brokers.asked, *self._brokers.left):
            if session.welcomed:
                actions.append(Send(session.peer, Bye(*session.stamp())))
        self._groups.clear()
        self._waiting = 0
        self._pending.clear()
        return actions

    # --- going out ---------------------------------------------------------------------------------

    def _hold(self, sent: Sent) -> None:
        count = len(sent.items)
        sent.base = self._next
        sent.open = count
        self._waiting += count
        sent.size = self._measure(sent.items, sent.buffers)
        if sent.names is not None:
            sent.size += sum(map(len, sent.names))
        if sent.whole:
            sent.done = bytearray(count)
        for call in sent.calls:
            call.group = sent  # type: ignore[union-attr]
        self._next += count
        self._groups[sent.base] = sent
        if sent.inflow is not None:
            self._streams.add(sent.base)
        self._bases.append(sent.base)
        if len(self._bases) > 64 + 2 * len(self._groups):
            self._bases = sorted(self._groups)
        sent.bucket = self._deadlines.add(sent.deadline, sent)
        self._unsent.append(sent)

    def _send(self, parts: Sequence[tuple[Sent, int, int]], now: float) -> list[Action]:
        """Put groups, or parts of them, into messages of a bounded size."""
        actions: list[Action] = []
        groups: list[Group] = []
        frames: list[Any] = []
        size = 0
        session = self._brokers.asked
        for sent, start, stop in parts:
            if not sent.open:
                continue
            fault = cannot_travel(sent.size, sent.items, sent.buffers, session.message_bytes)
            if fault is None and sent.inflow is not None and sent.inflow.parts:
                fault = BROKEN
            if fault is not None:
                self._fail(sent, 0, len(sent.items), fault, actions)
                continue
            if groups and size + sent.size > MESSAGE_BYTES:
                actions.append(Send(session.peer, Request(*session.stamp(), groups), frames))
                groups, frames, size = [], [], 0
            if not groups:
                actions += session.announce(sent.size)
            size += sent.size
            groups.append(for_the_wire(sent, start, stop, now, frames))
            sent.conn = session.conn
            sent.number = session.sent + 1
            sent.times += 1
        if groups:
            actions.append(Send(session.peer, Request(*session.stamp(), groups), frames))
        if not self._beat_owed:
            self._beat_owed = True
            session.spoke(now)
        return actions

    # --- coming in ---------------------------------------------------------------------------------

    def _on_result(self, result: Result, frames: Sequence[Any]) -> list[Action]:
        actions: list[Action] = []
        place = 0
        for span in result.spans:
            buffers: list[Sequence[Any]] | None = None
            if span.buffers is not None:
                buffers = []
                for count in span.buffers:
                    buffers.append(frames[place : place + count])
                    place += count
            self._take_outputs(span, buffers, actions)
        return actions

    def _take_outputs(
        self, span: Results, buffers: list[Sequence[Any]] | None, actions: list[Action]
    ) -> None:
        sent = self._groups.get(span.base) or self._find(span.base)
        if sent is None:
            return
        start = span.base - sent.base
        count = min(len(span.outputs), len(sent.items) - start)
        if not sent.whole:
            calls = sent.calls[start : start + count]
            sent.calls[start : start + count] = [None] * count
            actions.append(Answered(calls, span.outputs, buffers))
            self._end(sent, count - calls.count(None))
            return
        call = sent.calls[0]
        assert call is not None
        if sent.inflow is not None:
            self._take_whole(sent, call, (span.outputs[0], buffers[0] if buffers else ()), actions)
            return
        for offset in range(count):
            position = start + offset
            if not sent.done[position]:
                call.outputs[position] = (span.outputs[offset], buffers[offset] if buffers else ())
                self._whole_item(sent, call, position, actions)

    def _take_whole(self, sent: Sent, call: Call, output: Part, actions: list[Action]) -> None:
        """Take what a model that yields no parts returned: a stream of one."""
        assert sent.inflow is not None
        if sent.inflow.parts:
            return  # of two runs, only the parts of one make a stream
        sent.inflow.parts = 1
        actions.append(Came(call, [(output, weight_of(output, self._measure))]))
        self._whole_item(sent, call, 0, actions)

    def _on_parts(self, session: Session, message: Parts, frames: Sequence[Any], now: float) -> list[Action]:
        actions: list[Action] = []
        # Until it has an acknowledgement, the broker keeps them.
        self._beat_owed = True
        place = 0
        for flow in message.flows:
            count = sum(flow.buffers) if flow.buffers is not None else 0
            sent = self._groups.get(flow.at)
            if sent is not None and sent.inflow is not None and self._brokers.holder(sent.conn) is session:
                self._take_parts(session, sent, cut(flow, frames[place : place + count]), flow, now, actions)
            place += count
        return actions

    def _take_parts(
        self,
        session: Session,
        sent: Sent,
        parts: list[Part],
        flow: Flow,
        now: float,
        actions: list[Action],
    ) -> None:
        call, inflow = sent.calls[0], sent.inflow
        assert call is not None
        assert inflow is not None
        known = without_known(flow, inflow.parts)
        if known is None:
            text = f"{flow.first - inflow.parts} parts were lost on the way"
            self._fail(sent, 0, 1, Fault("worker_lost", text), actions)
            actions.append(Send(session.peer, Cancel(*session.stamp(), [(flow.at, flow.at + 1)])))
            return
        fresh = parts[known:]
        if fresh:
            inflow.parts += len(fresh)
            sent.deadline = call.deadline = now + inflow.patience
            actions.append(Came(call, [(part, weight_of(part, self._measure)) for part in fresh]))
        if flow.ended:
            self._whole_item(sent, call, 0, actions)

    def _whole_item(self, sent: Sent, call: Call, position: int, actions: list[Action]) -> None:
        sent.done[position] = 1
        call.left -= 1
        self._end(sent, 1)
        if not call.left:
            call.closed = True
            actions.append(Finished(call))

    def _on_refused(self, session: Session, refused: Refused, now: float) -> list[Action]:
        actions: list[Action] = []
        for refusal in refused.refusals:
            for start, stop in refusal.ids:
                self._fail_ids(start, stop, refusal.fault, now, actions)
        handed_back = any(refusal.fault.code == "draining" for refusal in refused.refusals)
        if handed_back and session is self._brokers.asked and self._brokers.are_several:
            # What runs there may end there.
            self._brokers.leave(now)
            actions += self._begin_to_ask(now)
        return actions

    def _fail_ids(self, start: int, stop: int, fault: Fault, now: float, actions: list[Action]) -> None:
        for sent in self._overlapping(start, stop):
            first = max(start, sent.base)
            last = min(stop, sent.base + len(sent.items))
            wait = self._retry_in(sent, fault, now)
            if wait is None:
                self._fail(sent, first - sent.base, last - sent.base, fault, actions)
                continue
            sent.rests_until = now + wait
            heappush(self._later, (sent.rests_until, first, last))
            sent.moves += fault.code == "draining"
            if sent.times == 1 and last - first == len(sent.items) and fault.kind != BEGUN:
                # It was sent once and came back unrun: it is new to whom it is sent next.
                sent.times = 0

    def _retry_in(self, sent: Sent, fault: Fault, now: float) -> float | None:
        """Return when to offer again what was refused; None: the refusal is its outcome."""
        wanted = fault.retry_after_ms / 1000
        if fault.code == "draining" or (fault.code == "overloaded" and sent.times > 1):
            # It had a place before the broker was lost, or never began: no room now is no outcome.
            return min(max(wanted, RETRY * sent.times), self._timing.beat)
        if fault.code == "overloaded" and self._retry:
            # All who were refused together must not come back together.
            wait = max(wanted, RETRY) * (1.0 + self._mint(1)[0] / 512)
            return wait if now + wait < sent.deadline else None
        return None

    def _fail(self, sent: Sent, start: int, stop: int, fault: Fault, actions: list[Action]) -> None:
        if not sent.whole:
            calls = [call for call in sent.calls[start:stop] if call is not None]
            sent.calls[start:stop] = [None] * (stop - start)
            if calls:
                actions.append(Failed(calls, fault))
            self._end(sent, len(calls))
            return
        call = sent.calls[0]
        assert call is not None
        for position in range(start, stop):
            if not sent.done[position]:
                if call.faults is None:
                    call.faults = {}
                call.faults[position] = fault
                self._whole_item(sent, call, position, actions)

    def _end(self, sent: Sent, count: int) -> None:
        sent.open -= count
        self._waiting -= count
        if not sent.open:
            self._groups.pop(sent.base, None)
            self._deadlines.discard(sent.bucket, sent)
            sent.calls = []
            sent.items = ()
            sent.buffers = None

    def _find(self, one: int) -> Sent | None:
        """Return the open group that an id is in."""
        place = bisect_right(self._bases, one) - 1
        if place < 0:
            return None
        sent = self._groups.get(self._bases[place])
        return sent if sent is not None and one < sent.base + len(sent.items) else None

    def _overlapping(self, start: int, stop: int) -> list[Sent]:
        place = max(bisect_right(self._bases, start) - 1, 0)
        found = []
        while place < len(self._bases) and self._bases[place] < stop:
            sent = self._groups.get(self._bases[place])
            if sent is not None and sent.base + len(sent.items) > start:
                found.append(sent)
            place += 1
        return found

    # --- life with a broker ------------------------------------------------------------------------

    def _hello(self, now: float) -> Send:
        session = self._brokers.asked
        session.sent = 0
        session.spoke(now)
        ranges, upto = self._open(session)
        return Send(
            session.peer,
            Hello(
                *session.stamp(), self._life, "client", 1, ranges, upto, host=self._host[:64], pid=self._pid
            ),
        )

    def _beat(self, session: Session, now: float) -> Send:
        session.spoke(now)
        ranges, upto = self._open(session)
        if session is self._brokers.asked:
            self._beat_owed = bool(self._groups)
        return Send(session.peer, Beat(*session.stamp(), ranges, upto))

    def _open(self, session: Session) -> tuple[list[Range], int]:
        """Return the ids that are wanted of a broker, and the first id of which that says nothing."""
        ranges: list[Range] = []
        for sent in self._groups.values():
            if not sent.times or (self._brokers.left and self._brokers.holder(sent.conn) is not session):
                continue
            if sent.open == len(sent.items):
                ranges.append((sent.base, sent.base + sent.open))
            elif sent.whole:
                ranges += intervals.of(sent.base + i for i, done in enumerate(sent.done) if not done)
            else:
                ranges += intervals.of(sent.base + i for i, call in enumerate(sent.calls) if call is not None)
        ranges = intervals.normal(ranges)
        upto = min((sent.base for sent in self._unsent if sent.open), default=self._next)
        if len(ranges) > RANGES:
            ranges = ranges[:RANGES]
            upto = min(upto, ranges[-1][1])
        return ranges, upto

    def _on_welcome(self, session: Session, welcome: Welcome, now: float) -> list[Action]:
        session.epoch = welcome.epoch
        if session is not self._brokers.asked:
            return []
        for sent in self._groups.values():
            if sent.times and self._brokers.holder(sent.conn) is session:
                sent.conn, sent.number = session.conn, 0
        actions = self._resend(welcome.missing, session, session.sent, now)
        actions += self.flush(now)
        if self._asked_status:
            actions += self.ask_status(now)
        return actions

    def _question(self, session: Session, now: float) -> Send:
        self._status_again = now + self._timing.beat
        return Send(session.peer, StatusAsk(*session.stamp()))

    def _on_status(self, status: Status) -> list[Action]:
        conn, number = self._status_since
        if not self._asked_status or status.conn != conn or status.ack < number:
            # A second answer to what was asked before: how the broker was then.
            return []
        self._asked_status = False
        return [Shown(status.snapshot)]

    def _on_denied(self, session: Session, denied: Denied) -> list[Action]:
        """End everything: who is not let in need not wait for a deadline."""
        calls = self.open_calls()
        if session is not self._brokers.asked or not calls:
            return []
        for sent in self._groups.values():
            self._deadlines.discard(sent.bucket, sent)
        self._groups.clear()
        self._waiting = 0
        self._pending.clear()
        self._unsent.clear()
        return [Failed(calls, denied.fault)]

    def foreign(self, peer: bytes, text: str) -> list[Action]:
        """Learn that a broker speaks another version of the protocol."""
        session = self._brokers.session(peer)
        return self._on_denied(session, Denied(session.conn, 0, 0, Fault("protocol_mismatch", text)))

    def _on_pulse(self, session: Session, pulse: Pulse, now: float) -> list[Action]:
        if session is self._brokers.asked:
            self._beat_owed = bool(self._groups)
        actions = self._resend(pulse.missing, session, pulse.seen, now)
        topics = set(pulse.unserved)
        if session is self._brokers.asked:
            topics = self._brokers.unbearable(pulse.unserved, now)
        if topics and self._brokers.are_several:
            actions += self._ask_back(session, topics)
        return actions

    def _ask_back(self, session: Session, topics: set[str]) -> list[Action]:
        """Ask for what no worker serves here: elsewhere there may be some.  What runs stays."""
        back = [
            sent
            for sent in self._groups.values()
            if sent.topic in topics
            and sent.times
            and sent.moves < MOVES
            and self._brokers.holder(sent.conn) is session
        ]
        ids = intervals.normal([(sent.base, sent.base + len(sent.items)) for sent in back])
        return [Send(session.peer, Cancel(*session.stamp(), ids[:RANGES], True))] if ids else []

    def _offer_again(self, start: int, stop: int, now: float) -> list[Action]:
        """Send what a broker had no room for, or gave back."""
        back = [
            sent for sent in self._overlapping(start, stop) if not sent.times and sent not in self._unsent
        ]
        if back:
            self._unsent += back
            return self.flush(now)
        return self._resend([(start, stop)], self._brokers.asked, self._brokers.asked.sent, now)

    def _resend(self, missing: Sequence[Range], session: Session, seen: int, now: float) -> list[Action]:
        """Send again what a broker says it misses, to the one that is asked now."""
        if not self._brokers.asked.welcomed:
            return []
        parts: list[tuple[Sent, int, int]] = []
        for start, stop in missing:
            for sent in self._overlapping(start, stop):
                travelling = sent.conn == session.conn and sent.number > seen
                if (
                    sent.times
                    and not travelling
                    and now >= sent.rests_until
                    and self._brokers.holder(sent.conn) is session
                ):
                    first = max(start, sent.base) - sent.base
                    parts.append((sent, first, min(stop - sent.base, len(sent.items))))
        parts.sort(key=lambda part: part[0].deadline)
        return self._send(parts, now) if parts else []

    def _not_taken(self, conn: bytes, upto: int) -> None:
        """Count what a broker says it did not take as not sent: a model may refuse what was sent again."""
        if not upto:
            return
        back = [
            one for one in self._groups.values() if one.times == 1 and one.conn == conn and one.number > upto
        ]
        for sent in back:
            sent.times = 0
        self._unsent[:0] = back

    def _look_back(self, session: Session, now: float, actions: list[Action]) -> None:
        """Beat at a broker that was left while it has something of ours; forsake one that is quiet."""
        if self._brokers.is_lost(session, now):
            self._brokers.forsake(session)
            actions.append(self._farewell(session))
        elif now >= session.speaks:
            actions.append(self._beat(session, now))
            if not any(sent.times and sent.conn == session.conn for sent in self._groups.values()):
                self._brokers.forsake(session)

    def _move_if_quiet(self, now: float, actions: list[Action]) -> None:
        """Ask another broker when this one has said nothing for a while and something waits."""
        if not self._brokers.are_several or not self._groups:
            return
        oldest = min(next(iter(self._groups.values())).made, now)
        if self._brokers.is_quiet(oldest, now):
            quiet = self._brokers.move(now)
            actions += [*self._begin_to_ask(now), self._farewell(quiet)]

    def _begin_to_ask(self, now: float) -> list[Action]:
        # One that was left and came to be asked again knows us still.
        return self.flush(now) if self._brokers.asked.welcomed else [self._hello(now)]

    def _farewell(self, quiet: Session) -> Send:
        """Say that nothing is wanted: a broker that only cannot be heard need not work for nobody."""
        return Send(quiet.peer, Beat(*quiet.stamp(), [], self._next))

    def _say_again(self, session: Session, now: float) -> list[Action]:
        """Repeat how much of each stream was read: a word that was lost would hold its worker up for ever."""
        streams = []
        for base in list(self._streams):
            sent = self._groups.get(base)
            if sent is None:
                self._streams.discard(base)
                continue
            call, inflow = sent.calls[0], sent.inflow
            assert call is not None
            assert inflow is not None
            if inflow.taken and self._brokers.holder(sent.conn) is session:
                if inflow.taken > inflow.told:
                    sent.deadline = call.deadline = now + inflow.patience
                inflow.told = inflow.taken
                streams.append((base, inflow.taken))
        return self._say_taken(session.peer, streams)

    def _expire(self, sent: Sent, now: float, actions: list[Action]) -> None:
        """End what is overdue; where a broker is there, it has a moment to say which error it is."""
        if sent.inflow is not None and now < sent.deadline:
            # It is for the next part, and one has come since.
            sent.bucket = self._deadlines.add(sent.deadline, sent)
            return
        grace = WORD if self._brokers.asked.welcomed else 0.0
        waited = now - sent.made
        if not self._brokers.heard_since(sent.made):
            at = f" at {self._where}" if self._where else ""
            text = (
                f"no broker{at} answered within {waited:.3f} s; is one running there, and reachable, "
                f"or {self._advice}?"
            )
            fault = Fault("broker_unreachable", text)
        elif self._brokers.lacks_workers(sent.topic):
            text = f"no worker of topic {sent.topic!r} at any broker that answered within {waited:.3f} s"
            fault = Fault("no_workers", text)
        elif sent.inflow is not None and sent.inflow.parts:
            fault = Fault("deadline_exceeded", f"no further part came within {sent.inflow.patience:.3f} s")
        else:
            fault = Fault("deadline_exceeded", f"no outcome within {waited:.3f} s")
        if sent.deadlines is None:
            if now >= sent.deadline + grace:
                self._fail(sent, 0, len(sent.items), fault, actions)
            else:
                sent.bucket = self._deadlines.add(sent.deadline + grace, sent)
            return
        for place, deadline in enumerate(sent.deadlines):
            if now >= deadline + grace and sent.calls and sent.calls[place] is not None:
                self._fail(sent, place, place + 1, fault, actions)
        if sent.open:
            waiting = (sent.deadlines[at] for at, call in enumerate(sent.calls) if call is not None)
            sent.deadline = min(waiting)
            due = sent.deadline + grace if sent.deadline <= now else sent.deadline
            sent.bucket = self._deadlines.add(due, sent)
