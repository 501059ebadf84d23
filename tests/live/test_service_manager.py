"""A service manager is told by each command's first process that it serves, goes on, and leaves."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, free_port
from tests.live.streamed import double
from zbatch import Streamer

pytestmark = pytest.mark.live

Run = Callable[..., Zbatch]

MODEL = f"{ROOT}/examples/doubler.py:Doubler"

CREDENTIALS = struct.Struct("3i")


class Manager:
    """Hears what processes say to a service manager, and who says it."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(PATIENCE)

    def hears(self, word: bytes, pid: int) -> None:
        """Wait until that process says it; nobody else is to say anything."""
        while True:
            said, speaker = self._hear()
            assert speaker == pid, (said, speaker)
            if said == word:
                return

    def heard(self) -> list[tuple[bytes, int]]:
        """Return all that was said and not heard yet."""
        self._socket.setblocking(False)
        words = []
        while True:
            try:
                words.append(self._hear())
            except BlockingIOError:
                return words

    def _hear(self) -> tuple[bytes, int]:
        said, ancillary, _, _ = self._socket.recvmsg(100, socket.CMSG_SPACE(CREDENTIALS.size))
        ((_, _, sender),) = ancillary
        return said, CREDENTIALS.unpack(sender)[0]

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """Be the service manager of what is started, which is to show three times a second that it lives."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


@pytest.mark.parametrize(
    "command", ["broker", "broker --supervise", "worker", "serve", "gateway", "gateway --processes"]
)
def test_the_service_manager_is_told(command: str, run: Run, manager: Manager, tmp_path: Path) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    if command.startswith("gateway"):
        pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")
    port = free_port()
    gateway = ("gateway", "--http", f"127.0.0.1:{port}", "--endpoint", front)
    started = run(
        *{
            "broker": ("broker", "--frontend", front, "--backend", back),
            "broker --supervise": ("broker", "--supervise", "--frontend", front, "--backend", back),
            "worker": ("worker", MODEL, "--gpu", "cpu", "--backend", back),
            "serve": ("serve", MODEL, "--gpu", "cpu", "--frontend", front),
            "gateway": gateway,
            "gateway --processes": (*gateway, "--processes", "2"),
        }[command]
    )
    pid = started.process.pid
    manager.hears(b"READY=1", pid)
    if "gateway" in command:  # at once: who is started after it may ask it
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    elif command != "worker":
        assert Path(f"{tmp_path}/front").is_socket()
    for _ in range(3):
        manager.hears(b"WATCHDOG=1", pid)
    started.signal(signal.SIGTERM)
    manager.hears(b"STOPPING=1", pid)
    assert started.ends() == 0


def test_what_does_not_start_is_never_said_to_serve(run: Run, manager: Manager) -> None:
    pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")
    nothing = ("--tls-cert", "/nothing", "--tls-key", "/nothing")
    started = run("gateway", "--http", f"127.0.0.1:{free_port()}", "--processes", "2", *nothing)
    assert started.ends() == 2
    assert [said for said, _ in manager.heard() if said == b"READY=1"] == []


def test_a_private_cluster_says_nothing_to_the_service_manager_of_its_program(manager: Manager) -> None:
    streamer = Streamer(double, 8, wait_for_worker_ready=True)
    assert streamer.predict([2]) == [4]
    streamer.destroy_workers()
    assert manager.heard() == []
