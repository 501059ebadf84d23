"""``make soak``: a million requests of ten thousand clients through one broker; what it holds must stay flat.

Each second the memory, descriptors and threads of the broker and of one worker's supervisor are noted, with
what the broker's tables hold.  Workers are restarted and model processes killed on the way.  The curve is
printed, and drawn into a picture where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from zbatch import ZClient

ROOT = Path(__file__).parents[2]
CALLERS = 2
WORKERS = 2

GROWTH = 0.10
"""Share that memory may grow from the second quarter to the last: allocators are no accountants."""

FEW = 8
"""Descriptors and threads that may be more at the end than after the warm-up: connections that just end."""

PATIENCE = 120.0


@dataclass(frozen=True)
class Sample:
    """How things stood at one moment."""

    seconds: float
    clients_gone: int
    broker_mb: float
    broker_fds: int
    broker_threads: int
    supervisor_mb: float
    supervisor_fds: int
    unfinished: int
    known_clients: int


class Program:
    """A zbatch command that can be started again."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._log = home / f"{arguments[0]}{time.monotonic_ns()}.log"
        self._argv = [sys.executable, "-m", "zbatch", *arguments]
        self.start()

    def start(self) -> None:
        """Begin a life."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=log)

    def restart(self) -> None:
        """Let it leave in order, and begin again."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        assert status == 0, f"exit status {status}: {self._log.read_text()[-2_000:]}"
        self.start()

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Callers:
    """The processes that ask, and how far they are."""

    def __init__(self, front: str, clients: int, requests: int) -> None:
        self.gone = [0] * CALLERS
        self.answered = self.wrong = 0
        self._processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.soak.caller",
                    front,
                    f"c{at}",
                    str(clients // CALLERS),
                    str(requests),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for at in range(CALLERS)
        ]
        self._threads = [threading.Thread(target=self._read, args=(at,)) for at in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _read(self, at: int) -> None:
        stream = self._processes[at].stdout
        assert stream is not None
        for line in stream:
            word, *numbers = line.split()
            if word == "at":
                self.gone[at] = int(numbers[0])
            else:
                self.answered += int(numbers[0])
                self.wrong += int(numbers[1])
        assert self._processes[at].wait() == 0, f"caller {at} failed"

    @property
    def over(self) -> bool:
        """Whether all have gone."""
        return not any(thread.is_alive() for thread in self._threads)


def sample(seconds: float, gone: int, broker: Program, worker: Program, client: ZClient[Any, Any]) -> Sample:
    """Look at everything once."""
    serving, watching = psutil.Process(broker.process.pid), psutil.Process(worker.process.pid)
    status = client.status(timeout=30.0)
    topics = status["topics"].values()
    return Sample(
        round(seconds, 1),
        gone,
        round(serving.memory_info().rss / 1e6, 1),
        serving.num_fds(),
        serving.num_threads(),
        round(watching.memory_info().rss / 1e6, 1),
        watching.num_fds(),
        sum(topic["unfinished"] for topic in topics),
        status["clients"],
    )


def run(clients: int, requests: int, home: Path) -> tuple[list[Sample], Callers]:
    """Live through it; return what was seen and what the callers say."""
    front, back = f"ipc://{home}/front", f"ipc://{home}/back"
    broker = Program(home, "broker", "--frontend", front, "--backend", back)
    worker = (
        "worker",
        f"{ROOT}/tests/soak/model.py:echo",
        "--topic",
        "echo",
        "--gpu",
        "cpu",
        "--backend",
        back,
    )
    workers = [Program(home, *worker, "--batch-size", "64") for _ in range(WORKERS)]
    samples = []
    with ZClient[Any, Any](front, timeout=PATIENCE) as client:
        client.predict(["warm"], topic="echo")
        began = time.monotonic()
        callers = Callers(front, clients, requests)
        restarted = 0
        while not callers.over:
            time.sleep(1.0)
            gone = sum(callers.gone)
            samples.append(sample(time.monotonic() - began, gone, broker, workers[0], client))
            print("".join(f"{value!s:>12}" for value in astuple(samples[-1])), flush=True)
            if gone * 10 // clients > restarted:
                restarted += 1
                # The first one is watched: it only loses model processes.
                if restarted % 2:
                    workers[1].restart()
                else:
                    _kill_a_model(workers[0])
        # What nobody closed says its goodbyes.
        until = time.monotonic() + PATIENCE
        while True:
            last = sample(time.monotonic() - began, sum(callers.gone), broker, workers[0], client)
            if (last.unfinished, last.known_clients) == (0, 1) or time.monotonic() > until:
                break
            time.sleep(1.0)
        samples.append(last)
    for one in (*workers, broker):
        one.end()
    return samples, callers


def _kill_a_model(worker: Program) -> None:
    for child in psutil.Process(worker.process.pid).children():
        os.kill(child.pid, signal.SIGKILL)


def verdict(samples: list[Sample], callers: Callers, asked: int) -> list[str]:
    """Return what did not stay flat, or was lost."""
    found = []
    if (callers.answered, callers.wrong) != (asked, 0):
        found.append(f"{callers.answered} of {asked} answered, {callers.wrong} wrongly")
    early = samples[len(samples) // 4 : len(samples) // 2] or samples[:1]
    last = samples[-1]
    for name in ("broker_mb", "supervisor_mb"):
        before = max(getattr(one, name) for one in early)
        if getattr(last, name) > before * (1 + GROWTH):
            found.append(f"{name} grew from {before} to {getattr(last, name)}")
    for name in ("broker_fds", "broker_threads", "supervisor_fds"):
        before = min(getattr(one, name) for one in early)
        if getattr(last, name) > before + FEW:
            found.append(f"{name} grew from {before} to {getattr(last, name)}")
    if (last.unfinished, last.known_clients) != (0, 1):
        found.append(f"{last.unfinished} items and {last.known_clients - 1} clients are left in the broker")
    return found


def draw(samples: list[Sample], path: Path) -> None:
    """Draw the curves; without matplotlib there is no picture."""
    try:
        importlib.import_module("matplotlib").use("agg")
        plots: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    names = [field.name for field in fields(Sample)][2:]
    figure, axes = plots.subplots(len(names), sharex=True, figsize=(8, 1.6 * len(names)))
    for axis, name in zip(axes, names, strict=True):
        axis.plot([one.clients_gone for one in samples], [getattr(one, name) for one in samples])
        axis.set_ylabel(name, fontsize=7)
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("clients that have come and gone")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"the picture: {path}")


def main() -> int:
    """Return 0 where everything stayed flat and nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=100, help="of each client")
    parser.add_argument("--picture", type=Path, default=Path("soak.png"))
    asked = parser.parse_args()
    print("".join(f"{field.name[:11]:>12}" for field in fields(Sample)))
    with tempfile.TemporaryDirectory() as folder:
        samples, callers = run(asked.clients, asked.requests, Path(folder))
    draw(samples, asked.picture)
    found = verdict(samples, callers, asked.clients // CALLERS * CALLERS * asked.requests)
    print("\n".join(found) or f"{callers.answered:,} requests of {asked.clients:,} clients: all is flat")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
