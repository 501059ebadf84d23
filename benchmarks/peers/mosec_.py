"""mosec: a front in Rust, asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.children import child
from benchmarks.loads import Setup
from benchmarks.peers import environments, http
from benchmarks.peers.http import connect, measure
from benchmarks.peers.theirs_redis import await_lines

__all__ = ["connect", "measure", "serve"]


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Run a server; give its endpoint.

    What waits may be more, and longer, than by default: in these loads nothing is to be refused.
    """
    port, log = environments.free_port(), folder / "server.log"
    command = [
        *environments.server("mosec", "benchmarks.peers.mosec_server", setup),
        *("--address", "127.0.0.1", "--port", str(port), "--log-level", "warning"),
        *("--capacity", "8192", "--timeout", "30000", "--path", str(folder / "sockets")),
    ]
    endpoint = f"http://127.0.0.1:{port}/inference"
    with child(command, log) as process:
        await_lines(setup.workers, process, log)
        http.await_answer(http.first(setup.item, endpoint), endpoint, process, log)
        yield endpoint
