"""gevent's patch that comes after the client was made, as gunicorn's ``--preload`` has it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, environment

pytestmark = pytest.mark.live

PROGRAM = """
import sys
from zbatch import ZClient
client = ZClient(sys.argv[1], timeout=60)

from gevent import monkey
monkey.patch_all()

import gevent, gevent.event
asked = [gevent.spawn(client.predict, [number]) for number in range(50)]
gevent.joinall(asked, raise_error=True)
print([one.value for one in asked] == [[number] for number in range(50)])
told = gevent.event.AsyncResult()
client.submit(["told"]).add_done_callback(lambda future: told.set(future.result()))
print(told.get(), client.status()["clients"])
client.close()
"""


def test_a_client_that_was_made_before_the_patch_is_used_after_it(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/front"
    model = f"{ROOT}/tests/live/models.py:Obedient"
    run("serve", model, "--gpu", "cpu", "--frontend", endpoint).says("model ready")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, endpoint],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True\n['told'] 1\n", 0), done.stderr
