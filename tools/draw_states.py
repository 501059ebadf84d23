"""Draw the state tables of docs/architecture.md from the cores themselves.

Each row is an experiment: a core is brought into a state at literal times, one thing happens, and what the
core then shows is written down.  No rule is repeated here, so a table cannot say what the code does not do.

    python tools/draw_states.py           print the tables
    python tools/draw_states.py --write   put them into the page
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from zbatch import messages as say
from zbatch.config import BrokerCoreSettings, Timing
from zbatch.core.actions import Send
from zbatch.core.backlog import CLOSED, RUNNING, WAITING, Held
from zbatch.core.broker import BrokerCore
from zbatch.core.calls import Call
from zbatch.core.client import ClientCore
from zbatch.core.roster import Worker
from zbatch.wire import VERSION

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"

CLIENT, OTHER, WORKER, MOVED, SUPERVISOR = (
    side + b"\0\0\0\0" + name
    for side, name in ((b"F", b"c"), (b"F", b"d"), (b"B", b"w"), (b"B", b"v"), (b"B", b"s"))
)
LIFE_OF_CLIENT, LIFE_OF_WORKER = b"c" * 16, b"w" * 16
WHO_IS = {
    CLIENT: (LIFE_OF_CLIENT, "client"),
    OTHER: (LIFE_OF_CLIENT, "client"),
    WORKER: (LIFE_OF_WORKER, "worker"),
    MOVED: (LIFE_OF_WORKER, "worker"),
    SUPERVISOR: (b"s" * 16, "supervisor"),
}
"""OTHER and MOVED are the client and the worker on a second connection."""

EPOCH, INCARNATION = b"epoch..1", b"incarn.1"
CONN, NEXT_CONN = b"conn...1", b"conn...2"
BEAT, SUSPECT = Timing().beat, Timing().suspect

Row = Sequence[str]


class Stage:
    """A broker's core, one client with one item, and one worker, as far as they have come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.core = BrokerCore(BrokerCoreSettings(), EPOCH)
        self.said: list[Send] = []
        self._number: dict[bytes, int] = {}
        self.late: tuple[Any, ...] = ()
        """The head of an answer that will come too late."""
        self.tick()

    # --- what happens ------------------------------------------------------------------------------

    def hear(self, peer: bytes, kind: type[say.Message], *fields: Any, conn: bytes = CONN) -> None:
        """Let a peer say something."""
        number = self._number[peer] = self._number.get(peer, 0) + 1
        message: Any = kind(conn, number, 0, *fields)
        self.said = self.core.handle(peer, message, [], self.now)
        self.said += self.core.tick(self.now)

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass."""
        self.now += seconds
        self.said = self.core.tick(self.now)

    def hello(self, peer: bytes, *, conn: bytes = CONN, **fields: Any) -> None:
        """Introduce a peer."""
        number = self._number[peer] = self._number.get(peer, 0) + 1
        life, role = WHO_IS[peer]
        hello = say.Hello(conn, number, 0, life, role, VERSION, **fields)  # type: ignore[arg-type]
        self.said = self.core.handle(peer, hello, [], self.now) + self.core.tick(self.now)

    def asks(self, milliseconds: int = 30_000) -> Stage:
        """Let the client ask for one item."""
        self.hello(CLIENT)
        self.hear(CLIENT, say.Request, [say.Group(1, "t", milliseconds, [b"x"])])
        return self

    def serves(self, slots: int = 2) -> Stage:
        """Let the worker offer itself; what waits is handed to it."""
        self.hello(SUPERVISOR)
        self.hear(SUPERVISOR, say.Children, "t", [say.Child(INCARNATION, True)])
        self.hello(WORKER, incarnation=INCARNATION)
        self.hear(WORKER, say.Ready, "t", slots, 32, None, 10.0, 60_000)
        return self

    def done(self, fault: say.Fault | None = None) -> None:
        """Let the worker answer the batch that it was handed last."""
        batch = self.batch
        errors = [(0, fault)] if fault is not None else None
        head = (EPOCH, batch.batch, batch.attempt, INCARNATION)
        self.hear(WORKER, say.Done, *head, [b"" if fault else b"y"], None, errors)

    def dies(self, *, running: bool) -> None:
        """Let the supervisor say that its model process died, over the batch or before it began."""
        begun = self.batch.batch if running else self.batch.batch - 1
        self.hear(SUPERVISOR, say.Children, "t", [say.Child(INCARNATION, False, EPOCH, begun, 0, -11)])

    def lost(self) -> None:
        """Let the worker's connection go, and not come back."""
        self.core.unreachable(WORKER, self.now)
        self.tick()
        self.passes(Timing().rejoin)

    def passes(self, seconds: float, beating: Iterable[bytes] = (CLIENT,)) -> None:
        """Let time pass, a beat at a time, while some go on beating; the client's item stays open."""
        until = self.now + seconds
        while self.now < until:
            self.tick(min(BEAT, until - self.now))
            last = self.said
            for peer in beating:
                if peer in self._number:
                    self.hear(peer, say.Beat, [(1, 2)], 2)
                    last = last + self.said
            self.said = last

    # --- what is seen ------------------------------------------------------------------------------

    @property
    def batch(self) -> say.Batch:
        """The batch in the worker's hands."""
        (handed,) = self.worker.holds.values()
        return say.Batch(CONN, 1, 0, EPOCH, handed.number, handed.attempt, [])

    @property
    def worker(self) -> Worker:
        """The broker's record of the worker."""
        return self.core.dispatcher.workers[LIFE_OF_WORKER]

    def held(self) -> Held:
        """Return the broker's record of the item."""
        (held,) = self.core.ledger.clients[LIFE_OF_CLIENT].groups()
        return held

    def told(self, peer: bytes) -> str:
        """Return what the broker has just said to a peer, as the page writes it."""
        words = []
        for send in self.said:
            match send.message:
                case say.Pulse():
                    continue
                case say.Refused(refusals=refusals) if send.peer == peer:
                    words += [f"REFUSED `{refusal.fault.code}`" for refusal in refusals if refusal.ids]
                case message if send.peer == peer:
                    words.append(str(type(message).__struct_config__.tag))
        return ", ".join(words) or "-"


