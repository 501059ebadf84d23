"""The table of messages: everything that one zbatch process says to another.

This file says *what* is said; ``wire.py`` says how it becomes frames, ``docs/protocol.md`` when it may
be said.  Messages are frozen, know no socket and are compared by value in the tests.

Every message begins with the same head of three: the connection it belongs to, its number within that
connection (from 1), and the highest number received on it so far.  The numbers are what lost messages
are healed by: requests by ``core/client.py`` and ``core/clients.py``, batches by ``core/worker.py`` and
``core/dispatch.py``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

MAX_FRAMES = 16_384
"""Buffers of one message: a gigabyte of arrays of 64 KiB."""

MAX_STAGES = 32
"""Stages of one pipeline, and inputs of one stage: more than people draw on a page."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
"""A number that counts something: ids, sequence numbers, milliseconds."""

Positive = Annotated[int, Meta(ge=1, le=2**31)]
Range = tuple[Count, Count]
"""Half open: the ids from the first number up to, not including, the second."""

Ranges = Annotated[list[Range], Meta(max_length=4096)]
"""Bounded, so that a few bytes cannot name work for minutes (range bombs)."""

Life = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""One life of a client, worker or supervisor object; random, told to brokers only."""

Token = Annotated[bytes, Meta(min_length=8, max_length=8)]
"""Eight bytes: a connection, an epoch (one life of a broker), an incarnation (one life of a model
process) or an origin (what others may know of a life)."""

Topic = Annotated[str, Meta(min_length=1, max_length=128)]
Key = Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(max_length=128)]
"""What people call a request: its request id."""
Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=65_536)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31)]
Cost = Annotated[float, Meta(ge=0, le=1e15)]
Role = Literal["client", "worker", "supervisor"]
Target = Literal["broker", "worker", "topic"]


class Fault(Struct, frozen=True, array_like=True, gc=False):
    """An error as data: what ``errors.py`` turns into an exception and back."""

    code: Word
    text: Text
    retry_after_ms: Count = 0
    kind: Word = ""
    """The name of the exception's class, where a model raised one."""
    traceback: Text = ""


class Message(Struct, frozen=True, array_like=True, gc=False):
    """The head that every message carries."""

    conn: Token
    number: Count
    ack: Count


# --- both sides ---------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="HELLO"):
    """I am here, on this connection; these ids (client) or batches (worker) I hold."""

    life: Life
    role: Role
    version: Count
    open: Ranges = []
    """A client's open item ids; a worker's unfinished or unacknowledged batches of ``epoch``."""
    next: Count = 0
    """A client's first id not used yet."""
    epoch: bytes = b""
    """A worker's: the broker's life that ``open`` speaks of."""
    incarnation: bytes = b""
    """A worker's: what its supervisor named it."""
    host: Word = ""
    pid: Count = 0


class Welcome(Message, frozen=True, tag="WELCOME"):
    """You are known; these of your open ids I do not hold."""

    epoch: Token
    version: Count
    missing: Ranges = []
    message_bytes: Count = 0
    """The largest message that will be read."""
    unserved: list[Topic] = []


class Who(Message, frozen=True, tag="WHO"):
    """I do not know this connection: say HELLO.  What followed ``ack``, unless it is 0, nobody has taken."""


class Denied(Message, frozen=True, tag="DENIED"):
    """Your HELLO is not accepted: another version is spoken here, or your key may not do this."""

    fault: Fault


class Beat(Message, frozen=True, tag="BEAT"):
    """A sign of life that says what the sender holds; absolute, so a lost one costs nothing."""

    open: Ranges = []
    next: Count = 0
    running: Count = 0
    """A worker's: the batch of this broker that runs now, or 0."""
    epoch: bytes = b""
    """A worker's: the broker's life that it speaks to; of another one's it knows nothing."""


class Pulse(Message, frozen=True, tag="PULSE"):
    """The answer to a beat."""

    missing: Ranges = []
    seen: Count = 0
    """The highest number received on this connection when ``missing`` was made."""
    unserved: list[Topic] = []
    """Topics this client waits for that no worker here serves."""


class Bulk(Message, frozen=True, tag="BULK"):
    """The next message is large: my silence while it travels is no sign of anything."""

    size: Count
    """Bytes, about."""


class Bye(Message, frozen=True, tag="BYE"):
    """I leave; forget me, and what of mine still waits."""


# --- client and broker --------------------------------------------------------------------------


class Stage(Struct, frozen=True, array_like=True, gc=False):
    """One step of a pipeline: a topic, and where its items come from."""

    name: Topic
    """What people call it; an error says in which stage it came."""
    topic: Topic
    inputs: Annotated[tuple[tuple[Key, Count], ...], Meta(min_length=1, max_length=MAX_STAGES)]
    """A name and 0, the request's own item, or n, what the n-th stage made of it.  A single input without a
    name is the item; else the item is a dict of all by their names."""


