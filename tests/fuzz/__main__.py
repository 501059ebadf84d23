"""``make fuzz``: bytes by machine for SECONDS, guided by coverage (atheris) where that can be had.

It begins with the golden bytes of every message and with items of every kind.  What breaks a rule is
written to a file, and ``python -m tests.fuzz FILE`` feeds it again.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.feeding import TENSORS, feed
from tests.test_wire import GOLDEN
from zbatch import payload

atheris: Any
try:
    atheris = importlib.import_module("atheris")
except ImportError:  # it has no wheel for every Python
    atheris = None


def corpus() -> list[bytes]:
    """Return bytes to begin with."""
    messages = [bytes([peer]) + raw[1:] for _, _, raw in GOLDEN for peer in range(4)]
    values = [None, 1.5, "text", [1, {"a": b"x"}], np.arange(6).reshape(2, 3), np.float32(2), {1: 2}]
    items = [b"\0x" + payload.encode(value)[0] for value in values]
    return messages + items + requests()


def requests() -> list[bytes]:
    """Return bodies of the Open Inference Protocol, each behind a byte that is the length of its JSON."""
    data = {"x": [[1.5]], "t": [["a"]]}
    inputs = [
        {"name": one.name, "datatype": one.datatype, "shape": [1, abs(one.shape[0])], "data": data[one.name]}
        for one in TENSORS
    ]
    head = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    for one, size in zip(inputs, (4, 5), strict=True):
        del one["data"]
        one["parameters"] = {"binary_data_size": size}
    binary = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    raw = np.float32(1.5).tobytes() + b"\1\0\0\0a"
    bodies = [bytes([len(head)]) + head, bytes([len(binary)]) + binary + raw]
    return [*bodies, b"\0" + gzip.compress(head)]


def guided(seconds: float, seeds: list[bytes]) -> None:
    """Let coverage guide what is tried."""
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds):
            (Path(folder) / f"{number}").write_bytes(seed)
        atheris.instrument_all()
        atheris.Setup([sys.argv[0], folder, f"-max_total_time={int(seconds)}", "-timeout=20"], feed)
        atheris.Fuzz()


def unguided(seconds: float, seeds: list[bytes]) -> None:
    """Change seeds at random."""
    dice = random.Random(0)
    until = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < until:
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 6)):
            place = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[place] = dice.randrange(256)
                case 1:
                    del data[place : place + dice.randint(1, 4)]
                case 2:
                    data[place:place] = dice.randbytes(dice.randint(1, 4))
                case _:
                    other = dice.choice(seeds)
                    data[place:] = other[dice.randrange(len(other)) :]
            data = data or bytearray(b"\0\0")
        tried += 1
        try:
            feed(bytes(data))
        except Exception:
            Path("crash").write_bytes(data)
            print("written to ./crash", file=sys.stderr)
            raise
    print(f"{tried:,} inputs, none broke a rule")


def main() -> None:
    """Feed for a while, or one file again."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="feed this once")
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    if asked.file is not None:
        feed(asked.file.read_bytes())
        return
    (guided if atheris is not None else unguided)(asked.seconds, corpus())


if __name__ == "__main__":
    main()
