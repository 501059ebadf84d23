"""The processes of a farm under chaos: two brokers, workers, callers, and the proxies before some of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.hosts import Bridge, Host

ROOT = Path(__file__).parents[2]
FRONT, BACK, PROXIED = 5555, 5556, 6000
BATCH = 8
WORKERS = 3


class Loopback:
    """A host where none can be made: the machine itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = "127.0.0.1"

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command itself."""
        return list(argv)

    def cut(self) -> None:
        """Do nothing: the proxies cut here."""

    def slow(self, kilobits: int) -> None:
        """Do nothing: the proxies are slow here."""

    def mend(self) -> None:
        """Do nothing."""


class Program:
    """A command that can be killed, stopped, told to leave, and started again."""

    def __init__(
        self, name: str, host: Host, argv: Sequence[str], home: Path, *, orders: bool = False
    ) -> None:
        self.name = name
        self.host = host
        self.lives = 0
        self.stopped = False
        self._argv = host.argv([sys.executable, *argv])
        self._log = home / f"{name}.log"
        self._orders = orders
        self.start()

    def start(self) -> None:
        """Begin a life."""
        self.lives += 1
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE if self._orders else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )

    @property
    def alive(self) -> bool:
        """Whether it runs, stopped or not."""
        return self.process.poll() is None

    def order(self, words: str) -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{words}\n".encode())
            self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.alive:
            self.process.send_signal(number)
            self.stopped = number == signal.SIGSTOP or (self.stopped and number != signal.SIGCONT)

    def below(self) -> list[psutil.Process]:
        """Return the processes that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """End it now."""
        if self.alive:
            self.process.kill()
        self.process.wait()
        self.stopped = False

    def leave(self, patience: float) -> int | None:
        """Tell it to leave, and wait for that; None where it did not."""
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return None


class Farm:
    """Everything that runs."""

    def __init__(self, home: Path, seed: int, *, apart: bool) -> None:
        self.home = home
        self.bridge = Bridge() if apart else None
        self.programs: list[Program] = []
        self.brokers = [self._broker(at) for at in range(2)]
        self.workers = [self._worker(at) for at in range(WORKERS)]
        self.proxies: list[Program] = []
        self.callers = [self._caller(at, seed, behind=at % 2 == 1) for at in range(4)]

    def _host(self, name: str) -> Host:
        return self.bridge.host(name) if self.bridge is not None else Loopback(name)

    def _program(self, name: str, host: Host, argv: Sequence[str], *, orders: bool = False) -> Program:
        program = Program(name, host, argv, self.home, orders=orders)
        self.programs.append(program)
        return program

    def _ports(self, at: int) -> tuple[int, int]:
        shift = 0 if self.bridge is not None else 10 * at
        return FRONT + shift, BACK + shift

    def _broker(self, at: int) -> Program:
        host = self._host(f"b{at}")
        front, back = self._ports(at)
        ends = ("--frontend", f"tcp://{host.address}:{front}", "--backend", f"tcp://{host.address}:{back}")
        return self._program(f"broker{at}", host, ("-m", "zbatch", "broker", *ends, "--insecure"))

    def _worker(self, at: int) -> Program:
        host = self._host(f"w{at}")
        model = f"{ROOT}/tests/chaos/model.py:Echo"
        places = [
            f"tcp://{broker.host.address}:{self._ports(one)[1]}" for one, broker in enumerate(self.brokers)
        ]
        told = ("--topic", "echo", "--gpu", "cpu", "--batch-size", str(BATCH), "--lease", "5s")
        journal = ("--arg", f"journal={self.journal}")
        argv = ("-m", "zbatch", "worker", model, *told, *journal, "--backend", ",".join(places))
        return self._program(f"worker{at}", host, argv)

    def _caller(self, at: int, seed: int, *, behind: bool) -> Program:
        host = self._host(f"c{at}")
        places = []
        for one, broker in enumerate(self.brokers):
            address, port = broker.host.address, self._ports(one)[0]
            if behind:
                own = PROXIED + 10 * at + one
                argv = ("-m", "tests.chaos.proxy", "127.0.0.1", str(own), address, str(port))
                self.proxies.append(self._program(f"proxy{at}{one}", host, argv, orders=True))
                address, port = "127.0.0.1", own
            places.append(f"tcp://{address}:{port}")
        name = f"caller{at}"
        told = (name, ",".join(places), str(self.home / f"{name}.calls"), str(seed + at))
        return self._program(name, host, ("-m", "tests.chaos.caller", *told), orders=True)

    @property
    def journal(self) -> Path:
        """Where the models write what they ran."""
        return self.home / "ran.txt"

    def hosts(self) -> list[Host]:
        """Return every host, each once."""
        return list({program.host.name: program.host for program in self.programs}.values())

    def status(self, broker: Program) -> dict[str, Any] | None:
        """Return what a broker says of itself; None where it says nothing."""
        front = self._ports(self.brokers.index(broker))[0]
        ends = ("--endpoint", f"tcp://{broker.host.address}:{front}", "--json", "--timeout", "10s")
        argv = broker.host.argv([sys.executable, "-m", "zbatch", "status", *ends])
        said = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
        if said.returncode:
            return None
        shown: dict[str, Any] = json.loads(said.stdout)
        return shown

    def heal(self) -> None:
        """Undo everything that was done."""
        for host in self.hosts():
            host.mend()
        for program in self.programs:
            program.signal(signal.SIGCONT)
            for process in program.below():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()
        for proxy in self.proxies:
            proxy.order("mend")
        for program in (*self.brokers, *self.workers):
            if not program.alive:
                program.start()

    def close(self) -> None:
        """End whatever runs."""
        for program in reversed(self.programs):
            for process in program.below():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            program.kill()
        if self.bridge is not None:
            self.bridge.close()
