"""service_streamer's ThreadedStreamer: batches what the threads of one process ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.loads import Caller, Setup
from benchmarks.peers import environments, items


def interpreter() -> str:
    return environments.python("service_streamer")


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Nothing to start: its worker is a thread of its client."""
    yield ""


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; all share the one streamer."""
    from service_streamer import ThreadedStreamer  # type: ignore[import-not-found,unused-ignore]

    model = getattr(models, setup.model)()
    streamer = ThreadedStreamer(model.predict, setup.batch_size, max_latency=setup.max_latency)
    caller = items.caller(setup, streamer.predict, streamer.submit, result)
    return lambda: caller


def result(future: Any) -> Any:
    return future.result(20)
