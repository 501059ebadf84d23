"""Under gevent's patch a client lets other greenlets run while it waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, environment

pytestmark = pytest.mark.live

Run = Callable[..., Zbatch]

HELD = """
import pathlib, time

def predict(batch):
    for item in batch:
        while isinstance(item, dict) and not pathlib.Path(item["wait"]).exists():
            time.sleep(0.005)
    return batch
"""


def test_a_client_in_greenlets_blocks_nobody(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "held.py"
    model.write_text(HELD)
    endpoint = f"ipc://{tmp_path}/front"
    run("serve", f"{model}:predict", "--gpu", "cpu", "--frontend", endpoint).says("model ready")
    done = subprocess.run(
        [sys.executable, f"{ROOT}/tests/interop/greenlets.py", endpoint, str(tmp_path / "gate")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "each has its own answer",
        "others ran while many waited",
        "others ran while one waited",
        "cancelled",
        "the deadline passed",
        "a timeout of gevent's ended one call and no other",
        "callbacks and map",
        "a forked child asks for itself",
        "closed",
        "inside one process",
    ]
