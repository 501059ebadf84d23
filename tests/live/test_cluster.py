"""A broker, workers and clients as processes: batches form across them, and no crash costs an answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, all_end, environment, until
from zbatch import (
    BatchError,
    DeadlineExceeded,
    ModelFailed,
    NoWorkers,
    PoisonItem,
    UnknownTopic,
    ZClient,
)

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]
MODEL = f"{ROOT}/tests/live/models.py:Obedient"


class Cluster:
    """A broker on its own sockets, and workers that serve it."""

    def __init__(self, run: Start, home: Path) -> None:
        self.run = run
        self.frontend, self.backend = f"ipc://{home}/front", f"ipc://{home}/back"
        self.journal = home / "ran"
        self.broker = self.start_broker()

    def start_broker(self, *options: str) -> Zbatch:
        broker = self.run("broker", "--frontend", self.frontend, "--backend", self.backend, *options)
        broker.says("broker started")
        return broker

    def start_worker(self, *options: str, num: int = 1) -> Zbatch:
        worker = self.run(
            *("worker", MODEL, "--gpu", "cpu", "--num", str(num), "--backend", self.backend),
            *("--arg", f"journal={self.journal}", *options),
        )
        worker.says("model ready", times=num)
        return worker

    def batches(self) -> list[int]:
        """Return the sizes of the batches that ran."""
        return [int(line.split()[1]) for line in self.journal.read_text().splitlines()]

    def began(self) -> None:
        """Wait until a batch runs, or ran."""
        until(self.journal.exists)


@pytest.fixture
def cluster(run: Start, tmp_path: Path) -> Cluster:
    return Cluster(run, tmp_path)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ZClient[object, object]]:
    with ZClient[object, object](cluster.frontend, timeout=PATIENCE) as client:
        yield client


def model_processes(worker: Zbatch) -> list[psutil.Process]:
    return [one for one in worker.family() if "zbatch.model_process" in " ".join(one.cmdline())]


def keep_asking(
    client: ZClient[object, object], stop: threading.Event
) -> tuple[list[object], list[threading.Thread]]:
    """Ask from four threads until told to stop; return what went wrong, which should be nothing."""
    wrong: list[object] = []

    def ask(name: int) -> None:
        for number in range(10**9):
            if stop.is_set():
                return
            item = f"{name}-{number}"
            try:
                if client.predict([item]) != [item]:
                    wrong.append(item)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    return wrong, threads


def test_items_of_several_client_processes_share_batches(cluster: Cluster) -> None:
    cluster.start_worker("--batch-size", "16", "--arg", "pause=0.02")
    code = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; from zbatch import ZClient\n"
        "with ZClient(sys.argv[1]) as client, ThreadPoolExecutor(4) as pool:\n"
        "    items = [f'{sys.argv[2]}-{n}' for n in range(60)]\n"
        "    assert list(pool.map(client.predict_one, items)) == items\n"
    )
    asking = [
        subprocess.Popen([sys.executable, "-c", code, cluster.frontend, str(n)], env=environment())
        for n in range(3)
    ]
    assert [one.wait(PATIENCE) for one in asking] == [0, 0, 0]
    assert sum(cluster.batches()) == 180
    # Each process has four callers: a batch of more than four was gathered across processes.
    assert max(cluster.batches()) > 4


def test_a_model_process_killed_with_a_batch_in_flight_costs_no_caller_an_error(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    worker = cluster.start_worker("--arg", "pause=0.05", num=2)
    stop = threading.Event()
    wrong, threads = keep_asking(client, stop)
    for deaths in range(3):
        model_processes(worker)[0].kill()
        worker.says("model ready", times=3 + deaths)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []
    assert cluster.broker.log.read_text().count("worker died") == 3


def test_a_broker_killed_and_started_again_under_load_costs_no_caller_an_error(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    cluster.start_worker("--arg", "pause=0.01", num=2)
    stop = threading.Event()
    wrong, threads = keep_asking(client, stop)
    for _ in range(2):
        cluster.broker.signal(signal.SIGKILL)
        cluster.broker.ends()
        again = cluster.broker = cluster.start_broker()
        again.says("worker ready", times=2)
        assert client.predict(["still there"]) == ["still there"]
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []


def test_a_supervisor_that_is_killed_leaves_no_orphan(cluster: Cluster) -> None:
    worker = cluster.start_worker(num=2)
    family = worker.family()
    worker.signal(signal.SIGKILL)
    assert len(family) == 2
    assert all_end(family)


def test_an_exception_and_a_wrong_count_fail_only_the_guilty_item(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    cluster.start_worker()
    with pytest.raises(BatchError) as caught:
        client.predict(["a", "raise", "b", "short", "c", "fail"])
    assert caught.value.results == ["a", None, "b", None, "c", None]
    assert {place: type(error).__name__ for place, error in caught.value.errors.items()} == {
        1: "ModelFailed",
        3: "BadOutput",
        5: "ModelFailed",
    }
    with pytest.raises(ModelFailed, match="ValueError: told to raise"):
        client.predict(["raise"])


def test_a_worker_says_where_its_model_fails_and_not_what_about(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    worker = cluster.start_worker()
    client.predict(["raise", "a", "raise"], return_exceptions=True)
    client.predict(["raise"], return_exceptions=True)
    told = worker.says("model failed")
    assert f" kind=ValueError at={ROOT}/tests/live/models.py:" in told
    assert "items=2" in told
    assert "told to raise" not in told
    assert told.count("model failed") == 1
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert [line.split("items=")[1] for line in worker.log.read_text().splitlines() if "failed" in line] == [
        "2",
        "1",
    ]


@pytest.mark.parametrize("guilty", ["die", "interrupt"])
def test_an_item_that_ends_processes_is_found_and_its_neighbours_get_their_results(
    cluster: Cluster, client: ZClient[object, object], guilty: str
) -> None:
    cluster.start_worker(num=2)
    items = [f"item {n}" for n in range(7)] + [guilty] + [f"item {n}" for n in range(8, 16)]
    found = client.predict(items, return_exceptions=True)
    assert [one for one in found if not isinstance(one, PoisonItem)] == items[:7] + items[8:]
    assert isinstance(found[7], PoisonItem)


def test_a_batch_beyond_its_lease_ends_its_process_and_spares_the_neighbours(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    worker = cluster.start_worker("--lease", "1s", num=2)
    found = client.predict(["a", {"sleep": 3600}, "b"], return_exceptions=True)
    assert found[0] == "a" and found[2] == "b"
    assert isinstance(found[1], PoisonItem)
    worker.says("lease over", times=2)


def test_a_worker_stopped_as_a_whole_for_longer_than_its_lease_goes_on(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    worker = cluster.start_worker("--lease", "2s")
    item = {"sleep": 3.0}  # half a second longer than the stop, which is longer than the lease
    future = client.submit([item])
    cluster.began()
    (model,) = model_processes(worker)
    whole = [psutil.Process(worker.process.pid), model]
    for one in whole:
        one.suspend()
    time.sleep(2.5)
    for one in whole:
        one.resume()
    assert future.result(PATIENCE) == [item]
    assert model.is_running()
    assert "lease over" not in worker.log.read_text()


def test_a_request_waits_for_workers_that_come_and_fails_at_its_deadline_if_none_does(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    early = client.submit(["waited"])
    with pytest.raises(NoWorkers, match="no worker served topic 'default' meanwhile"):
        client.predict(["x"], timeout=0.3)
    cluster.start_worker()
    assert early.result(PATIENCE) == ["waited"]


def test_a_deadline_holds_while_the_model_runs(cluster: Cluster, client: ZClient[object, object]) -> None:
    cluster.start_worker()
    with pytest.raises(DeadlineExceeded, match="while it ran"):
        client.predict([{"sleep": 2}], timeout=0.3)


def test_topics_that_the_broker_was_not_told_are_unknown_at_once(run: Start, tmp_path: Path) -> None:
    cluster = Cluster.__new__(Cluster)
    cluster.run = run
    cluster.frontend, cluster.backend = f"ipc://{tmp_path}/f", f"ipc://{tmp_path}/b"
    cluster.start_broker("--topics", "a,b")
    with ZClient[str, str](cluster.frontend) as client, pytest.raises(UnknownTopic, match="serves a, b"):
        client.predict(["x"], topic="c")


def test_cancelled_items_that_wait_are_never_run(cluster: Cluster, client: ZClient[object, object]) -> None:
    cluster.start_worker("--batch-size", "1")
    running = client.submit([{"sleep": 1}])
    waiting = [client.submit([f"w{n}"]) for n in range(20)]
    assert all(future.cancel() for future in waiting)
    assert running.result(PATIENCE) == [{"sleep": 1}]
    assert client.predict(["after"]) == ["after"]
    # The first, the last, and at most the one that was prefetched before its cancel arrived.
    assert len(cluster.batches()) <= 3


def test_sigterm_drains_a_worker_under_load_without_a_failed_request(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    first = cluster.start_worker("--arg", "pause=0.02")
    stop = threading.Event()
    wrong, threads = keep_asking(client, stop)
    cluster.start_worker("--arg", "pause=0.02")
    first.signal(signal.SIGTERM)
    assert first.ends() == 0
    assert client.predict(["after"]) == ["after"]
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []


def test_sigterm_to_every_process_of_a_worker_ends_no_batch(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    worker = cluster.start_worker()
    running = client.submit([{"sleep": 1}])
    cluster.began()
    for one in worker.family():
        one.terminate()
    worker.signal(signal.SIGTERM)
    assert running.result(PATIENCE) == [{"sleep": 1}]
    assert worker.ends() == 0
    assert "model process ended" not in worker.log.read_text()


PARENT = """
import multiprocessing, subprocess, time