# --- the life of an item -------------------------------------------------------------------------

STATES = {WAITING: "waiting", RUNNING: "running", CLOSED: "closed"}


def item_rows() -> list[Row]:
    """Return what may happen to an item, and what becomes of it."""

    def waits() -> Stage:
        return Stage().asks()

    def runs() -> Stage:
        return Stage().asks().serves()

    def twice_alone(stage: Stage) -> None:
        stage.dies(running=True)
        stage.serves()
        stage.dies(running=True)

    def lost_thrice(stage: Stage) -> None:
        for again in (True, True, False):
            stage.lost()
            if again:
                stage.serves()

    experiments: list[tuple[Callable[[], Stage], str, Callable[[Stage], object]]] = [
        (waits, "a worker has room", lambda stage: stage.serves()),
        (waits, "its deadline passes", lambda stage: stage.passes(30.0)),
        (waits, "its client cancels it", lambda stage: stage.hear(CLIENT, say.Cancel, [(1, 2)])),
        (waits, "a beat of its client does not name it", lambda stage: stage.hear(CLIENT, say.Beat, [], 2)),
        (waits, "its client is gone", lambda stage: stage.passes(10.0, beating=())),
        (waits, "the broker drains", drains),
        (runs, "DONE brings its output", lambda stage: stage.done()),
        (runs, "DONE brings an error for it", lambda stage: stage.done(say.Fault("model_failed", "why"))),
        (runs, "its deadline passes", lambda stage: stage.passes(30.0, (CLIENT, WORKER))),
        (runs, "its client cancels it", lambda stage: stage.hear(CLIENT, say.Cancel, [(1, 2)])),
        (runs, "RETURNED gives its batch back", returned),
        (runs, "its process died before its batch began", lambda stage: stage.dies(running=False)),
        (runs, "its process died over its batch", lambda stage: stage.dies(running=True)),
        (runs, "the second process died over it, alone in its batch", twice_alone),
        (runs, "its worker is lost without a word", lambda stage: stage.lost()),
        (runs, "the third worker is lost without a word", lost_thrice),
        (runs, "the broker drains", drains),
    ]
    rows: list[Row] = []
    for begin, what, happens in experiments:
        stage = begin()
        held = stage.held()
        before = STATES[held.state[0]]
        happens(stage)
        rows.append((before, what, STATES[held.state[0]], stage.told(CLIENT)))
    return rows


def drains(stage: Stage) -> None:
    """Tell the broker to leave."""
    stage.said = stage.core.drain()


def returned(stage: Stage) -> None:
    """Let the worker, which is draining, give back what it was handed."""
    number = stage.batch.batch
    stage.hear(WORKER, say.Draining)
    stage.hear(WORKER, say.Returned, EPOCH, [number])


