"""The model behind the web servers: it tells whose items it saw together, and waits where it is told to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from zbatch import current_batch

PAUSE = 0.010
"""Seconds a batch takes: long enough for company to gather."""


class Gathering:
    """Answers ``text`` in capitals, with how many items and how many clients were in its batch."""

    def predict(self, batch: list[Any]) -> list[Any]:
        """Answer each item; ``fail`` fails it, ``until`` waits for a file to be there."""
        for item in batch:
            while "until" in item and not Path(item["until"]).exists():
                time.sleep(0.005)
        time.sleep(PAUSE)
        current = current_batch()
        clients = len({origin for origin, _ in current.ids}) if current is not None else 0
        return [answer(item, len(batch), clients) for item in batch]


def answer(item: dict[str, Any], items: int, clients: int) -> Any:
    """Return an item's answer."""
    if "fail" in item:
        return ValueError("told to fail")
    return {"text": item["text"].upper(), "items": items, "clients": clients}