Route = Annotated[tuple[Stage, ...], Meta(min_length=1, max_length=MAX_STAGES)]
"""A pipeline, in an order in which it can run; the last stage's outputs are the answer."""


class Group(Struct, frozen=True, array_like=True, gc=False):
    """Items of one client that agree in topic, key and priority; their ids are base, base + 1, ..."""

    base: Count
    topic: Topic
    deadline_ms: Count
    """Milliseconds left when it was sent; of the item that has the least."""
    items: Annotated[list[bytes], Meta(min_length=1)]
    buffers: list[Count] | None = None
    """How many frames after the envelope belong to each item; None: no frames at all."""
    priority: Priority = 0
    key: Key = ""
    costs: list[Cost] | None = None
    whole: bool = False
    """One request of several items: admitted whole or refused whole."""
    again: bool = False
    """Sent before, so it may have run."""
    later_ms: list[Count] | None = None
    """By how much each item's deadline is later than ``deadline_ms``; None: they share it."""
    route: Route | None = None
    """The pipeline to go through; ``topic`` is only its name then."""
    patience_ms: Count = 0
    """The result of its one item is wanted part by part, the next within this time; 0: as a whole."""
    names: list[Name] | None = None
    """The request id of each item, or the one of all, see ``core/names.py``; None: they have none."""


class Request(Message, frozen=True, tag="REQUEST"):
    """Run these."""

    groups: list[Group]


class Results(Struct, frozen=True, array_like=True, gc=False):
    """Outputs of consecutive ids."""

    base: Count
    outputs: list[bytes]
    buffers: list[Count] | None = None


class Result(Message, frozen=True, tag="RESULT"):
    """These are done."""

    spans: list[Results]


class Refusal(Struct, frozen=True, array_like=True, gc=False):
    """One error for some ids."""

    ids: Ranges
    fault: Fault


class Refused(Message, frozen=True, tag="REFUSED"):
    """These end in an error (or, where it is no outcome, are not taken now)."""

    refusals: list[Refusal]


class Cancel(Message, frozen=True, tag="CANCEL"):
    """Nobody waits for these any more."""

    ids: Ranges
    back: bool = False
    """Wanted still, elsewhere: what no worker has here comes back as REFUSED with ``draining``."""


class Flow(Struct, frozen=True, array_like=True, gc=False):
    """Consecutive parts of one stream, and perhaps its end."""

    at: Count
    """To a client the item's id, from a worker its place in the batch."""
    first: Count
    """The number of the first of these parts within the stream, from 0: a gap, or what comes twice, shows."""
    parts: list[bytes]
    buffers: list[Count] | None = None
    ended: bool = False
    """After these parts the stream has come to its end."""
    fault: Fault | None = None
    """From a worker: it ends in this error (to a client that is said in REFUSED)."""


class Parts(Message, frozen=True, tag="PARTS"):
    """Parts of streams have come."""

    flows: list[Flow]


class Taken(Message, frozen=True, tag="TAKEN"):
    """So much of these streams has been read, in all; ``core/stream.py`` says how parts are weighed."""

    streams: Annotated[list[tuple[Count, Count]], Meta(max_length=4096)]
    """Ids, each with what was read."""


class StatusAsk(Message, frozen=True, tag="STATUS?"):
    """Show me how you are."""


class Status(Message, frozen=True, tag="STATUS"):
    """A snapshot for people, as JSON (``core/status.py``)."""

    snapshot: bytes


# --- worker and broker --------------------------------------------------------------------------


class Order(Message, frozen=True, tag="ORDER"):
    """Drain this: take nothing new, end what was begun, leave.  With keys, only an admin may say so."""

    what: Target
    name: Annotated[str, Meta(max_length=256)] = ""
    """A topic; a worker as ``host`` or ``host:pid``."""
    undo: bool = False
    """A drained topic takes requests again."""


class Ordered(Message, frozen=True, tag="ORDERED"):
    """What became of an order."""

    text: Text
    fault: Fault | None = None


class Facts(Struct, frozen=True, array_like=True, gc=False):
    """What a worker tells about its model; bounded, for people and gateways."""

    name: Annotated[str, Meta(max_length=256)] = ""
    version: Word = ""
    signature: Annotated[bytes, Meta(max_length=16_384)] = b""
    """JSON, made by ``model.py``; empty when the model declares none."""
    gpu: Word = ""
    schema: Annotated[bytes, Meta(max_length=16_384)] = b""
    """JSON, made by ``schema.py``; empty when the model's annotations say nothing."""


class Ready(Message, frozen=True, tag="READY"):
    """This worker offers to hold ``slots`` batches of ``topic``."""

    topic: Topic
    slots: Annotated[int, Meta(ge=1, le=64)]
    batch_size: Positive
    batch_cost: Cost | None
    """The most that the costs of a batch may add up to; None: no such bound."""
    max_latency_ms: Annotated[float, Meta(ge=0, le=1e9)]
    lease_ms: Count
    """The longest a batch may run, and two beats later the broker counts it lost; 0: it never does."""
    idempotent: bool = True
    facts: Facts = Facts()


