"""Run one batch: decode the items, call ``predict``, give each item its own outcome.

A bad item hurts only itself: what cannot be decoded never joins the batch, a batch that raises or returns a
wrong number of outputs is halved until the guilty items stand alone, an output that cannot be encoded fails
alone.  Nothing here knows brokers or sockets.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zbatch import payload
from zbatch.errors import BadOutput, ModelFailed, ZbatchError, to_fault
from zbatch.messages import Fault
from zbatch.model import LoadedModel

Encode = Callable[[Any], tuple[Any, Sequence[Any]]]
Decode = Callable[..., Any]


class Work(NamedTuple):
    """A batch as it came."""

    items: Sequence[Any]
    buffers: Sequence[Sequence[Any]] | None
    ids: Sequence[Any]
    deadlines: Sequence[float]


class Ran(NamedTuple):
    """A batch as it leaves: an output (or a place in ``errors``) for each item."""

    outputs: list[Any]
    buffers: list[Sequence[Any]] | None
    errors: list[tuple[int, Fault]] | None
    seconds: float


@dataclass(frozen=True)
class Current:
    """The batch that runs now, for those who ask inside ``predict``."""

    topic: str
    ids: Sequence[Any]
    """One for each item: the client's public origin and the number it gave the item."""
    deadlines: Sequence[float]
    """On the clock of ``time.monotonic``."""


_current: Current | None = None
_progress: Callable[[], None] | None = None


def current_batch() -> Current | None:
    """Return what is known of the batch that runs in this process; None outside of ``predict``."""
    return _current


def progress() -> None:
    """Say, inside ``predict``, that the batch advances: its lease begins anew."""
    if _progress is not None:
        _progress()


class Runner:
    """Runs batches through one model, in one thread."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        topic: str = "default",
        decode: Decode = payload.decode,
        encode: Encode = payload.encode,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        self._model = model
        self._topic = topic
        self._decode = decode
        self._encode = encode
        self._on_progress = on_progress

    def run(self, work: Work) -> Ran:
        """Return the outcome of every item; whatever the model does, this does not raise."""
        global _current, _progress  # noqa: PLW0603  one model thread a process
        started = time.perf_counter()
        errors: dict[int, Fault] = {}
        items = self._decoded(work, errors)
        _current = Current(self._topic, work.ids, work.deadlines)
        _progress = self._on_progress
        try:
            if not errors:
                results = self._predict(items, range(len(items)), errors)
            else:
                good = [place for place in range(len(items)) if place not in errors]
                results = [None] * len(items)
                if good:
                    found = self._predict([items[place] for place in good], good, errors)
                    for place, result in zip(good, found, strict=True):
                        results[place] = result
        finally:
            _current = _progress = None
        outputs, buffers = self._encoded(results, errors)
        seconds = time.perf_counter() - started
        return Ran(outputs, buffers, sorted(errors.items()) if errors else None, seconds)

    def _decoded(self, work: Work, errors: dict[int, Fault]) -> list[Any]:
        decode = self._decode
        try:
            if work.buffers is None:
                return [decode(item) for item in work.items]
            return [decode(item, own) for item, own in zip(work.items, work.buffers, strict=True)]
        except ValueError:
            pass
        items: list[Any] = []
        for place, item in enumerate(work.items):
            try:
                items.append(decode(item, work.buffers[place] if work.buffers is not None else ()))
            except ValueError as error:
                items.append(None)
                errors[place] = Fault("bad_input", f"the item cannot be decoded: {error}")
        return items

    def _predict(self, items: list[Any], places: Sequence[int], errors: dict[int, Fault]) -> list[Any]:
        """Return one result an item; halve what fails as a whole."""
        try:
            results = _as_list(self._model.predict(items), len(items))
        except (Exception, SystemExit) as error:
            if len(items) == 1 or not self._model.idempotent:
                self._blame(error, places, errors)
                return [None] * len(items)
        else:
            return results
        middle = len(items) // 2
        return self._predict(items[:middle], places[:middle], errors) + self._predict(
            items[middle:], places[middle:], errors
        )

    def _blame(self, error: BaseException, places: Sequence[int], errors: dict[int, Fault]) -> None:
        fault = _fault_of(error)
        if len(places) > 1:
            text = f"{fault.text} (the model says it is not idempotent, so its batch of {len(places)} fails as one)"
            fault = Fault(fault.code, text, 0, fault.kind, fault.traceback)
        for place in places:
            errors[place] = fault

    def _encoded(
        self, results: list[Any], errors: dict[int, Fault]
    ) -> tuple[list[Any], list[Sequence[Any]] | None]:
        encode = self._encode
        outputs: list[Any] = []
        buffers: list[Sequence[Any]] = []
        large = False
        for place, result in enumerate(results):
            if isinstance(result, BaseException):
                errors.setdefault(place, _fault_of(result))
            if place in errors:
                outputs.append(b"")
                buffers.append(())
                continue
            try:
                output, own = encode(result)
            except (TypeError, ValueError) as error:
                errors[place] = to_fault(
                    BadOutput(f"the output cannot be sent: {str(error).replace('item', 'output', 1)}")
                )
                output, own = b"", ()
            outputs.append(output)
            buffers.append(own)
            large = large or bool(own)
        return outputs, buffers if large else None


def _as_list(results: Any, count: int) -> list[Any]:
    """Return what predict returned as a list of the right length."""
    if type(results) is list and len(results) == count:
        return results
    kind = type(results).__name__
    if results is None or isinstance(results, str | bytes | dict) or not hasattr(results, "__len__"):
        raise BadOutput(
            f"predict returned {'None' if results is None else 'a ' + kind} for a batch of {count}; "
            "wanted a sequence with one output for each item"
        )
    try:
        found = len(results)
    except TypeError:
        found = -1
    if found != count:
        raise BadOutput(f"predict returned {found} outputs for a batch of {count} items; wanted one for each")
    return list(results)


def _fault_of(error: BaseException) -> Fault:
    if isinstance(error, ZbatchError) and not isinstance(error, ModelFailed):
        return to_fault(error)
    # The frames of this file say nothing to the model's author.
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    text = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])
    return to_fault(error, text)
