"""Which GPU a model process sees, and how many threads it may use without one.

The choice is made in environment variables before anything is imported; no framework is loaded here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zbatch.errors import ConfigError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Slot:
    """One model process to be."""

    gpu: str
    """What people call its GPU: an index, a UUID, or ``cpu``."""
    device: str
    env: Mapping[str, str] = field(default_factory=dict)


def choose(gpus: Sequence[str], num: int) -> list[Slot]:
    """Return a slot for each model process: ``num`` for each GPU, or in all on the CPU.

    Raises :class:`ConfigError` for a GPU that is not there.
    """
    names = _present(gpus)
    if not names:
        threads = str(max(1, (len(os.sched_getaffinity(0))) // num))
        env = {name: os.environ.get(name, threads) for name in THREAD_VARIABLES}
        return [Slot("cpu", "cpu", env | {"CUDA_VISIBLE_DEVICES": ""}) for _ in range(num)]
    return [Slot(name, "cuda:0", {"CUDA_VISIBLE_DEVICES": name}) for name in names for _ in range(num)]


def _present(gpus: Sequence[str]) -> list[str]:
    if tuple(gpus) == ("cpu",):
        return []
    there = visible()
    if tuple(gpus) == ("all",):
        return list(there)
    for name in gpus:
        known = name in there or any(uuid.startswith(name) for uuid in there.values())
        if not known:
            have = f"there are {', '.join(there)}" if there else "there is none on this host"
            raise ConfigError(f"GPU {name} is not there: {have}; use --gpu cpu to run without")
    return list(gpus)


def visible() -> dict[str, str]:
    """Return the GPUs that this process may use: index (or name) and UUID."""
    listed = _listed()
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return listed
    chosen = [one.strip() for one in allowed.split(",") if one.strip()]
    return {one: listed.get(one, one) for one in chosen if one in listed or one.startswith(("GPU-", "MIG-"))}


def _listed() -> dict[str, str]:
    try:
        shown = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if shown.returncode:
        return {}
    found = re.findall(r"^GPU (\d+):.*\(UUID: (\S+)\)", shown.stdout, re.MULTILINE)
    return dict(found)
