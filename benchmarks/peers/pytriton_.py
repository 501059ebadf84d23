"""PyTriton: a Triton, asked over HTTP in the Open Inference Protocol; only with ``--with pytriton``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.loads import Setup, texts
from benchmarks.peers import http
from benchmarks.peers.http import Front, Request, measure

__all__ = ["connect", "measure", "serve"]


def serve(setup: Setup, folder: Path) -> AbstractContextManager[str]:
    """Run a server; give its endpoint."""
    return http.serving("pytriton", setup, folder, "/v2/models/Texts/infer", partial(asked, texts()[0]))


def connect(setup: Setup, endpoint: str) -> Front:
    """Return what makes a caller for one thread."""
    return Front(endpoint, [asked(text, endpoint) for text in texts()], http.is_own_text)


def asked(text: str, endpoint: str) -> Request:
    """Return one request; the protocol names shape and type of each input."""
    value = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return http.post(endpoint, http.as_json({"inputs": [value]})), f'"{text}"'.encode()
