"""``python -m benchmarks.overload``: more is asked than can be done, and one asks for too much.

Six runs against a real broker and worker whose model takes a fixed time a batch, so that its capacity is
known: three times that capacity for a while; one greedy client of many connections beside a polite one; and
a client that never reads beside one that does; arrays of 200 MB on their way;
strangers at the port; and model processes that are killed in the middle of a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zmq

from benchmarks.children import child, free_endpoint
from zbatch import Overloaded, ZClient, payload, wire
from zbatch.config import Timing
from zbatch.errors import ZbatchError
from zbatch.messages import Beat, Group, Hello, Request
from zbatch.security import add, make_farm
from zbatch.sockets import connect

BATCH, RUN = 32, 0.050
CAPACITY = BATCH / RUN
"""Items a second: one worker, whole batches."""

WIRE = 0.010
"""Seconds that a request is on its way, by which its deadline is later at the broker than at the caller."""

MODEL = """
import os, time

class Fixed:
    example = 0

    def __init__(self, log=""):
        self.log = open(log, "a") if log else None

    def predict(self, batch):
        began = time.monotonic()
        time.sleep(max(0.0, {run} - 0.0005))
        if self.log:
            self.log.write("".join(f"{{began!r}} {{item!r}}\\n" for item in batch))
            self.log.flush()
        return batch
"""


@contextmanager
def farm(home: Path, *, keys: bool = False, transport: str = "ipc") -> Iterator[str]:
    """Run a broker and a worker; yield the frontend."""
    (home / "model.py").write_text(MODEL.format(run=RUN))
    front, back = free_endpoint(transport, home / "front"), f"ipc://{home}/back"
    own = ["--keys", str(home / "farm")] if keys else []
    if keys:
        make_farm(home / "farm")
    zbatch = [sys.executable, "-m", "zbatch"]
    worker = ["worker", f"{home}/model.py:Fixed", "--gpu", "cpu", "--backend", back]
    worker += ["--batch-size", str(BATCH), "--arg", f"log={home}/ran"]
    with (
        child([*zbatch, "broker", "--frontend", front, "--backend", back, *own], home / "broker.log"),
        child([*zbatch, *worker, *own], home / "worker.log"),
        ZClient[Any, Any](front, keys=home / "farm" if keys else "", timeout=30.0) as client,
    ):
        client.predict([0])
        yield front


def three_times(seconds: float) -> dict[str, Any]:
    """Ask for three times as much as can be done; count what came of it."""
    counts: Counter[str] = Counter()
    refused_in: list[float] = []
    deadlines: dict[int, float] = {}
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder, farm(Path(folder)) as front:
        home = Path(folder)
        with ZClient[Any, Any](front, timeout=1.0) as client:
            began, number = time.monotonic(), 0
            open_calls = threading.Semaphore(0)

            def ended(asked: float) -> Callable[[Any], None]:
                def note(future: Any) -> None:
                    error = future.exception()
                    with lock:
                        counts["answered" if error is None else error.code] += 1
                        counts["in time"] += error is None and time.monotonic() - began < seconds
                        if isinstance(error, Overloaded):
                            refused_in.append(time.monotonic() - asked)
                            counts["with a time to come back"] += error.retry_after > 0
                    open_calls.release()

                return note

            while (now := time.monotonic()) - began < seconds:
                while number < (now - began) * 3 * CAPACITY:
                    number += 1
                    deadlines[number] = now + 1.0
                    client.submit([number]).add_done_callback(ended(now))
                time.sleep(0.002)
            for _ in range(number):
                assert open_calls.acquire(timeout=60.0)
        ran = [line.split() for line in (home / "ran").read_text().splitlines()]
        late = sum(float(at) > deadlines[int(item)] + WIRE for at, item in ran if int(item) in deadlines)
    return {
        "asked": number,
        "goodput": counts["in time"] / seconds / CAPACITY,
        "ran after their deadline": late,
        "refused": counts["overloaded"],
        "with a time to come back": counts["with a time to come back"],
        "expired": counts["deadline_exceeded"],
        "refused within, p50 ms": 1000 * float(np.median(refused_in)) if refused_in else None,
        "refused within, p99 ms": 1000 * float(np.quantile(refused_in, 0.99)) if refused_in else None,
    }


def polite(client: ZClient[Any, Any], seconds: float) -> list[float]:
    """Ask one item after the other, at a fifth of the capacity; return how long each took."""
    took = []
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        client.predict([1])
        took.append(time.monotonic() - began)
        time.sleep(0.01)
    return took


def greedy(seconds: float, connections: int = 50) -> dict[str, Any]:
    """Let one key's many connections ask without measure beside a polite client."""
    with tempfile.TemporaryDirectory() as folder, farm(Path(folder), keys=True) as front:
        home = Path(folder)
        nice = add(home / "farm", "client", "polite")
        time.sleep(1.5)
        with ZClient[Any, Any](front, keys=nice, timeout=30.0) as client:
            alone = polite(client, seconds)
            stop = threading.Event()
            counts: Counter[str] = Counter()

            def grab() -> None:
                with ZClient[Any, Any](front, keys=home / "farm", timeout=5.0) as own:
                    while not stop.is_set():
                        futures = [own.submit(list(range(BATCH))) for _ in range(4)]
                        for future in futures:
                            try:
                                future.result()
                                counts["answered"] += BATCH
                            except ZbatchError as error:
                                counts[error.code] += BATCH
                                stop.wait(0.05)

            threads = [threading.Thread(target=grab) for _ in range(connections)]
            for thread in threads:
                thread.start()
            time.sleep(1.0)
            beside = polite(client, seconds)
            stop.set()
            for thread in threads:
                thread.join()
    solo, both = (1000 * float(np.quantile(took, 0.99)) for took in (alone, beside))
    return {
        "alone, p99 ms": solo,
        "beside the greedy one, p99 ms": both,
        "ratio": both / solo,
        "greedy items": dict(counts),
    }


