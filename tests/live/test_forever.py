"""run_zbatch_workers_forever and ZStreamer: a farm from Python, with no server started by hand."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live.shell import PATIENCE, environment, until
from tests.live.streamed import Broken, Managed, double
from zbatch import BrokerUnreachable, ZStreamer, run_zbatch_workers_forever
from zbatch.compat.service_streamer import RedisStreamer, RedisWorker
from zbatch.security import make_farm

pytestmark = pytest.mark.live

SCRIPT = """
import sys, zbatch
from tests.live.streamed import double
zbatch.run_zbatch_workers_forever(double, 8, broker=sys.argv[1], topic=sys.argv[2])
"""


@pytest.fixture
def broker() -> str:
    """Return an address with two free ports in a row."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return f"localhost:{port}"


@pytest.fixture
def served(broker: str) -> Iterator[Callable[..., RedisWorker]]:
    """Serve in threads of this process until the end of the test."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def serve(model: Any, *arguments: Any, **more: Any) -> RedisWorker:
        worker = RedisWorker(model, 8, 0.1, broker, *arguments, destroy_event=over, **more)
        threads.append(threading.Thread(target=worker.run_forever, daemon=True))
        threads[-1].start()
        return worker

    yield serve
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    """Kill what a failed test left; what it started ends with it."""
    yield
    while _started:
        _started.pop().kill()


def start(broker: str, topic: str) -> subprocess.Popen[bytes]:
    """Serve in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, broker, topic]
    _started.append(subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE))
    return _started[-1]


def children(process: subprocess.Popen[bytes], role: str) -> list[psutil.Process]:
    """Return the living children of a process that have a role."""
    found = []
    for one in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error):
            if role in one.cmdline():
                found.append(one)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and see that all that it started ends, and nobody holds its output."""
    own = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    until(lambda: not any(one.is_running() for one in own))
    assert process.stdout is not None
    assert process.stdout.read() == b""
    process.stdout.close()


def test_several_models_in_threads_of_one_process_do_not_mix(
    broker: str, served: Callable[..., RedisWorker]
) -> None:
    early = RedisStreamer(broker, "second")
    waiting = early.submit(["asked before anybody served"])
    served(double)
    served(Managed, "second", ["a"], {"b": 1})
    first = ZStreamer(broker)
    assert first.predict([1, "x"]) == [2, "xx"]
    assert waiting.result() == [("asked before anybody served", None, ("a",), {"b": 1})]
    for one in (first, early):
        one.close()


def test_processes_agree_on_one_broker_and_a_survivor_starts_it_again(broker: str) -> None:
    both = [start(broker, topic) for topic in ("one", "two")]
    streamers = [ZStreamer(broker, topic) for topic in ("one", "two")]
    assert [one.predict([2]) for one in streamers] == [[4], [4]]
    # One that came second ends by itself.
    until(lambda: sum(len(children(process, "broker")) for process in both) == 1)
    (owner,) = [process for process in both if children(process, "broker")]
    end(owner)
    both.remove(owner)
    (survivor,) = both
    topic = survivor.args[-1]  # type: ignore[index]
    again = ZStreamer(broker, str(topic))
    assert again.predict([3]) == [6]
    end(survivor)
    for one in (*streamers, again):
        one.close()


def test_with_keys_in_the_environment_all_three_use_them(
    broker: str,
    served: Callable[..., RedisWorker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_farm(tmp_path / "farm")
    monkeypatch.setenv("ZBATCH_KEYS", str(tmp_path / "farm"))
    served(double)
    with_a_key = ZStreamer(broker)
    assert with_a_key.predict([1]) == [2]
    monkeypatch.delenv("ZBATCH_KEYS")
    without = ZStreamer(broker)
    monkeypatch.setattr("zbatch.streamer.WORKER_TIMEOUT", 1)
    with pytest.raises(BrokerUnreachable):
        without.predict([1])
    for one in (with_a_key, without):
        one.close()


def test_a_worker_that_is_killed_is_started_again(broker: str) -> None:
    process = start(broker, "")
    streamer = ZStreamer(broker)
    assert streamer.predict([1]) == [2]
    (worker,) = children(process, "worker")
    worker.kill()
    assert streamer.predict([2]) == [4]
    end(process)
    streamer.close()


def test_a_model_that_does_not_load_ends_the_call(broker: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the model processes gave up"):
        run_zbatch_workers_forever(Broken, 8, broker=broker)
    with pytest.raises(TypeError, match="a lambda has no name"):
        run_zbatch_workers_forever(lambda batch: batch, 8, broker=broker)
