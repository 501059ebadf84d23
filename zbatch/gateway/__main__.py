"""One gateway process, as ``parts.py`` starts it."""

from __future__ import annotations

import os
import sys

import msgspec

from zbatch.config import GatewaySettings
from zbatch.errors import ConfigError
from zbatch.gateway.server import run
from zbatch.processes import die_with_parent

WRONG = 2


def main(config: int, lifeline: int) -> int:
    """Be the gateway that was started with these descriptors."""
    die_with_parent(lifeline)
    with os.fdopen(config, "rb") as stream:
        settings = msgspec.json.decode(stream.read(), type=GatewaySettings)
    try:
        return run(settings, lifeline)
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        return WRONG


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[-2]), int(sys.argv[-1])))