def never_reads(seconds: float) -> dict[str, Any]:
    """Let a client ask for large answers and read them, then one that reads none, beside a polite one."""
    took: dict[bool, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        farm(Path(folder)) as front,
        ZClient[Any, Any](front, timeout=30.0) as client,
    ):
        (broker,) = [
            one
            for one in psutil.process_iter(["cmdline"])
            if "broker" in (one.info["cmdline"] or []) and f"ipc://{folder}/front" in one.info["cmdline"]
        ]
        before = broker.memory_info().rss
        for reads in (True, False):
            stop = threading.Event()
            thread = threading.Thread(target=_large, args=(front, reads, stop))
            thread.start()
            took[reads] = 1000 * statistics.median(polite(client, seconds))
            stop.set()
            thread.join()
        grown = broker.memory_info().rss - before
    return {
        "beside one that reads, p50 ms": took[True],
        "beside one that does not, p50 ms": took[False],
        "broker grew, MB": grown / 1e6,
    }


def _large(front: str, reads: bool, stop: threading.Event) -> None:
    """Ask for answers of 512 KiB, ten a second; read them or not."""
    context: zmq.Context[Any] = zmq.Context()
    dealer = connect(context, front, Timing())
    conn, life = os.urandom(8), os.urandom(16)
    item, buffers = payload.encode(bytes(512 << 10))
    dealer.send(wire.encode(Hello(conn, 1, 0, life, "client", 1)))
    number = 1
    while not stop.wait(0.1):
        number += 1
        group = Group(number, "default", 30_000, [item], [len(buffers)])
        dealer.send(wire.encode(Request(conn, number, number, [group])), zmq.SNDMORE)
        for at, buffer in enumerate(buffers):
            dealer.send(buffer, zmq.SNDMORE if at + 1 < len(buffers) else 0)
        while reads and dealer.poll(0):
            dealer.recv_multipart()
    context.destroy(0)


def enormous(seconds: float) -> dict[str, Any]:
    """Let a client send arrays of 200 MB to one topic, one by one, beside a polite one of another."""
    with tempfile.TemporaryDirectory() as folder, farm(Path(folder)) as front:
        home = Path(folder)
        (home / "size.py").write_text("def size(batch):\n    return [len(one) for one in batch]\n")
        worker = ["worker", f"{home}/size.py:size", "--topic", "size", "--gpu", "cpu", "--batch-size", "1"]
        command = [sys.executable, "-m", "zbatch", *worker, "--backend", f"ipc://{home}/back"]
        with (
            child(command, home / "size.log"),
            ZClient[Any, Any](front, timeout=60.0) as client,
            ZClient[Any, Any](front, topic="size", timeout=60.0) as sender,
        ):
            sender.predict([np.zeros(10, np.uint8)])
            alone = polite(client, seconds)
            stop = threading.Event()
            sent: list[int] = []

            def send() -> None:
                array = np.ones(200_000_000, np.uint8)
                while not stop.is_set():
                    sent.append(sender.predict_one(array))

            thread = threading.Thread(target=send)
            thread.start()
            beside = polite(client, seconds)
            stop.set()
            thread.join()
    solo, both = (1000 * float(np.quantile(took, 0.99)) for took in (alone, beside))
    return {"arrays of 200 MB": len(sent), "alone, p99 ms": solo, "beside them, p99 ms": both}