def predict(batch):
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    forked.start()
    forked.terminate()
    forked.join()
    other = subprocess.Popen(["sleep", "600"])
    other.terminate()
    return [(forked.exitcode, other.wait())] * len(batch)
"""


def test_a_model_can_end_the_processes_that_it_starts(
    cluster: Cluster, client: ZClient[object, object], tmp_path: Path
) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    cluster.run("worker", f"{tmp_path}/parent.py:predict", "--gpu", "cpu", "--backend", cluster.backend)
    assert client.predict(["a"]) == [(-signal.SIGTERM, -signal.SIGTERM)]


STUBBORN = """
import threading

class Stubborn:
    def __init__(self, how):
        self.how = how
        if how == "thread":
            threading.Thread(target=threading.Event().wait).start()

    def predict(self, batch):
        return batch

    def close(self):
        if self.how == "close":
            threading.Event().wait()
"""


@pytest.mark.parametrize("how", ["close", "thread"])
def test_a_model_that_does_not_end_is_ended(
    cluster: Cluster, client: ZClient[object, object], tmp_path: Path, how: str
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    model = (f"{tmp_path}/stubborn.py:Stubborn", "--arg", f"how={how}")
    worker = cluster.run("worker", *model, "--gpu", "cpu", "--backend", cluster.backend)
    assert client.predict(["a"]) == ["a"]
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    text = worker.log.read_text()
    assert "model does not end" in text
    assert "model process ended" not in text


def test_a_worker_told_twice_to_leave_says_what_it_drops_instead_of_being_missed(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    first = cluster.start_worker()
    running = client.submit([{"sleep": 3}])
    cluster.began()
    cluster.start_worker()
    first.signal(signal.SIGTERM)
    first.says("leaving")
    first.signal(signal.SIGTERM)
    assert first.ends() == 0
    assert running.result(PATIENCE) == [{"sleep": 3}]
    assert "warning broker: worker died" in cluster.broker.says("reason=left")


def test_status_shows_topics_workers_and_clients(cluster: Cluster, client: ZClient[object, object]) -> None:
    cluster.start_worker(num=2)
    until(lambda: len(client.status()["workers"]) == 2)
    assert client.predict(["a", "b"]) == ["a", "b"]
    shown = client.status()
    assert shown["topics"]["default"]["answered"] == 2
    assert sorted(worker["state"] for worker in shown["workers"]) == ["idle", "idle"]
    assert all(worker["pid"] != os.getpid() for worker in shown["workers"])
    assert shown["clients"] == 1


def test_a_client_that_dies_leaves_nothing_in_the_broker(
    cluster: Cluster, client: ZClient[object, object]
) -> None:
    cluster.start_worker()
    code = (
        "import os, sys; from zbatch import ZClient\n"
        "client = ZClient(sys.argv[1]); client.predict(['x']); client.submit(['y'], topic='nobody')\n"
        "client.predict(['z']); os._exit(0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, cluster.frontend], env=environment(), timeout=PATIENCE, check=True
    )
    until(lambda: not client.status()["topics"]["nobody"]["unfinished"])
    assert client.status()["clients"] == 1
