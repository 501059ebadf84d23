"""Routes and what travels along them, as short to write as to read."""

from __future__ import annotations

from typing import Any

from tests.core.driving import EPOCH, Peer
from tests.core.hearing import batches
from zbatch.messages import Batch, Done, Fault, Stage


def stage(topic: str, *inputs: tuple[str, int]) -> Stage:
    """Return a stage that is called as its topic; without inputs it reads the request's own items."""
    return Stage(topic, topic, inputs or (("", 0),))


LINE = (stage("pre"), stage("bert", ("", 1)), stage("post", ("", 2)))
JOINED = (stage("a"), stage("b", ("", 1)), stage("c", ("", 1)), stage("d", ("left", 2), ("right", 3)))


def items(batch: Batch) -> list[Any]:
    """Return the items of a batch; of joined ones the dicts that the worker makes."""
    found: list[Any] = []
    for span in batch.spans:
        if span.parts is None:
            found += span.items
        else:
            rows = zip(*(part.items for part in span.parts), strict=True)
            found += [dict(zip([part.name for part in span.parts], row, strict=True)) for row in rows]
    return found


def one_batch(worker: Peer) -> Batch:
    """Return the only batch that a worker was handed since the last look, or when it came."""
    (batch,) = batches(worker.told()) or batches(worker.greeted)
    worker.greeted = []
    return batch


def work(
    worker: Peer,
    *outputs: bytes,
    now: float = 0.0,
    errors: list[tuple[int, Fault]] | None = None,
    buffers: list[int] | None = None,
    frames: list[bytes] | None = None,
) -> list[Any]:
    """Let a worker answer the only batch that it was handed; return the batch's items."""
    batch = one_batch(worker)
    found = items(batch)
    own = [b"%s(%s)" % (worker.peer[2:4], item if isinstance(item, bytes) else b"+") for item in found]
    worker.says(
        *(Done, EPOCH, batch.batch, batch.attempt, worker.incarnation),
        *(list(outputs) or own, buffers, errors, 5.0),
        now=now,
        frames=frames or (),
    )
    # What it was handed then is for the next look.
    worker.inbox[:0] = worker.read
    return found
