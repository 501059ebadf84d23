"""A process whose clients come, ask, and go; some without a goodbye.

Prints one line when all have gone: how many answers there were, and how many were wrong.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from zbatch import ZClient

FORGOTTEN = 10
"""Of so many clients one is only let go of, not closed: the garbage collector says goodbye for it."""


def ask(front: str, name: str, clients: int, requests: int) -> tuple[int, int]:
    """Let clients ask one after the other; return how many answers there were, and how many were wrong."""
    answered = wrong = 0
    for number in range(clients):
        client: ZClient[str, str] = ZClient(front, topic="echo", timeout=60.0)
        items = [f"{name}.{number}.{at}" for at in range(requests)]
        futures: deque[tuple[str, Any]] = deque((item, client.submit([item])) for item in items)
        while futures:
            item, future = futures.popleft()
            answered += 1
            wrong += future.result() != [f"y{item}"]
        if number % FORGOTTEN:
            client.close()
        del client
        print(f"at {number + 1}", flush=True)
    return answered, wrong


if __name__ == "__main__":
    front, name, clients, requests = sys.argv[1:]
    print("all", *ask(front, name, int(clients), int(requests)), flush=True)
