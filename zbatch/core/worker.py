"""The worker's brain: which batch runs next, what is left out of it, and what the brokers are told.

Batches run one at a time, in the order handed over.  A finished batch is kept until the broker has
acknowledged its DONE, so that a broken connection costs a second sending, not a second run; so are parts of
streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from zbatch.config import Timing
from zbatch.core import intervals
from zbatch.core.actions import Send
from zbatch.core.names import of_each
from zbatch.core.pipeline import Joined
from zbatch.core.session import Mint, Session
from zbatch.core.sizes import Answer, Measure, size_of
from zbatch.core.stream import Outflow, messages_of, weight_of
from zbatch.messages import (
    AnyMessage,
    Batch,
    Beat,
    Bye,
    Done,
    Draining,
    Facts,
    Fault,
    Flow,
    Hello,
    Progress,
    Ready,
    Recall,
    Returned,
    Room,
    Skip,
    Span,
    Welcome,
    Who,
    Yielded,
)

T = TypeVar("T")

LEASE_SHARE = 2 / 3
"""A hang must be found while its innocent neighbours still have time for a second run."""

SHORTEST_LEASE, LONGEST_LEASE = 20.0, 60.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker offers."""

    topic: str
    batch_size: int = 32
    batch_cost: float | None = None
    max_latency: float = 0.010
    slots: int = 2
    lease: float | None = None
    """The longest a batch may run without progress; None: two thirds of the longest time left in it."""
    idempotent: bool = True
    facts: Facts = Facts()


class Told(Sequence[T]):
    """The ids or deadlines of a batch's items, worked out when a model first asks for them: few do."""

    def __init__(self, make: Callable[[], list[T]]) -> None:
        self._make = make
        self._made: list[T] | None = None

    def _all(self) -> list[T]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, place: Any) -> Any:
        return self._all()[place]

    def __iter__(self) -> Iterator[T]:
        return iter(self._all())


@dataclass(slots=True, eq=False)
class Job:
    """A batch in this worker's hands."""

    session: Session
    batch: Batch
    arrived: float
    items: list[Any]
    buffers: list[Sequence[Any]] | None
    joined: bool = False
    """Whether some items are put together from several parts, see ``pipeline.py``."""
    named: bool = False
    """Whether some items have a request id."""
    skipped: set[int] = field(default_factory=set)
    dropped: list[tuple[int, Fault]] = field(default_factory=list)
    """Positions left out when the batch began."""
    lease: float = LONGEST_LEASE
    flows: dict[int, Outflow] = field(default_factory=dict)
    """The streams of a batch that runs, by position."""
    waited: float = 0.0
    """Seconds for which its model has waited for readers alone."""
    _streams: list[Outflow | None] | None = None

    @property
    def epoch(self) -> bytes:
        """The broker's life that handed it over."""
        return self.batch.epoch

    @property
    def number(self) -> int:
        """The broker's number for it."""
        return self.batch.batch

    @property
    def apart(self) -> bool:
        """Whether its items are tried apart because a process died under them."""
        return self.batch.apart

    def ids(self) -> list[tuple[bytes, int]]:
        """Return origin and id of each item."""
        return [(span.origin, span.base + at) for span in self.batch.spans for at in range(len(span.items))]

    def names(self) -> list[str]:
        """Return the request id of each item, empty where it has none."""
        return [name for span in self.batch.spans for name in of_each(span.names, len(span.items))]

    def deadlines(self) -> list[float]:
        """Return when each item is due."""
        due: list[float] = []
        for span in self.batch.spans:
            later = span.later_ms or [0] * len(span.items)
            due += [self.arrived + (span.deadline_ms + one) / 1000 for one in later]
        return due

    def earliest(self) -> float:
        """Return when the first item is due."""
        return self.arrived + min(span.deadline_ms for span in self.batch.spans) / 1000

    def latest(self) -> float:
        """Return when the last item is due."""
        spans = self.batch.spans
        return self.arrived + max(span.deadline_ms + max(span.later_ms or (0,)) for span in spans) / 1000

    def work(self) -> tuple[Sequence[Any], Sequence[Sequence[Any]] | None, Told[Any], Told[float]]:
        """Return items, buffers, ids and deadlines of what was not left out."""
        if not self.dropped:
            return self.items, self.buffers, Told(self.ids), Told(self.deadlines)
        kept = self._kept()
        ids, deadlines = self.ids(), self.deadlines()
        return (
            [self.items[place] for place in kept],
            None if self.buffers is None else [self.buffers[place] for place in kept],
            Told(lambda: [ids[place] for place in kept]),
            Told(lambda: [deadlines[place] for place in kept]),
        )

    def names_at_work(self) -> Sequence[str]:
        """Return the request ids of what was not left out; nothing where no item has one."""
        if not self.named:
            return ()
        return Told(self.names if not self.dropped else self._names_kept)

    def _names_kept(self) -> list[str]:
        names = self.names()
        return [names[place] for place in self._kept()]

    def streams(self) -> list[Outflow | None]:
        """Return the stream of each item that was not left out; None: it is wanted as a whole."""
        if self._streams is None:
            streamed = [span.streamed for span in self.batch.spans for _ in span.items]
            kept = self._kept()
            self.flows = {at: Outflow(at) for at in kept if streamed[at]}
            lost = self.flows if self.epoch != self.session.epoch else self.skipped & self.flows.keys()
            for position in lost:
                self.flows[position].stop()
            self._streams = [self.flows.get(position) for position in kept]
        return self._streams

    def _kept(self) -> list[int]:
        gaps = {position for position, _ in self.dropped}
        return [place for place in range(len(self.items)) if place not in gaps]


