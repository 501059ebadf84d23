"""``make demo``: a real sentence BERT behind zbatch, against one call per sentence, on this machine.

Starts a broker and two model processes through the command line, as a user would; then client processes
that each ask for one sentence at a time.  Prints answers, batch sizes and the comparison, and ends
everything that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from examples.demo.callers import Answered
from examples.demo.children import Child, Children, Trouble, wait_until
from examples.demo.corpus import QUESTIONS, SENTENCES
from examples.demo.report import print_answers, print_batches, print_comparison, rate
from zbatch import ZClient

TOPIC = "sentences"
MODEL = "examples/demo/sentence_model.py:SentenceModel"
MODEL_PROCESSES = 2
BATCH_SIZE = 32
AGREES = 1e-3
"""How far a vector out of a batch may be from the same one computed alone: rounding differs, meaning not."""


@dataclass(frozen=True)
class Plan:
    """How long and how hard to ask."""

    seconds: float
    clients: int
    callers: int
    """Threads in each client process."""


def main() -> int:
    """Run the demo; 0 if everything worked and nothing was left behind."""
    plan = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="zbatch-demo-") as folder:
            left = run(plan, Path(folder))
    except Trouble as trouble:
        print(f"\nThe demo failed: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; nothing runs any more.", file=sys.stderr)
        return 130
    if left:
        print(f"\n{left} processes had not ended by themselves and were killed.", file=sys.stderr)
        return 1
    print(f"\nEverything is stopped again; it took {time.monotonic() - began:.0f} s.")
    return 0


def parse() -> Plan:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each side is measured")
    parser.add_argument("--clients", type=int, default=4, help="client processes")
    parser.add_argument("--callers", type=int, default=20, help="threads in each, asking one at a time")
    asked = parser.parse_args()
    return Plan(asked.seconds, asked.clients, asked.callers)


def run(plan: Plan, folder: Path) -> int:
    """Measure both sides and print what came out; return how many processes had to be killed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    callers = plan.clients * plan.callers
    print(
        f"A real sentence BERT (all-MiniLM-L6-v2, 22.7 million parameters) turns {len(SENTENCES)} sentences\n"
        "into vectors, over and over: first one call per sentence, then through zbatch."
    )
    print("\n1. Naive: one process, one call per sentence")
    with Children(folder, environment) as children:
        naive = children.start("the naive process", [*module("naive"), str(plan.seconds), str(callers)])
        ready, lone, crowd = watch_naive(naive)
    left = children.left_behind
    gpus = ready["gpus"]

    print("\n2. zbatch: a broker, two model processes, several client processes")
    sizes = folder / "sizes"
    sizes.touch()
    frontend, backend = f"ipc://{folder}/front", f"ipc://{folder}/back"
    environment["ZBATCH_BROKER"] = frontend
    with Children(folder, environment) as children:
        start_cluster(children, frontend, backend, gpus, sizes)
        alone = ask_zbatch(children, Plan(plan.seconds / 2, 1, 1), frontend)
        before = len(read_sizes(sizes))
        asked = ask_zbatch(children, plan, frontend)
        batches = read_sizes(sizes)[before:]
        with ZClient[str, Answered](frontend, topic=TOPIC) as client:
            vectors = np.array(client.predict(SENTENCES))
            answers = [client.predict_one(question) for question in QUESTIONS]
        status = json.loads(subprocess.check_output([*zbatch(), "status", "--json"], env=environment))
        print("  stopping ...", flush=True)
    left += children.left_behind

    print(f"\n3. What the answers look like ({len(SENTENCES)} sentences, those nearest to a question)")
    print_answers(QUESTIONS, answers, SENTENCES, vectors)
    compare_vectors(np.array(ready["vectors"]), vectors)
    print(f"\n4. How many sentences were in a batch (at most {BATCH_SIZE}; counted by the model processes)")
    print_batches(batches, BATCH_SIZE)
    print(f"    the broker's own count since it started: {broker_count(status)}")
    where = f"{gpus} GPU" if gpus else f"{ready['cores']} CPU cores"
    print(f"\n5. Naive against zbatch, on {where}, measured just now")
    print_comparison(
        {
            "naive, 1 caller": lone,
            f"naive, {callers} callers wait for their turn": crowd,
            "zbatch, 1 caller": alone,
            f"zbatch, {callers} callers in {plan.clients} processes": asked,
        }
    )
    print(f"\n    zbatch answers {rate(asked) / rate(crowd):.1f} times as many sentences per second.")
    return left


