"""Streamer: model processes of one's own, by the name that service_streamer gave them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.live.shell import PATIENCE, environment, until
from tests.live.streamed import Adder, Broken, Managed, Threaded, counting_in_place, double, dying, visible
from zbatch import BadOutput, BatchError, ClientClosed, DeadlineExceeded, ModelFailed, Streamer
from zbatch.security import make_farm

pytestmark = pytest.mark.live


def run_script(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a user's script."""
    script = tmp_path / "script.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def test_a_function_runs_in_processes_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    me = psutil.Process()
    before, place = set(me.children(recursive=True)), tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", place)
    streamer = Streamer(double, 8, worker_num=2, wait_for_worker_ready=True)
    assert streamer.predict([1, 2, 3]) == [2, 4, 6]
    assert streamer.predict((1,)) == [2]
    assert streamer.predict([]) == []
    assert streamer.submit([4]).result() == [8]
    own = set(me.children(recursive=True)) - before
    assert len(own) >= 4  # a supervisor of all, the broker, the workers' one, two model processes
    streamer.destroy_workers()
    until(lambda: not any(one.is_running() for one in own))
    os.rmdir(place)  # it is empty
    with pytest.raises(ClientClosed):
        streamer.predict([1])
    streamer.destroy_workers()


def test_methods_and_models_travel_with_what_they_are_made_of() -> None:
    streamer = Streamer(Adder(5).add, 8)
    assert streamer.predict([1, 2]) == [6, 7]
    streamer.destroy_workers()
    with pytest.warns(RuntimeWarning, match="cuda_devices names GPU 3: there is none") as warned:
        streamer = Streamer(Managed, 8, 0.1, 1, [3], ["a"], {"b": 1})
    assert len(warned) == 1
    assert streamer.predict(["x"]) == [("x", 3, ("a",), {"b": 1})]
    streamer.destroy_workers()


def test_a_model_is_made_and_run_in_the_main_thread_of_its_process() -> None:
    streamer = Streamer(Threaded, 8)
    assert streamer.predict([1, 2]) == [(True, True)] * 2
    streamer.destroy_workers()


@pytest.mark.filterwarnings("ignore:cuda_devices")
def test_each_process_sees_its_own_device_in_turn_for_plain_functions_too() -> None:
    streamer = Streamer(visible, 1, worker_num=3, cuda_devices=(0, 1), wait_for_worker_ready=True)
    seen: dict[int, str] = {}

    def all_seen() -> bool:
        with ThreadPoolExecutor(6) as pool:
            for ((device, pid),) in pool.map(streamer.predict, [[1]] * 12):
                seen[pid] = device
        return len(seen) == 3

    until(all_seen)
    assert sorted(seen.values()) == ["0", "0", "1"]
    streamer.destroy_workers()


def test_minus_one_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    for minus_one in ("-1", -1, [-1]):
        streamer = Streamer(visible, 1, cuda_devices=minus_one)
        assert streamer.predict([1])[0][0] == "-1"
        streamer.destroy_workers()
    streamer = Streamer(visible, 1)
    assert streamer.predict([1])[0][0] == "7"
    streamer.destroy_workers()


def test_a_process_that_dies_is_replaced_and_its_items_run_again(tmp_path: Path) -> None:
    streamer = Streamer(dying, 4, worker_num=2)
    assert streamer.predict([str(tmp_path / "once"), 1, 2]) == [str(tmp_path / "once"), 1, 2]
    streamer.destroy_workers()


def test_what_the_model_raises_is_raised_at_once_and_it_serves_on() -> None:
    streamer = Streamer(double, 4)
    with pytest.raises(ModelFailed, match="unsupported operand"):
        streamer.predict([None])
    with pytest.raises(TypeError, match=r"item(\[| )?.* is a "):
        streamer.predict([object()])
    assert streamer.predict([1]) == [2]
    assert issubclass(DeadlineExceeded, TimeoutError)
    assert issubclass(BadOutput, Exception)
    streamer.destroy_workers()


def test_keys_of_the_environment_are_for_other_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_farm(tmp_path / "farm")
    monkeypatch.setenv("ZBATCH_KEYS", str(tmp_path / "farm"))
    streamer = Streamer(double, 4)
    assert streamer.predict([1]) == [2]
    streamer.destroy_workers()


def test_arrays_come_back_writable() -> None:
    streamer = Streamer(double, 4)
    small, large = streamer.predict([np.ones(3), np.ones(100_000)])
    small[0] = large[0] = 5.0
    assert (small[0], large[0], large[1]) == (5.0, 5.0, 2.0)
    streamer.destroy_workers()


def test_arrays_may_be_written_to_by_the_function_too_and_a_second_run_has_them_as_they_were() -> None:
    streamer = Streamer(counting_in_place, 4)
    large, nested = np.zeros(100_000), {"x": (np.zeros(3), "text", [np.zeros(1)])}
    assert streamer.predict([large, nested]) == [1.0, 1.0]
    with pytest.raises(BatchError) as failed:
        streamer.predict([large, nested, "no array"])
    assert failed.value.results == [1.0, 1.0, None]
    streamer.destroy_workers()


