"""Ask for the labels of photos, as they lie in files: ``python examples/pipeline/ask.py PHOTO...``.

This process opens none of them, and gets no pixels: from the first stage they go to the second.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import zbatch

PIPE = zbatch.pipeline("decode", "images")
"""The broker of this example also knows it by a name: ``topic="labels"``."""


def main() -> None:
    """Print a line for each photo."""
    files = [Path(name) for name in sys.argv[1:]]
    with zbatch.ZClient[bytes, Any]("tcp://127.0.0.1:7000", topic=PIPE) as client:
        outcomes = client.predict([file.read_bytes() for file in files], return_exceptions=True)
    for file, outcome in zip(files, outcomes, strict=True):
        best = outcome if isinstance(outcome, Exception) else f"{outcome[0][0]} ({outcome[0][1]:.0%})"
        print(f"{file.name}: {best}")


if __name__ == "__main__":
    main()
