"""Callers that ask one sentence at a time, as fast as they get answers, and what they had to wait.

The same loop measures both halves of the demo.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.corpus import SENTENCES

Answered = npt.NDArray[np.float32]


def run_callers(
    ask: Callable[[str], Answered], callers: int, seconds: float, tell: Callable[[int], None]
) -> dict[str, Any]:
    """Let so many callers ask for so long; return their latencies (ms) and how long it took in all."""
    waits: list[list[float]] = [[] for _ in range(callers)]
    failed: list[BaseException] = []
    end = time.monotonic() + seconds

    def call(number: int) -> None:
        sentences = random.Random(number).sample(SENTENCES, len(SENTENCES))
        try:
            while time.monotonic() < end:
                sentence = sentences[len(waits[number]) % len(sentences)]
                began = time.perf_counter()
                ask(sentence)
                waits[number].append((time.perf_counter() - began) * 1000)
        except Exception as error:
            failed.append(error)

    began = told = time.monotonic()
    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if time.monotonic() >= told + 1.0:
            told = time.monotonic()
            tell(sum(map(len, waits)))
        time.sleep(0.02)
    took = time.monotonic() - began
    if failed:
        raise failed[0]
    return {"seconds": took, "waits": [round(wait, 2) for each in waits for wait in each]}
