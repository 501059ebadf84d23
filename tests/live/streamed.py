"""What the tests of Streamer hand to model processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from zbatch import ManagedModel


def double(batch: list[Any]) -> list[Any]:
    return [2 * item for item in batch]


def visible(batch: list[Any]) -> list[Any]:
    """Answer with what this process may see."""
    return [(os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid()) for _ in batch]


def dying(batch: list[Any]) -> list[Any]:
    """Die at the first try of what names a file that is not there yet."""
    for item in batch:
        if isinstance(item, str) and not os.path.exists(item):
            with open(item, "w"):
                os.abort()
    return batch


def counting_in_place(batch: list[Any]) -> list[float]:
    """Add one to each array, and answer with what it is then."""
    arrays = [item["x"][0] if isinstance(item, dict) else item for item in batch]
    for array in arrays:
        np.add(array, 1, out=array)
    return [float(array[0]) for array in arrays]


class Adder:
    """An object with a method that travels with its state."""

    def __init__(self, more: int) -> None:
        self.more = more

    def add(self, batch: list[int]) -> list[int]:
        return [item + self.more for item in batch]


class Managed(ManagedModel):
    """Says what it was made with."""

    def init_model(self, *args: Any, **kwargs: Any) -> None:
        self.model = (args, kwargs)

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        return [(item, self.gpu_id, *self.model) for item in batch]


class Threaded(ManagedModel):
    """Says whether it was made, and is run, in the main thread."""

    def init_model(self) -> None:
        self.model = threading.current_thread() is threading.main_thread()

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        return [(self.model, threading.current_thread() is threading.main_thread()) for _ in batch]


class Broken(ManagedModel):
    """Does not load."""

    def init_model(self) -> None:
        raise RuntimeError("no weights here")
