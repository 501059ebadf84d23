"""zbatch's ThreadedStreamer: batches what the threads of one process ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import models
from benchmarks.loads import Caller, Setup
from benchmarks.peers import items
from benchmarks.peers.directs import serve

__all__ = ["connect", "serve"]


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; all share the one streamer."""
    from zbatch import ThreadedStreamer

    model = getattr(models, setup.model)()
    streamer = ThreadedStreamer(model.predict, setup.batch_size, max_latency=setup.max_latency)
    caller = items.caller(setup, streamer.predict, streamer.submit, result)
    return lambda: caller


def result(future: Any) -> Any:
    return future.result(20)
