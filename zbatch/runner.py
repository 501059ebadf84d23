"""Run one batch: decode the items, call ``predict``, give each item its own outcome.

A bad item hurts only itself: what cannot be decoded never joins the batch, a batch that raises or returns a
wrong number of outputs is halved until the guilty items stand alone, an output that cannot be encoded fails
alone.  A batch for which memory is short is run in parts (``memory.py``).  Whatever the model raises is its
failure, SystemExit and exceptions of its libraries that are no ``Exception`` (Rust's panics) included; only
KeyboardInterrupt, which is the operator's, passes.  Which items are run at all (deadlines, cancelling) is
``core/worker.py``'s to say; nothing here knows brokers or sockets.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from zbatch import payload
from zbatch.core.pipeline import Joined
from zbatch.declared import Encode, plain
from zbatch.errors import BadInput, BadOutput, ModelFailed, ZbatchError, text_of, to_fault
from zbatch.memory import Room, is_short, release
from zbatch.messages import Fault
from zbatch.model import LoadedModel, outputs_of
from zbatch.steps import is_generator, steps_of
from zbatch.streaming import Sink, Streaming

HERE = os.path.dirname(__file__) + os.sep

LIBRARIES = tuple(sysconfig.get_path(one) for one in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Where the code lies that is seldom its reader's own."""

Decode = Callable[..., Any]


class Work(NamedTuple):
    """A batch as it came."""

    items: Sequence[Any]
    buffers: Sequence[Sequence[Any]] | None
    ids: Sequence[Any]
    deadlines: Sequence[float]
    joined: bool = False
    """Whether some items are made of what several stages of a pipeline sent."""
    sink: Sink | None = None
    """Where parts go, of a model that yields some."""
    names: Sequence[str] = ()
    """The request id of each item, empty where it has none; nothing where no item has one."""


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
    _is_wanted: Callable[[int], bool] | None = field(default=None, repr=False, compare=False)
    _names: Sequence[str] = field(default=(), repr=False, compare=False)

    @property
    def request_ids(self) -> list[str]:
        """The request id that each item came with, empty where it has none."""
        return list(self._names) or [""] * len(self.ids)

    def wanted(self, place: int) -> bool:
        """Return whether anybody still waits for what a generator yields for this item of the batch."""
        return self._is_wanted is None or self._is_wanted(place)


@dataclass(frozen=True, eq=False)
class _Run:
    """One call of ``predict``."""

    current: Current
    on_progress: Callable[[], None] | None


_own: ContextVar[_Run | None] = ContextVar("zbatch run", default=None)
_runs: list[_Run] = []
"""What runs in this process: one in a worker, several where ``zbatch.local`` was called several times."""


def current_batch() -> Current | None:
    """Return what is known of the batch that runs here; None outside of ``predict``.

    Threads that the model starts are answered too, while one batch alone runs in the process.
    """
    run = _running()
    return None if run is None else run.current


def request_ids() -> list[str]:
    """Return, inside ``predict``, the request id of each item in order, empty where it has none.

    Made for lines that a model logs: what is not printable is spelled out.  Outside of ``predict`` there are
    none.
    """
    run = _running()
    return [] if run is None else run.current.request_ids


def progress() -> None:
    """Say, inside ``predict``, that the batch advances: its lease begins anew."""
    run = _running()
    if run is not None and run.on_progress is not None:
        run.on_progress()


def _running() -> _Run | None:
    run = _own.get()
    if run is not None:
        return run
    runs = _runs.copy()  # another thread may end one meanwhile
    return runs[0] if len(runs) == 1 else None


