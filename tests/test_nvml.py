"""What NVIDIA's library says of GPUs, from one that is made of plain data; without it, nothing is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from zbatch import nvml
from zbatch.nvml import GpuFigures, Gpus


class NVMLError(Exception):
    """As the library's."""


class Library:
    """Two GPUs; the second has a slice, which has memory but no use."""

    NVMLError = NVMLError
    uuids = ("GPU-aaaa", "GPU-bbbb")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(self.uuids):
            raise NVMLError("no such GPU")
        return self.uuids[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        if name != "MIG-cccc":
            raise NVMLError("no such slice")
        return name

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        if handle == "GPU-bbbb":
            raise NVMLError("lost")
        return SimpleNamespace(used=3, total=10)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle.startswith("MIG"):
            raise NVMLError("not supported")
        return SimpleNamespace(gpu=25)


def figures(*names: str, library: Any = None) -> list[GpuFigures]:
    return list(Gpus(names, lambda: library or Library()).read())


def test_a_gpu_is_found_by_its_index_and_by_how_its_uuid_begins() -> None:
    assert figures("0") == [GpuFigures("0", 3, 10, 0.25)]
    assert figures("GPU-aa") == [GpuFigures("GPU-aa", 3, 10, 0.25)]


def test_what_a_gpu_does_not_say_is_left_out() -> None:
    assert figures("MIG-cccc", "1") == [
        GpuFigures("1", None, None, 0.25),
        GpuFigures("MIG-cccc", 3, 10, None),
    ]


def test_a_gpu_that_is_not_there_is_left_out() -> None:
    assert figures("7", "GPU-zz", "0") == [GpuFigures("0", 3, 10, 0.25)]


def test_a_gpu_that_several_slots_share_is_told_once() -> None:
    assert len(figures("0", "0")) == 1


def test_a_library_that_is_not_there_is_sought_again_a_minute_later() -> None:
    now, sought, there = [5.0], [], [None, Library()]

    def find() -> Any:
        sought.append(now[0])
        return there.pop(0)

    gpus = Gpus(["0"], find, clock=lambda: now[0])
    seen: dict[float, list[GpuFigures]] = {}
    for now[0] in (5.0, 6.0, 64.9, 65.0, 200.0):
        seen[now[0]] = list(gpus.read())

    assert {at for at, told in seen.items() if told} == {65.0, 200.0}
    assert sought == [5.0, 65.0]


def test_without_gpus_the_library_is_not_sought() -> None:
    assert list(Gpus([], lambda: 1 / 0).read()) == []


def test_this_machine_has_the_library_or_has_it_not() -> None:
    found = nvml.load()
    assert found is None or found.nvmlDeviceGetCount() >= 0
