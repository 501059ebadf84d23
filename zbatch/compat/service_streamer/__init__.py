"""service_streamer's package: code that imported it imports this, and is otherwise unchanged."""

from zbatch.compat.service_streamer.managed_model import ManagedModel
from zbatch.compat.service_streamer.service_streamer import (
    RedisStreamer,
    RedisWorker,
    Streamer,
    ThreadedStreamer,
    run_redis_workers_forever,
)

__all__ = [
    "ManagedModel",
    "RedisStreamer",
    "RedisWorker",
    "Streamer",
    "ThreadedStreamer",
    "run_redis_workers_forever",
]
