"""``zbatch check`` as a person at a shell, or a build, runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.live.shell import PATIENCE, all_end, environment, until, zbatch

pytestmark = pytest.mark.live

SHORT = ("--gpu", "cpu", "--batch-size", "4", "--duration", "10ms")

GOOD = """
print("a model that talks")

class Model:
    example = "x"

    def __init__(self, word="y"):
        self.word = word

    def predict(self, batch):
        return [item + self.word for item in batch]
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model.py"


def test_a_good_model_is_fit(model: Path) -> None:
    model.write_text(GOOD)
    found = zbatch("check", f"{model}:Model", *SHORT)
    assert (found.returncode, found.stderr) == (0, "a model that talks\n")
    lines = found.stdout.splitlines()
    assert lines[0].startswith("model ")
    assert ["batch", "runs", "time", "items/s"] in [line.split() for line in lines]
    assert "bad item   failed alone: model_failed: TypeError: " in found.stdout
    assert lines[-1].startswith("suggested: --batch-size ")


def test_a_build_can_read_what_was_found(model: Path) -> None:
    model.write_text(GOOD)
    found = zbatch("check", f"{model}:Model", *SHORT, "--arg", "word=z", "--json")
    assert found.returncode == 0
    report = json.loads(found.stdout)
    assert [one["items"] for one in report["sizes"]] == [1, 2, 4]
    assert report["suggested_batch_size"] in (1, 2, 4)
    assert (report["failed"], report["device"], report["item_from"]) == (None, "cpu", "its example")


def test_a_model_that_raises_fails_with_its_traceback(model: Path) -> None:
    model.write_text("class Model:\n    example = 1\n    def predict(self, batch):\n        1 / 0\n")
    found = zbatch("check", f"{model}:Model", *SHORT)
    assert found.returncode == 1
    assert "failed: the model cannot be warmed up: ZeroDivisionError: division by zero" in found.stderr
    assert found.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    told = json.loads(zbatch("check", f"{model}:Model", *SHORT, "--json").stdout)
    assert told["failed"].startswith("the model cannot be warmed up")
    assert told["traceback"].endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("end", "word"),
    [
        ("os.abort()", "SIGABRT"),
        ("os.kill(os.getpid(), 40)", "signal 40"),
        ("os._exit(0)", "exit status 0"),
        ("sys.exit(5)", None),
    ],
)
def test_a_model_that_ends_its_process_fails_and_what_it_did_is_told(
    model: Path, end: str, word: str | None
) -> None:
    model.write_text(
        "import os, sys\nclass Model:\n    example = 1\n    def predict(self, batch):\n"
        f"        if len(batch) == 2: {end}\n        return batch\n"
    )
    found = zbatch("check", f"{model}:Model", *SHORT)
    assert found.returncode == 1
    said = f"its process ended with {word} while running a batch of 2"
    assert (said if word else "failed: the model fails at a batch of 2: SystemExit: 5") in found.stderr
    assert "    1" in found.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Modell", "has no 'Modell'; did you mean Model?"),
        ("Model --arg words=z", "it takes word, given with --arg key=value"),
        ("Model --gpu 99", "GPU 99 is not there"),
        ("Model --batch-size 0", "wanted at least 1"),
        ("plain", "it has no example and no signature; give it one, or say --item"),
    ],
)
def test_a_wrong_call_is_told_in_a_sentence(model: Path, name: str, said: str) -> None:
    model.write_text(GOOD + "\ndef plain(batch): return batch\n")
    found = zbatch("check", *f"{model}:{name}".split(), *(SHORT if "--" not in name else SHORT[4:]))
    assert (found.returncode, found.stdout) == (2, "")
    assert said in found.stderr
    assert "Traceback" not in found.stderr


def test_a_model_that_hangs_fails_when_patience_ends(model: Path) -> None:
    model.write_text(
        GOOD.replace("return [", "len(batch) == 2 and sleep(10**6); return [") + "\nfrom time import sleep\n"
    )
    found = zbatch("check", f"{model}:Model", *SHORT, "--patience", "1s")
    assert found.returncode == 1
    assert "batch of 2" in found.stderr
    assert "took more than 1 s (--patience)" in found.stderr


def test_a_file_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    found = zbatch("check", f"{tmp_path}/none.py:Model")
    assert found.returncode == 2
    assert "there is no file" in found.stderr


def test_ctrl_c_leaves_no_process_behind(model: Path, tmp_path: Path) -> None:
    model.write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'loading')!r}).touch()\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-m", "zbatch", "check", f"{model}:Model", *SHORT]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as checking:
        until((tmp_path / "loading").exists)
        family = psutil.Process(checking.pid).children(recursive=True)
        checking.send_signal(signal.SIGINT)
        assert checking.wait(PATIENCE) == 130
    assert family
    assert all_end(family)
