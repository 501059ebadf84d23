"""The environment of each peer, and the programs that it needs beside; what cannot be had is missing.

A peer is never a reason to fail: the table names it, with what was tried.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks.loads import Setup

PROGRAMS = {"redis": "redis-server", "wrk": "wrk"}
"""Debian's packages that a peer needs beside Python's: its name here, and that of program and package."""

PACKAGES = {"pytriton": "nvidia-pytriton"}
"""Where a peer's package has another name."""

PYTHONS = {"pytriton": "/usr/bin/python3"}
"""Where a peer wants another Python than this one: PyTriton's Triton is built for the system's."""

WITHOUT_TORCH = {"pytriton"}
"""No load of theirs needs it."""

APT_SECONDS = 300.0

SETUP_VARIABLE = "PEER_SETUP"
"""Servers start processes of their own, which must know the setup too."""


def path_of(peer: str) -> Path:
    return Path(f".venv-peer-{peer}")


def python(peer: str) -> str:
    """Return the Python of a peer's environment."""
    return str(path_of(peer) / "bin" / "python")


def prepare(peers: Collection[str], torch: str, note: Callable[[str], None]) -> dict[str, str]:
    """Make the environments of peers; return those that cannot be had, each with the reason."""
    missing = {}
    for peer in peers:
        note(f"environment of {peer}")
        reason = _install(PROGRAMS[peer], note) if peer in PROGRAMS else _make(peer, torch)
        if reason:
            missing[peer] = reason
    return missing


def program(name: str) -> str:
    """Return where a program is; it was asked for by :func:`prepare`."""
    return shutil.which(name) or name


def server(peer: str, module: str, setup: Setup) -> list[str]:
    """Return the command of a server in a peer's environment, which calls :func:`given_setup`."""
    described = json.dumps(dataclasses.asdict(setup))
    return ["env", f"{SETUP_VARIABLE}={described}", python(peer), "-m", module]


def given_setup() -> Setup:
    """Return the setup that this server was started with."""
    return Setup(**json.loads(os.environ[SETUP_VARIABLE]))


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _make(peer: str, torch: str) -> str:
    command = [
        *(PYTHONS.get(peer, sys.executable), "tools/make_venv.py", str(path_of(peer))),
        *("--torch", "" if peer in WITHOUT_TORCH else torch),
        *("-r", f"requirements/peers-{peer}.txt"),
    ]
    try:
        made = subprocess.run(command, check=False, stdout=sys.stderr)
    except OSError as error:
        return f"its environment could not be made: {error}"
    return (
        "" if made.returncode == 0 else f"its environment could not be made, see {path_of(peer)}/install.log"
    )


def _install(name: str, note: Callable[[str], None]) -> str:
    if shutil.which(name):
        return ""
    command = ["apt-get", "install", "-y", "--no-install-recommends", name]
    by_hand = f"{name} is not installed; try: sudo {' '.join(command)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return by_hand
    note(f"{name} is not here: {' '.join(command)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update"], command):
        try:
            subprocess.run(step, check=True, capture_output=True, env=quiet, timeout=APT_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            return f"{by_hand} ({error})"
    return "" if shutil.which(name) else by_hand


def version_of(need: str) -> str:
    """Return the version of a peer, or of a program."""
    if need in PROGRAMS:
        asked = [PROGRAMS[need], "--version"]
    else:
        asked = [
            python(need),
            "-c",
            f"from importlib.metadata import version; print(version({PACKAGES.get(need, need)!r}))",
        ]
    told = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=60).stdout.split()
    # Redis says v=7.0, wrk debian/4.1.
    numbers = [number for word in told if (number := re.split("[=/]", word)[-1])[:1].isdigit()]
    return numbers[0] if numbers else "of unknown version"