# --- a worker's states ---------------------------------------------------------------------------


def worker_rows() -> list[Row]:
    """Return what may happen to a worker, and what the broker then thinks of it."""

    def idle() -> Stage:
        return Stage().serves()

    def busy() -> Stage:
        return Stage().asks(10_000_000).serves()

    def silent() -> Stage:
        stage = idle()
        stage.passes(SUSPECT)
        return stage

    def away() -> Stage:
        stage = idle()
        stage.core.unreachable(WORKER, stage.now)
        return stage

    def drained() -> Stage:
        stage = idle()
        stage.hear(WORKER, say.Draining)
        return stage

    def stuck() -> Stage:
        stage = busy()
        number = stage.batch
        stage.late = (EPOCH, number.batch, number.attempt, INCARNATION)
        while stage.worker.state == "busy":
            stage.passes(BEAT)
            stage.hear(WORKER, say.Beat, [(1, 2)], 0, 1)
        return stage

    def late_answer(stage: Stage) -> None:
        stage.hear(WORKER, say.Done, *stage.late, [b"y"])

    def beats(stage: Stage) -> None:
        stage.hear(WORKER, say.Beat)

    def comes_back(stage: Stage) -> None:
        stage.hello(MOVED, conn=NEXT_CONN, incarnation=INCARNATION)

    experiments: list[tuple[Callable[[], Stage], str, Callable[[Stage], object]]] = [
        (Stage, "READY", lambda stage: stage.serves()),
        (idle, "it is handed a batch", lambda stage: stage.asks()),
        (busy, "it answers its last batch", lambda stage: stage.done()),
        (idle, "3 s without a word", lambda stage: stage.passes(SUSPECT)),
        (busy, "3 s without a word", lambda stage: stage.passes(SUSPECT)),
        (silent, "a beat", beats),
        (silent, "12 s without a word in all", lambda stage: stage.passes(Timing().silent - SUSPECT)),
        (idle, "DRAIN (it was told to leave)", lambda stage: stage.hear(WORKER, say.Draining)),
        (drained, "BYE", lambda stage: stage.hear(WORKER, say.Bye)),
        (idle, "sending to it finds the connection gone", lambda s: s.core.unreachable(WORKER, s.now)),
        (away, "HELLO on a new connection", comes_back),
        (away, "4 s without one", lambda stage: stage.passes(Timing().rejoin)),
        (busy, "its batch is two beats over its lease", overrun),
        (stuck, "it answers that batch after all", late_answer),
        (idle, "its supervisor says that it died", idle_dies),
    ]
    rows: list[Row] = []
    for begin, what, happens in experiments:
        stage = begin()
        before = state_of(stage)
        happens(stage)
        takes = LIFE_OF_WORKER in stage.core.dispatcher.workers and stage.worker.takes_work
        rows.append((before, what, state_of(stage), "yes" if takes else "no"))
    return rows


def state_of(stage: Stage) -> str:
    """Return the broker's word for the worker."""
    return stage.worker.state if LIFE_OF_WORKER in stage.core.dispatcher.workers else "unknown"


def overrun(stage: Stage) -> None:
    """Let a batch run and run, in a worker that beats."""
    until = stage.now + 60.0 + 2 * BEAT + 1.0
    while stage.now < until:
        stage.passes(BEAT)
        if stage.worker.state == "stuck":
            return
        stage.hear(WORKER, say.Beat, [(1, 2)], 0, 1)


def idle_dies(stage: Stage) -> None:
    """Let the supervisor report a death between batches."""
    stage.hear(SUPERVISOR, say.Children, "t", [say.Child(INCARNATION, False, EPOCH, 0, 0, -9)])


# --- a link --------------------------------------------------------------------------------------