def test_a_model_that_does_not_load_is_told_to_who_waits_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClientClosed, match="gave up"):
        Streamer(Broken, 4, wait_for_worker_ready=True, worker_timeout=PATIENCE)
    assert "no weights here" in capfd.readouterr().err


def test_who_waits_for_workers_waits_for_each_and_hears_how_many_there_are() -> None:
    with pytest.raises(TimeoutError, match=r"0 of 2 workers are ready after 0\.02 s; give worker_timeout"):
        Streamer(double, 4, worker_num=2, wait_for_worker_ready=True, worker_timeout=0.01)


def test_a_model_that_does_not_load_ends_calls_before_their_timeout() -> None:
    streamer = Streamer(Broken, 4, worker_timeout=100 * PATIENCE)
    with pytest.raises(ClientClosed, match="gave up"):
        streamer.predict([1])
    streamer.destroy_workers()


def test_a_lambda_gets_a_sentence() -> None:
    with pytest.raises(TypeError, match="a lambda has no name that other processes could load"):
        Streamer(lambda batch: batch, 4)
    with pytest.raises(ValueError, match="wanted spawn, fork or forkserver"):
        Streamer(double, 4, mp_start_method="thread")
    with pytest.raises(TypeError, match="wanted a function of a list"):
        Streamer("double", 4)  # type: ignore[arg-type]


def test_a_streamer_that_is_collected_ends_its_processes() -> None:
    before = set(psutil.Process().children(recursive=True))
    streamer = Streamer(double, 4)
    assert streamer.predict([1]) == [2]
    own = set(psutil.Process().children(recursive=True)) - before
    del streamer
    gc.collect()
    until(lambda: not any(one.is_running() for one in own))


def test_it_outlives_the_thread_that_made_it() -> None:
    made: list[Streamer] = []
    maker = threading.Thread(target=lambda: made.append(Streamer(double, 4)))
    maker.start()
    maker.join(PATIENCE)
    assert made[0].predict([1]) == [2]
    assert made[0].predict([2]) == [4]
    made[0].destroy_workers()


MAIN = """
import os, sys, zbatch

def shout(batch):
    return [word.upper() for word in batch]

class Loud(zbatch.ManagedModel):
    def init_model(self, mark):
        self.mark = mark
    def predict(self, batch):
        return [word + self.mark for word in batch]

if __name__ == "__main__":
    streamer = zbatch.Streamer(shout, 8)
    managed = zbatch.Streamer(Loud, 8, model_init_args=["!"])
    print(streamer.predict(["a", "b"]), managed.predict(["a"]), flush=True)
"""


def test_functions_and_classes_of_the_main_script_work(tmp_path: Path) -> None:
    done = run_script(tmp_path, MAIN)
    assert (done.stdout, done.returncode) == ("['A', 'B'] ['a!']\n", 0), done.stderr


def test_without_a_guard_a_sentence_says_what_is_missing(tmp_path: Path) -> None:
    done = run_script(tmp_path, MAIN.replace('if __name__ == "__main__":', "if True:"))
    assert "under  if __name__ == '__main__':" in done.stderr
    assert done.returncode == 1


READ = """
import zbatch
from tests.live.streamed import double

def shout(batch):
    return batch

print(zbatch.Streamer(double, 8).predict([1]), flush=True)
zbatch.Streamer(shout, 8)
"""


@pytest.mark.parametrize("how", [["-"], ["-c", READ], ["-m", "package"]], ids=["stdin", "c", "package"])
def test_what_stands_where_no_process_can_import_it_gets_a_sentence(how: list[str], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(READ)
    done = subprocess.run(
        [sys.executable, *how],
        input=READ,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == "[2]\n", done.stderr
    assert "TypeError: shout cannot be sent to a model process: it is defined where no other" in done.stderr


def test_a_killed_owner_takes_all_along(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MAIN + "    import time; time.sleep(600)\n")
    owner = subprocess.Popen([sys.executable, str(script)], env=environment(), stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"['A', 'B'] ['a!']\n"
    own = psutil.Process(owner.pid).children(recursive=True)
    homes = {arg for one in own for arg in one.cmdline() if "zbatch-" in arg}
    owner.send_signal(signal.SIGKILL)
    owner.wait(PATIENCE)
    until(lambda: not any(one.is_running() for one in own))
    assert homes is not None
    owner.stdout.close()


def test_a_fork_uses_the_parents_processes_and_does_not_end_them() -> None:
    streamer = Streamer(double, 4)
    assert streamer.predict([1]) == [2]
    child = os.fork()
    if not child:
        right: Any = streamer.predict([3]) == [6]
        streamer.destroy_workers()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert streamer.predict([2]) == [4]
    streamer.destroy_workers()
