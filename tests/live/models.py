"""Models that do as their items say, for the live tests."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class Obedient:
    """Returns each item; some items are orders."""

    def __init__(self, journal: str = "", pause: float = 0.0) -> None:
        self.journal = Path(journal) if journal else None
        self.pause = pause

    def predict(self, batch: list[Any]) -> list[Any]:
        """Obey, and note what ran."""
        if self.journal is not None:
            with self.journal.open("a") as stream:
                stream.write(f"{os.getpid()} {len(batch)}\n")
        time.sleep(self.pause)
        words = [item if isinstance(item, str) else "" for item in batch]
        if "raise" in words:
            raise ValueError("told to raise")
        if "die" in words:
            os.abort()
        if "interrupt" in words:
            raise KeyboardInterrupt
        for item in batch:
            if isinstance(item, dict):
                time.sleep(item.get("sleep", 0.0))
                while "until" in item and not Path(item["until"]).exists():
                    time.sleep(0.01)
        if "large" in words:
            return ["x" * (2 << 20) if item == "large" else item for item in batch]
        if "short" in words:
            return batch[:-1]
        return [
            KeyError("told to fail") if word == "fail" else item
            for word, item in zip(words, batch, strict=True)
        ]


class Meeting:
    """Says what came of each branch."""

    def predict(self, batch: list[dict[str, Any]]) -> list[Any]:
        """Return the names of the parts, and the sum of what is in them."""
        return [["+".join(sorted(item)), float(sum(part.sum() for part in item.values()))] for item in batch]


class Unquoting:
    """Takes the quotes off words, so that they are orders for whoever gets them."""

    def predict(self, batch: list[str]) -> list[str]:
        """Return each word without quotes."""
        return [word.strip("'") for word in batch]
