"""What a Streamer's model processes do beside running the model."""

from __future__ import annotations

import threading
import time
from typing import Any

from zbatch.model import Context, wrap
from zbatch.runner import Runner, Work
from zbatch.spawned import is_too_short, keep_lease

PATIENCE = 20.0


def test_a_batch_is_given_more_time_until_its_lease_reaches_its_deadline() -> None:
    assert is_too_short([100.0, 7200.0], now=7184.0)
    assert not is_too_short([100.0, 7200.0], now=7185.0)


def test_a_long_batch_is_renewed_from_outside_of_its_function() -> None:
    renewed, over = threading.Event(), threading.Event()

    def waits(batch: list[Any]) -> list[bool]:
        return [renewed.wait(PATIENCE)]

    keeper = threading.Thread(target=keep_lease, args=(over, 0.001))
    keeper.start()
    runner = Runner(
        wrap(waits, {}, Context()),
        decode=lambda item: item,
        encode=lambda output: (output, ()),
        on_progress=renewed.set,
    )
    ran = runner.run(Work(["item"], None, [1], [time.monotonic() + 3600]))
    over.set()
    keeper.join()
    assert ran.outputs == [True]
