"""A finished batch is let go of at once, however long its lease would have been."""

from __future__ import annotations

import gc

from zbatch.config import BrokerCoreSettings
from zbatch.core.broker import BrokerCore
from zbatch.core.roster import Handed
from zbatch.messages import Batch, Done, Group, Hello, Ready, Request

CLIENT, WORKER = b"F\0cccc", b"B\0wwww"


def test_finished_batches_are_not_kept_until_their_leases_would_end() -> None:
    core = BrokerCore(BrokerCoreSettings(), epoch=b"E" * 8)
    core.handle(CLIENT, Hello(b"c" * 8, 1, 0, b"L" * 16, "client", 1), (), 0.0)
    core.handle(WORKER, Hello(b"w" * 8, 1, 0, b"M" * 16, "worker", 1), (), 0.0)
    core.handle(WORKER, Ready(b"w" * 8, 2, 0, "bert", 2, 64, None, 10.0, 60_000), (), 0.0)
    core.tick(0.0)
    for turn in range(100):
        core.handle(CLIENT, Request(b"c" * 8, 2 + turn, turn, [Group(turn, "bert", 30_000, [b"x"])]), (), 0.0)
        (handed,) = core.tick(0.0)
        batch = handed.message
        assert isinstance(batch, Batch)
        done = Done(b"w" * 8, 3 + turn, turn, batch.epoch, batch.batch, 1, b"", [b"y"])
        core.handle(WORKER, done, (), 0.0)
        core.tick(0.0)
    assert [one for one in gc.get_objects() if isinstance(one, Handed)] == []
