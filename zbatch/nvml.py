"""How busy GPUs are and how full, where NVIDIA's library and its Python package are there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

AGAIN = 60.0
"""Seconds until the library is sought again where it was not there: a driver may be loaded later."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU; None: it does not say."""

    name: str
    """What people call it, as ``--gpu`` does."""
    used: int | None = None
    total: int | None = None
    busy: float | None = None
    """The share of the time, lately, in which something ran there."""


class Gpus:
    """Some of the GPUs of this host."""

    def __init__(
        self,
        names: Iterable[str],
        find: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = sorted(set(names))
        self._find = find or load
        self._clock = clock
        self._library: Any = None
        self._seek_at = -math.inf
        """When the library is sought next, while it is not there."""

    def read(self) -> Iterator[GpuFigures]:
        """Return how each is; nothing, where it cannot be asked.  The library is loaded here, if at all."""
        if not self._names:
            return
        if self._library is None and (now := self._clock()) >= self._seek_at:
            self._seek_at = now + AGAIN
            self._library = self._find()
        if self._library is None:
            return
        for name in self._names:
            found = _read(self._library, name)
            if found is not None:
                yield found


def load() -> ModuleType | None:
    """Return NVIDIA's library, begun; None where it is not there."""
    try:
        import pynvml  # noqa: PLC0415  optional, and of no use where no GPU is served
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml  # type: ignore[no-any-return]


def _read(library: Any, name: str) -> GpuFigures | None:
    handle = _asked(library, lambda: _handle(library, name))
    if handle is None:
        return None
    memory = _asked(library, lambda: library.nvmlDeviceGetMemoryInfo(handle))
    # A slice of a GPU has no such figure.
    rates = _asked(library, lambda: library.nvmlDeviceGetUtilizationRates(handle))
    return GpuFigures(
        name,
        used=None if memory is None else memory.used,
        total=None if memory is None else memory.total,
        busy=None if rates is None else rates.gpu / 100,
    )


def _handle(library: Any, name: str) -> Any:
    if name.isdigit():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        if str(library.nvmlDeviceGetUUID(handle)).startswith(name):
            return handle
    return library.nvmlDeviceGetHandleByUUID(name)  # a slice, by its whole name


def _asked(library: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except library.NVMLError:
        return None
