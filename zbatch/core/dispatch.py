"""Who runs what: workers come, get batches, answer, fall silent, die; and nothing is lost with them.

Which batch goes where now is ``topics.py``'s decision, what becomes of lost items ``retry.py``'s; this file
keeps the hands and the batches in them in step with what workers and supervisors say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zbatch.config import BrokerCoreSettings
from zbatch.core import intervals, retry
from zbatch.core.actions import Send
from zbatch.core.backlog import CLOSED, Held, Room, Span, runs
from zbatch.core.deadlines import Deadlines
from zbatch.core.intervals import Range
from zbatch.core.ledger import Ledger
from zbatch.core.links import Link, moved
from zbatch.core.names import part_of
from zbatch.core.relay import BROKEN
from zbatch.core.roster import Handed, Worker
from zbatch.core.topics import Topic, Topics
from zbatch.errors import UnknownTopic
from zbatch.messages import (
    Batch,
    Beat,
    Child,
    Children,
    Done,
    Fault,
    Part,
    Progress,
    Ready,
    Recall,
    Results,
    Returned,
    Skip,
    Yielded,
)
from zbatch.messages import Room as WireRoom
from zbatch.messages import Span as WireSpan

WITHDRAWN = 16
"""Batches of one worker that may still be answered though others have them now."""

EVERYTHING = 1 << 31
"""Beyond every position in a batch."""

BACKSTOP_BEATS = 2
"""A begun batch is lost this many beats after its lease: the supervisor, which is nearer, comes first."""

HELD_UP = 2.0
"""Seconds for which a model waits for the readers of a batch while others wait for the model."""

FORGIVEN = 0.25
"""What of that is forgiven for each second in which it did not wait: who keeps up goes on for ever."""


class Dispatcher:
    """Every worker, and every batch in a worker's hands."""

    def __init__(
        self,
        settings: BrokerCoreSettings,
        epoch: bytes,
        topics: Topics,
        ledger: Ledger,
        out: list[Send],
        note: Callable[..., None],
    ) -> None:
        self.workers: dict[bytes, Worker] = {}
        self.children: dict[bytes, tuple[bytes, Child]] = {}
        """By incarnation: the supervisor's life that announced it, and what it last said of it."""
        self._settings = settings
        self._timing = settings.timing
        self._epoch = epoch
        self._topics = topics
        self._ledger = ledger
        self._out = out
        self._note = note
        self._by_incarnation: dict[bytes, Worker] = {}
        self._incarnations: dict[bytes, bytes] = {}
        """By life, from the HELLO; a worker record begins with its READY."""
        self._leases: Deadlines[Worker] = Deadlines()
        """One entry a worker, not a batch: a finished batch must not be kept until its lease would end."""
        self._moved_up: dict[bytes, Worker] = {}
        """Workers whose first batch may be another one than before."""
        self._last_batch = 0

    # --- coming and going --------------------------------------------------------------------------

    def welcome(self, link: Link, incarnation: bytes, named: Sequence[Range], since: int | None) -> None:
        """Learn that a worker is on this connection now, and which of this epoch's batches it holds.

        ``since`` is the last message that it had received on this very connection; None: it is a new one.
        """
        if incarnation:
            self._incarnations[link.life] = incarnation
        worker = self.workers.get(link.life)
        if worker is None:
            return
        worker.link = link
        worker.gone = None
        worker.suspect = False
        self._return_unnamed(worker, named, since)
        if since is None:
            for handed in worker.holds.values():
                # The numbers begin anew; what was named has arrived.
                handed.sent_number = 0
        self._changed(worker)

    def ready(self, link: Link, ready: Ready, now: float) -> None:
        """Take up a worker's offer; a second one replaces the first."""
        try:
            topic = self._topics.open(ready.topic, served=True)
        except UnknownTopic:
            self._note("worker of an unknown topic", topic=ready.topic, host=link.host, pid=link.pid)
            return
        caps = self._settings
        worker = self.workers.get(link.life)
        if worker is not None and worker.ready.topic != ready.topic:
            self.lose(worker)
            # The process lives on; only its offer ended.
            self._incarnations[link.life] = worker.incarnation
            worker = None
        size = min(ready.batch_size, caps.batch_size or ready.batch_size)
        latency = ready.max_latency_ms / 1000
        if caps.max_latency is not None:
            latency = min(latency, caps.max_latency)
        if worker is None:
            self._note(
                "worker ready",
                topic=ready.topic,
                host=link.host,
                pid=link.pid,
                gpu=ready.facts.gpu,
                model=ready.facts.name,
                batch_size=size,
            )
            if topic.name in self._topics.drained:
                self._note("worker of a drained topic", topic=topic.name, host=link.host, pid=link.pid)
            incarnation = self._incarnations.get(link.life, b"")
            worker = Worker(link, ready, incarnation, Room(size), latency, 0.0)
            self.workers[link.life] = worker
            if incarnation:
                self._by_incarnation[incarnation] = worker
        worker.ready = ready
        worker.room = Room(size, ready.batch_cost)
        worker.max_latency = latency
        worker.lease = ready.lease_ms / 1000
        worker.draining = worker.told_to_leave = False
        topic.served = now
        topic.roster.add(worker)
        self._topics.touch(topic)

    def draining(self, link: Link) -> None:
        """Give a worker no new work."""
        worker = self.workers.get(link.life)
        if worker is not None:
            worker.draining = True
            self._changed(worker)

    def unreachable(self, worker: Worker, now: float) -> None:
        """Learn that a worker's connection is gone; it has a while to come back on another."""
        worker.gone = now
        self._changed(worker)

    def unsent(self, number: int) -> None:
        """Take back a batch that found no connection, and those behind it: they have certainly not begun."""
        for worker in self.workers.values():
            if number in worker.holds:
                unsent = [handed for handed in worker.holds.values() if handed.number >= number]
                for handed in sorted(unsent, key=_number, reverse=True):
                    self._take_back(handed, retry.never_began(handed.spans), ran=False)

    def suspect(self, worker: Worker) -> None:
        """Give a silent worker no new work, and what it has not begun to others."""
        if worker.suspect:
            return
        worker.suspect = True
        self._note("worker suspect", topic=worker.ready.topic, host=worker.link.host, pid=worker.link.pid)
        if worker.ready.idempotent:
            self._call_back(worker)
        self._changed(worker)

    def _call_back(self, worker: Worker) -> None:
        """Give what a worker has not begun to others."""
        for handed in sorted(worker.holds.values(), key=_number, reverse=True):
            if handed.began is None:
                self._out.append(Send(worker.link.peer, self._recall_message(handed)))
                self._take_back(handed, retry.never_began(handed.spans))

    def heard(self, worker: Worker) -> None:
        """Trust a worker again that has spoken."""
        if worker.suspect:
            worker.suspect = False
            self._changed(worker)

    def lose(self, worker: Worker) -> None:
        """Give up on a worker of which nothing more is known than that it is gone."""
        # Cut off, it may meanwhile have begun whatever it was handed.
        self._give_up(worker, ran=True)

    def forget(self, link: Link) -> None:
        """Forget who a life was, whether or not it ever offered anything."""
        self._incarnations.pop(link.life, None)

    def dismiss(self, worker: Worker) -> None:
        """Let a worker go that says itself that nothing runs there any more."""
        self._give_up(worker, ran=None)

    def _give_up(self, worker: Worker, *, ran: bool | None) -> None:
        for handed in sorted(worker.holds.values(), key=_number, reverse=True):
            judge = retry.never_began if handed.began is None else retry.lost_quietly
            self._take_back(handed, judge(handed.spans), ran=ran)
        self._strike_out(worker)

    def bury(self, worker: Worker, child: Child) -> None:
        """Give up on a worker whose supervisor saw it die, or leave, and read what it was doing."""
        if not worker.leaves or child.exit or child.begun != child.finished:
            self._note(
                "worker died",
                topic=worker.ready.topic,
                host=worker.link.host,
                pid=worker.link.pid,
                exit=child.exit,
                reason=child.reason,
                held=sum(handed.items for handed in worker.holds.values()),
            )
        begun = child.begun if child.epoch == self._epoch else dict(child.others).get(self._epoch, 0)
        guilty = child.begun if child.epoch == self._epoch and child.begun != child.finished else 0
        for handed in sorted(worker.holds.values(), key=_number, reverse=True):
            ran = handed.number <= begun
            if handed.number == guilty:
                verdict = retry.died_running(handed.spans)
            elif ran:
                # It had run and its reply was lost: not its fault, but not free for ever either.
                verdict = retry.lost_quietly(handed.spans)
            else:
                verdict = retry.never_began(handed.spans)
            self._take_back(handed, verdict, ran=ran)
        self._strike_out(worker)

    def _strike_out(self, worker: Worker) -> None:
        topic = self._topics.all[worker.ready.topic]
        topic.served = None if topic.served is None else max(topic.served, worker.link.heard)
        topic.roster.remove(worker)
        self.workers.pop(worker.link.life, None)
        self._by_incarnation.pop(worker.incarnation, None)
        self._incarnations.pop(worker.link.life, None)
        self._topics.touch(topic)

    # --- handing out -------------------------------------------------------------------------------

    def dispatch(self, now: float) -> None:
        """Hand out what should run now, in every topic that something happened to."""
        for worker in self._leases.due(now):
            self._look_at_lease(worker, now)
        for topic in self._topics.touched(now):
            topic.dispatch(now, lambda worker, spans, apart: self._start(worker, spans, apart, now))
            self._topics.sleeps(topic)
            handed = topic.recallable()
            if handed is not None:
                handed.recalled = True
                self._out.append(Send(handed.worker.link.peer, self._recall_message(handed)))
            if topic.name in self._ledger.books.skippable:
                del self._ledger.books.skippable[topic.name]
                self._skip(topic)
        if self._ledger.books.unread:
            self._stop_streams()
        for worker in self._moved_up.values():
            self._first_begins(worker, now)
        self._moved_up.clear()

    def _start(self, worker: Worker, spans: list[Span], apart: bool, now: float) -> None:
        for span in spans:
            held = span.held
            if held.open and held.deadline <= now:
                self._ledger.expired(held, now)
            elif held.again and not worker.ready.idempotent:
                text = "it was sent again and may have run; the model says that it must not run twice"
                self._ledger.fail(held, (span.start, span.stop), Fault("worker_lost", text))
        spans = retry.alive(spans)
        if not spans:
            return
        topic = self._topics.all[worker.ready.topic]
        self._last_batch += 1
        tally = topic.tally
        items, attempt = 0, 1
        for span in spans:
            count = span.stop - span.start
            items += count
            span.runs += 1
            if span.runs > 1:
                tally.retries += 1
                attempt = max(attempt, span.runs)
            else:
                tally.wait.record(now - span.held.arrived, count)
        handed = Handed(self._last_batch, worker, spans, items, attempt, now)
        worker.holds[handed.number] = handed
        self._moved_up[worker.link.life] = worker
        if apart:
            handed.apart = True
            topic.apart_running = handed
        topic.running += items
        tally.batches += 1
        tally.batched_items += items
        tally.batched_room += worker.room.items
        octave = (items - 1).bit_length()
        tally.sizes[octave] = tally.sizes.get(octave, 0) + 1
        topic.roster.changed(worker)
        self._out.append(self._batch(handed, now))

    def _batch(self, handed: Handed, now: float) -> Send:
        frames: list[Any] = []
        spans = []
        streams = False
        for span in handed.spans:
            held = span.held
            items: Any = held.items
            counts: list[int] | None = None
            if span.start or span.stop < len(items):
                items = items[span.start : span.stop]
            if held.buffers is not None:
                buffers = held.buffers[span.start : span.stop]
                counts = [len(one) for one in buffers]
                for one in buffers:
                    frames += one
            left = int((held.deadline - now) * 1000)
            later: list[int] | None = None
            if held.later is not None:
                # The earliest of the group may be over already; what is left of the others is not.
                later = [max(0, left + int(one * 1000)) for one in held.later[span.start : span.stop]]
                left = 0
            parts = None if held.parts is None else _parts(span, frames)
            origin, streamed = held.owner.link.origin, held.stream is not None
            base, left = held.base + span.start, max(0, left)
            names = None if held.names is None else part_of(held.names, span.start, span.stop)
            spans.append(WireSpan(origin, base, left, items, counts, later, parts, streamed, names))
            streams = streams or streamed
        if streams:
            _find_streams(handed)
        link = handed.worker.link
        key = handed.spans[0].held.key
        message = Batch(*link.stamp(), self._epoch, handed.number, handed.attempt, spans, key, handed.apart)
        handed.sent_number = message.number
        return Send(link.peer, message, frames)

    def _skip(self, topic: Topic) -> None:
        """Tell workers which items of batches that have not begun nobody waits for any more."""
        for handed in topic.handed():
            if handed.began is not None:
                continue
            positions: list[Range] = []
            place = 0
            for span in handed.spans:
                for start, stop in runs(span.held, CLOSED, span.start, span.stop):
                    positions.append((place + start - span.start, place + stop - span.start))
                place += span.stop - span.start
            if positions:
                link = handed.worker.link
                skip = Skip(*link.stamp(), self._epoch, handed.number, positions)
                self._out.append(Send(link.peer, skip))

    def _stop_streams(self) -> None:
        """Tell workers of streams that nobody reads any more."""
        books = self._ledger.books
        unread, books.unread = books.unread, []
        for held in unread:
            assert held.stream is not None
            handed: Handed | None = held.stream.handed
            if handed is None or handed.number not in handed.worker.holds:
                continue
            link, place = handed.worker.link, held.stream.place
            skip = Skip(*link.stamp(), self._epoch, handed.number, [(place, place + 1)])
            self._out.append(Send(link.peer, skip))

    def _weigh_waiting(self, handed: Handed, waited: float, now: float) -> None:
        """Count for how long a model has waited for its readers; end their streams when others waited long.

        A model waits while all for whom it works are behind; nobody else is to pay for that.  A reader that
        is behind now and then is forgiven with time.
        """
        passed = now - (handed.weighed or handed.sent)
        fresh = min(max(waited - handed.waited, 0.0), passed)
        handed.waited, handed.weighed = waited, now
        if fresh and self._is_wanted(handed):
            handed.held_up += fresh
        handed.held_up = max(0.0, handed.held_up - (passed - fresh) * FORGIVEN)
        if handed.held_up < HELD_UP:
            return
        text = f"others wait for the model, which has waited for its readers for {HELD_UP:g} s"
        for held in handed.streams.values():
            if held.open and held.stream is not None and held.stream.is_full:
                self._ledger.fail(held, (0, 1), Fault("reader_too_slow", text))

    def _is_wanted(self, handed: Handed) -> bool:
        """Return whether others wait for this batch's worker: with it already, or in line."""
        worker = handed.worker
        if any(span.held.open for one in worker.holds.values() if one is not handed for span in one.spans):
            return True
        topic = self._topics.all[worker.ready.topic]
        has_line = bool(topic.backlog.items or topic.apart)
        return has_line and worker.takes_work and not topic.roster.idle

    def _recall_message(self, handed: Handed) -> Recall:
        return Recall(*handed.worker.link.stamp(), self._epoch, handed.number)

    # --- coming back -------------------------------------------------------------------------------

    def progress(self, link: Link, progress: Progress, now: float) -> None:
        """Renew the lease of a batch that advances, and say again which of its streams nobody reads.

        What was said of them may have been lost with a connection, and a model that is held up waits for it.
        """
        handed = self._find(link, progress.epoch, progress.batch)
        if handed is None:
            self._disclaim(link, progress.epoch, progress.batch)
            return
        if progress.waited_ms:
            self._weigh_waiting(handed, progress.waited_ms / 1000, now)
        if handed.began is not None:
            handed.began = now
        unread = [(place, place + 1) for place, held in handed.streams.items() if not held.open]
        if unread:
            self._out.append(Send(link.peer, Skip(*link.stamp(), self._epoch, handed.number, unread)))

    def yielded(self, link: Link, yielded: Yielded, frames: Sequence[Any], now: float) -> None:
        """Hand on parts of streams; those of a batch that others have now are nobody's."""
        handed = self._find(link, yielded.epoch, yielded.batch)
        if (
            handed is None
            or handed.attempt != yielded.attempt
            or handed.worker.incarnation != yielded.incarnation
        ):
            self._disclaim(link, yielded.epoch, yielded.batch)
            return
        if handed.began is not None:
            handed.began = now
        position = 0
        for flow in yielded.flows:
            count = sum(flow.buffers) if flow.buffers is not None else 0
            held = handed.streams.get(flow.at)
            if held is not None:
                self._ledger.relay.forward(held, flow, frames[position : position + count], now)
            position += count

    def _disclaim(self, link: Link, epoch: bytes, number: int) -> None:
        """Tell a worker that nobody here reads a batch's streams: it may wait for a reader for ever."""
        if epoch == self._epoch and link.life in self.workers:
            self._out.append(Send(link.peer, Skip(*link.stamp(), epoch, number, [(0, EVERYTHING)])))

    def read(self, streams: Sequence[Held]) -> None:
        """Tell workers how much of the streams that they run was read."""
        room: dict[Handed, list[tuple[int, int]]] = {}
        for held in streams:
            assert held.stream is not None
            handed: Handed | None = held.stream.handed
            if handed is not None:
                room.setdefault(handed, []).append((held.stream.place, held.stream.taken))
        for handed, taken in room.items():
            link = handed.worker.link
            self._out.append(Send(link.peer, WireRoom(*link.stamp(), self._epoch, handed.number, taken)))

    def done(self, link: Link, done: Done, frames: Sequence[Any], now: float) -> None:
        """Take a batch's outputs; the first valid success of an item counts, whoever brings it."""
        worker = self.workers.get(link.life)
        handed = None
        if worker is not None and done.epoch == self._epoch and done.incarnation == worker.incarnation:
            handed = worker.holds.get(done.batch) or worker.withdrawn.get(done.batch)
        if handed is None or handed.attempt != done.attempt or handed.items != len(done.outputs):
            self._note("answer without a question", host=link.host, pid=link.pid)
            return
        assert worker is not None
        topic = self._topics.all[worker.ready.topic]
        worker.withdrawn.pop(done.batch, None)
        if worker.holds.pop(done.batch, None) is not None:
            worker.batches += 1
            self._moved_up[worker.link.life] = worker
            self._freed(topic, handed)
            topic.learned(done.run_ms / 1000)
            topic.roster.changed(worker)
            self._topics.touch(topic)
        elif worker.stuck == done.batch:
            worker.stuck = 0
            self._changed(worker)
        self._answer(handed, done, frames, now)

    def _answer(self, handed: Handed, done: Done, frames: Sequence[Any], now: float) -> None:
        errors = dict(done.errors) if done.errors else None
        starts: list[int] | None = None
        if done.buffers is not None:
            starts = [0]
            for count in done.buffers:
                starts.append(starts[-1] + count)
        place = 0
        for span in handed.spans:
            held = span.held
            parts = [(span.start, span.stop)]
            if held.stream is not None and not self._ends_as_a_whole(handed, held, place, errors):
                place += 1
                continue
            if errors is not None or held.state.find(CLOSED, span.start, span.stop) >= 0:
                parts = self._answerable(handed, span, place, errors)
            for part in parts:
                at = place + part[0] - span.start
                end = at + part[1] - part[0]
                counts = done.buffers[at:end] if done.buffers is not None else None
                own = frames[starts[at] : starts[end]] if starts is not None else ()
                results = Results(held.base + part[0], done.outputs[at:end], counts)
                self._ledger.answer(held, part, results, own, now)
            place += span.stop - span.start

    def _ends_as_a_whole(
        self, handed: Handed, held: Held, place: int, errors: dict[int, Fault] | None
    ) -> bool:
        """Return whether the output of a streamed item is all of it: its model yields no parts."""
        stream = held.stream
        assert stream is not None
        if not held.open or handed.withdrawn:
            # Of two runs, only the parts of one make a stream.
            return False
        stream.handed = None
        if stream.parts and (errors is None or place not in errors):
            self._ledger.fail(held, (0, 1), BROKEN)
        return bool(held.open)

    def _answerable(
        self, handed: Handed, span: Span, place: int, errors: dict[int, Fault] | None
    ) -> list[Range]:
        """Fail the failed items of a span; return the runs of those with outputs that are still wanted."""
        held = span.held
        good: list[int] = []
        for position in range(span.start, span.stop):
            if held.state[position] == CLOSED:
                continue
            fault = errors.get(place + position - span.start) if errors else None
            if fault is None:
                good.append(position)
            elif not handed.withdrawn:
                self._ledger.fail(held, (position, position + 1), fault)
        return intervals.of(good)

    def beat(self, link: Link, beat: Beat, now: float) -> None:
        """Compare what a worker holds with what it should hold."""
        worker = self.workers.get(link.life)
        if worker is not None and beat.epoch not in (b"", self._epoch):
            # It was said to the life before this one, over the same connection as far as its sender knows.
            self.heard(worker)
        elif worker is not None:
            first = next(iter(worker.holds.values()), None)
            if first is not None and first.began is not None and first.number != beat.running:
                # It was taken to run and does not yet: another broker's batch is before it.
                first.began = now
            self.heard(worker)
            self._return_unnamed(worker, beat.open, beat.ack)

    def returned(self, link: Link, returned: Returned) -> None:
        """Take back batches that never began."""
        for number in returned.batches:
            handed = self._find(link, returned.epoch, number)
            if handed is not None:
                self._take_back(handed, retry.never_began(handed.spans), ran=False)

    def _return_unnamed(self, worker: Worker, named: Sequence[Range], since: int | None) -> None:
        """Take back what the worker should hold and does not: it was lost on the way."""
        if worker.stuck and not intervals.intersect(named, [(worker.stuck, worker.stuck + 1)]):
            overrun = worker.withdrawn.get(worker.stuck)
            if since is None or overrun is None or overrun.sent_number <= since:
                # It never came there, or its answer was lost: the model does not hang in it.
                worker.stuck = 0
                self._changed(worker)
        holds = set(worker.holds)
        for start, stop in named:
            holds = {number for number in holds if not start <= number < stop}
        for number in sorted(holds, reverse=True):
            handed = worker.holds[number]
            if since is None or handed.sent_number <= since:
                self._note("batch lost on the way", topic=worker.ready.topic, host=worker.link.host)
                self._take_back(handed, retry.never_began(handed.spans))

    def _take_back(self, handed: Handed, verdict: retry.Verdict, *, ran: bool | None = None) -> None:
        """Remove a batch from its worker's hands and do what the verdict says with its items."""
        worker = handed.worker
        topic = self._topics.all[worker.ready.topic]
        worker.holds.pop(handed.number, None)
        self._moved_up[worker.link.life] = worker
        handed.withdrawn = True
        worker.withdrawn[handed.number] = handed
        if len(worker.withdrawn) > WITHDRAWN:
            worker.withdrawn.popitem(last=False)
        self._freed(topic, handed)
        topic.roster.changed(worker)
        self._topics.touch(topic)
        for held in handed.streams.values():
            assert held.stream is not None
            held.stream.handed = None
            if held.stream.parts:
                self._ledger.fail(held, (0, 1), BROKEN)
        if (ran if ran is not None else handed.began is not None) and not worker.ready.idempotent:
            text = "its worker was lost while it ran; the model says that it must not run twice"
            for span in handed.spans:
                self._ledger.fail(span.held, (span.start, span.stop), Fault("worker_lost", text))
            return
        for span in reversed(verdict.again):
            if handed.apart:
                topic.apart.appendleft([span])
            else:
                topic.backlog.put_back(span)
        topic.apart.extendleft(reversed(verdict.apart))
        for span in verdict.poisoned:
            text = f"alone in its batch, this item ended {retry.DEATHS_ALONE} model processes"
            self._ledger.fail(span.held, (span.start, span.stop), Fault("poison_item", text))
        for span in verdict.lost:
            text = f"{retry.ATTEMPTS} workers were lost under this item, and nothing says that it did it"
            self._ledger.fail(span.held, (span.start, span.stop), Fault("worker_lost", text))

    def _first_begins(self, worker: Worker, now: float) -> None:
        """Take the first batch in a worker's hands to run: batches begin in the order handed over.

        Nobody says so on the wire.  Where it matters exactly, the supervisor knows (the note that a model
        process leaves), and a worker's beat corrects this when another broker's batch is before it.
        """
        first = next(iter(worker.holds.values()), None)
        if first is not None and first.began is None:
            first.began = now
            if worker.lease and not worker.watched:
                worker.watched = True
                self._leases.add(self._overdue(first), worker)

    def _look_at_lease(self, worker: Worker, now: float) -> None:
        """Count a batch lost whose lease is long over; its supervisor should have seen to it."""
        worker.watched = False
        handed = next(iter(worker.holds.values()), None)
        if handed is None or handed.began is None:
            return
        if now < self._overdue(handed):
            worker.watched = True
            self._leases.add(self._overdue(handed), worker)
            return
        self._note("lease overrun", topic=worker.ready.topic, host=worker.link.host, pid=worker.link.pid)
        worker.stuck = handed.number
        # What is behind it cannot begin while the model hangs; what a model must not run twice waits for it.
        if worker.ready.idempotent:
            self._call_back(worker)
        self._take_back(handed, retry.lost_quietly(handed.spans))

    # --- supervisors -------------------------------------------------------------------------------

    def supervised(self, link: Link, message: Children) -> None:
        """Learn from a supervisor how its model processes are."""
        listed = set()
        for child in message.children:
            owner, _ = self.children.get(child.incarnation, (link.life, child))
            if owner != link.life:
                self._note("foreign child", host=link.host, pid=link.pid)
                continue
            listed.add(child.incarnation)
            self.children[child.incarnation] = (link.life, child)
            worker = self._by_incarnation.get(child.incarnation)
            if worker is not None and not child.alive:
                self.bury(worker, child)
        self._disown(link.life, listed)

    def orphan(self, link: Link) -> None:
        """Forget a supervisor that left."""
        self._disown(link.life, set())

    def _disown(self, life: bytes, listed: set[bytes]) -> None:
        gone = [inc for inc, (owner, _) in self.children.items() if owner == life and inc not in listed]
        for incarnation in gone:
            del self.children[incarnation]

    def workers_of(self, life: bytes) -> list[Worker]:
        """Return the workers whose processes a supervisor watches."""
        own = [incarnation for incarnation, (owner, _) in self.children.items() if owner == life]
        found = (self._by_incarnation.get(incarnation) for incarnation in own)
        return [worker for worker in found if worker is not None]

    # --- small things ------------------------------------------------------------------------------

    def slept(self, since: float, now: float) -> None:
        """Leave our own pause out of what runs."""
        for worker in self.workers.values():
            for handed in worker.holds.values():
                if handed.began is not None:
                    handed.began = moved(handed.began, since, now)

    def wakeup(self) -> float | None:
        """Return when the next lease is to be looked at."""
        return self._leases.next()

    def _find(self, link: Link, epoch: bytes, number: int) -> Handed | None:
        worker = self.workers.get(link.life)
        return worker.holds.get(number) if worker is not None and epoch == self._epoch else None

    def _freed(self, topic: Topic, handed: Handed) -> None:
        topic.running -= handed.items
        if topic.apart_running is handed:
            topic.apart_running = None

    def _changed(self, worker: Worker) -> None:
        topic = self._topics.all[worker.ready.topic]
        topic.roster.changed(worker)
        self._topics.touch(topic)

    def _overdue(self, handed: Handed) -> float:
        assert handed.began is not None
        return handed.began + handed.worker.lease + BACKSTOP_BEATS * self._timing.beat


def _parts(span: Span, frames: list[Any]) -> list[Part]:
    """Return what several stages made of a span's items; the buffers are put behind ``frames``."""
    parts = []
    for name, items, buffers in span.held.parts or ():
        counts = None
        if buffers is not None:
            own = buffers[span.start : span.stop]
            counts = [len(one) for one in own]
            for one in own:
                frames += one
        parts.append(Part(name, list(items[span.start : span.stop]), counts))
    return parts


def _find_streams(handed: Handed) -> None:
    place = 0
    for span in handed.spans:
        stream = span.held.stream
        if stream is not None:
            stream.handed, stream.place = handed, place
            handed.streams[place] = span.held
        place += span.stop - span.start


def _number(handed: Handed) -> int:
    return handed.number
