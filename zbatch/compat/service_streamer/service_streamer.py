"""service_streamer's module of this name; ``redis_broker`` names a zbatch broker, and no Redis is needed.

What people set from outside works here: calls take :data:`WORKER_TIMEOUT` seconds at most where a streamer
was told nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from zbatch import forever, spawned, streamer
from zbatch.futures import Future
from zbatch.model import ManagedModel

__all__ = [
    "TIMEOUT",
    "TIME_SLEEP",
    "WORKER_TIMEOUT",
    "Future",
    "ManagedModel",
    "RedisStreamer",
    "RedisWorker",
    "Streamer",
    "ThreadedStreamer",
    "run_redis_workers_forever",
]

TIMEOUT = 1
"""Seconds between two looks of the old queues; here for who sets it, and without a meaning."""

TIME_SLEEP = 0.001
"""The same."""

WORKER_TIMEOUT = 20
"""Seconds that a call may take where its streamer was told nothing; read at each call."""

REDIS = "localhost:6379"


class _Event(Protocol):
    def is_set(self) -> bool:
        """Return whether it was set."""
        ...


def _timeout() -> float:
    timeout: float = sys.modules[__name__].WORKER_TIMEOUT
    return timeout


class ThreadedStreamer(streamer.ThreadedStreamer):
    """See :class:`zbatch.ThreadedStreamer`."""

    default_timeout = staticmethod(_timeout)


class Streamer(streamer.Streamer):
    """See :class:`zbatch.Streamer`."""

    default_timeout = staticmethod(_timeout)


class RedisStreamer(streamer.ZStreamer):
    """See :class:`zbatch.ZStreamer`; ``prefix`` is its topic."""

    default_timeout = staticmethod(_timeout)

    def __init__(self, redis_broker: str = REDIS, prefix: str = "") -> None:
        super().__init__(redis_broker, prefix)


class RedisWorker:
    """One worker of a model class, from Python: :meth:`run_forever` serves."""

    def __init__(
        self,
        model_class: Callable[..., Any],
        batch_size: int,
        max_latency: float = 0.1,
        redis_broker: str = REDIS,
        prefix: str = "",
        model_init_args: Sequence[Any] | None = None,
        model_init_kwargs: Mapping[str, Any] | None = None,
        *_: Any,
        destroy_event: _Event | None = None,
        **__: Any,
    ) -> None:
        self._broker, self._topic = redis_broker, prefix
        self._destroy_event = destroy_event
        self._given = spawned.Given(
            model_class, batch_size, max_latency, 1, (), model_init_args or (), model_init_kwargs or {}
        )

    def run_forever(self, gpu_id: int | str | None = None) -> None:
        """Serve until told to leave, or until ``destroy_event`` is set, in a process of the model's own."""
        event = self._destroy_event
        devices = streamer.devices_of(None if gpu_id is None else [gpu_id])
        forever.serve(
            replace(self._given, devices=devices),
            self._broker,
            self._topic,
            (lambda: False) if event is None else event.is_set,
        )


def run_redis_workers_forever(
    model_class: Callable[..., Any],
    batch_size: int,
    max_latency: float = 0.1,
    worker_num: int = 1,
    cuda_devices: Sequence[int | str] | int | str | None = None,
    redis_broker: str = REDIS,
    prefix: str = "",
    mp_start_method: str = "spawn",
    model_init_args: Sequence[Any] | None = None,
    model_init_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """See :func:`zbatch.run_zbatch_workers_forever`; ``prefix`` is its topic."""
    forever.run_zbatch_workers_forever(
        model_class,
        batch_size,
        max_latency,
        worker_num,
        cuda_devices,
        redis_broker,
        prefix,
        mp_start_method,
        model_init_args,
        model_init_kwargs,
    )