class Part(Struct, frozen=True, array_like=True, gc=False):
    """What one stage made of each item of a span."""

    name: Key
    """Its place in the dict that the model sees."""
    items: list[bytes]
    buffers: list[Count] | None = None


class Span(Struct, frozen=True, array_like=True, gc=False):
    """Items of one client inside a batch."""

    origin: Token
    base: Count
    deadline_ms: Count
    items: list[bytes]
    buffers: list[Count] | None = None
    later_ms: list[Count] | None = None
    parts: list[Part] | None = None
    """Where several stages of a pipeline meet: the items are dicts of these, and ``items`` are empty."""
    streamed: bool = False
    """Parts are wanted as the model yields them."""
    names: list[Name] | None = None
    """As in a group."""


class Batch(Message, frozen=True, tag="BATCH"):
    """Run these together."""

    epoch: Token
    batch: Positive
    attempt: Positive
    spans: list[Span]
    key: Key = ""
    apart: bool = False
    """Under these items a process died; if another does, that says nothing of the model."""


class Progress(Message, frozen=True, tag="PROGRESS"):
    """The model still advances on this batch: renew its lease."""

    epoch: Token
    batch: Positive
    waited_ms: Count = 0
    """Of its run, in which it waited for readers alone."""


class Done(Message, frozen=True, tag="DONE"):
    """The batch ran; one output per item, in order."""

    epoch: Token
    batch: Positive
    attempt: Positive
    incarnation: bytes
    outputs: list[bytes]
    buffers: list[Count] | None = None
    errors: list[tuple[Count, Fault]] | None = None
    """Positions in the batch whose output is an error; their ``outputs`` entry is empty."""
    run_ms: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


class Yielded(Message, frozen=True, tag="YIELD"):
    """The batch that runs has come so far: parts of those of its items that are streamed."""

    epoch: Token
    batch: Positive
    attempt: Positive
    incarnation: bytes
    flows: list[Flow]


class Room(Message, frozen=True, tag="ROOM"):
    """So much of the streams of this batch has been read, in all."""

    epoch: Token
    batch: Positive
    streams: Annotated[list[tuple[Count, Count]], Meta(max_length=4096)]
    """Positions in the batch, each with what was read."""


class Recall(Message, frozen=True, tag="RECALL"):
    """Give this batch back if it has not begun."""

    epoch: Token
    batch: Positive


class Skip(Message, frozen=True, tag="SKIP"):
    """Nobody waits for these positions of the batch any more; leave them out, or stop their streams."""

    epoch: Token
    batch: Positive
    positions: Ranges


class Returned(Message, frozen=True, tag="RETURNED"):
    """These batches never began and never will, here."""

    epoch: Token
    batches: Annotated[list[Positive], Meta(max_length=4096)]


class Draining(Message, frozen=True, tag="DRAIN"):
    """No new work for me, please."""


# --- supervisor and broker ----------------------------------------------------------------------


class Child(Struct, frozen=True, array_like=True, gc=False):
    """A model process as its supervisor sees it."""

    incarnation: Token
    alive: bool
    epoch: bytes = b""
    begun: Count = 0
    """The last batch of ``epoch`` that its model began; 0: none."""
    finished: Count = 0
    """The last batch whose run came to an end; equal to ``begun``: nothing was running."""
    exit: int = 0
    """Exit status, or minus the signal that ended it."""
    reason: Word = ""
    restarts: Count = 0
    gpu: Word = ""
    state: Word = ""
    others: Annotated[list[tuple[Token, Count]], Meta(max_length=64)] = []
    """Other epochs, each with the last of its batches that the model began: all of those came to an end."""


class Leave(Message, frozen=True, tag="LEAVE"):
    """An operator orders this worker to leave: let what runs finish, return what has not begun."""


class Children(Message, frozen=True, tag="CHILDREN"):
    """A supervisor's beat; the dead stay listed until this message is acknowledged."""

    topic: Topic
    children: Annotated[list[Child], Meta(max_length=1024)]


AnyMessage = (
    Hello
    | Welcome
    | Who
    | Denied
    | Beat
    | Pulse
    | Bulk
    | Bye
    | Request
    | Result
    | Refused
    | Cancel
    | Parts
    | Taken
    | StatusAsk
    | Status
    | Order
    | Ordered
    | Ready
    | Batch
    | Progress
    | Done
    | Yielded
    | Room
    | Recall
    | Skip
    | Returned
    | Draining
    | Children
    | Leave
)

NOWHERE: bytes = bytes(8)
"""A conn for messages to those who have not said theirs."""
