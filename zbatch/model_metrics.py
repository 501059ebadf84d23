"""What a model process lets its supervisor show: what it ran, and the metrics that the model itself keeps.

Once a second a thread of the model process writes all of it into memory that both have (:class:`Slate`),
and the supervisor reads there when somebody scrapes; so a busy model is seen, nobody waits for anybody, and a
process that died leaves its last words.  What it all is called is said in ``series.py``.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from zbatch.metrics import Histogram

EVERY = 1.0
"""Seconds between two reports."""

ROOM = 256 << 10
"""Bytes that a report may have."""

SAMPLES = 1_000
"""Samples of a model's own that one process shows."""

Shown = TypeVar("Shown", bound=msgspec.Struct)
"""What some process shows others; made of nothing it says nothing."""

_HEAD = 8
_LENGTH = struct.Struct("<Q")
_PLACES = (_HEAD, _HEAD + _LENGTH.size + ROOM)
_SIZE = _HEAD + 2 * (_LENGTH.size + ROOM)


class Slate:
    """Memory that one process writes and another reads, whole or not at all.

    As in a note (``processes.py``) a count says which of two places is whole, and the other is written next.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE)
        self._count = memoryview(self._map)[:_HEAD].cast("Q")

    @classmethod
    def create(cls) -> Slate:
        """Make a slate that a child can inherit; it takes no memory before something is written."""
        descriptor = os.memfd_create("zbatch-slate", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor)

    def write(self, content: bytes) -> None:
        """Write what is to be read from now on."""
        count = self._count[0] + 1
        place = _PLACES[count % 2]
        start = place + _LENGTH.size
        _LENGTH.pack_into(self._map, place, len(content))
        self._map[start : start + len(content)] = content
        self._count[0] = count

    def read(self) -> bytes:
        """Return what was written last; nothing, if nothing was."""
        found = b""
        for _ in range(100):
            count = self._count[0]
            place = _PLACES[count % 2]
            (length,) = _LENGTH.unpack_from(self._map, place)
            start = place + _LENGTH.size
            found = self._map[start : start + min(length, ROOM)]
            if self._count[0] == count:
                return found
        return found

    def close(self) -> None:
        """Let go of the memory."""
        self._count.release()
        self._map.close()
        os.close(self.descriptor)


class Shelf:
    """The slates of processes that do the same: each writes its own, and can read all."""

    def __init__(self, slates: Sequence[Slate], own: int = 0) -> None:
        self.slates = tuple(slates)
        self.own = own

    @classmethod
    def create(cls, processes: int) -> Shelf:
        """Make a shelf that children can inherit."""
        return cls([Slate.create() for _ in range(processes)])

    @classmethod
    def attach(cls, told: str) -> Shelf:
        """Open the shelf that a parent made, as it told of it."""
        own, *descriptors = map(int, told.split(","))
        return cls([Slate(descriptor) for descriptor in descriptors], own)

    def told(self, own: int) -> str:
        """Return what a child is told that is this one of the processes."""
        return ",".join(map(str, (own, *self.descriptors)))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a child inherits."""
        return tuple(slate.descriptor for slate in self.slates)

    def close(self) -> None:
        """Let go of the memory."""
        for slate in self.slates:
            slate.close()


@dataclass(slots=True)
class Work:
    """What a model process did so far."""

    items: int = 0
    failed: int = 0
    short: int = 0
    """Runs for which memory was short."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Batches of at most 2 ** n items, and more than half as many, by n."""
    run: Histogram = field(default_factory=Histogram)

    def ran(self, items: int, failed: int, seconds: float) -> None:
        """Count a batch."""
        octave = (items - 1).bit_length()
        self.sizes[octave] = self.sizes.get(octave, 0) + 1
        self.items += items
        self.failed += failed
        self.run.record(seconds)


class Family(msgspec.Struct, array_like=True, frozen=True):
    """Metrics of one name, as the model keeps them."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, dict[str, str], float]]


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What a model process shows."""

    items: int = 0
    failed: int = 0
    short: int = 0
    sizes: dict[int, int] = {}
    run: dict[int, int] = {}
    run_seconds: float = 0.0
    left_out: int = 0
    """Samples of the model's own for which there was no room."""
    families: list[Family] = []

    def durations(self) -> Histogram:
        """Return how long its batches ran."""
        found = Histogram()
        found.buckets.update(self.run)
        found.total = self.run_seconds
        return found


def report(work: Work, families: Iterable[Any]) -> bytes:
    """Return what a slate takes: the work, and of prometheus-client's families what there is room for."""
    kept: list[msgspec.Raw] = []
    samples = size = left_out = 0
    for family in families:
        try:
            told = _family(family)
            encoded = msgspec.msgpack.encode(told)
        except Exception:  # a collector of the model's own may give anything
            left_out += 1
            continue
        samples += len(told.samples)
        size += len(encoded)
        # Half of the room is more than the work ever takes.
        if samples > SAMPLES or size > ROOM // 2:
            left_out += len(told.samples)
            samples -= len(told.samples)
            size -= len(encoded)
        else:
            kept.append(msgspec.Raw(encoded))
    counts = (work.items, work.failed, work.short)
    # Copied at once: the model's thread goes on counting.
    seen = (dict(work.sizes), dict(work.run.buckets), work.run.total)
    return msgspec.msgpack.encode((*counts, *seen, left_out, kept))


def _family(family: Any) -> Family:
    samples = [
        (str(one.name), {str(name): str(value) for name, value in one.labels.items()}, float(one.value))
        for one in family.samples
        # When something was created is told in a series of its own each, and nobody asks.
        if not one.name.endswith("_created")
    ]
    return Family(str(family.name), str(family.type), str(family.documentation)[:1_000], samples)


def read(slate: Slate, kind: type[Shown]) -> Shown:
    """Return what was written last; where that was nothing, or tampered with, what says nothing."""
    try:
        return msgspec.msgpack.decode(slate.read(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return kind()


class Reporter:
    """The thread that writes a model process's reports."""

    def __init__(self, slate: Slate, work: Work, failed: Callable[[BaseException], None]) -> None:
        self._slate = slate
        self._work = work
        self._failed = failed
        self._ended = threading.Event()
        self._failure = ""

    def start(self) -> None:
        """Report from now on."""
        threading.Thread(target=self._run, name="zbatch-metrics", daemon=True).start()

    def stop(self) -> None:
        """Report no more."""
        self._ended.set()

    def _run(self) -> None:
        from prometheus_client import REGISTRY  # noqa: PLC0415  only where somebody scrapes

        while not self._ended.is_set():
            families: list[Any] = []
            try:
                families.extend(REGISTRY.collect())
            except BaseException as error:
                # What the model measures is the model's; what it ran is shown all the same.
                self._say(error)
            self._slate.write(report(self._work, families))
            self._ended.wait(EVERY)

    def _say(self, error: BaseException) -> None:
        if type(error).__name__ != self._failure:
            self._failure = type(error).__name__
            self._failed(error)


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """One slot of a supervisor."""

    name: str
    state: str
    gpu: str
    deaths: Mapping[str, int]
    """Its model processes that ended and were replaced, by why."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """A supervisor, once."""

    slots: tuple[SlotFigures, ...]
    silences: Mapping[str, float]
    """By broker, for how many seconds it has not been heard."""
