"""The workers of RedisStreamer, as its README starts them: ``python -m ... SETUP HOST:PORT``."""

from __future__ import annotations

import json
import signal
import sys

from service_streamer import (  # type: ignore[import-not-found,unused-ignore]
    run_redis_workers_forever,
)

from benchmarks.loads import Setup
from benchmarks.peers import theirs_models


def main(setup_json: str, address: str) -> None:
    """Run them until told to leave; their processes leave with this one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    setup = Setup(**json.loads(setup_json))
    run_redis_workers_forever(
        getattr(theirs_models, setup.model),
        setup.batch_size,
        setup.max_latency,
        setup.workers,
        redis_broker=address,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