@dataclass(slots=True, eq=False)
class _Said:
    """Parts that may have been lost."""

    job: Job
    flows: list[Flow]
    frames: list[Any]
    conn: bytes = b""
    number: int = 0


@dataclass(slots=True, eq=False)
class JobSink:
    """Where the parts of a running batch go: to the body, which hands them on and waits for readers."""

    job: Job
    hand_on: Callable[[Job, list[tuple[int, Any, Sequence[Any]]], list[tuple[int, Fault | None]]], None]
    wait_for: Callable[[Job, Sequence[int]], None]

    def is_streamed(self, place: int) -> bool:
        """Return whether somebody reads this item part by part."""
        return self.job.streams()[place] is not None

    def is_wanted(self, place: int) -> bool:
        """Return whether anybody still waits for this item."""
        flow = self.job.streams()[place]
        return flow is None or flow.is_open

    def put(self, parts: list[tuple[int, Any, Sequence[Any]]], ended: list[tuple[int, Fault | None]]) -> None:
        """Take the encoded parts of a step, and which streams end with it."""
        self.hand_on(self.job, parts, ended)

    def wait(self, places: Sequence[int]) -> None:
        """Wait until readers of these items have room, or are gone."""
        self.wait_for(self.job, places)


@dataclass(slots=True, eq=False)
class _Unacknowledged:
    """A finished batch whose DONE may have been lost."""

    job: Job
    answer: Answer
    run_ms: float
    conn: bytes = b""
    number: int = 0


