"""Which GPU a model process sees, and how many threads it may use without one.

The choice is made in environment variables before anything is imported; no framework is loaded here.  What
is there is asked of ``nvidia-smi``, or read from the driver's files where that program is missing.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zbatch.errors import ConfigError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

DRIVER = Path("/proc/driver/nvidia/gpus")
QUOTA = Path("/sys/fs/cgroup/cpu.max")

PATIENCE = 20.0
"""Seconds for nvidia-smi: with a cold driver and eight GPUs it takes several."""

UUID = re.compile(r"(GPU|MIG)-[\w/-]+")


@dataclass(frozen=True)
class Slot:
    """One model process to be."""

    gpu: str
    """What people call its GPU: an index, a UUID, or ``cpu``."""
    device: str
    env: Mapping[str, str] = field(default_factory=dict)


def choose(gpus: Sequence[str], num: int, environ: Mapping[str, str] = os.environ) -> list[Slot]:
    """Return a slot for each model process: ``num`` for each GPU, or in all on the CPU.

    ``gpus`` are indices as ``nvidia-smi`` shows them and UUIDs (or their unique beginnings), or ``all``, or
    ``cpu``.  Raises :class:`ConfigError` for a GPU that is not there.
    """
    names = _named(gpus, environ)
    if not names:
        threads = str(max(1, cores() // num))
        env = {name: environ.get(name, threads) for name in THREAD_VARIABLES}
        return [Slot("cpu", "cpu", env | {"CUDA_VISIBLE_DEVICES": ""}) for _ in range(num)]
    # CUDA counts the fastest first unless it is told to count as nvidia-smi does.
    order = environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return [
        Slot(name, "cuda:0", {"CUDA_VISIBLE_DEVICES": name, "CUDA_DEVICE_ORDER": order})
        for name in names
        for _ in range(num)
    ]


def visible(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the GPUs that this process may use: their names, in order, and their UUIDs."""
    listed = _listed()
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return listed
    found: dict[str, str] = {}
    for one in (part.strip() for part in allowed.split(",")):
        uuid = listed.get(one) or _with_uuid(one, listed)
        if uuid is None:
            break  # so does CUDA: what stands behind a name that is none is not seen
        found[one] = uuid
    return found


def cores() -> int:
    """Return how many processors this process may keep busy; a container's share counts."""
    here = len(os.sched_getaffinity(0))
    try:
        quota, period = QUOTA.read_text().split()
        return min(here, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return here  # no such file, or "max": there is no bound


def _named(gpus: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    if tuple(gpus) == ("cpu",):
        return []
    there = visible(environ)
    if tuple(gpus) == ("all",):
        return list(there)
    for name in gpus:
        if name in ("cpu", "all"):
            raise ConfigError(f"GPUs are {','.join(gpus)}, but {name!r} stands alone")
        if name not in there and _with_uuid(name, there) is None:
            have = f"there are {', '.join(there)}" if there else "there is none that this process may use"
            raise ConfigError(f"GPU {name} is not there: {have}; use --gpu cpu to run without")
    return list(gpus)


def _with_uuid(name: str, there: Mapping[str, str]) -> str | None:
    """Return the UUID that begins like this, if exactly one does."""
    if not name.startswith(("GPU-", "MIG-")):
        return None
    found = [uuid for uuid in there.values() if uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _listed() -> dict[str, str]:
    try:
        shown = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return _of_driver()
    return _of_listing(shown.stdout) if shown.returncode == 0 else _of_driver()


def _of_listing(text: str) -> dict[str, str]:
    """Read ``nvidia-smi -L``.  A GPU that is cut into MIG slices is used by those, each by its UUID."""
    found: dict[str, str] = {}
    whole = ""
    for line in text.splitlines():
        uuid = UUID.search(line)
        index = re.match(r"GPU (\d+):", line)
        if uuid is None:
            continue
        if index is not None:
            whole = index[1]
            found[whole] = uuid[0]
        else:
            found.pop(whole, None)
            found[uuid[0]] = uuid[0]
    return found


def _of_driver() -> dict[str, str]:
    """Read the driver's files; their folders are bus addresses, which is the order of ``nvidia-smi``."""
    found: dict[str, str] = {}
    for folder in sorted(DRIVER.glob("*")):
        try:
            uuid = UUID.search((folder / "information").read_text())
        except OSError:
            continue
        if uuid is not None:
            found[str(len(found))] = uuid[0]
    return found
