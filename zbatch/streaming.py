"""Run a model that is a generator: its parts go to those who read them, or are gathered for those who do not.

An item whose caller reads a stream gets its parts as they come; one whose caller asked for the whole gets a
list of them.  What a step is says ``steps.py``; how far a reader may be behind, ``core/stream.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from zbatch.messages import Fault
from zbatch.steps import END, entries_of

Encode = Callable[[Any], tuple[Any, Sequence[Any]]]


class Sink(Protocol):
    """Where the parts of a batch go; places are those of the batch as it came."""

    def is_streamed(self, place: int) -> bool:
        """Return whether somebody reads this item part by part."""

    def is_wanted(self, place: int) -> bool:
        """Return whether anybody still waits for this item."""

    def put(self, parts: list[tuple[int, Any, Sequence[Any]]], ended: list[tuple[int, Fault | None]]) -> None:
        """Take the encoded parts of a step, and which streams end with it."""

    def wait(self, places: Sequence[int]) -> None:
        """Wait while each of these is read, and its reader is behind: nobody else waits for the model."""


class Streaming:
    """One run of a generator.

    Args:
        sink: Where streams go; None: nobody reads any.
        places: Where the items of this run stand in the batch as it came.
        encode: How a part becomes bytes.
        fault_of: What an exception of the model, or of encoding a part (True), is to a place's caller.

    """

    def __init__(
        self,
        sink: Sink | None,
        places: Sequence[int],
        encode: Encode,
        fault_of: Callable[[BaseException, int, bool], Fault],
    ) -> None:
        self._sink = sink
        self._places = places
        self._encode = encode
        self._fault_of = fault_of
        self._open = dict.fromkeys(range(len(places)))
        self._streamed = {
            at for at, place in enumerate(places) if sink is not None and sink.is_streamed(place)
        }
        self._has_begun = False
        """Whether anything came: what raises before may run again."""
        self._results: list[Any] = [None if at in self._streamed else [] for at in range(len(places))]

    def run(self, steps: Iterator[Any]) -> list[Any]:
        """Return the whole result of each item that is not streamed, an exception where it failed.

        Raises what the model raises before anything of it came.
        """
        try:
            self._run(steps)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not self._has_begun:
                raise
            self._end_all(error)
        else:
            self._end_all(None)
        return self._results

    def _run(self, steps: Iterator[Any]) -> None:
        try:
            for step in steps:
                self._take(step)
                for at in [at for at in self._open if not self._is_wanted(at)]:
                    del self._open[at]
                if not self._open:
                    return
                if self._sink is not None:
                    self._sink.wait([self._places[at] for at in self._open])
        finally:
            steps.close()  # type: ignore[attr-defined]

    def _take(self, step: Any) -> None:
        parts: list[tuple[int, Any, Sequence[Any]]] = []
        ended: list[tuple[int, Fault | None]] = []
        try:
            for at, entry in entries_of(step, len(self._places)):
                if at in self._open:
                    self._enter(at, entry, parts, ended)
        finally:
            self._has_begun = self._has_begun or bool(parts or ended)
            if self._sink is not None:
                self._sink.put(parts, ended)

    def _enter(
        self,
        at: int,
        entry: Any,
        parts: list[tuple[int, Any, Sequence[Any]]],
        ended: list[tuple[int, Fault | None]],
    ) -> None:
        is_streamed = at in self._streamed
        place = self._places[at]
        if entry is END:
            del self._open[at]
            if is_streamed:
                ended.append((place, None))
        elif isinstance(entry, BaseException):
            del self._open[at]
            if is_streamed:
                ended.append((place, self._fault_of(entry, place, False)))
            else:
                self._results[at] = entry
        elif not is_streamed:
            self._results[at].append(entry)
        else:
            try:
                payload, buffers = self._encode(entry)
            except Exception as error:
                del self._open[at]
                ended.append((place, self._fault_of(error, place, True)))
            else:
                parts.append((place, payload, buffers))

    def _end_all(self, error: BaseException | None) -> None:
        ended: list[tuple[int, Fault | None]] = []
        for at in self._open:
            if at in self._streamed:
                place = self._places[at]
                ended.append((place, None if error is None else self._fault_of(error, place, False)))
            elif error is not None:
                self._results[at] = error
        if ended and self._sink is not None:
            self._sink.put([], ended)

    def _is_wanted(self, at: int) -> bool:
        return at not in self._streamed or self._sink is None or self._sink.is_wanted(self._places[at])
