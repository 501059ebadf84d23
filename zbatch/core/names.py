"""The request ids that items go by: one for each of some items, or one for all of them.

A request id is what people call a request; it decides nothing.  It travels beside the items, so that what a
worker says of one of them names the request that it came with.  None where nobody gave one.
"""

from __future__ import annotations

Names = list[str]
"""As many as there are items, or a single one that all of them share; empty where an item has none."""


def part_of(names: Names | None, start: int, stop: int) -> Names | None:
    """Return what some of the items go by."""
    if names is None or len(names) == 1:
        return names
    return names[start:stop]


def of_each(names: Names | None, count: int) -> list[str]:
    """Return one for each item, fit to be printed."""
    if names is None:
        return [""] * count
    if not "".join(names).isprintable():
        names = [_printable(name) for name in names]
    return names * count if len(names) == 1 else names


def _printable(name: str) -> str:
    """Spell out what could end a line or speak to a terminal; clients of ours send no such name."""
    return name if name.isprintable() else name.encode("unicode_escape").decode()
