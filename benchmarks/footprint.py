"""What zbatch costs before it does anything: seconds to import it, megabytes of an idle broker."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.children import Failed, child, free_endpoint, tail
from benchmarks.ours import START_SECONDS, ZBATCH, status
from benchmarks.rounds import Outcome

FIRST_CLIENT = """
from time import perf_counter
began = perf_counter()
import zbatch
client = zbatch.ZClient()
print(perf_counter() - began)
client.close()
"""

LONGEST_START_MS = 200.0
LARGEST_BROKER_MB = 60.0


def run(rounds: int, note: Callable[[str], None]) -> list[Outcome]:
    """Return the two rows; their ratio is to what is allowed."""
    note("footprint: import and first client")
    starts = [first_client_ms() for _ in range(rounds)]
    note("footprint: idle broker")
    sizes = [idle_broker_mb()]
    return [
        _row("import zbatch and a first client", starts, "ms", LONGEST_START_MS),
        _row("idle broker, resident", sizes, "MB", LARGEST_BROKER_MB),
    ]


def first_client_ms() -> float:
    """Return how long a fresh interpreter takes from ``import zbatch`` to a client."""
    command = [sys.executable, "-c", FIRST_CLIENT]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if answer.returncode:
        raise Failed(f"a first client failed:\n{answer.stderr}")
    return 1000 * float(answer.stdout)


def idle_broker_mb() -> float:
    """Return the resident memory of a broker that nobody uses."""
    with tempfile.TemporaryDirectory(prefix="zbench-") as name:
        folder = Path(name)
        front, back = free_endpoint("ipc", folder / "f"), free_endpoint("ipc", folder / "b")
        command = [*ZBATCH, "broker", "--frontend", front, "--backend", back]
        with child(command, folder / "broker.log") as broker:
            patience = time.monotonic() + START_SECONDS
            while not status(front):
                if time.monotonic() > patience:
                    raise Failed(f"the broker did not answer:\n{tail(folder / 'broker.log')}")
            return float(psutil.Process(broker.pid).memory_info().rss / 1e6)


def _row(title: str, figures: list[float], unit: str, allowed: float) -> Outcome:
    bound = [allowed] * len(figures)
    return Outcome(title, "zbatch", "allowed", unit, figures, bound, 1.0, None, less_is_better=True)