class WorkerCore:
    """Everything that a model process decides."""

    def __init__(
        self,
        brokers: int,
        life: bytes,
        incarnation: bytes,
        mint: Mint,
        timing: Timing,
        *,
        host: str = "",
        pid: int = 0,
        measure: Measure = size_of,
    ) -> None:
        self.offer: Offer | None = None
        self.running: Job | None = None
        self.draining = False
        self._life = life
        self._incarnation = incarnation
        self._timing = timing
        self._host = host
        self._pid = pid
        self._measure = measure
        self._sessions = [Session(bytes([index]), mint, timing.beat) for index in range(brokers)]
        self._queue: deque[Job] = deque()
        self._finished: dict[tuple[bytes, int], _Unacknowledged] = {}
        self._said: list[_Said] = []
        self._choked: set[bytes] = set()
        """Brokers to whom parts found no way just now: nothing may overtake them."""

    # --- what the body calls -----------------------------------------------------------------------

    def start(self, now: float) -> list[Send]:
        """Introduce this worker to its brokers; it offers nothing yet."""
        for session in self._sessions:
            session.renew()
        return [self._hello(session, now) for session in self._sessions]

    def ready(self, offer: Offer) -> list[Send]:
        """Offer work: the model is loaded and warm."""
        self.offer = offer
        return [self._ready(session, offer) for session in self._sessions if session.welcomed]

    def handle(self, peer: bytes, message: AnyMessage, frames: Sequence[Any], now: float) -> list[Send]:
        """Take in what a broker says."""
        session = self._sessions[peer[0]]
        if not session.accepts(message, now):
            return []
        self._forget_acknowledged(session)
        match message:
            case Batch():
                return self._on_batch(session, message, frames, now)
            case Skip():
                self._on_skip(session, message)
            case Room():
                return self._on_room(session, message)
            case Recall():
                return self._on_recall(session, message)
            case Welcome():
                return self._on_welcome(session, message)
            case Who():
                session.renew()
                return [self._hello(session, now)]
            case _:
                pass
        return []

    def begin(self, now: float) -> tuple[Job | None, list[Send]]:
        """Return the batch to run now, if the model is free, and what else to say.

        Items whose deadline has passed or that nobody waits for are left out; a batch of only such items is
        answered without a run.
        """
        actions: list[Send] = []
        if self.running is not None:
            return None, actions
        while self.running is None and self._queue:
            job = self._queue.popleft()
            self._leave_out(job, now)
            if len(job.dropped) == len(job.items):
                actions += self._done(job, [], None, None, 0.0)
                continue
            left = job.latest() - now
            lease = self.offer.lease if self.offer is not None else None
            job.lease = lease or min(LONGEST_LEASE, max(SHORTEST_LEASE, left * LEASE_SHARE))
            self.running = job
        return self.running, actions

    def finished(
        self,
        job: Job,
        outputs: list[Any],
        buffers: Sequence[Sequence[Any]] | None,
        errors: list[tuple[int, Fault]] | None,
        seconds: float,
    ) -> list[Send]:
        """Report the outcome of the items that :meth:`begin` did not leave out, in order."""
        actions: list[Send] = []
        if job.flows:
            faults = dict(errors or [])
            for place, outflow in enumerate(job.streams()):
                if outflow is not None:
                    # What failed before its first part is known by its error alone.
                    outflow.end(faults.get(place))
            actions = self._say_parts(job, everything=True)
            errors = _with_streams(job, errors or [])
        self.running = None
        return actions + self._done(job, outputs, buffers, errors, seconds)

    def put(
        self,
        job: Job,
        parts: Sequence[tuple[int, Any, Sequence[Any]]],
        ended: Sequence[tuple[int, Fault | None]],
    ) -> list[Send]:
        """Take what the running batch's model yielded; send it as far as its readers keep up."""
        flows = job.streams()
        for place, payload, buffers in parts:
            outflow = flows[place]
            if outflow is not None:
                part = (payload, buffers)
                outflow.put(part, weight_of(part, self._measure))
        for place, fault in ended:
            outflow = flows[place]
            if outflow is not None:
                outflow.end(fault)
        return self._try_again() if self._choked else self._say_parts(job)

    def are_held_up(self, job: Job, places: Sequence[int], now: float) -> bool:
        """Return whether only readers that are behind wait for these, or the way to the broker is full.

        Not at a broker that is quiet: nobody knows whether it comes back.
        """
        flows = [job.streams()[place] for place in places]
        behind = bool(flows) and all(flow is not None and flow.is_open and flow.is_full for flow in flows)
        return (behind or job.session.peer in self._choked) and not self._is_quiet(job.session, now)

    def progress(self) -> list[Send]:
        """Tell the broker that the running batch advances."""
        job = self.running
        if job is None or not job.session.welcomed or job.session.epoch != job.epoch:
            return []
        waited = int(job.waited * 1000)
        return [Send(job.session.peer, Progress(*job.session.stamp(), job.epoch, job.number, waited))]

    def drain(self) -> list[Send]:
        """Take nothing new and give back what has not begun."""
        self.draining = True
        actions = []
        for session in self._sessions:
            if not session.welcomed:
                continue
            actions.append(Send(session.peer, Draining(*session.stamp())))
            back = [job.number for job in self._queue if job.session is session]
            if back:
                actions.append(Send(session.peer, Returned(*session.stamp(), session.epoch, back)))
        self._queue.clear()
        return actions

    def is_drained(self, now: float) -> bool:
        """Return whether everything this worker did has arrived, or its broker is gone and asks no more."""
        if not self.draining or self.running is not None:
            return False
        return all(self._is_quiet(kept.job.session, now) for kept in self._finished.values())

    def stop(self) -> list[Send]:
        """Say goodbye."""
        return [Send(one.peer, Bye(*one.stamp())) for one in self._sessions if one.welcomed]

    def tick(self, now: float) -> list[Send]:
        """Let time pass: introduce again, or beat."""
        actions = self._try_again() if self._choked else []
        for session in self._sessions:
            if now >= session.speaks:
                actions.append(self._beat(session, now) if session.welcomed else self._hello(session, now))
        return actions

    def wakeup(self) -> float:
        """Return when to tick next, at the latest."""
        return min(session.speaks for session in self._sessions)

    @property
    def is_choked(self) -> bool:
        """Whether something waits for a way that was full."""
        return bool(self._choked)

    def unsent(self, peer: bytes, message: Yielded | Done) -> None:
        """Learn that the way to a broker was full: this, and what follows it, is sent later."""
        self._choked.add(peer)
        mine: list[_Said | _Unacknowledged] = [*self._said, *self._finished.values()]
        for one in mine:
            if one.conn == message.conn and one.number == message.number:
                one.conn = b""

    @property
    def is_welcome(self) -> bool:
        """Whether some broker knows this worker."""
        return any(session.welcomed for session in self._sessions)

    def _is_quiet(self, session: Session, now: float) -> bool:
        return session.heard is None or now - session.heard >= self._timing.quiet

    # --- coming in ---------------------------------------------------------------------------------

    def _on_batch(self, session: Session, batch: Batch, frames: Sequence[Any], now: float) -> list[Send]:
        if self.draining:
            back = Returned(*session.stamp(), batch.epoch, [batch.batch])
            return [Send(session.peer, back)]
        items: list[Any] = batch.spans[0].items if len(batch.spans) == 1 else []
        if not items:
            for span in batch.spans:
                items += span.items
        buffers: list[Sequence[Any]] | None = None
        joined = named = False
        for span in batch.spans:
            joined = joined or span.parts is not None
            named = named or span.names is not None
        if joined:
            items, buffers = _put_together(batch.spans, frames)
        elif frames:
            buffers = []
            place = 0
            for span in batch.spans:
                for own in span.buffers or [0] * len(span.items):
                    buffers.append(frames[place : place + own])
                    place += own
        self._queue.append(Job(session, batch, now, items, buffers, joined, named))
        return []

    def _on_skip(self, session: Session, skip: Skip) -> None:
        for job in self._queue:
            if job.session is session and job.number == skip.batch and job.epoch == skip.epoch:
                for start, stop in skip.positions:
                    job.skipped.update(range(start, min(stop, len(job.items))))
        running = self._running(session, skip.batch, skip.epoch)
        if running is not None:
            for start, stop in skip.positions:
                for position in range(start, min(stop, len(running.items))):
                    running.skipped.add(position)
                    if position in running.flows:
                        running.flows[position].stop()

    def _on_room(self, session: Session, room: Room) -> list[Send]:
        job = self._running(session, room.batch, room.epoch)
        if job is None:
            return []
        for position, taken in room.streams:
            outflow = job.flows.get(position)
            if outflow is not None:
                outflow.taken = max(outflow.taken, min(taken, outflow.sent))
        return self._say_parts(job)

    def _running(self, session: Session, number: int, epoch: bytes) -> Job | None:
        job = self.running
        if job is None or job.session is not session or (job.number, job.epoch) != (number, epoch):
            return None
        return job

    def _on_recall(self, session: Session, recall: Recall) -> list[Send]:
        for job in self._queue:
            if job.session is session and job.number == recall.batch and job.epoch == recall.epoch:
                self._queue.remove(job)
                back = Returned(*session.stamp(), recall.epoch, [recall.batch])
                return [Send(session.peer, back)]
        return []

    def _on_welcome(self, session: Session, welcome: Welcome) -> list[Send]:
        if session.epoch != welcome.epoch:
            # Another life of the broker: it knows none of these batches, its clients ask for them again.
            self._queue = deque(job for job in self._queue if job.session is not session)
            for key in [key for key, kept in self._finished.items() if kept.job.session is session]:
                del self._finished[key]
            self._said = [said for said in self._said if said.job.session is not session]
            if self.running is not None and self.running.session is session:
                for outflow in self.running.flows.values():
                    outflow.stop()
            session.epoch = welcome.epoch
        actions = []
        if self.draining:
            # It may not have heard so yet, and would hand over again whatever comes back.
            actions.append(Send(session.peer, Draining(*session.stamp())))
        elif self.offer is not None:
            actions.append(self._ready(session, self.offer))
        self._choked.discard(session.peer)
        # The parts of a stream first: a batch that is done has none.
        for said in self._said:
            if said.job.session is session:
                actions += self._say(said)
        for kept in self._finished.values():
            if kept.job.session is session:
                actions += self._say_done(kept)
        return actions

    # --- going out ---------------------------------------------------------------------------------

    def _leave_out(self, job: Job, now: float) -> None:
        if not job.skipped and now < job.earliest():
            return
        for position, deadline in enumerate(job.deadlines()):
            if position in job.skipped:
                job.dropped.append((position, Fault("cancelled", "cancelled before it began")))
            elif deadline <= now:
                text = "the deadline passed while it waited in its worker's hands"
                job.dropped.append((position, Fault("deadline_exceeded", text)))

    def _say_parts(self, job: Job, *, everything: bool = False) -> list[Send]:
        session = job.session
        if job.epoch != session.epoch or (session.peer in self._choked and not everything):
            return []
        pieces: list[tuple[Flow, list[Any]]] = []
        for outflow in job.flows.values():
            frames: list[Any] = []
            while (flow := outflow.flow(frames, everything=everything)) is not None:
                pieces.append((flow, frames))
                frames = []
        actions: list[Send] = []
        for flows, own in messages_of(pieces, self._measure):
            said = _Said(job, flows, own)
            self._said.append(said)
            if session.welcomed and session.peer not in self._choked:
                actions += self._say(said)
        return actions

    def _try_again(self) -> list[Send]:
        """Send what found no way."""
        choked, self._choked = self._choked, set()
        actions: list[Send] = []
        for session in (one for one in self._sessions if one.peer in choked and one.welcomed):
            for said in self._said:
                if said.job.session is session and said.conn != session.conn:
                    actions += self._say(said)
            if self.running is not None and self.running.session is session:
                actions += self._say_parts(self.running)
            for kept in self._finished.values():
                if kept.job.session is session and kept.conn != session.conn:
                    actions += self._say_done(kept)
        return actions

    def _say(self, said: _Said) -> list[Send]:
        job, session = said.job, said.job.session
        actions = session.announce(sum(map(len, said.frames)))
        attempt = job.batch.attempt
        yielded = Yielded(*session.stamp(), job.epoch, job.number, attempt, self._incarnation, said.flows)
        said.conn, said.number = session.conn, yielded.number
        return [*actions, Send(session.peer, yielded, said.frames)]

    def _done(
        self,
        job: Job,
        outputs: list[Any],
        buffers: Sequence[Sequence[Any]] | None,
        errors: list[tuple[int, Fault]] | None,
        seconds: float,
    ) -> list[Send]:
        if job.dropped:
            outputs, buffers, errors = _with_gaps(job, outputs, buffers, errors)
        answer = Answer(outputs, None if buffers is None else list(buffers), errors or [])
        answer.fit(job.session.message_bytes, self._measure)
        kept = _Unacknowledged(job, answer, seconds * 1000)
        if job.epoch != job.session.epoch:
            return []
        self._finished[(job.epoch, job.number)] = kept
        is_open = job.session.welcomed and job.session.peer not in self._choked
        return self._say_done(kept) if is_open else []

    def _say_done(self, kept: _Unacknowledged) -> list[Send]:
        job, session = kept.job, kept.job.session
        answer = kept.answer
        buffers = answer.buffers
        counts = None if buffers is None else [len(own) for own in buffers]
        frames = [] if buffers is None else [frame for own in buffers for frame in own]
        actions = session.announce(sum(map(len, frames)))
        done = Done(
            *session.stamp(),
            job.epoch,
            job.number,
            job.batch.attempt,
            self._incarnation,
            answer.outputs,
            counts,
            answer.errors or None,
            kept.run_ms,
        )
        kept.conn, kept.number = session.conn, done.number
        return [*actions, Send(session.peer, done, frames)]

    def _forget_acknowledged(self, session: Session) -> None:
        if self._said:
            self._said = [
                said
                for said in self._said
                if said.job.session is not session or said.conn != session.conn or said.number > session.acked
            ]
        if not self._finished:
            return
        for key, kept in list(self._finished.items()):
            if kept.job.session is session and kept.conn == session.conn and kept.number <= session.acked:
                del self._finished[key]

    def _hello(self, session: Session, now: float) -> Send:
        session.sent = 0
        session.spoke(now)
        hello = Hello(
            *session.stamp(),
            self._life,
            "worker",
            1,
            self._held(session),
            epoch=session.epoch,
            incarnation=self._incarnation,
            host=self._host[:64],
            pid=self._pid,
        )
        return Send(session.peer, hello)

    def _ready(self, session: Session, offer: Offer) -> Send:
        ready = Ready(
            *session.stamp(),
            offer.topic,
            offer.slots,
            offer.batch_size,
            offer.batch_cost,
            offer.max_latency * 1000,
            int((offer.lease or LONGEST_LEASE) * 1000),
            offer.idempotent,
            offer.facts,
        )
        return Send(session.peer, ready)

    def _beat(self, session: Session, now: float) -> Send:
        session.spoke(now)
        running = self.running
        number = 0
        if running is not None and running.session is session and running.epoch == session.epoch:
            number = running.number
        return Send(session.peer, Beat(*session.stamp(), self._held(session), 0, number, session.epoch))

    def _held(self, session: Session) -> list[tuple[int, int]]:
        jobs = [job for job in self._queue if job.session is session]
        jobs += [kept.job for kept in self._finished.values() if kept.job.session is session]
        if self.running is not None and self.running.session is session:
            jobs.append(self.running)
        return intervals.of(job.number for job in jobs if job.epoch == session.epoch)


