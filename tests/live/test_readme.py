"""What a reader copies out of README.md and docs/ runs, and prints what the page says.

A page marks what is to be run with a comment right before a block:

``<!-- run file=NAME -->``   the block becomes a file
``<!-- run background -->``  its ``$ commands`` are started, and stopped at the end of the page
``<!-- run -->``             Python, or ``$ commands``, that must succeed
``<!-- output -->``          what the last one that ran prints

Each page runs from top to bottom in an empty directory of its own, with endpoints of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^<!-- (?P<what>run|output)(?P<how>[^>\n]*?) -->\n+```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if BLOCK.search(page.read_text(encoding="utf-8"))
]


class Block(NamedTuple):
    """A block that is marked."""

    what: str
    how: str
    language: str
    text: str


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.timeout(240)
def test_what_a_page_says_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    environment = endpoints_of_its_own(tmp_path)
    printed = ""
    with ExitStack() as started:
        for block in marked(page):
            if block.what == "output":
                assert printed.strip() == block.text.strip()
            elif block.how.startswith("file="):
                (tmp_path / block.how.removeprefix("file=")).write_text(block.text, encoding="utf-8")
            elif block.how == "background":
                for command in commands(block):
                    started.enter_context(running(command, tmp_path, environment))
            else:
                printed = "".join(output_of(command, tmp_path, environment) for command in commands(block))


def test_every_mark_in_a_page_is_understood() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        marks = re.findall(r"^<!-- (?:run|output)\b.*-->$", text, re.M)
        assert len(marks) == len(marked(page)), f"{page.name}: a mark is not right before a block"
        hows = {block.how.split("=")[0] for block in marked(page)}
        assert hows <= {"", "file", "background"}, page.name


def marked(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["what"], match["how"].strip(), match["language"], match["text"]) for match in found]


def commands(block: Block) -> list[list[str]]:
    """Return what a block asks to run: itself, if it is Python, or each of its lines after a dollar."""
    if block.language == "python":
        return [[sys.executable, "-c", block.text]]
    joined = block.text.replace("\\\n", " ")
    return [in_this_environment(line[2:]) for line in joined.splitlines() if line.startswith("$ ")]


def in_this_environment(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    return (
        [sys.executable, "-c", "from zbatch.cli import main; main()", *words[1:]]
        if words[0] == "zbatch"
        else words
    )


def endpoints_of_its_own(folder: Path) -> dict[str, str]:
    """Return an environment in which the defaults are sockets that no other test can meet."""
    front, back = f"ipc://{folder}/f", f"ipc://{folder}/b"
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "ZBATCH_BROKER": front,
        "ZBATCH_SERVE_FRONTEND": front,
        "ZBATCH_BROKER_FRONTEND": front,
        "ZBATCH_BROKER_BACKEND": back,
        "ZBATCH_WORKER_BACKEND": back,
        "CUDA_VISIBLE_DEVICES": "",
    }


def output_of(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        yield
        assert process.poll() is None, f"{shlex.join(command)} ended with {process.returncode}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
