"""The names of service_streamer, on zbatch: code written for it moves over by changing an import.

Positions, defaults, types and order are the old ones.  What an error is differs: where the old one let every
call run into its timeout, the cause is raised at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from zbatch.calls import Future
from zbatch.embedded import local

WORKER_TIMEOUT = 20
"""Seconds that a call may take where its streamer was told nothing; read at each call, so it may be set."""


class ThreadedStreamer:
    """Batches what the threads of this process ask for, and runs it in one thread of this process.

    Args:
        predict_function: Returns one output for each item of a list.
        batch_size: Items that are run at once, at most.
        max_latency: Seconds that an item waits for company at most.  A lone one does not wait.
        worker_timeout: Seconds that a call may take.  None: :data:`WORKER_TIMEOUT`.

    """

    def __init__(
        self,
        predict_function: Callable[[list[Any]], Sequence[Any]],
        batch_size: int,
        max_latency: float = 0.1,
        worker_timeout: float | None = None,
    ) -> None:
        if not callable(predict_function):
            raise TypeError(f"wanted a function of a list, got {type(predict_function).__name__}")
        self._worker_timeout = worker_timeout

        def run(batch: list[Any]) -> Sequence[Any]:
            return predict_function(batch)

        # A function of ours: what was given is called, whatever other methods it has.
        self._client = local(run, batch_size, max_latency)

    def predict(self, batch: Collection[Any]) -> list[Any]:
        """Return the output for each item, in order.

        Raises :class:`DeadlineExceeded`, a ``TimeoutError``, when it takes longer than the streamer's
        timeout; :class:`ModelFailed` or :class:`BadOutput` where the function raises or returns a wrong
        number of outputs, and :class:`BatchError` where it does so for some of several items.
        """
        return self.submit(batch).result()

    def submit(self, batch: Collection[Any]) -> Future[Any]:
        """Ask, and return at once; ``result(timeout)`` of what is returned may be called again and again."""
        if not hasattr(batch, "__len__"):
            raise TypeError(f"wanted a list of items, got {type(batch).__name__}; use list(...)")
        timeout = WORKER_TIMEOUT if self._worker_timeout is None else self._worker_timeout
        return self._client.submit(list(batch), timeout=timeout)

    def destroy_workers(self) -> None:
        """End the thread; what has no outcome, and every later call, raises :class:`ClientClosed`."""
        self._client.close()
