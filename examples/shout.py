"""The smallest model of all: a function."""

from __future__ import annotations

from collections.abc import Sequence


def shout(batch: Sequence[str]) -> list[str]:
    """Return each sentence in capital letters."""
    return [sentence.upper() for sentence in batch]