class Runner:
    """Runs batches through one model, in one thread."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        topic: str = "default",
        decode: Decode = payload.decode_read_only,
        encode: Encode = payload.encode,
        on_progress: Callable[[], None] | None = None,
        on_short: Callable[[int, int], None] | None = None,
        on_failed: Callable[[BaseException, Sequence[int]], None] | None = None,
    ) -> None:
        self._model = model
        self._topic = topic
        # Of a model that declares nothing they stay what they are.
        self._decode = model.declared.reading(decode)
        self._decode_joined = model.declared.reading(partial(_joined, decode))
        self._encode = model.declared.writing(encode)
        self._sends = encode is payload.encode
        """Whether outputs leave this process; what the model declares of them has no part in that."""
        self._on_progress = on_progress
        self._on_short = on_short
        """Called where memory is short: with the items of that run, and of the largest from now on."""
        self._on_failed = on_failed
        """Called where the model failed: with what it or its output raised, and the places that fails."""
        self._room = Room()
        self._miscounted = ""
        """What was wrong with the number of outputs of the last run."""

    def run(self, work: Work) -> Ran:
        """Return the outcome of every item; whatever the model does, this does not raise."""
        started = time.perf_counter()
        errors: dict[int, Fault] = {}
        items = self._decoded(work, errors)
        count = len(work.items)
        if not errors:
            results = self._predict(work, items, range(count), errors)
        else:
            results = [None] * count
            good = [place for place in range(count) if place not in errors]
            if good:
                found = self._predict(work, [items[place] for place in good], good, errors)
                for place, result in zip(good, found, strict=True):
                    results[place] = result
        outputs, buffers = self._encoded(results, errors)
        seconds = time.perf_counter() - started
        return Ran(outputs, buffers, sorted(errors.items()) if errors else None, seconds)

    # --- items ---------------------------------------------------------------------------------------

    def _decoded(self, work: Work, errors: dict[int, Fault]) -> list[Any]:
        decode = self._decode
        try:
            if work.joined:
                return [self._decoded_one(work, place) for place in range(len(work.items))]
            if work.buffers is None:
                return [decode(item) for item in work.items]
            return [decode(item, own) for item, own in zip(work.items, work.buffers, strict=True)]
        except Exception:
            pass  # whose fault it is, is found one by one
        items: list[Any] = []
        for place in range(len(work.items)):
            try:
                items.append(self._decoded_one(work, place))
            except Exception as error:
                items.append(None)
                errors[place] = _cannot_be_read(error)
        return items

    def _decoded_one(self, work: Work, place: int) -> Any:
        item = work.items[place]
        if type(item) is Joined:
            return self._decode_joined(item)
        if work.buffers is None:
            return self._decode(item)
        return self._decode(item, work.buffers[place])

    # --- predict -------------------------------------------------------------------------------------

    def _predict(
        self,
        work: Work,
        items: list[Any],
        places: Sequence[int],
        errors: dict[int, Fault],
        first: str = "",
    ) -> list[Any]:
        """Return one result for each place; in several runs where one would not fit."""
        if self._room.limit is None or len(places) <= self._room.limit:
            return self._run(work, items, places, errors, first)
        results: list[Any] = []
        for start, stop in self._room.parts(len(places)):
            if start and self._on_progress is not None:
                self._on_progress()
            results += self._run(work, items[start:stop], places[start:stop], errors, first)
        return results

    def _run(
        self,
        work: Work,
        items: list[Any],
        places: Sequence[int],
        errors: dict[int, Fault],
        first: str = "",
    ) -> list[Any]:
        """Return one result for each place; halve what fails as a whole.

        ``first`` is what was wrong with the number of outputs before these were halved from others.
        """
        count = len(places)
        memory_is_short = False
        try:
            results = self._call(work, items, places, first)
            self._room.ran(count)
            return results
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            memory_is_short = is_short(error)
            if memory_is_short and count > 1:
                self._room.failed(count)
            if count == 1 or not self._model.idempotent:
                fault = self._fault_of(error, places)
                errors.update((place, fault if count == 1 else _for_all(fault, count)) for place in places)
                return [None] * count
        # Out of the handler, so that the failed run's frames, and what they hold on the GPU, are gone.
        if memory_is_short:
            release()
            if self._on_short is not None:
                self._on_short(count, self._room.limit or count)
        first = first or self._miscounted
        results = []
        for half in (places[: count // 2], places[count // 2 :]):
            if self._on_progress is not None:
                self._on_progress()  # each run may take as long as a batch may
            try:
                # The failed run may have changed what it was given, so each gets its items anew.
                fresh = [self._decoded_one(work, place) for place in half]
            except Exception as error:  # it could be decoded before: memory is short
                fault = self._fault_of(error, half)
                errors.update((place, fault) for place in half)
                results += [None] * len(half)
            else:
                results += self._predict(work, fresh, half, errors, first)
        return results

    def _call(self, work: Work, items: list[Any], places: Sequence[int], first: str) -> list[Any]:
        self._miscounted = ""
        ids, deadlines = work.ids, work.deadlines
        if len(places) != len(work.items):
            ids, deadlines = [ids[place] for place in places], [deadlines[place] for place in places]
        names = work.names
        if names and len(places) != len(work.items):
            names = [names[place] for place in places]
        is_wanted = None if work.sink is None else _wanted_by(work.sink, places)
        run = _Run(Current(self._topic, ids, deadlines, is_wanted, names), self._on_progress)
        token = _own.set(run)
        _runs.append(run)
        try:
            results = self._model.predict(items)
            if is_generator(results):
                return Streaming(work.sink, places, self._encode_part, self._fault_of_part).run(
                    steps_of(results)
                )
            if self._sends:
                results = _on_host(results)
            # The model may have emptied the list that it was given: the places say how many are wanted.
            return self._counted(results, len(places), first)
        finally:
            _runs.remove(run)
            _own.reset(token)

    def _encode_part(self, part: Any) -> tuple[Any, Sequence[Any]]:
        return self._encoded_one(_on_host(part) if self._sends else part)

    def _fault_of_part(self, error: BaseException, place: int, of_encoding: bool) -> Fault:
        if isinstance(error, Exception) and of_encoding:
            self._tell(error, (place,))
            return _cannot_be_sent(error)
        return self._fault_of(error, (place,))

    def _counted(self, results: Any, count: int, first: str) -> list[Any]:
        try:
            return outputs_of(results, count)
        except BadOutput as error:
            self._miscounted = str(error)
            if not first:
                raise
            # What a model does wrong with many may look quite different with one.
            numbers, _, _ = first.partition("; ")
            raise BadOutput(f"{error} (before it was halved: {numbers})") from None

    # --- outputs -------------------------------------------------------------------------------------

    def _encoded(
        self, results: list[Any], errors: dict[int, Fault]
    ) -> tuple[list[Any], list[Sequence[Any]] | None]:
        encode = self._encode
        if errors or _has_exception(results):
            encoded = self._encoded_apart(results, errors)
        else:
            try:
                encoded = [encode(result) for result in results]
            except Exception:
                encoded = self._encoded_apart(results, errors)
        outputs = [output for output, _ in encoded]
        for _, own in encoded:
            if own:
                return outputs, [own for _, own in encoded]
        return outputs, None

    def _encoded_apart(self, results: list[Any], errors: dict[int, Fault]) -> list[tuple[Any, Sequence[Any]]]:
        encoded: list[tuple[Any, Sequence[Any]]] = []
        for place, result in enumerate(results):
            one: tuple[Any, Sequence[Any]] = (b"", ())
            if isinstance(result, BaseException):
                errors[place] = self._fault_of(result, (place,))
            elif place not in errors:
                try:
                    one = self._encoded_one(result)
                except Exception as error:
                    self._tell(error, (place,))
                    errors[place] = _cannot_be_sent(error)
            encoded.append(one)
        return encoded

    def _encoded_one(self, result: Any) -> tuple[Any, Sequence[Any]]:
        try:
            return self._encode(result)
        except TypeError:
            # It may be, or hold, a Struct that no annotation spoke of.  If not, this raises the same again.
            return self._encode(plain(result))

    def _fault_of(self, error: BaseException, places: Sequence[int]) -> Fault:
        if not isinstance(error, BadInput):  # that is the caller's
            self._tell(error, places)
        return _fault_of(error)

    def _tell(self, error: BaseException, places: Sequence[int]) -> None:
        if self._on_failed is not None:
            self._on_failed(error, places)


def _joined(decode: Decode, item: Joined) -> dict[str, Any]:
    """Return an item of several parts, each decoded by itself; what is declared of an item holds for all."""
    return {name: decode(encoded, own) for name, encoded, own in item.parts}


def place_of(error: BaseException) -> str:
    """Return file and line where a model failed, empty where none of its code ran.

    That is the innermost line of its author's; of a library's only where all are a library's.
    """
    own = innermost = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(HERE):
            innermost = f"{file}:{trace.tb_lineno}"
            own = own if file.startswith(LIBRARIES) else innermost
        trace = trace.tb_next
    return own or innermost


def _has_exception(results: list[Any]) -> bool:
    for result in results:  # noqa: SIM110  twice as fast as any()
        if isinstance(result, BaseException):
            return True
    return False


def _wanted_by(sink: Sink, places: Sequence[int]) -> Callable[[int], bool]:
    return lambda at: sink.is_wanted(places[at])


def _on_host(results: Any) -> Any:
    """Return a tensor's copy in host memory: one transfer instead of one for each row."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(results, torch.Tensor):
        return results.detach().cpu()
    return results


