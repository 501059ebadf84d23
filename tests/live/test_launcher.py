"""``zbatch serve`` with real processes: it answers, survives its parts, and leaves nobody behind."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, all_end, until, zbatch
from zbatch import ZClient
from zbatch.security import make_farm

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]

DOUBLER = f"{ROOT}/examples/doubler.py:Doubler"


@pytest.fixture
def frontend(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/front"


def ask(frontend: str, topic: str, *items: str) -> list[str]:
    found = zbatch("predict", "--endpoint", frontend, topic, *items)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def child(served: Zbatch, role: str) -> psutil.Process:
    (found,) = [one for one in served.family() if f"zbatch.launcher {role}" in " ".join(one.cmdline())]
    return found


def test_serve_answers_and_leaves_on_sigterm_with_all_that_it_started(run: Start, frontend: str) -> None:
    served = run("serve", DOUBLER, "--topic", "doubler", "--gpu", "cpu", "--frontend", frontend)
    served.says("model ready")
    assert ask(frontend, "doubler", "1", '"ab"') == ["2", '"abab"']
    family = served.family()
    home = Path(served.says("launcher started").partition(" home=")[2].split()[0])
    served.signal(signal.SIGTERM)
    assert served.ends() == 0
    assert all_end(family)
    assert not home.exists()


def test_a_broker_and_a_worker_that_are_killed_come_back(run: Start, frontend: str) -> None:
    served = run("serve", DOUBLER, "--topic", "doubler", "--gpu", "cpu", "--frontend", frontend)
    served.says("model ready")
    # A model may be loaded before the broker has said its first line.
    served.says("broker started")
    child(served, "broker").kill()
    assert ask(frontend, "doubler", "1") == ["2"]
    served.says("broker started", times=2)
    child(served, "worker").kill()
    served.says("model ready", times=2)
    assert ask(frontend, "doubler", "2") == ["4"]


def test_no_process_outlives_a_launcher_that_is_killed(run: Start, frontend: str) -> None:
    served = run("serve", DOUBLER, "--gpu", "cpu", "--num", "2", "--frontend", frontend)
    served.says("model ready", times=2)
    family = served.family()
    assert len(family) >= 4
    served.signal(signal.SIGKILL)
    assert served.ends() == -signal.SIGKILL
    assert all_end(family)


def test_the_folder_of_one_that_was_killed_is_removed_by_the_next(
    run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = Path(tempfile.mkdtemp())  # short enough for a socket's path
    monkeypatch.setenv("TMPDIR", str(homes))
    killed = run("serve", DOUBLER, "--gpu", "cpu", "--frontend", f"ipc://{tmp_path}/1")
    killed.says("model ready")
    (left,) = homes.iterdir()
    family = killed.family()
    killed.signal(signal.SIGKILL)
    killed.ends()
    assert all_end(family)
    alive = run("serve", DOUBLER, "--gpu", "cpu", "--frontend", f"ipc://{tmp_path}/2")
    alive.says("model ready")
    assert not left.exists()
    (mine,) = homes.iterdir()
    third = run("serve", DOUBLER, "--gpu", "cpu", "--frontend", f"ipc://{tmp_path}/3")
    third.says("model ready")
    assert mine.exists()
    for one in (alive, third):
        one.signal(signal.SIGTERM)
        assert one.ends() == 0
    homes.rmdir()


def test_a_signal_to_every_process_of_a_service_ends_no_batch(
    run: Start, frontend: str, tmp_path: Path
) -> None:
    model = tmp_path / "slow.py"
    model.write_text("import time\ndef predict(batch):\n    time.sleep(2)\n    return batch\n")
    served = run("serve", f"{model}:predict", "--gpu", "cpu", "--frontend", frontend)
    served.says("model ready")
    with ZClient[Any, Any](frontend, timeout=PATIENCE) as client:
        running = client.submit(["x"])
        until(lambda: bool(client.status()["topics"].get("default", {}).get("running")))
        for one in [*served.family(), psutil.Process(served.process.pid)]:
            one.send_signal(signal.SIGTERM)
        assert running.result() == ["x"]
    assert served.ends() == 0


def test_the_second_signal_ends_it_at_once(run: Start, frontend: str, tmp_path: Path) -> None:
    model = tmp_path / "slow.py"
    model.write_text(
        "import time\ndef predict(batch):\n    print('asked', flush=True)\n    time.sleep(600)\n"
    )
    served = run("serve", f"{model}:predict", "--gpu", "cpu", "--frontend", frontend)
    served.says("model ready")
    client = run("predict", "--endpoint", frontend, "default", "1", "--timeout", "500s")
    family = served.family()
    served.signal(signal.SIGINT)
    served.says("serve: leaving")
    served.signal(signal.SIGINT)
    served.ends()
    assert all_end(family)
    client.process.kill()


SLOW = """
import time

class Slow:
    def setup(self, context):
        open({begun!r}, "w").close()
        time.sleep(600)

    def predict(self, batch):
        return batch
