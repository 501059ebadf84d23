"""Hosts on one machine: a network namespace each, joined by a bridge; links can be cut and slowed down.

A link that is cut drops packets and resets nothing, as a pulled cable does.  Where namespaces cannot be made
(no root), every host is loopback, and what travels to a broker goes through a proxy that can do the same.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

NET = "10.77.9"
"""The bridge's network; nothing of it leaves the machine."""


class Host(Protocol):
    """Where processes run."""

    name: str
    address: str

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs another one here."""
        ...

    def cut(self) -> None:
        """Let nothing through, and say so to nobody."""
        ...

    def slow(self, kilobits: int) -> None:
        """Let through only so much a second."""
        ...

    def mend(self) -> None:
        """Let everything through again."""
        ...


def can_make_hosts() -> bool:
    """Return whether this process may make network namespaces."""
    name = f"zb-try-{os.getpid()}"
    with suppress(OSError):
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        if made.returncode == 0:
            _ip("netns", "del", name)
            return True
    return False


class Bridge:
    """A bridge in a namespace of its own, and the hosts on it."""

    def __init__(self) -> None:
        self._name = f"zb{os.getpid()}"
        self._hosts: list[Namespace] = []
        _ip("netns", "add", self._name)
        self._in("link", "add", "br0", "type", "bridge")
        self._in("link", "set", "br0", "up")

    def host(self, name: str) -> Namespace:
        """Return a new host."""
        number = len(self._hosts) + 1
        host = Namespace(f"{self._name}{name}", f"{NET}.{number}", self._name, f"h{number}")
        self._hosts.append(host)
        return host

    def close(self) -> None:
        """Take everything down; whatever still runs there loses its network."""
        for host in self._hosts:
            host.close()
        _ip("netns", "del", self._name)

    def _in(self, *arguments: str) -> None:
        _ip("-n", self._name, *arguments)


class Namespace:
    """A host of its own network."""

    def __init__(self, name: str, address: str, bridge: str, port: str) -> None:
        self.name = name
        self.address = address
        self._bridge = bridge
        self._port = port
        self._slowed = False
        _ip("netns", "add", name)
        _ip("-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", bridge, "link", "set", port, "master", "br0", "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs another one here."""
        return ["ip", "netns", "exec", self.name, *argv]

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self._bridge, "link", "set", self._port, "down")

    def slow(self, kilobits: int) -> None:
        """Let through only so much a second, either way."""
        self._slowed = True
        rate = ("root", "tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "400ms")
        _run("tc", "-n", self._bridge, "qdisc", "replace", "dev", self._port, *rate)
        _run("tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", *rate)

    def mend(self) -> None:
        """Put the cable back, and let everything through."""
        _ip("-n", self._bridge, "link", "set", self._port, "up")
        if self._slowed:
            self._slowed = False
            _run("tc", "-n", self._bridge, "qdisc", "del", "dev", self._port, "root")
            _run("tc", "-n", self.name, "qdisc", "del", "dev", "eth0", "root")

    def close(self) -> None:
        """Take it down."""
        _ip("netns", "del", self.name)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")


def leftovers() -> list[str]:
    """Return namespaces of ours that are still there."""
    folder = Path("/run/netns")
    return sorted(one.name for one in folder.glob(f"zb{os.getpid()}*")) if folder.is_dir() else []
