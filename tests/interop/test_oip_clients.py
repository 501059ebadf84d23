"""Clients of the Open Inference Protocol that others wrote make their calls, installed as their users do."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until

pytestmark = pytest.mark.live

MODEL = f"{ROOT}/examples/oip_model.py:Judge"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the example over HTTP; give host and port."""
    home = tmp_path_factory.mktemp("oip")
    front = f"ipc://{home}/front"
    ends = ("--gpu", "cpu", "--frontend", front, "--http", "127.0.0.1:0")
    serving = Zbatch(home / "serve.log", "serve", MODEL, "--topic", "judge", *ends)
    serving.says("model ready")
    said = serving.says("gateway started")
    address = said.partition("url=http://")[2].split()[0]
    until(lambda: _status(f"http://{address}/v2/health/ready") == 200)
    # A young broker's workers may still come, so it is no word yet that nobody serves a model.
    until(lambda: _status(f"http://{address}/v2/models/nobody/ready") == 404)
    yield address
    serving.process.terminate()
    serving.process.wait(PATIENCE)


@pytest.fixture
def lines(address: str) -> Callable[[str, str, str], list[str]]:
    """Run a script in the environment of its client; give what went well."""

    def run(environment: str, script: str, prefix: str) -> list[str]:
        python = Path(ROOT) / environment / "bin" / "python"
        if not python.exists():
            pytest.skip(f"there is no {environment}; make test-interop makes it")
        done = subprocess.run(
            [str(python), f"{ROOT}/tests/interop/{script}", prefix + address],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


def test_tritonclient_makes_its_calls(lines: Callable[..., list[str]]) -> None:
    assert lines(".venv-interop-oip", "oip_triton.py", "") == [
        "live and ready",
        "metadata and configuration",
        "index, and no loading",
        "binary and JSON",
        "compressed",
        "many at once",
        "statistics",
        "refused with a sentence",
        "on an event loop",
    ]


def test_open_inference_openapi_makes_its_calls(lines: Callable[..., list[str]]) -> None:
    assert lines(".venv-interop-oip", "oip_openapi.py", "http://") == [
        "live and ready",
        "metadata",
        "inference",
        "refused with a sentence",
        "on an event loop",
    ]


def test_kserve_makes_its_calls(lines: Callable[..., list[str]]) -> None:
    assert lines(".venv-interop-kserve", "oip_kserve.py", "http://") == [
        "live and ready",
        "inference, binary and JSON",
        "many at once",
        "refused with a sentence",
    ]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
