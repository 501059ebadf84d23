"""What a model that is a generator yields: its steps, one after another, and what each says of which item.

A step is a list with an entry for each item of the batch, or a dict from places in the batch to entries.  An
entry is the next part of that item's result, :data:`NOTHING`, :data:`END`, or an exception, which ends that
item alone.  When the generator returns, every item that has not ended does.  What becomes of the parts is
``streaming.py``'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from zbatch.errors import BadOutput


class Word:
    """An entry that is no part."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"zbatch.{self._name}"

    def __reduce__(self) -> str:
        return self._name


NOTHING: Any = Word("NOTHING")
"""In an item's place: this step has no part of it."""

END: Any = Word("END")
"""In an item's place: its result has come to its end."""


def is_generator(results: Any) -> bool:
    """Return whether what ``predict`` returned yields steps.

    An expression like ``(f(item) for item in batch)`` is none: its author meant a list of outputs.
    """
    if isinstance(results, GeneratorType):
        return results.gi_code.co_name != "<genexpr>"
    return isinstance(results, AsyncGeneratorType) and results.ag_code.co_name != "<genexpr>"


def steps_of(results: Any) -> Iterator[Any]:
    """Yield the steps of a generator, also of an async one; closing this one closes it."""
    if isinstance(results, GeneratorType):
        yield from results
        return
    # Of its own: what a model left running in a loop must not go on in the next batch.
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                step = loop.run_until_complete(anext(results))
            except StopAsyncIteration:
                return
            yield step
    finally:
        try:
            loop.run_until_complete(results.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def entries_of(step: Any, count: int) -> Iterator[tuple[int, Any]]:
    """Yield the places that a step says something of, each with its entry.

    Raises :class:`BadOutput` for a step that is none.
    """
    wanted = f"wanted a list with one entry for each of {count} items, or a dict of places"
    if isinstance(step, Mapping):
        for place, entry in step.items():
            if type(place) is not int or not 0 <= place < count:
                raise BadOutput(f"predict yielded something for place {place!r:.40}; {wanted}")
            if entry is not NOTHING:
                yield place, entry
        return
    if isinstance(step, str | bytes | bytearray | memoryview) or not hasattr(step, "__len__"):
        raise BadOutput(f"predict yielded a step of type {type(step).__name__}; {wanted}")
    if len(step) != count:
        raise BadOutput(f"predict yielded a step of {len(step)} entries; {wanted}")
    for place, entry in enumerate(step):
        if entry is not NOTHING:
            yield place, entry


def whole_of(results: Any, count: int) -> list[Any]:
    """Return everything that a generator yields, as one output an item: the list of its parts.

    An exception in an item's place stands for its output.
    """
    outputs: list[Any] = [[] for _ in range(count)]
    open_places = set(range(count))
    steps = steps_of(results)
    try:
        for step in steps:
            for place, entry in entries_of(step, count):
                if place not in open_places:
                    continue
                if isinstance(entry, BaseException):
                    outputs[place] = entry
                if entry is END or isinstance(entry, BaseException):
                    open_places.discard(place)
                else:
                    outputs[place].append(entry)
            if not open_places:
                break
    finally:
        steps.close()  # type: ignore[attr-defined]
    return outputs