def watch_naive(naive: Child) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what the naive process said when it was ready, and what it measured."""
    said = await_event(naive, "ready", "loading the model")
    print(f"  the model is loaded on {said['device']}; one caller asks ...", flush=True)
    lone = await_event(naive, "lone", "one caller")
    print("  many callers ask ...", flush=True)
    return said, lone, await_event(naive, "crowd", "many callers")


def await_event(child: Child, event: str, doing: str) -> dict[str, Any]:
    """Return the event, printing the progress until then."""
    waited = 0
    while True:
        said = child.next(timeout=2.0)
        if said is None:
            waited += 2
            print(f"    ... {doing}: {waited} s", flush=True)
        elif said["event"] == event:
            return said
        elif said["event"] == "progress":
            print(f"    ... {doing}: {said['done']} sentences", flush=True)


def start_cluster(children: Children, frontend: str, backend: str, gpus: int, sizes: Path) -> None:
    """Start the broker and the workers, and wait until both model processes are warm."""
    per_gpu = max(1, MODEL_PROCESSES // gpus) if gpus else MODEL_PROCESSES
    gpu = ",".join(map(str, range(min(gpus, MODEL_PROCESSES)))) if gpus else "cpu"
    serve = f"worker {MODEL} --topic {TOPIC} --num {per_gpu} --gpu {gpu} --batch-size {BATCH_SIZE}"
    commands = [
        f"broker --frontend {frontend} --backend {backend}",
        f"{serve} --arg sizes={sizes} --backend {backend}",
    ]
    for command in commands:
        print(f"  $ zbatch {command}", flush=True)
        children.start(f"zbatch {command.split()[0]}", [*zbatch(), *command.split()])
    took = wait_until(
        "the model processes load and warm up",
        lambda: workers_ready(children.environment) == MODEL_PROCESSES,
        list(children.all),
    )
    print(f"  ready after {took:.1f} s", flush=True)


def workers_ready(environment: dict[str, str]) -> int:
    """Return how many model processes the broker knows to be ready."""
    asked = subprocess.run(
        [*zbatch(), "status", "--json"], env=environment, capture_output=True, text=True, check=False
    )
    if asked.returncode:
        return 0
    found: int = json.loads(asked.stdout)["topics"].get(TOPIC, {}).get("workers", 0)
    return found


def ask_zbatch(children: Children, plan: Plan, endpoint: str) -> dict[str, Any]:
    """Let client processes ask all at once; return what their callers had to wait."""
    command = [*module("client"), endpoint, TOPIC, str(plan.seconds), str(plan.callers)]
    clients = [children.start(f"client {number}", command) for number in range(plan.clients)]
    for client in clients:
        await_event(client, "ready", "a client process starts")
    who = "one caller asks"
    if plan.clients > 1:
        who = f"{plan.clients} client processes with {plan.callers} callers each ask"
    print(f"  {who}, one sentence at a time ...", flush=True)
    for client in clients:
        client.go()
    done = {client: 0 for client in clients}
    waits: list[float] = []
    shown = time.monotonic()
    seconds = 0.0
    running = set(clients)
    while running:
        for client in list(running):
            said = client.next(timeout=0.05)
            if said is not None and said["event"] == "done":
                waits += said["waits"]
                seconds = max(seconds, said["seconds"])
                running.discard(client)
            elif said is not None:
                done[client] = said["done"]
        if time.monotonic() > shown + 1.0:
            shown = time.monotonic()
            print(f"    ... {sum(done.values())} sentences", flush=True)
    return {"waits": waits, "seconds": seconds}


def compare_vectors(alone: np.ndarray[Any, Any], batched: np.ndarray[Any, Any]) -> None:
    """Check that a sentence means the same alone and in company."""
    apart = float(np.abs(alone - batched[: len(alone)]).max())
    if apart > AGREES:
        raise Trouble(f"the vectors through zbatch differ from the naive ones by up to {apart:.1e}")
    print(f"    (the same vectors as without zbatch: they differ by {apart:.0e} at most)")


def broker_count(status: dict[str, Any]) -> str:
    """Return the broker's own words on its batches."""
    topic = status["topics"][TOPIC]
    closed = ", ".join(f"{count} because {why}" for why, count in sorted(topic["closed"].items()))
    return f"{topic['batches']} batches, {topic['mean_batch']} per batch; closed {closed}"


def read_sizes(path: Path) -> list[int]:
    """Return the batch sizes that the model processes noted."""
    return [int(line) for line in path.read_text(encoding="ascii").split()]


def zbatch() -> list[str]:
    """Return the command of this environment."""
    return [str(Path(sys.executable).parent / "zbatch")]


def module(name: str) -> list[str]:
    """Return the command that runs a module of the demo."""
    return [sys.executable, "-m", f"examples.demo.{name}"]


def _entry() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _entry()
