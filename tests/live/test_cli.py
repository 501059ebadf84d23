"""The command line with real processes: what a person at a shell sees, and how processes end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.shell import Zbatch, zbatch

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]


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


def test_a_broker_that_ends_leaves_no_socket_behind_and_takes_none_of_another(
    run: Start, endpoints: tuple[str, ...], tmp_path: Path
) -> None:
    first = run("broker", *endpoints)
    first.says("broker started")
    assert zbatch("broker", *endpoints).returncode == 2
    assert {path.name for path in tmp_path.iterdir()} >= {"front", "front.lock", "back", "back.lock"}
    first.signal(signal.SIGTERM)
    assert first.ends() == 0
    assert not list(tmp_path.glob("front*")) + list(tmp_path.glob("back*"))


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
