"""A worker's core and what brokers say to it, as short to write as to read."""

from __future__ import annotations

from itertools import count
from typing import Any

from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.worker import Job, Offer, WorkerCore
from zbatch.messages import Batch, Span, Welcome

LIFE, INCARNATION = b"life of a worker", b"child..1"
EPOCH, LATER_EPOCH = b"epoch..1", b"epoch..2"
FIRST, SECOND = b"\0", b"\1"
ADA, BOB = b"ada.....", b"bob....."


def conn(number: int) -> bytes:
    return number.to_bytes(8)


def started(brokers: int = 1) -> tuple[WorkerCore, list[Send]]:
    """Return a worker whose connections are numbered from 1, and its greetings."""
    numbers = count(1)
    core = WorkerCore(
        brokers,
        LIFE,
        INCARNATION,
        lambda size: next(numbers).to_bytes(size),
        Timing(),
        host="gpu-box",
        pid=12,
    )
    return core, core.start(0.0)


def serving(offer: Offer | None = None) -> WorkerCore:
    """Return a worker that a broker knows and whose offer (its message 2) it has heard."""
    core, _ = started()
    welcome(core)
    core.ready(offer or Offer("bert"))
    return core


def welcome(
    core: WorkerCore, peer: bytes = FIRST, connection: int = 1, epoch: bytes = EPOCH, ack: int = 1
) -> list[Send]:
    return core.handle(peer, Welcome(conn(connection), 1, ack, epoch, 1), [], 0.0)


def span(items: int = 1, base: int = 0, of: bytes = ADA, ms: int = 30_000, **more: Any) -> Span:
    return Span(of, base, ms, [b"%s%d" % (of[:1], base + at) for at in range(items)], **more)


def hand(
    core: WorkerCore,
    number: int,
    *spans: Span,
    frames: list[Any] | None = None,
    peer: bytes = FIRST,
    connection: int = 1,
    epoch: bytes = EPOCH,
    now: float = 0.0,
    apart: bool = False,
) -> list[Send]:
    """Let a broker hand over a batch; what it has received so far is not said."""
    batch = Batch(conn(connection), 1 + number, 0, epoch, number, 1, list(spans) or [span()], apart=apart)
    return core.handle(peer, batch, frames or [], now)


def begin(core: WorkerCore, now: float = 0.0) -> Job:
    job, actions = core.begin(now)
    assert job is not None
    assert actions == []
    return job


def answer(core: WorkerCore, job: Job, *outputs: bytes, **more: Any) -> list[Send]:
    return core.finished(job, list(outputs), more.get("buffers"), more.get("errors"), 0.005)
