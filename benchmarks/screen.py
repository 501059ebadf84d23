"""What a benchmark says while it runs, and how it leaves when it is told to."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


def leave(*_: object) -> NoReturn:
    """End as on Ctrl-C: whoever started processes ends them."""
    raise KeyboardInterrupt


def note(screen: Console, status: object, text: str) -> None:
    """Say where it is: in one line that changes on a terminal, else in a line each."""
    if screen.is_terminal:
        status.update(text)  # type: ignore[attr-defined]
    else:
        screen.print(text, markup=False, highlight=False)
