"""service_streamer's RedisStreamer: a real Redis between its clients and its workers."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.children import Failed, child, has_ended, tail
from benchmarks.loads import Caller, Setup
from benchmarks.peers import environments, items
from benchmarks.peers.theirs_threaded import interpreter, result

__all__ = ["connect", "interpreter", "serve"]

START_SECONDS = 20.0


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Run a Redis that keeps nothing on disk, and the workers of a setup; give the address of Redis."""
    port = environments.free_port()
    redis = [
        *(environments.program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"),
        *("--save", "", "--appendonly", "no", "--dir", str(folder)),
    ]
    address = f"127.0.0.1:{port}"
    described = json.dumps(dataclasses.asdict(setup))
    worker = [interpreter(), "-m", "benchmarks.peers.theirs_redis_worker", described, address]
    with child(redis, folder / "redis.log") as server:
        await_port(port, server, folder / "redis.log")
        with child(worker, folder / "worker.log") as workers:
            await_lines(setup.workers, workers, folder / "worker.log")
            yield address


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; all share the one streamer."""
    from service_streamer import RedisStreamer  # type: ignore[import-not-found,unused-ignore]

    streamer = RedisStreamer(redis_broker=endpoint)
    caller = items.caller(setup, streamer.predict, streamer.submit, result)
    return lambda: caller


def await_port(port: int, server: subprocess.Popen[str], log: Path) -> None:
    """Return when somebody listens there."""
    patience = time.monotonic() + START_SECONDS
    while time.monotonic() < patience and not has_ended(server):
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.05)
    raise Failed(f"nobody listens at port {port}:\n{tail(log)}")


def await_lines(wanted: int, server: subprocess.Popen[str], log: Path, seconds: float = 60.0) -> None:
    """Return when as many processes have said ``ready``."""
    patience = time.monotonic() + seconds
    while time.monotonic() < patience and not has_ended(server):
        if log.read_text(errors="replace").count("ready\n") >= wanted:
            return
        time.sleep(0.05)
    raise Failed(f"not all of {wanted} workers were ready within {seconds:.0f} s:\n{tail(log)}")
