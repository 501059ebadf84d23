"""PyTriton: a Triton, asked over HTTP in the Open Inference Protocol; only with ``--with pytriton``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.children import child
from benchmarks.loads import Setup, texts
from benchmarks.peers import environments, http
from benchmarks.peers.http import Front, Request, measure

__all__ = ["connect", "measure", "serve"]


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Run a server; give its endpoint."""
    port, log = environments.free_port(), folder / "server.log"
    command = [*environments.server("pytriton", "benchmarks.peers.pytriton_server", setup), str(port)]
    endpoint = f"http://127.0.0.1:{port}/v2/models/Texts/infer"
    with child(command, log) as process:
        http.await_answer(asked(texts()[0], endpoint), endpoint, process, log)
        yield endpoint


def connect(setup: Setup, endpoint: str) -> Front:
    """Return what makes a caller for one thread."""
    return Front(endpoint, [asked(text, endpoint) for text in texts()], http.is_own_text)


def asked(text: str, endpoint: str) -> Request:
    """Return one request; the protocol names shape and type of each input."""
    value = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return http.post(endpoint, http.as_json({"inputs": [value]})), f'"{text}"'.encode()
