"""Ray Serve: a front in Starlette, asked over HTTP; only with ``--with ray``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.loads import Setup
from benchmarks.peers import http
from benchmarks.peers.http import connect, measure

__all__ = ["connect", "measure", "serve"]


def serve(setup: Setup, folder: Path) -> AbstractContextManager[str]:
    """Run a server; give its endpoint.  It answers only when all its replicas are ready."""
    return http.serving("ray", setup, folder, "/", partial(http.first, setup.item))
