"""What live tests share: commands that are started, and killed whatever happens."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

from tests.live.shell import PATIENCE, ROOT, Zbatch
from zbatch import ZClient


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Zbatch]]:
    """Start commands; whatever still runs at the end is killed, with all that it started."""
    running: list[Zbatch] = []

    def run(*arguments: str) -> Zbatch:
        running.append(Zbatch(tmp_path / f"{len(running)}.log", *arguments))
        return running[-1]

    yield run
    for one in running:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """Give sockets of one's own a context that ends with the test, however that ends."""
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(0)


class Certificate(NamedTuple):
    """A TLS certificate for this host that nobody but a test trusts, and its key."""

    path: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        """How a gateway is told to use it."""
        return ("--tls-cert", str(self.path), "--tls-key", str(self.key))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Make a certificate for localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    home = tmp_path_factory.mktemp("tls")
    made = Certificate(home / "cert.pem", home / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(made.key), "-out", str(made.path)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    return made


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a broker and a worker for the tests of a module; give the endpoint for clients."""
    home = tmp_path_factory.mktemp("cluster")
    frontend, backend = f"ipc://{home}/front", f"ipc://{home}/back"
    model = f"{ROOT}/tests/live/models.py:Obedient"
    broker = Zbatch(home / "broker.log", "broker", "--frontend", frontend, "--backend", backend)
    worker = Zbatch(home / "worker.log", "worker", model, "--gpu", "cpu", "--backend", backend)
    worker.says("model ready")
    yield frontend
    for one in (worker, broker):
        one.process.kill()
        one.process.wait()


@pytest.fixture
def client(frontend: str) -> Iterator[ZClient[Any, Any]]:
    """Give a client of that broker."""
    with ZClient[Any, Any](frontend, timeout=PATIENCE) as client:
        yield client
