"""zbatch behind its own front of HTTP, as a user would start it: ``zbatch serve --http``, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import ours
from benchmarks.children import child
from benchmarks.loads import Setup
from benchmarks.peers import environments, http
from benchmarks.peers.http import connect, measure

__all__ = ["connect", "measure", "serve"]

MODELS = {"Picture": "RawPicture"}
"""What a model is called that takes the item as HTTP brings it."""


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Run broker, workers and gateway; give the endpoint that takes one item."""
    port, front, log = environments.free_port(), f"ipc://{folder}/f", folder / "serve.log"
    command = [
        *(*ours.ZBATCH, "serve", f"benchmarks/models.py:{MODELS.get(setup.model, setup.model)}"),
        *("--http", f"127.0.0.1:{port}", "--frontend", front, "--gpu", "cpu", "--num", str(setup.workers)),
        *("--batch-size", str(setup.batch_size), "--max-latency", str(setup.max_latency)),
        *("--processes", str(setup.processes)),
    ]
    endpoint = f"http://127.0.0.1:{port}/predict/default"
    with child(command, log) as process:
        ours.await_workers(front, setup.workers, process, log)
        http.await_answer(http.first(setup.item, endpoint), endpoint, process, log)
        yield endpoint
        ours.warn_of(log)
