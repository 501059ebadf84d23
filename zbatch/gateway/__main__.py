"""One gateway process, as ``parts.py`` starts it."""

from __future__ import annotations

import os
import sys

import msgspec

from zbatch.config import GatewaySettings
from zbatch.errors import ConfigError
from zbatch.gateway.server import run
from zbatch.model_metrics import Shelf
from zbatch.processes import die_with_parent

WRONG = 2


def main(shelf: str, config: int, lifeline: int) -> int:
    """Be the gateway that was started with these descriptors; with a shelf, one of several."""
    die_with_parent(lifeline)
    with os.fdopen(config, "rb") as stream:
        settings = msgspec.json.decode(stream.read(), type=GatewaySettings)
    try:
        return run(settings, lifeline, Shelf.attach(shelf) if shelf else None)
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        return WRONG


if __name__ == "__main__":
    # Behind the role and the name: the shelf, if there is one, and two descriptors.
    sys.exit(main("".join(sys.argv[3:-2]), int(sys.argv[-2]), int(sys.argv[-1])))
