"""The command line with real processes: what a person at a shell sees, and how processes end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.live

PATIENCE = 60.0
"""Guards against hanging; measures nothing."""

ROOT = Path(__file__).parents[2]


class Zbatch:
    """A zbatch command that runs; its stderr goes to a file, which can be waited on."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = start(*arguments, stderr=stderr)

    def says(self, words: str, times: int = 1) -> str:
        """Wait until stderr has these words; return the whole of it."""
        until = time.monotonic() + PATIENCE
        while (text := self.log.read_text()).count(words) < times:
            assert self.process.poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.01)
        return text

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        return self.process.wait(PATIENCE)


Start = Callable[..., Zbatch]


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ZBATCH_")}
    return clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def start(*arguments: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "zbatch", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, env=environment())


def zbatch(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zbatch", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Start]:
    """Start commands; whatever still runs at the end is killed."""
    running: list[Zbatch] = []

    def run(*arguments: str) -> Zbatch:
        running.append(Zbatch(tmp_path / f"{len(running)}.log", *arguments))
        return running[-1]

    yield run
    for one in running:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def endpoints(tmp_path: Path) -> tuple[str, ...]:
    return ("--frontend", f"ipc://{tmp_path}/front", "--backend", f"ipc://{tmp_path}/back")


def test_a_broker_says_its_version_and_settings_and_ends_on_sigterm(
    run: Start, endpoints: tuple[str, ...]
) -> None:
    broker = run("broker", *endpoints, "--topics", "bert")
    line = broker.says("broker started").splitlines()[0]
    assert " version=" in line
    assert " topics=bert " in line
    assert " batching=eager " in line
    broker.signal(signal.SIGTERM)
    assert broker.ends() == 0


def test_an_endpoint_in_use_is_told_in_a_sentence(run: Start, endpoints: tuple[str, ...]) -> None:
    run("broker", *endpoints).says("broker started")
    second = zbatch("broker", *endpoints)
    assert second.returncode == 2
    assert "another broker listens there" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_told_in_a_sentence(run: Start, tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        found = zbatch("broker", "--frontend", endpoint, "--backend", f"ipc://{tmp_path}/back")
    assert found.returncode == 2
    assert f"cannot listen on {endpoint}: it is in use; is another broker running?" in found.stderr


def test_status_and_probes_ask_a_broker(run: Start, endpoints: tuple[str, ...]) -> None:
    run("broker", *endpoints).says("broker started")
    client = ("--endpoint", endpoints[1])
    shown = zbatch("status", *client)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("broker ")
    assert zbatch("status", "--check", *client).returncode == 0
    probe = zbatch("status", "--check", "--topic", "bert", *client)
    assert (probe.returncode, probe.stderr) == (1, "Error: topic 'bert' has no worker; served here: none\n")


def test_a_probe_of_nobody_fails_within_its_timeout(endpoints: tuple[str, ...]) -> None:
    probe = zbatch("status", "--check", "--timeout", "300ms", "--endpoint", endpoints[1])
    assert probe.returncode == 1
    assert probe.stderr.startswith("Error: BrokerUnreachable: ")
