"""zbatch, as a user would start it: a broker, a worker and a ``ZClient``, each in a process of its own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.children import Failed, child, free_endpoint, has_ended, tail
from benchmarks.loads import Caller, Setup, pictures, texts, tokens

ZBATCH = [sys.executable, "-m", "zbatch"]

START_SECONDS = 60.0
"""Until then all workers are ready: 32 processes load on two cores, a transformer imports torch."""


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Run a broker and the workers of a setup; give the endpoint for clients."""
    front, back = free_endpoint(setup.transport, folder / "f"), free_endpoint(setup.transport, folder / "b")
    broker = [*ZBATCH, "broker", "--frontend", front, "--backend", back, "--batching", setup.batching]
    worker = [
        *(*ZBATCH, "worker", f"benchmarks/models.py:{setup.model}", "--backend", back),
        *("--gpu", "cpu", "--num", str(setup.workers)),
        *("--batch-size", str(setup.batch_size), "--max-latency", str(setup.max_latency)),
    ]
    with ExitStack() as stack:
        stack.enter_context(child(broker, folder / "broker.log"))
        for topic in topics(setup):
            log = folder / ("worker.log" if setup.stages == 1 else f"worker-{topic}.log")
            supervisor = stack.enter_context(child([*worker, "--topic", topic], log))
            await_workers(front, setup.workers, supervisor, log, topic)
        yield front
        warn_of(folder / "broker.log", *sorted(folder.glob("worker*.log")))


def topics(setup: Setup) -> list[str]:
    """Return what the workers serve: one topic, or one for each stage."""
    return ["default"] if setup.stages == 1 else [f"stage-{number}" for number in range(setup.stages)]


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; all share the one client."""
    from zbatch.client import ZClient
    from zbatch.pipelines import pipeline

    topic = "default" if setup.stages == 1 else pipeline(*topics(setup))
    client: Any = ZClient(endpoint, topic=topic, timeout=60.0)
    submit: Callable[..., Any] = client.submit
    if setup.own_timeouts:
        submit = with_own_timeouts(client.submit)
    caller = {"text": _texts, "picture": _pictures, "tokens": _tokens}[setup.item](client.predict, submit)
    return lambda: caller


def await_workers(
    endpoint: str, wanted: int, supervisor: subprocess.Popen[str], log: Path, topic: str = "default"
) -> None:
    """Return when the broker says that as many workers are ready."""
    patience = time.monotonic() + START_SECONDS
    while time.monotonic() < patience:
        if has_ended(supervisor):
            raise Failed(f"the worker left:\n{tail(log)}")
        if ready_workers(endpoint, topic) >= wanted:
            return
        time.sleep(0.1)
    raise Failed(f"not all of {wanted} workers were ready within {START_SECONDS:.0f} s:\n{tail(log)}")


def ready_workers(endpoint: str, topic: str = "default") -> int:
    """Return how many workers of a topic the broker's status names as ready."""
    known = status(endpoint).get("topics", {})
    return int(known.get(topic, {}).get("workers", 0))


def status(endpoint: str) -> dict[str, Any]:
    """Return a broker's status, as the command line shows it; empty where none answers yet."""
    command = [*ZBATCH, "status", "--endpoint", endpoint, "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_SECONDS)
    return dict(json.loads(answer.stdout)) if answer.returncode == 0 else {}


def warn_of(*logs: Path) -> None:
    """Show what a broker or worker complained about: a figure beside a restart is no figure."""
    for log in logs:
        lines = log.read_text(errors="replace").splitlines()
        for line in [line for line in lines if " warning " in line or " error " in line][:10]:
            print(f"{log.stem}: {line}", file=sys.stderr)


def with_own_timeouts(submit: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a submit whose every call has its own timeout, 20 to 40 s, off any grid, and one key."""
    draw = random.Random(7)
    following = partial(next, cycle([draw.uniform(20.0, 40.0) for _ in range(10_007)]))
    return lambda request: submit(request, timeout=following(), key="one")


def _texts(predict: Callable[..., Any], submit: Callable[..., Any]) -> Caller:
    return Caller([[text] for text in texts()], predict, submit, _result)


def _pictures(predict: Callable[..., Any], submit: Callable[..., Any]) -> Caller:
    def is_own(request: list[Any], output: list[Any]) -> bool:
        return bool(output[0][0] == request[0][0, 0, 0])

    return Caller([[picture] for picture in pictures()], predict, submit, _result, is_own)


def _tokens(predict: Callable[..., Any], submit: Callable[..., Any]) -> Caller:
    import numpy

    from benchmarks.models import Transformer

    sentences = tokens()
    right = dict(zip(map(tuple, sentences), Transformer().predict(sentences), strict=True))

    def is_own(request: list[list[int]], output: list[Any]) -> bool:
        return bool(numpy.allclose(output[0], right[tuple(request[0])], atol=1e-4))

    return Caller([[sentence] for sentence in sentences], predict, submit, _result, is_own)


def _result(future: Any) -> Any:
    return future.result()
