"""A caller's items become a call: what may be asked for, checked and encoded.

This is the part that every client shares, whether it waits in a thread, in an event loop or inside the
process (``client.py``, ``aio.py``, ``embedded.py``).  What becomes of a call is ``futures.py``'s matter;
sending, retrying and timing out are neither's.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from numbers import Real
from typing import Any, Generic, Self, TypeVar

from zbatch import notation, payload
from zbatch.core.calls import Call
from zbatch.core.stream import Inflow
from zbatch.errors import BadRequest, ClientClosed
from zbatch.futures import Decode, Future, Line
from zbatch.pipelines import Pipeline
from zbatch.streams import Incoming, Stream

In = TypeVar("In")
Out = TypeVar("Out")

WINDOW = 1_000
"""Items that ``map`` keeps in flight: enough to fill batches of any worker, few enough to hold in memory."""

GRID_BITS = 7
"""Deadlines are rounded down to a grid of at most 1/64 of the timeout, so that calls with one timeout share
a group; the grid is a power of two, and a timeout just below one has a finer grid."""

TOPICS = 1_000
"""Names that a client remembers to have checked: a gateway is asked for whatever its clients think of."""

LONGEST_KEY = 256

LONGEST_NAME = 128
"""Characters of a request id."""

LONGEST_TIMEOUT = 1e9
"""Seconds, thirty years: milliseconds up to there are exact in every language."""

LARGEST_COST = 1e15

Encode = Callable[..., tuple[Any, Sequence[Any]]]
"""Takes an item, and its place where it is one of several."""


class Asking:
    """The checks and defaults that a client applies to each request."""

    def __init__(
        self,
        topic: str | Pipeline,
        timeout: float,
        *,
        encode: Encode = payload.encode,
    ) -> None:
        self.topic = topic if isinstance(topic, Pipeline) else notation.topic(topic)
        self.timeout = _checked_timeout(timeout)
        self._encode = encode
        self._grid = _grid(self.timeout)
        self._mark = _mark(self.topic)
        self._marks: dict[str | Pipeline, tuple[Any, ...]] = {self.topic: self._mark}

    def prepare(
        self,
        call: Call,
        items: Sequence[Any],
        now: float,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | Sequence[float] | None = None,
        request_id: str = "",
    ) -> None:
        """Encode the items and set the call up.

        Raises ``TypeError`` for an item that cannot be encoded, naming the path of the value, and
        :class:`BadRequest` for arguments out of bounds.
        """
        if request_id:
            call.name = _checked_name(request_id)
        # Most calls are one small item for which nothing is asked: they need no more than this.
        if timeout is None and cost is None and not key and not priority and len(items) == 1:
            encoded, frames = self._encode(items[0])
            if not frames:
                call.item = encoded
                call.mark = self._mark if topic is None else self._mark_of(topic)
                call.deadline = (now + self.timeout) // self._grid * self._grid
                return
        self._prepare(call, items, now, topic, timeout, priority, key, cost)

    def prepare_stream(
        self,
        call: Call,
        item: Any,
        now: float,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | None = None,
        request_id: str = "",
    ) -> None:
        """Set up a stream, whose deadline is for the next part; raises what :meth:`prepare` does."""
        if request_id:
            call.name = _checked_name(request_id)
        self._prepare(call, (item,), now, topic, timeout, priority, key, cost)
        call.inflow = Inflow(self.timeout if timeout is None else _checked_timeout(timeout))
        call.items, call.outputs, call.left = [call.item], [None], 1
        call.mark = (*call.mark[:3], call)

    def _prepare(
        self,
        call: Call,
        items: Sequence[Any],
        now: float,
        topic: str | Pipeline | None,
        timeout: float | None,
        priority: int,
        key: str,
        cost: float | Sequence[float] | None,
    ) -> None:
        if topic is None:
            topic = self.topic
        else:
            self._mark_of(topic)
        seconds = self.timeout if timeout is None else _checked_timeout(timeout)
        grid = _grid(seconds)
        call.deadline = (now + seconds) // grid * grid
        if key or priority:
            _check_words(key, priority)
        if cost is not None:
            call.costs = _costs(cost, len(items))
        if len(items) == 1:
            both = [self._encode(items[0])]
        else:
            both = [self._encode(item, place) for place, item in enumerate(items)]
        payloads = [one for one, _ in both]
        buffers = [frames for _, frames in both] if any(frames for _, frames in both) else None
        call.buffers = buffers
        if len(payloads) == 1:
            call.item = payloads[0]
            call.mark = _mark(topic, key, priority, buffers is None, cost is None)
        else:
            call.items = payloads
            call.left = len(payloads)
            call.outputs = [None] * len(payloads)
            call.mark = (topic, key, priority, call)

    def _mark_of(self, topic: str | Pipeline) -> tuple[Any, ...]:
        """Return the mark of calls for a topic; raises :class:`BadRequest` for what names none."""
        is_pipeline = isinstance(topic, Pipeline)
        if (is_pipeline or type(topic) is str) and topic in self._marks:
            return self._marks[topic]
        try:
            mark = _mark(topic if is_pipeline else notation.topic(topic))
        except (TypeError, ValueError) as error:
            raise BadRequest(f"topic: {error}") from None
        if len(self._marks) >= TOPICS:
            self._marks.clear()
        self._marks[topic] = mark
        return mark


def encode_copied(item: Any, place: int | None = None) -> tuple[bytes, Sequence[Any]]:
    """Encode an item; its buffers are copies, so that what they were made from may change."""
    encoded, buffers = payload.encode(item, place)
    return encoded, [bytes(one) for one in buffers]


def rows(items: Iterable[Any]) -> Sequence[Any]:
    """Return what a caller handed in as a sequence of items.

    Raises :class:`BadRequest` for one bare value where a list of items is wanted.
    """
    if type(items) is list or type(items) is tuple:
        return items
    return list(one_by_one(items))


def one_by_one(items: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over what a caller handed in as items; raises what :func:`rows` does."""
    kind = type(items).__name__
    if isinstance(items, str | bytes | bytearray | memoryview | Mapping):
        raise BadRequest(
            f"items is a bare {kind}; predict takes a list of items: wrap it in a list, [{kind}]"
        )
    if isinstance(items, Set):
        raise BadRequest(f"items is of type {kind}, which has no order; predict takes a list of items")
    if getattr(items, "ndim", 1) == 0:
        raise BadRequest("items is a 0-dimensional array; its rows would be the items: wrap it in a list")
    try:
        return iter(items)
    except TypeError:
        raise BadRequest(
            f"items is of type {kind}; predict takes a list of items: wrap it in a list"
        ) from None


