"""A service manager is told by each command's first process that it serves, goes on, and leaves."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, free_port

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
        """Wait until that process says it; what its children say counts for nothing, as with systemd."""
        while True:
            said, ancillary, _, _ = self._socket.recvmsg(100, socket.CMSG_SPACE(CREDENTIALS.size))
            ((_, _, sender),) = ancillary
            if (said, CREDENTIALS.unpack(sender)[0]) == (word, pid):
                return

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
    gateway = ("gateway", "--http", f"127.0.0.1:{free_port()}", "--endpoint", front)
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
    for _ in range(3):
        manager.hears(b"WATCHDOG=1", pid)
    started.signal(signal.SIGTERM)
    manager.hears(b"STOPPING=1", pid)
    assert started.ends() == 0