def _cannot_be_read(error: Exception) -> Fault:
    if isinstance(error, BadInput):  # it is not of the declared type
        return to_fault(error)
    text = to_fault(error).text or type(error).__name__
    return to_fault(BadInput(f"the item cannot be decoded: {text}"))


def _cannot_be_sent(error: Exception) -> Fault:
    text = to_fault(error).text
    if isinstance(error, TypeError | ValueError):
        # It begins with the path: item['scores'][3] is a ...
        text = text.replace("item", "output", 1)
    else:
        text = f"{type(error).__name__}: {text}"
    return to_fault(BadOutput(f"the output cannot be sent: {text}"))


def _for_all(fault: Fault, count: int) -> Fault:
    text = (
        f"{fault.text} (the model is not idempotent, so nothing was run again "
        f"and its batch of {count} fails as one)"
    )
    return Fault(fault.code, text, 0, fault.kind, fault.traceback)


def _fault_of(error: BaseException) -> Fault:
    """Return a model's exception as data.

    Only what speaks of this item keeps its class: another of ours (the model may itself be a client) would
    be taken for the word of this cluster.
    """
    if isinstance(error, BadInput | BadOutput):
        return to_fault(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # frames of this file say nothing to the model's author
    try:
        text = "".join(traceback.TracebackException(type(error), error, trace, compact=True).format())
    except BaseException as second:
        text = f"its traceback could not be made: {type(second).__name__}"
    if isinstance(error, ZbatchError) and not isinstance(error, ModelFailed):
        error = ModelFailed(text_of(error), kind=type(error).__name__)
    return to_fault(error, text)