def _put_together(spans: Sequence[Span], frames: Sequence[Any]) -> tuple[list[Any], list[Sequence[Any]]]:
    """Return the items of a batch, some of which are joined from several parts, and their buffers."""
    items: list[Any] = []
    buffers: list[Sequence[Any]] = []
    place = 0

    def taken(count: int) -> Sequence[Any]:
        nonlocal place
        place += count
        return frames[place - count : place]

    for span in spans:
        own = [taken(count) for count in span.buffers or [0] * len(span.items)]
        buffers += own
        if span.parts is None:
            items += span.items
            continue
        columns = [
            [
                (part.name, item, taken(count))
                for item, count in zip(part.items, part.buffers or [0] * len(part.items), strict=True)
            ]
            for part in span.parts
        ]
        items += [Joined(list(parts)) for parts in zip(*columns, strict=True)]
    return items, buffers


def _with_streams(job: Job, errors: list[tuple[int, Fault]]) -> list[tuple[int, Fault]]:
    """Have no output stand for a stream: were its end lost, that would be taken for all of it."""
    known = {place for place, _ in errors}
    lost = Fault("worker_lost", "the end of the stream was lost")
    streams = enumerate(job.streams())
    return errors + [(at, lost) for at, flow in streams if flow is not None and at not in known]


def _with_gaps(
    job: Job,
    outputs: list[Any],
    buffers: Sequence[Sequence[Any]] | None,
    errors: list[tuple[int, Fault]] | None,
) -> tuple[list[Any], Sequence[Sequence[Any]] | None, list[tuple[int, Fault]] | None]:
    """Put the outcomes of a run back to the positions that the items had before some were left out."""
    gaps = {position for position, _ in job.dropped}
    kept = [position for position in range(len(job.items)) if position not in gaps]
    all_outputs: list[Any] = [b""] * len(job.items)
    all_buffers: list[Sequence[Any]] | None = None if buffers is None else [() for _ in job.items]
    for place, position in enumerate(kept):
        all_outputs[position] = outputs[place]
        if all_buffers is not None and buffers is not None:
            all_buffers[position] = buffers[place]
    all_errors = job.dropped + [(kept[place], fault) for place, fault in errors or []]
    return all_outputs, all_buffers, all_errors
