"""service_streamer's Streamer: a multiprocessing.Queue, and worker processes of its client's."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.loads import Caller, Setup
from benchmarks.peers import items
from benchmarks.peers.theirs_threaded import interpreter, result, serve

__all__ = ["connect", "interpreter", "serve"]


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; all share the one streamer."""
    from service_streamer import Streamer  # type: ignore[import-not-found,unused-ignore]

    from benchmarks.peers import theirs_models

    streamer = Streamer(
        getattr(theirs_models, setup.model),
        setup.batch_size,
        max_latency=setup.max_latency,
        worker_num=setup.workers,
    )
    streamer._wait_for_worker_ready(60)
    caller = items.caller(setup, streamer.predict, streamer.submit, result)
    return lambda: caller
