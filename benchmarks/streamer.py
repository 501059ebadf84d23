"""The baseline that zbatch replaces: service_streamer's Streamer 0.1.2, in an environment of its own.

Its broker is a multiprocessing.Queue, its client lives in the load generator's process, and its worker
is a process that it starts itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.loads import Caller, Setup, pictures, texts

ENVIRONMENT = Path(".venv-streamer")


def interpreter() -> str:
    """Return the Python that has it; its environment is made at the first call."""
    made = [sys.executable, "tools/make_venv.py", str(ENVIRONMENT), "-r", "requirements/streamer.txt"]
    subprocess.run(made, check=True, stdout=sys.stderr)
    return str(ENVIRONMENT / "bin" / "python")


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[str]:
    """Nothing to start: its workers belong to its client."""
    yield ""


def connect(setup: Setup, endpoint: str) -> Callable[[], Caller]:
    """Return what makes a caller for one thread; all share the one Streamer."""
    from service_streamer import Streamer  # type: ignore[import-not-found,unused-ignore]

    model = getattr(models, setup.model)()
    streamer = Streamer(
        model.predict, setup.batch_size, max_latency=setup.max_latency, worker_num=setup.workers
    )
    items: list[Any] = pictures() if setup.item == "picture" else texts()
    is_own = _is_own_picture if setup.item == "picture" else _is_same
    caller = Caller([[item] for item in items], streamer.predict, streamer.submit, _result, is_own)
    return lambda: caller


def _result(future: Any) -> Any:
    return future.result(20)


def _is_same(request: list[str], output: list[str]) -> bool:
    return output == request


def _is_own_picture(request: list[Any], output: list[Any]) -> bool:
    return bool(output[0][0] == request[0][0, 0, 0])
