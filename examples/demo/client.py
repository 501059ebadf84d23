"""One client process of the demo: some threads that each ask zbatch for one sentence at a time.

What a web process is: it knows an endpoint and a topic, and nothing of models, batches or GPUs.  Says that
it is ready, waits for a line on stdin so that all begin together, and prints what its callers had to wait.
"""

from __future__ import annotations

import json
import sys

from examples.demo.callers import Answered, run_callers
from examples.demo.corpus import SENTENCES
from zbatch import ZClient


def main() -> None:
    """Ask until the time is over."""
    endpoint, topic, seconds, callers = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    with ZClient[str, Answered](endpoint, topic=topic) as client:
        client.predict_one(SENTENCES[0])
        print(json.dumps({"event": "ready"}), flush=True)
        sys.stdin.readline()
        found = run_callers(
            client.predict_one,
            callers,
            seconds,
            lambda done: print(json.dumps({"event": "progress", "done": done}), flush=True),
        )
    print(json.dumps({"event": "done", **found}), flush=True)


if __name__ == "__main__":
    main()