"""


def slow_to_load(home: Path) -> tuple[str, Path]:
    """Return the name of a model that takes ten minutes to load, and the file that says it has begun."""
    begun = home / "begun"
    (home / "slow.py").write_text(SLOW.format(begun=str(begun)))
    return f"{home}/slow.py:Slow", begun


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_model_that_still_loads_is_not_waited_for(run: Start, tmp_path: Path, command: str) -> None:
    model, begun = slow_to_load(tmp_path)
    side = "--backend" if command == "worker" else "--frontend"
    served = run(command, model, "--gpu", "cpu", side, f"ipc://{tmp_path}/end", "--timing-drain", "600s")
    until(begun.exists)
    family = served.family()
    served.signal(signal.SIGTERM)
    assert served.ends() == 0
    assert all_end(family)
    assert "model process ended" not in served.log.read_text()


def test_a_part_that_gives_up_ends_it_although_a_model_still_loads(
    run: Start, frontend: str, tmp_path: Path
) -> None:
    run("broker", "--frontend", frontend, "--backend", f"ipc://{tmp_path}/back").says("broker started")
    model, _ = slow_to_load(tmp_path)
    served = run("serve", model, "--gpu", "cpu", "--frontend", frontend, "--timing-drain", "600s")
    assert served.ends() == 2


WAITING = """
import time
from pathlib import Path
from typing import Any

def comes(name):
    while not Path({home!r}, name).exists():
        time.sleep(0.01)

class Waits:
    def predict(self, batch):
        Path({home!r}, "runs").touch()
        comes("go on")
        return batch

class Fails:
    def setup(self, context):
        comes("fail")
        raise RuntimeError("told to")

    def predict(self, batch):
        return batch
"""


def test_the_first_order_while_it_leaves_of_its_own_accord_ends_no_batch(
    run: Start, frontend: str, tmp_path: Path
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING.format(home=str(tmp_path)))
    parts = [
        f'[[worker]]\nname = "{one}"\nmodel = "waiting.py:{one}"\ntopic = "{one}"\ngpu = "cpu"\n'
        for one in ("Waits", "Fails")
    ]
    (tmp_path / "serve.toml").write_text("".join(parts))
    served = run("serve", "--config", f"{tmp_path}/serve.toml", "--frontend", frontend)
    with ZClient[str, str](frontend, topic="Waits", timeout=PATIENCE) as client:
        asked = client.submit(["a"])
        until((tmp_path / "runs").exists)
        (tmp_path / "fail").touch()
        served.says("worker gave up")
        served.says("worker: leaving")
        served.signal(signal.SIGTERM)
        time.sleep(0.2)
        (tmp_path / "go on").touch()
        assert asked.result(PATIENCE) == ["a"]
    assert served.ends() == 1


def test_wrong_settings_of_a_part_end_it_with_a_sentence(run: Start, frontend: str) -> None:
    run("serve", DOUBLER, "--gpu", "cpu", "--frontend", frontend).says("broker started")
    second = zbatch("serve", DOUBLER, "--gpu", "cpu", "--frontend", frontend)
    assert second.returncode == 2
    assert "another broker listens there" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_model_that_does_not_load_ends_it(frontend: str) -> None:
    found = zbatch("serve", "nowhere.py:Model", "--gpu", "cpu", "--frontend", frontend)
    assert found.returncode in (1, 2)
    assert "nowhere.py" in found.stderr


def test_a_gpu_that_is_not_there_ends_it_at_once(frontend: str) -> None:
    found = zbatch("serve", DOUBLER, "--gpu", "77", "--frontend", frontend)
    assert found.returncode == 2
    assert "77" in found.stderr


@pytest.mark.parametrize(
    ("name", "questions"),
    [
        ("one_host.toml", {"doubler": "2"}),
        ("cpu.toml", {"doubler": "2"}),
        ("two_models.toml", {"doubler": "2", "shout": '"1"'}),
    ],
)
def test_every_example_file_starts_and_answers(
    run: Start, frontend: str, name: str, questions: dict[str, str]
) -> None:
    served = run("serve", "--config", f"{ROOT}/configs/{name}", "--frontend", frontend)
    for topic, answer in questions.items():
        item = "1" if topic == "doubler" else '"1"'
        assert ask(frontend, topic, item) == [answer]
    served.signal(signal.SIGTERM)
    assert served.ends() == 0


def test_the_farm_starts_part_by_part(run: Start, frontend: str, tmp_path: Path) -> None:
    make_farm(tmp_path / "keys")
    file = ("--config", f"{ROOT}/configs/farm.toml", "--keys", str(tmp_path / "keys"))
    backend = ("--backend", f"ipc://{tmp_path}/back")
    broker = run("broker", *file, "--frontend", frontend, *backend)
    workers = [run("worker", *file, "--name", one, "--gpu", "cpu", *backend) for one in ("large", "small")]
    for one in workers:
        one.says("model ready")
    asked = zbatch("predict", "--endpoint", frontend, "--keys", str(tmp_path / "keys"), "doubler", "1")
    assert asked.stdout == "2\n"
    for one in [*workers, broker]:
        one.signal(signal.SIGTERM)
        assert one.ends() == 0


def test_status_shows_the_workers_of_this_host(run: Start, frontend: str) -> None:
    run("serve", DOUBLER, "--topic", "doubler", "--gpu", "cpu", "--frontend", frontend).says("model ready")
    assert ask(frontend, "doubler", "1") == ["2"]
    assert zbatch("status", "--check", "--topic", "doubler", "--endpoint", frontend).returncode == 0
    assert os.uname().nodename in zbatch("status", "--endpoint", frontend).stdout
