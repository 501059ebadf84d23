"""wrk as the load generator: what its script checks, and how its answers are counted.

``wrk.lua`` beside this asks and checks.  It cannot tell the answers of two open requests from each other, so
before it measures ``http.py`` asks over as many connections for a moment, and compares each with its request.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loads import Figure, rate_of

SCRIPT = Path(__file__).with_name("wrk.lua")

ANSWER_SECONDS = 35
"""Longer than any server's own timeout as it is set here."""

Asked = tuple[bytes, bytes]
"""A request, and the whole body of its answer."""


class Lost(Exception):
    """Some requests had no answer at all."""


def measure(connections: int, endpoint: str, asked: Sequence[Asked], warm: float, seconds: float) -> Figure:
    """Let wrk ask, and count the answers of the time after the warm-up.

    The rate is counted as ``http.py`` counts it; p50 and p99 are wrk's own, of all answers.
    """
    with tempfile.TemporaryDirectory(prefix="zbench-") as folder:
        file = Path(folder) / "requests"
        write(file, asked)
        command = [
            *("wrk", "--threads", "1", "--connections", str(connections)),
            *("--duration", f"{math.ceil(warm + seconds)}s", "--timeout", f"{ANSWER_SECONDS}s", "--latency"),
            *("--script", str(SCRIPT), endpoint, "--", str(file)),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return figure_of(done.stdout.splitlines()[-1], warm, seconds)


def write(file: Path, asked: Sequence[Asked]) -> None:
    """Write requests and their answers as the script reads them."""
    with file.open("wb") as stream:
        for request, answer in asked:
            stream.write(b"%d %d\n%b%b" % (len(request), len(answer), request, answer))


def figure_of(line: str, warm: float, seconds: float) -> Figure:
    """Return what the script told in its last line."""
    told = json.loads(line)
    if told["failed"]:
        raise Lost(
            f"{told['failed']} requests had no answer: refused, broken off, or after {ANSWER_SECONDS} s"
        )
    counts = sorted(told["counts"])
    within = [
        millisecond / 1000
        for millisecond, count in counts
        for _ in range(count)
        if warm <= millisecond / 1000 <= warm + seconds
    ]
    return Figure(
        rate_of(within),
        p50=told["p50_us"] / 1e6,
        p99=told["p99_us"] / 1e6,
        answers=sum(count for _, count in counts),
        wrong=told["wrong"],
    )
