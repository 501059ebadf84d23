"""Which GPU each model process sees, on hosts as they come."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zbatch import gpus
from zbatch.errors import ConfigError
from zbatch.gpus import Slot, choose, cores, visible

TWO = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5ff0a5b1-0c0e)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77aa0b1c-1d1f)
"""
SLICED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5ff0a5b1-0c0e)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaa-1)
  MIG 3g.20gb     Device  1: (UUID: MIG-aaaa-2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77aa0b1c-1d1f)
"""

Host = Callable[..., None]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Make a host whose nvidia-smi and driver say this; without them at first."""

    def make(listing: str | None = None, driver: tuple[str, ...] = (), status: int = 0) -> None:
        if listing is not None:
            program = tmp_path / "nvidia-smi"
            program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{listing}END\nexit {status}\n")
            program.chmod(0o755)
        for number, text in enumerate(driver):
            folder = tmp_path / "gpus" / f"0000:{number:02x}:00.0"
            folder.mkdir(parents=True)
            if text:
                (folder / "information").write_text(text)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "gpus")
    monkeypatch.setattr(gpus, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return make


def seen(gpu: str) -> Slot:
    return Slot(gpu, "cuda:0", {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def refusal(*wanted: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        choose(wanted, 1, environ or {})
    return str(caught.value)


def test_each_process_sees_its_own_gpu(host: Host) -> None:
    host(TWO)
    assert choose(("0", "1"), 2, {}) == [seen("0"), seen("0"), seen("1"), seen("1")]
    assert choose(("1",), 1, {}) == [seen("1")]
    assert choose(("all",), 1, {}) == [seen("0"), seen("1")]


def test_a_gpu_is_named_by_its_uuid_or_the_unique_beginning_of_one(host: Host) -> None:
    host(TWO)
    assert choose(("GPU-77aa0b1c-1d1f",), 1, {}) == [seen("GPU-77aa0b1c-1d1f")]
    assert choose(("GPU-77",), 1, {}) == [seen("GPU-77")]
    assert refusal("GPU-").startswith("GPU GPU- is not there: ")
    assert refusal("GPU-9").startswith("GPU GPU-9 is not there: ")


def test_an_order_that_the_user_set_stays(host: Host) -> None:
    host(TWO)
    [slot] = choose(("0",), 1, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert slot.env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_a_gpu_that_is_not_there_is_told_in_a_sentence(host: Host) -> None:
    host(TWO)
    assert refusal("0", "7") == "GPU 7 is not there: there are 0, 1; use --gpu cpu to run without"
    assert refusal("-1") == "GPU -1 is not there: there are 0, 1; use --gpu cpu to run without"


def test_a_host_without_gpus_says_so_and_has_a_cpu(host: Host) -> None:
    host()
    assert refusal("7") == (
        "GPU 7 is not there: there is none that this process may use; use --gpu cpu to run without"
    )
    assert [slot.gpu for slot in choose(("all",), 2, {})] == ["cpu", "cpu"]


def test_cpu_and_all_stand_alone(host: Host) -> None:
    host(TWO)
    assert refusal("0", "cpu") == "GPUs are 0,cpu, but 'cpu' stands alone"
    assert refusal("all", "1") == "GPUs are all,1, but 'all' stands alone"


def test_processes_on_the_cpu_share_its_cores(host: Host) -> None:
    host(TWO)
    shared = {name: "2" for name in gpus.THREAD_VARIABLES} | {"CUDA_VISIBLE_DEVICES": ""}
    assert choose(("cpu",), 4, {}) == [Slot("cpu", "cpu", shared)] * 4
    assert choose(("cpu",), 99, {})[0].env["OMP_NUM_THREADS"] == "1"


def test_a_number_of_threads_that_the_user_set_stays(host: Host) -> None:
    [slot] = choose(("cpu",), 1, {"OMP_NUM_THREADS": "3"})
    assert (slot.env["OMP_NUM_THREADS"], slot.env["MKL_NUM_THREADS"]) == ("3", "8")


@pytest.mark.parametrize(
    ("quota", "count"), [("max 100000", 8), ("250000 100000", 3), ("1000 100000", 1), ("9900000 100000", 8)]
)
def test_a_containers_share_of_the_cores_counts(host: Host, tmp_path: Path, quota: str, count: int) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert cores() == count


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        ("1", ["1"]),
        ("1, 0", ["1", "0"]),
        ("GPU-77", ["GPU-77"]),
        ("0,9,1", ["0"]),
        ("", []),
        ("-1", []),
    ],
)
def test_only_what_the_environment_allows_is_there(host: Host, allowed: str, found: list[str]) -> None:
    host(TWO)
    assert list(visible({"CUDA_VISIBLE_DEVICES": allowed})) == found
    assert refusal("5", environ={"CUDA_VISIBLE_DEVICES": allowed}).startswith("GPU 5 is not there")


def test_a_gpu_that_is_cut_into_slices_is_used_by_its_slices(host: Host) -> None:
    host(SLICED)
    assert list(visible({})) == ["MIG-aaaa-1", "MIG-aaaa-2", "1"]
    assert choose(("MIG-aaaa-2",), 1, {}) == [seen("MIG-aaaa-2")]


def test_lines_that_name_no_gpu_are_passed_over(host: Host) -> None:
    host("No devices found.\n" + TWO)
    assert list(visible({})) == ["0", "1"]


@pytest.mark.parametrize("smi", [None, "broken"])
def test_without_nvidia_smi_the_driver_is_asked(host: Host, smi: str | None) -> None:
    text = "Model: NVIDIA H200\nGPU UUID: GPU-{}\nDevice Minor: 0\n"
    listing = None if smi is None else "NVIDIA-SMI has failed\n"
    host(listing, (text.format("a1"), "", "no uuid here", text.format("b2")), status=9)
    assert visible({}) == {"0": "GPU-a1", "1": "GPU-b2"}
