"""zbatch's Streamer: a broker and worker processes of its client's, on a private endpoint."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import models
from benchmarks.loads import Caller, Setup
from benchmarks.peers import items
from benchmarks.peers.directs import serve
from benchmarks.peers.ours_threaded import result

__all__ = ["connect", "serve"]


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; all share the one streamer."""
    from zbatch import Streamer

    model = getattr(models, setup.model)()
    streamer = Streamer(
        model.predict,
        setup.batch_size,
        max_latency=setup.max_latency,
        worker_num=setup.workers,
        wait_for_worker_ready=True,
    )
    caller = items.caller(setup, streamer.predict, streamer.submit, result)
    return lambda: caller
