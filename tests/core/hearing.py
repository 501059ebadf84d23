"""What a peer was told, in the few words that a test compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.core.driving import Peer
from zbatch.messages import Batch, Refused, Result


def batches(messages: Sequence[Any]) -> list[Batch]:
    """Return the batches among some messages."""
    return [one for one in messages if isinstance(one, Batch)]


def handed(peer: Peer) -> list[list[tuple[int, int]]]:
    """Return the ids in each batch that a worker was handed since the last look."""
    return batch_ids(peer.told())


def batch_ids(messages: Sequence[Any]) -> list[list[tuple[int, int]]]:
    """Return the ids in each batch among some messages."""
    return [ids(batch) for batch in batches(messages)]


def ids(batch: Batch) -> list[tuple[int, int]]:
    """Return the ids in a batch."""
    return [(span.base, span.base + len(span.items)) for span in batch.spans]


def outcomes(messages: Sequence[Any]) -> dict[int, bytes | str]:
    """Return what became of each id: its output, or the code of its error."""
    found: dict[int, bytes | str] = {}
    for message in messages:
        if isinstance(message, Result):
            for span in message.spans:
                for at, output in enumerate(span.outputs):
                    assert span.base + at not in found, "two outcomes"
                    found[span.base + at] = output
        elif isinstance(message, Refused):
            for refusal in message.refusals:
                for start, stop in refusal.ids:
                    for one in range(start, stop):
                        assert one not in found, "two outcomes"
                        found[one] = refusal.fault.code
    return found