class Caller(Generic[In, Out]):
    """The calls of a client that blocks, whatever its line carries them over."""

    _future: type[Future[Any]] = Future
    _decode: Decode = staticmethod(payload.decode)

    def __init__(self, asking: Asking, line: Line) -> None:
        self._asking = asking
        self._line = line

    def predict(
        self,
        items: Iterable[In],
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | Sequence[float] | None = None,
        request_id: str = "",
        return_exceptions: bool = False,
    ) -> list[Out]:
        """Return the model's output for each item, in order; rows of an array are items.

        ``request_id`` is what people call this request: workers' logs name it.

        Raises the error of ``zbatch.errors`` that tells what happened; :class:`BatchError` where some of
        several items failed.  With ``return_exceptions`` errors stand in the list instead.
        """
        future = self._ask(items, return_exceptions, topic, timeout, priority, key, cost, request_id)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def predict_one(
        self,
        item: In,
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | None = None,
        request_id: str = "",
    ) -> Out:
        """Return the model's output for one item."""
        return self.predict(
            [item],
            topic=topic,
            timeout=timeout,
            priority=priority,
            key=key,
            cost=cost,
            request_id=request_id,
        )[0]

    def submit(
        self,
        items: Iterable[In],
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | Sequence[float] | None = None,
        request_id: str = "",
        return_exceptions: bool = False,
    ) -> Future[Out]:
        """Ask, and return at once; the future has the interface of ``concurrent.futures.Future``."""
        future = self._ask(items, return_exceptions, topic, timeout, priority, key, cost, request_id)
        self._line.carry()
        return future

    def _ask(
        self,
        items: Iterable[In],
        return_exceptions: bool,
        topic: str | Pipeline | None,
        timeout: float | None,
        priority: int,
        key: str,
        cost: float | Sequence[float] | None,
        request_id: str,
    ) -> Future[Out]:
        line = self._line
        if line.closed:
            raise ClientClosed(line.closed)
        sequence = items if type(items) is list else rows(items)
        future: Future[Out] = self._future(line)
        if return_exceptions:
            future._returns_exceptions = True
        if not sequence:
            future.answer_nothing()
            return future
        now = time.monotonic()
        self._asking.prepare(future, sequence, now, topic, timeout, priority, key, cost, request_id)
        line.put(future)
        return future

    def stream(
        self,
        item: In,
        *,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        cost: float | None = None,
        request_id: str = "",
    ) -> Stream[Out]:
        """Return an iterator over the parts of an item's result, as a model that is a generator yields them.

        ``timeout`` is for the first part, and after each part for the next one, so a stream may outlive it.
        An error comes in the place of what is missing: an item runs again only while nothing of it was
        delivered.  Leaving the loop cancels.  Of a model that is no generator the one part is the output;
        of a pipeline, too, whatever its stages are: its parts do not go from stage to stage.
        """
        line = self._line
        if line.closed:
            raise ClientClosed(line.closed)
        call = Incoming()
        now = time.monotonic()
        self._asking.prepare_stream(call, item, now, topic, timeout, priority, key, cost, request_id)
        line.put(call)
        line.carry()
        return Stream(call, line, self._decode)

    def map(
        self,
        items: Iterable[In],
        *,
        window: int = WINDOW,
        topic: str | Pipeline | None = None,
        timeout: float | None = None,
        priority: int = 0,
        key: str = "",
        request_id: str = "",
        return_exceptions: bool = False,
    ) -> Iterator[Out]:
        """Yield the output of each item, in order, with at most ``window`` items in flight.

        Items are taken from the iterable as outputs are taken from the iterator.
        """
        underway: deque[Future[Out]] = deque()
        source = one_by_one(items)
        try:
            for item in source:
                future = self.submit(
                    [item],
                    topic=topic,
                    timeout=timeout,
                    priority=priority,
                    key=key,
                    request_id=request_id,
                    return_exceptions=return_exceptions,
                )
                underway.append(future)
                if len(underway) >= window:
                    yield underway.popleft().result()[0]
            while underway:
                yield underway.popleft().result()[0]
        finally:
            for future in underway:
                future.cancel()

    def close(self) -> None:
        """Let go of everything; requests without an outcome raise :class:`ClientClosed`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _grid(seconds: float) -> float:
    return math.ldexp(1.0, max(math.frexp(seconds)[1] - GRID_BITS, -60))


def _mark(topic: str | Pipeline, key: str = "", priority: int = 0, *shape: bool) -> tuple[Any, ...]:
    """Return what calls of one item must share to travel together."""
    return (topic, key, priority, *(shape or (True, True)))


def _checked_timeout(timeout: float) -> float:
    try:
        seconds = float(timeout)
    except (TypeError, ValueError, OverflowError):
        raise BadRequest(f"timeout is {timeout!r:.80}, wanted a number of seconds") from None
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise BadRequest(f"timeout is {timeout!r}, wanted a number of seconds above 0, at most 1e9")
    return seconds


def _check_words(key: str, priority: int) -> None:
    if type(key) is not str or len(key) > LONGEST_KEY or not _is_text(key):
        raise BadRequest(f"key is {key!r:.80}, wanted a text of at most {LONGEST_KEY} characters")
    if type(priority) is not int or abs(priority) > 1 << 31:
        raise BadRequest(f"priority is {priority!r}, wanted an integer within 32 bits; higher goes first")


def _checked_name(request_id: str) -> str:
    # Printable, since it is made to stand in lines that people read.
    if type(request_id) is not str or len(request_id) > LONGEST_NAME or not request_id.isprintable():
        raise BadRequest(
            f"request_id is {request_id!r:.80}, wanted a printable text of at most {LONGEST_NAME} characters"
        )
    return request_id


def _costs(cost: float | Sequence[float], count: int) -> list[float]:
    try:
        costs = [float(cost)] * count if isinstance(cost, Real) else list(map(float, cost))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise BadRequest(f"cost is {cost!r:.80}, wanted one number, or one for each item") from None
    if len(costs) != count:
        raise BadRequest(f"{len(costs)} costs for {count} items; wanted one number, or one for each item")
    if not all(0 <= one <= LARGEST_COST for one in costs):
        raise BadRequest(f"cost is {cost!r:.80}, wanted numbers from 0 to 1e15")
    return costs


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
