"""The model that soaks."""

from __future__ import annotations


def echo(batch: list[str]) -> list[str]:
    """Return each item with a ``y`` before it."""
    return [f"y{item}" for item in batch]
