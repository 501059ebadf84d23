"""The examples as servers: started as their README says, and ended with all that they started."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from zbatch import ZClient

FLASK = "python examples/flask_example.py"
MULTIGPU = "python examples/flask_multigpu_example.py"
BROKER = "zbatch broker --frontend tcp://127.0.0.2:7000 --backend tcp://127.0.0.2:7001"
WORKER = (
    "zbatch worker examples/bert_model.py:ManagedBertModel --backend tcp://127.0.0.2:7001 --batch-size 64"
)
GUNICORN = "gunicorn -c examples/gunicorn_conf.py examples.gunicorn_example:app"

URL = "http://127.0.0.1:5005"
ROOT = Path(__file__).parents[2]
PATIENCE = 180
"""Seconds for models to load; guards against hanging."""


class Failed(Exception):
    """A server did not come up; the text says why."""


@contextmanager
def flask(workers: int) -> Iterator[None]:
    """``/naive`` and ``/stream`` of one process; the model is in it."""
    with _running([FLASK]):
        yield


@contextmanager
def multigpu(workers: int) -> Iterator[None]:
    """One web process, and model processes of its own."""
    with _running([f"{MULTIGPU} {workers}"]):
        yield


@contextmanager
def farm(workers: int) -> Iterator[None]:
    """Two web processes, a broker, and a worker with so many model processes, which share the cores."""
    with _running([BROKER, f"{WORKER} --num {workers}", GUNICORN]):
        with ZClient[str, str]("tcp://127.0.0.2:7000", timeout=PATIENCE) as client:
            _until(lambda: client.status()["topics"].get("default", {}).get("workers", 0) == workers)
        yield


def command(line: str) -> list[str]:
    """Return the words of a command of this environment."""
    name, *words = line.split()
    return [str(Path(sys.executable).parent / name), *words]


@contextmanager
def _running(lines: Sequence[str]) -> Iterator[None]:
    """Run commands from when the web server answers."""
    with ExitStack() as ends:
        log = ends.enter_context(tempfile.TemporaryFile("w+"))
        processes = []
        for line in lines:
            process = subprocess.Popen(command(line), stdout=log, stderr=log, cwd=ROOT)
            ends.callback(process.wait)
            ends.callback(process.terminate)
            processes.append(process)

        def answers() -> bool:
            if any(process.poll() is not None for process in processes):
                log.seek(0)
                raise Failed(f"{' & '.join(lines)}\n{log.read()}")
            return _answers()

        _until(answers)
        yield


def _answers() -> bool:
    try:
        urlopen(URL, timeout=1).close()
    except HTTPError:
        return True  # no such page, says a server
    except OSError:
        return False
    return True


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise Failed(f"no answer after {PATIENCE} s")
        time.sleep(0.1)
