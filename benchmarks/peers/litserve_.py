"""LitServe: a front in FastAPI, asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.children import child
from benchmarks.loads import Setup
from benchmarks.peers import environments, http
from benchmarks.peers.http import connect, measure

__all__ = ["connect", "measure", "serve"]


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Run a server; give its endpoint.  It answers only when all its workers are ready."""
    port, log = environments.free_port(), folder / "server.log"
    command = [*environments.server("litserve", "benchmarks.peers.litserve_server", setup), str(port)]
    endpoint = f"http://127.0.0.1:{port}/predict"
    with child(command, log) as process:
        http.await_answer(http.first(setup.item, endpoint), endpoint, process, log)
        yield endpoint
