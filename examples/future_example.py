"""Futures without a web server: ask for everything at once, and collect the answers later.

Prints how many sentences a second 200 futures of three sentences each come to: called by hand, with the three
streamers, and with 1, 2 and 4 model processes.

    python examples/future_example.py                # BERT
    python examples/future_example.py --simulated    # a GPU that is a sleep: what more of them would bring
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from examples.bert_model import SENTENCES, ManagedBertModel
from zbatch import ManagedModel, Streamer, ThreadedStreamer, ZClient, ZStreamer

FUTURES = 200
WORKERS = (1, 2, 4)
BATCH_SIZE = 32
BROKER = "127.0.0.1:7100"
PATIENCE = 120
"""Seconds for models to load; guards against hanging."""


Requests = list[list[str]]


class SimulatedGpu(ManagedModel):
    """Takes as long for one sentence as for a batch, and needs no CPU meanwhile."""

    def init_model(self) -> None:
        """There is nothing to load."""

    def predict(self, batch: list[str]) -> list[str]:
        """Return the sentences, 50 ms later."""
        time.sleep(0.05)
        return batch


def main() -> None:
    """Print the table, a row at a time."""
    model = SimulatedGpu if "--simulated" in sys.argv[1:] else ManagedBertModel
    alone = model()
    alone.init_model()
    requests = [SENTENCES["protein"]] * FUTURES
    print("| model processes | naive | batched | ThreadedStreamer | Streamer | ZStreamer |")
    print("|---|---|---|---|---|---|")
    for workers in WORKERS:
        row = ["", "", ""]
        if workers == 1:
            threaded = ThreadedStreamer(alone.predict, BATCH_SIZE, worker_timeout=PATIENCE)
            row = [
                rate(one_by_one, alone, requests[:10]),
                rate(batched, alone, requests),
                rate(collected, threaded, requests),
            ]
            threaded.destroy_workers()
        streamer = Streamer(
            model, BATCH_SIZE, worker_num=workers, wait_for_worker_ready=True, worker_timeout=PATIENCE
        )
        row.append(rate(collected, streamer, requests))
        streamer.destroy_workers()
        with serving(model, workers) as zstreamer:
            row.append(rate(collected, zstreamer, requests))
        print(f"| {workers} | {' | '.join(row)} |", flush=True)


def rate(ask: Callable[[Any, Requests], object], whom: Any, requests: Requests) -> str:
    """Return how many sentences a second it comes to, once everything is warm: the middle one of three."""
    seconds = []
    for _ in range(1 + 3):
        began = time.perf_counter()
        ask(whom, requests)
        seconds.append(time.perf_counter() - began)
    return f"{sum(map(len, requests)) / median(seconds[1:]):.0f}"


def one_by_one(model: ManagedModel, requests: Requests) -> None:
    """Run each sentence alone."""
    for request in requests:
        for sentence in request:
            model.predict([sentence])


def batched(model: ManagedModel, requests: Requests) -> None:
    """Run full batches by hand: what one process cannot be faster than."""
    sentences = [sentence for request in requests for sentence in request]
    for start in range(0, len(sentences), BATCH_SIZE):
        model.predict(sentences[start : start + BATCH_SIZE])


def collected(streamer: Any, requests: Requests) -> list[list[str]]:
    """Ask for everything, then wait for it."""
    futures = [streamer.submit(request) for request in requests]
    return [future.result() for future in futures]


@contextmanager
def serving(model: type[ManagedModel], workers: int) -> Iterator[ZStreamer]:
    """Run a broker and so many model processes, as a shell would; give a streamer that asks them."""
    module = sys.modules[model.__module__].__file__
    serve = f"serve {module}:{model.__name__} --gpu cpu --num {workers} --batch-size {BATCH_SIZE}"
    ends = f"--frontend tcp://{BROKER} --log-level warning"
    server = subprocess.Popen([sys.executable, "-m", "zbatch", *serve.split(), *ends.split()])
    streamer = ZStreamer(BROKER)
    try:
        with ZClient[str, str](f"tcp://{BROKER}", timeout=PATIENCE) as client:
            while client.status()["topics"].get("default", {}).get("workers", 0) < workers:
                time.sleep(0.1)
        yield streamer
    finally:
        streamer.close()
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
