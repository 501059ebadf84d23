"""A finished batch is let go of at once, however long its lease would have been."""

from __future__ import annotations

import gc

from tests.core.driving import Cluster
from tests.core.hearing import batches
from zbatch.core.roster import Handed


def test_finished_batches_are_not_kept_until_their_leases_would_end() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(lease_ms=60_000), cluster.client()
    gc.collect()
    before = sum(isinstance(one, Handed) for one in gc.get_objects())
    for turn in range(100):
        client.asks(turn, 1)
        (batch,) = batches(worker.told())
        worker.answers(batch)
        client.told()
    gc.collect()
    assert sum(isinstance(one, Handed) for one in gc.get_objects()) == before
