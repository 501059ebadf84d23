"""Who judges the items of a topic before they are queued: the schema that its workers tell.

A worker judges them again, and by more than JSON can say; this spares the queue what has no chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from zbatch.schema import Judge, judge_of


class Judges:
    """Makes a judge of each schema once, for as long as some topic has it."""

    def __init__(self) -> None:
        self._made: dict[bytes, Judge | None] = {}
        self._of: dict[str, Judge] = {}

    def learn(self, topics: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in what the workers of each topic declare, as a broker's snapshot has it."""
        made: dict[bytes, Judge | None] = {}
        self._of = {}
        for name, topic in topics.items():
            declared = _declared(topic)
            if declared is None:
                continue
            if declared not in made:
                made[declared] = (
                    self._made[declared]
                    if declared in self._made
                    else judge_of(msgspec.json.decode(declared))
                )
            judge = made[declared]
            if judge is not None:
                self._of[name] = judge
        self._made = made

    def of(self, topic: str) -> Judge | None:
        """Return who judges a topic's items; None: only its workers do."""
        return self._of.get(topic)


def _declared(topic: Mapping[str, Any]) -> bytes | None:
    """Return the schema of a topic's models as JSON.

    None where nothing is declared, and where several versions do not declare the same: which of them would
    run an item is not known.
    """
    told = [model.get("schema") for model in topic.get("models", ())]
    if not told or not told[0] or any(one != told[0] for one in told):
        return None
    return msgspec.json.encode(told[0])
