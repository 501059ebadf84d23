"""``make examples-load``: wrk against each server of this tutorial, and what came out as two tables.

Starts each server, lets wrk ask for so many seconds, ends it.  Then measures the futures, without a web
server.  Prints everything; with ``--write`` it also goes into docs/benchmarks.md, with plots.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from examples.load import servers
from examples.load.plots import draw

PAGE = servers.ROOT / "docs" / "benchmarks.md"
LUA = Path(__file__).with_name("benchmark.lua")
BEGIN, END = "<!-- measured: make examples-load ARGS=--write -->", "<!-- end of what was measured -->"


class Case(NamedTuple):
    """A server to be measured."""

    name: str
    path: str
    workers: int
    serve: Callable[[int], AbstractContextManager[None]]


class Result(NamedTuple):
    """What wrk said of it."""

    qps: float
    mean_ms: float
    p99_ms: float
    failed: int


CASES = [
    Case("naive", "/naive", 1, servers.flask),
    Case("ThreadedStreamer", "/stream", 1, servers.flask),
    *[Case("Streamer", "/stream", workers, servers.multigpu) for workers in (1, 2, 4)],
    *[Case("ZStreamer", "/stream", workers, servers.farm) for workers in (1, 2, 4)],
]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m examples.load", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=20, help="how long each server is asked")
    parser.add_argument("--connections", type=int, default=128, help="requests that are open at once")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its plots")
    asked = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is not installed: apt-get install wrk", file=sys.stderr)
        return 1
    results = {}
    for case in CASES:
        results[case] = measure(case, asked.seconds, asked.connections)
        print(f"{case.name}, {case.workers}: {results[case]}", file=sys.stderr, flush=True)
    bert, simulated = futures(), futures("--simulated")
    text = report(results, bert, simulated, asked.seconds, asked.connections)
    print(text)
    if asked.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page[: page.index(BEGIN)], page[page.index(END) :]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{after}", encoding="utf-8")
        rates = {(case.name, case.workers): result.qps for case, result in results.items()}
        draw(rates, bert, simulated, PAGE.parent / "img")
    return 0


def measure(case: Case, seconds: int, connections: int) -> Result:
    """Let wrk ask one server."""
    wrk = ["wrk", "-t", "2", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "10s", "-s", str(LUA)]
    with case.serve(case.workers):
        # Once to warm up: the first batches find cold caches, and half a pool of threads.
        warm = [*wrk[:6], "2s", *wrk[7:], servers.URL + case.path]
        subprocess.run(warm, check=True, capture_output=True)
        done = subprocess.run([*wrk, servers.URL + case.path], check=True, capture_output=True, text=True)
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def futures(*options: str) -> str:
    """Return the table of the example with futures."""
    command = [sys.executable, "examples/future_example.py", *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=servers.ROOT).stdout


def report(results: dict[Case, Result], bert: str, simulated: str, seconds: int, connections: int) -> str:
    """Return the tables."""
    single = {case.name: result for case, result in results.items() if case.workers == 1}
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; wrk with {connections} connections, {seconds} s each.",
        "",
        "### One model process, over HTTP",
        "",
        f"| | {' | '.join(single)} |",
        f"|---|{'---|' * len(single)}",
        f"| requests a second | {' | '.join(f'{one.qps:.0f}' for one in single.values())} |",
        f"| latency, mean | {' | '.join(f'{one.mean_ms:.0f} ms' for one in single.values())} |",
        f"| latency, p99 | {' | '.join(f'{one.p99_ms:.0f} ms' for one in single.values())} |",
        f"| failed | {' | '.join(str(one.failed) for one in single.values())} |",
        "",
        "### Several model processes, over HTTP: requests a second",
        "",
        f"| model processes | {' | '.join(single)} |",
        f"|---|{'---|' * len(single)}",
    ]
    for workers in (1, 2, 4):
        rates = {case.name: result.qps for case, result in results.items() if case.workers == workers}
        row = [f"{rates[name]:.0f}" if name in rates else "" for name in single]
        lines.append(f"| {workers} | {' | '.join(row)} |")
    lines += ["", "### Futures, without a web server: sentences a second", "", bert]
    lines += ["### Futures, a simulated GPU: sentences a second", "", simulated]
    return "\n".join(lines)


def machine() -> str:
    """Return the hardware in words."""
    info = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    models = {line.partition(": ")[2] for line in info if line.startswith("model name")}
    memory = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores of {', '.join(models)}, {memory:.0f} GiB, no GPU, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    sys.exit(main())
