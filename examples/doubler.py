"""The smallest model with a parameter: each item times a factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Doubler:
    """Doubles numbers (and whatever else can be multiplied)."""

    example = 1
    """An item to warm up with: a worker is ready once it has been predicted."""

    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def predict(self, batch: Sequence[Any]) -> list[Any]:
        """Return one output per item, in the same order."""
        return [item * self.factor for item in batch]
