"""The other side of the comparison: one process, one model, one call per sentence.

What a web server does that calls its model for every request: whoever comes waits for the turn of all
those before.  The model gets every core of the machine.  Prints one JSON object per line for the demo.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from examples.demo.callers import Answered, run_callers
from examples.demo.corpus import SENTENCES
from examples.demo.sentence_model import SentenceModel

CHECKED = 24
"""Sentences whose vectors are handed out, to be compared with what came through zbatch."""


def main() -> None:
    """Load, measure one caller, measure many callers, leave."""
    seconds, callers = float(sys.argv[1]), int(sys.argv[2])
    model = SentenceModel()
    model.setup(SimpleNamespace(device=device()))
    vectors = [model.predict([sentence])[0].tolist() for sentence in SENTENCES[:CHECKED]]
    say("ready", device=model.device, gpus=count_gpus(), cores=len(os.sched_getaffinity(0)), vectors=vectors)
    # One thread owns the model; the callers queue for it in the order they come.
    with ThreadPoolExecutor(max_workers=1) as owner:

        def ask(sentence: str) -> Answered:
            return owner.submit(lambda: model.predict([sentence])[0]).result()

        say("lone", **measured(ask, 1, seconds / 2))
        say("crowd", **measured(ask, callers, seconds))


def measured(ask: Callable[[str], Answered], callers: int, seconds: float) -> dict[str, Any]:
    """Run the callers, saying once a second how far they are."""
    return run_callers(ask, callers, seconds, lambda done: say("progress", done=done))


def device() -> str:
    """Return where the model runs: the first GPU if there is one."""
    return "cuda:0" if count_gpus() else "cpu"


def count_gpus() -> int:
    """Return how many GPUs torch sees."""
    import torch

    return int(torch.cuda.device_count())


def say(event: str, **facts: Any) -> None:
    """Print one line for the demo."""
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    main()
