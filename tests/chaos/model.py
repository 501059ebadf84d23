"""The model under chaos: it answers with the item, notes what ran, and does as the first letter says."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Echo:
    """Returns each item with a ``y`` before it."""

    def __init__(self, journal: str, pause: float = 0.004) -> None:
        self._journal = os.open(Path(journal), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._pause = pause

    def predict(self, batch: list[str]) -> list[str | Exception]:
        """Note what runs, then run it."""
        # One write: lines of several processes do not mix.
        os.write(self._journal, "".join(f"{item}\n" for item in batch).encode())
        time.sleep(self._pause)
        if any(item[0] == "!" for item in batch):
            os.abort()
        return [ValueError("told to fail") if item[0] == "?" else f"y{item}" for item in batch]
