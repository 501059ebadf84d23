"""A load generator: a process of its own that asks one contender, each time it is told to.

``python -m benchmarks.generator CONTENDER SETUP ENDPOINT``, SETUP as JSON.  Says ``ready`` when the
contender has answered once, then reads lines of JSON, ``[warm, seconds]``, and answers each with a figure.
Leaves when its standard input ends.  Runs in the contender's environment, so it imports only what it must.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys

from benchmarks import loads


def main(contender: str, setup_json: str, endpoint: str) -> None:
    """Serve the lines of standard input."""
    # Lines to the parent go where nothing else can print to.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    setup = loads.Setup(**json.loads(setup_json))
    module = importlib.import_module(f"benchmarks.{contender}")
    # A contender that cannot be asked by those loops, such as one behind HTTP, brings its own.
    measure = getattr(module, "measure", loads.measure)
    connect = module.connect(setup, endpoint)
    caller = connect()
    request = caller.requests[0]
    if not caller.is_own(request, caller.ask(request)):
        raise SystemExit("the first answer is not that of the first request")
    print("ready", file=out)
    for line in sys.stdin:
        figure = measure(setup, connect, *json.loads(line))
        print(json.dumps(dataclasses.asdict(figure)), file=out)


if __name__ == "__main__":
    main(*sys.argv[1:])