def strangers(seconds: float) -> dict[str, Any]:
    """Let strangers flood, dribble, send garbage and hold 500 half connections, beside a polite client."""
    with (
        tempfile.TemporaryDirectory() as folder,
        farm(Path(folder), transport="tcp") as front,
        ZClient[Any, Any](front, timeout=30.0) as client,
    ):
        alone = polite(client, seconds)
        stop = threading.Event()
        thread = threading.Thread(target=_molest, args=(front, stop))
        thread.start()
        beside = polite(client, seconds)
        stop.set()
        thread.join()
        counters = client.status()["counters"]
        lines = len((Path(folder) / "broker.log").read_text().splitlines())
    solo, both = (1000 * float(np.quantile(took, 0.99)) for took in (alone, beside))
    return {
        "alone, p99 ms": solo,
        "beside them, p99 ms": both,
        "messages that were none": counters.get("malformed", 0),
        "messages of nobody": counters.get("strange_messages", 0),
        "lines in the log": lines,
    }


def _molest(front: str, stop: threading.Event) -> None:
    """Hold half connections, and send a thousand beats of nobody and as much garbage a second."""
    host, _, port = front.removeprefix("tcp://").partition(":")
    half = [socket.create_connection((host, int(port))) for _ in range(500)]
    for one in half:
        one.sendall(b"\xff\0\0")
    context: zmq.Context[Any] = zmq.Context()
    peer = connect(context, front, Timing())
    beat = wire.encode(Beat(b"nobody..", 1, 0, [(0, 9)], 9))
    while not stop.wait(0.01):
        for _ in range(10):
            peer.send(beat, zmq.DONTWAIT)
            peer.send(b"\x01garbage", zmq.DONTWAIT)
        with suppress(OSError):
            half[0].sendall(b"\0")
    for one in half:
        one.close()
    context.destroy(0)


def deaths(times: int) -> dict[str, Any]:
    """Kill the process that runs a batch, again and again; return what that costs beside running it again."""
    run, extra = 0.2, []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "model.py").write_text(
            "import os, pathlib, time\n"
            "def slow(batch):\n"
            f"    pathlib.Path({str(home / 'running')!r}).write_text(str(os.getpid()))\n"
            f"    time.sleep({run})\n"
            "    return batch\n"
        )
        front, back = f"ipc://{home}/front", f"ipc://{home}/back"
        zbatch = [sys.executable, "-m", "zbatch"]
        worker = ["worker", f"{home}/model.py:slow", "--gpu", "cpu", "--num", "2", "--backend", back]
        with (
            child([*zbatch, "broker", "--frontend", front, "--backend", back], home / "broker.log"),
            child([*zbatch, *worker], home / "worker.log"),
            ZClient[Any, Any](front, timeout=30.0) as client,
        ):
            for number in range(times):
                while len(client.status()["workers"]) < 2:
                    time.sleep(0.05)
                (home / "running").unlink(missing_ok=True)
                future = client.submit([number])
                while not (home / "running").exists() or not (home / "running").read_text():
                    time.sleep(0.001)
                time.sleep(run / 2)
                killed = time.monotonic()
                os.kill(int((home / "running").read_text()), signal.SIGKILL)
                future.result()
                extra.append(time.monotonic() - killed - run)
    return {
        "deaths": times,
        "cost, median ms": 1000 * statistics.median(extra),
        "most, ms": 1000 * max(extra),
    }


def main() -> None:
    """Run all and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload; the others take a third")
    asked = parser.parse_args()
    found = {
        "three times the capacity": three_times(asked.seconds),
        "a greedy key of 50 connections": greedy(asked.seconds / 3),
        "a client that never reads": never_reads(asked.seconds / 3),
        "arrays of 200 MB on their way": enormous(asked.seconds / 6),
        "strangers at the port": strangers(asked.seconds / 6),
        "model processes that are killed": deaths(20),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
