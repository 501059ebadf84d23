"""zbatch: many callers, one batch.

A ZeroMQ cluster that gathers the items that any number of processes ask for, forms batches for each model
and runs them on whichever worker is free.  Names are loaded when they are first used, so that a web process
pays for what it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zbatch import errors as errors
    from zbatch.aio import AsyncZClient
    from zbatch.client import ZClient
    from zbatch.embedded import local
    from zbatch.errors import (
        BadInput,
        BadOutput,
        BadRequest,
        BatchError,
        BrokerUnreachable,
        Cancelled,
        ClientClosed,
        ConfigError,
        DeadlineExceeded,
        Forbidden,
        ModelFailed,
        NoWorkers,
        Overloaded,
        PoisonItem,
        ProtocolMismatch,
        ReaderTooSlow,
        TooLarge,
        Unauthorized,
        UnknownTopic,
        WorkerLost,
        ZbatchError,
    )
    from zbatch.forever import run_zbatch_workers_forever
    from zbatch.futures import Future
    from zbatch.model import Context, ManagedModel, Model
    from zbatch.pipelines import pipeline
    from zbatch.runner import current_batch, progress, request_ids
    from zbatch.steps import END, NOTHING
    from zbatch.streamer import Streamer, ThreadedStreamer, ZStreamer

    __version__: str

__all__ = [
    "END",
    "NOTHING",
    "AsyncZClient",
    "BadInput",
    "BadOutput",
    "BadRequest",
    "BatchError",
    "BrokerUnreachable",
    "Cancelled",
    "ClientClosed",
    "ConfigError",
    "Context",
    "DeadlineExceeded",
    "Forbidden",
    "Future",
    "ManagedModel",
    "Model",
    "ModelFailed",
    "NoWorkers",
    "Overloaded",
    "PoisonItem",
    "ProtocolMismatch",
    "ReaderTooSlow",
    "Streamer",
    "ThreadedStreamer",
    "TooLarge",
    "Unauthorized",
    "UnknownTopic",
    "WorkerLost",
    "ZClient",
    "ZStreamer",
    "ZbatchError",
    "__version__",
    "current_batch",
    "local",
    "pipeline",
    "progress",
    "request_ids",
    "run_zbatch_workers_forever",
]

_HOMES = {
    "END": "steps",
    "NOTHING": "steps",
    "AsyncZClient": "aio",
    "Future": "futures",
    "ZClient": "client",
    "local": "embedded",
    "Context": "model",
    "ManagedModel": "model",
    "Model": "model",
    "pipeline": "pipelines",
    "current_batch": "runner",
    "progress": "runner",
    "request_ids": "runner",
    "Streamer": "streamer",
    "ThreadedStreamer": "streamer",
    "ZStreamer": "streamer",
    "run_zbatch_workers_forever": "forever",
}
"""Where a name lives, unless it is an error."""


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("zbatch.errors")
    if name not in __all__:
        raise AttributeError(f"module 'zbatch' has no attribute {name!r}")
    if name == "__version__":
        found: Any = import_module("zbatch.config").version()
    else:
        found = getattr(import_module(f"zbatch.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
