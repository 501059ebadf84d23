"""systemd is told that a process serves, and that its loop turns, where it asked to be told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from zbatch.watchdog import Ear, Watchdog


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Be the service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "notify"))
        one.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield one


def told(manager: socket.socket) -> list[bytes]:
    words = []
    while True:
        try:
            words.append(manager.recv(100))
        except BlockingIOError:
            return words


def test_it_says_when_it_serves_and_when_it_leaves(manager: socket.socket) -> None:
    watchdog = Watchdog()
    watchdog.ready()
    watchdog.stopping()
    assert told(manager) == [b"READY=1", b"STOPPING=1"]


def test_it_says_three_times_a_period_that_the_loop_turns(manager: socket.socket) -> None:
    watchdog = Watchdog()
    for second in range(60):
        watchdog.alive(100.0 + second)
    assert told(manager) == [b"WATCHDOG=1"] * 6


def test_the_loop_wakes_up_for_it(manager: socket.socket) -> None:
    watchdog = Watchdog()
    watchdog.alive(100.0)
    assert (watchdog.sooner(None), watchdog.sooner(103.0), watchdog.sooner(200.0)) == (110.0, 103.0, 110.0)


def test_what_was_meant_for_another_process_is_not_ours(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_PID", str(os.getppid()))
    watchdog = Watchdog()
    watchdog.alive(100.0)
    assert told(manager) == []
    assert watchdog.sooner(None) is None


def test_where_nobody_asked_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    watchdog = Watchdog()
    watchdog.ready()
    watchdog.alive(1.0)
    assert watchdog.sooner(5.0) == 5.0


def test_a_manager_that_is_gone_harms_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    Watchdog().ready()


def test_a_name_in_the_kernels_own_space_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"zbatch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind("\0" + name)
        one.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        Watchdog().ready()
        assert told(one) == [b"READY=1"]


def test_who_hears_children_learns_which_of_them_serve() -> None:
    ear = Ear()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as child:
        for word in (b"STOPPING=1", b"WATCHDOG=1"):
            child.sendto(word, "\0" + ear.address[1:])
        assert ear.serving() == set()
        for word in (b"READY=1", b"READY=1"):
            child.sendto(word, "\0" + ear.address[1:])
        assert ear.serving() == {os.getpid()}
        assert ear.serving() == set()
    ear.close()
