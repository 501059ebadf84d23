"""Models that do as their items say, for the live tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import zbatch


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


class Talker:
    """Yields for each item the parts that its orders say: how many, how large, how often, and what else."""

    def __init__(self, journal: str = "") -> None:
        self.journal = Path(journal) if journal else None

    def predict(self, batch: list[dict[str, Any]]) -> Iterator[list[Any]]:
        """Obey, step by step, until all have ended, and note that it began and ended."""
        self._note("began")
        steps = 0
        try:
            while any(order["parts"] >= steps for order in batch):
                time.sleep(max(order.get("pause", 0.0) for order in batch))
                for order in batch:
                    if order.get("die") == steps and not self._has_died():
                        os.abort()
                    if order.get("raise") == steps:
                        raise RuntimeError("told to raise")
                yield [self._entry(order, steps) for order in batch]
                steps += 1
        finally:
            self._note(f"ended {steps}")

    def _entry(self, order: dict[str, Any], step: int) -> Any:
        if step >= order["parts"]:
            return zbatch.END
        if order.get("fail") == step:
            return ValueError("told to fail")
        if "size" in order:
            return np.full(order["size"], step % 250, np.uint8)
        return f"{order.get('name', '')}{step}"

    def _note(self, word: str) -> None:
        if self.journal is not None:
            with self.journal.open("a") as stream:
                stream.write(f"{word}\n")

    def _has_died(self) -> bool:
        assert self.journal is not None
        died = "died" in self.journal.read_text()
        self._note("died")
        return died
