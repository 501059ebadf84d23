"""batched: a function of a list that batches what the threads of its process ask for."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import models
from benchmarks.loads import Caller, Setup
from benchmarks.peers import environments, items
from benchmarks.peers.theirs_threaded import serve

__all__ = ["connect", "interpreter", "serve"]


def interpreter() -> str:
    return environments.python("batched")


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; it has no futures for threads, so no window."""
    import batched  # type: ignore[import-not-found,unused-ignore]

    model = getattr(models, setup.model)()

    # It runs functions, and takes methods for something else.
    def predict(batch: list[object]) -> object:
        return model.predict(batch)

    ask = batched.dynamically(predict, batch_size=setup.batch_size, timeout_ms=1000 * setup.max_latency)
    caller = items.caller(setup, ask, ask, lambda output: output)
    return lambda: caller