def broker_link_rows() -> list[Row]:
    """Return how a broker treats a connection."""

    def stranger() -> Stage:
        return Stage()

    def known() -> Stage:
        stage = Stage()
        stage.hello(CLIENT)
        return stage

    def twice(stage: Stage) -> None:
        stage.hear(CLIENT, say.Beat)
        stage.hear(CLIENT, say.Beat)

    experiments: list[tuple[Callable[[], Stage], str, Callable[[Stage], object], bytes]] = [
        (stranger, "HELLO", lambda stage: stage.hello(CLIENT), CLIENT),
        (stranger, "any other message", lambda stage: stage.hear(CLIENT, say.Beat), CLIENT),
        (stranger, "a second one within a second", twice, CLIENT),
        (stranger, "BYE", lambda stage: stage.hear(CLIENT, say.Bye), CLIENT),
        (known, "a message with another conn", lambda s: s.hear(CLIENT, say.Beat, conn=b"conn...0"), CLIENT),
        (known, "the same HELLO again", lambda stage: stage.hello(CLIENT), CLIENT),
        (known, "the same HELLO on another connection", lambda stage: stage.hello(OTHER), OTHER),
        (known, "HELLO of its life, another conn", lambda stage: stage.hello(OTHER, conn=NEXT_CONN), OTHER),
        (known, "BYE", lambda stage: stage.hear(CLIENT, say.Bye), CLIENT),
        (known, "60 s without a word, nothing open", lambda stage: stage.passes(60.0, ()), CLIENT),
    ]
    rows: list[Row] = []
    for begin, what, happens, peer in experiments:
        stage = begin()
        before = "introduced" if stage.core.links.by_peer else "stranger"
        happens(stage)
        after = "introduced" if peer in stage.core.links.by_peer else "stranger"
        rows.append((before, what, after, stage.told(peer)))
    return rows


def client_link_rows() -> list[Row]:
    """Return what a client does with its link to a broker; something is open all the time."""
    rows: list[Row] = []
    for known, what in itertools.product((False, True), LINK_EVENTS):
        core, conn = _client(known=known)
        said = LINK_EVENTS[what](core, conn, known)
        if said is None:
            continue
        tags = [str(type(one.message).__struct_config__.tag) for one in said if isinstance(one, Send)]
        before = "introduced" if known else "not introduced"
        after = "introduced" if core._brokers.asked.welcomed else "not introduced"
        rows.append((before, what, after, ", ".join(tags) or "-"))
    return rows


def _client(*, known: bool) -> tuple[ClientCore, bytes]:
    count = itertools.count(1)
    core = ClientCore(2, b"c" * 16, lambda size: next(count).to_bytes(size, "big"), Timing())
    core.start(0.0)
    conn = (1).to_bytes(8, "big")
    call = Call()
    call.mark, call.item, call.deadline = ("t", "", 0, True, True), b"x", 30.0
    core.submit(call)
    core.flush(0.0)
    if known:
        core.handle(b"\0", say.Welcome(conn, 1, 1, EPOCH, VERSION), [], 0.0)
    return core, conn


def _hears(message: Callable[[bytes], say.Message], *, if_known: bool | None = None) -> Any:
    def event(core: ClientCore, conn: bytes, known: bool) -> list[Any] | None:
        if if_known is not None and known is not if_known:
            return None
        heard: Any = message(conn)
        return core.handle(b"\0", heard, [], 0.1)

    return event


LINK_EVENTS: dict[str, Callable[[ClientCore, bytes, bool], list[Any] | None]] = {
    "WELCOME": _hears(lambda conn: say.Welcome(conn, 1, 1, EPOCH, VERSION), if_known=False),
    "WHO": _hears(lambda conn: say.Who(conn, 0, 0)),
    "a message of an older conn": _hears(lambda _: say.Who(b"conn...0", 0, 0)),
    "PULSE names what is missing": _hears(lambda conn: say.Pulse(conn, 2, 2, [(1, 2)], 2), if_known=True),
    "a second passes": lambda core, _, __: core.tick(BEAT),
    "3 s of silence, another broker is known": lambda core, _, __: core.tick(Timing().quiet + 0.1)[:1],
}
"""What happens to a client's link, in both its states where that may be."""


# --- the page ------------------------------------------------------------------------------------

TABLES: dict[str, tuple[Row, Callable[[], list[Row]]]] = {
    "item": (("it is", "what happens", "then it is", "its client is told"), item_rows),
    "worker": (("it is", "what happens", "then it is", "new work?"), worker_rows),
    "link-broker": (("the connection is", "what comes", "then it is", "the broker says"), broker_link_rows),
    "link-client": (("the link is", "what happens", "then it is", "the client says"), client_link_rows),
}


def draw(name: str) -> str:
    """Return a table as the page has it."""
    titles, rows = TABLES[name]
    lines = [titles, ["---"] * len(titles), *rows()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def drawn(text: str) -> str:
    """Return a page with its tables drawn anew."""
    return re.sub(
        r"(<!-- drawn: ([\w-]+) -->\n).*?(<!-- end -->\n)",
        lambda found: f"{found[1]}\n{draw(found[2])}\n{found[3]}",
        text,
        flags=re.S,
    )


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write("\n".join(f"{name}\n\n{draw(name)}" for name in TABLES))
