"""A client that a generator made from a gateway's OpenAPI document asks that gateway."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until
from zbatch import ZClient

pytestmark = pytest.mark.live

PYTHON = ROOT / ".venv-interop-oip" / "bin" / "python"


def test_a_generated_client_asks_with_the_types_that_the_model_declares(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no .venv-interop-oip; make test-interop makes it")
    front = f"ipc://{tmp_path}/front"
    model = f"{ROOT}/tests/interop/lines.py:lengths"
    serving = run(
        "serve", model, "--topic", "line", "--gpu", "cpu", "--frontend", front, "--http", "127.0.0.1:0"
    )
    url = serving.says("gateway started").partition("url=")[2].split()[0]
    with ZClient[object, object](front, timeout=PATIENCE) as client:
        until(lambda: client.status()["topics"].get("line", {}).get("workers"))
    document = tmp_path / "openapi.json"
    until(lambda: b"/predict/line" in urllib.request.urlopen(f"{url}/openapi.json", timeout=PATIENCE).read())
    document.write_bytes(urllib.request.urlopen(f"{url}/openapi.json", timeout=PATIENCE).read())

    generator = [str(PYTHON), "-m", "openapi_python_client", "generate", "--path", str(document)]
    _done([*generator, "--meta", "none", "--output-path", "generated"], tmp_path)

    told = _done([str(PYTHON), f"{ROOT}/tests/interop/generated_use.py", url], tmp_path)
    assert told.splitlines() == ["ready", "one item", "several items", "a refusal with its path"]


def _done(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
