"""Change under load: workers and brokers leave in order, others take over, and nobody's request fails."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until, zbatch
from zbatch import UnknownTopic, ZClient
from zbatch.broker import Broker
from zbatch.config import BrokerSettings
from zbatch.journal import Journal
from zbatch.security import make_farm

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]
MODEL = f"{ROOT}/tests/live/models.py:Obedient"


class Farm:
    """Two brokers and the workers that serve both."""

    def __init__(self, run: Start, home: Path, brokers: int = 2) -> None:
        self.run = run
        self.fronts = [f"ipc://{home}/front{at}" for at in range(brokers)]
        self.backs = [f"ipc://{home}/back{at}" for at in range(brokers)]
        self.brokers = [self.start_broker(at) for at in range(brokers)]

    def start_broker(self, at: int, *options: str) -> Zbatch:
        broker = self.run("broker", "--frontend", self.fronts[at], "--backend", self.backs[at], *options)
        broker.says("broker started")
        return broker

    def start_worker(self, *options: str) -> Zbatch:
        worker = self.run("worker", MODEL, "--gpu", "cpu", "--backend", ",".join(self.backs), *options)
        worker.says("model ready")
        return worker

    def drain(self, *arguments: str, at: int = 0) -> str:
        ran = zbatch("drain", *arguments, "--endpoint", self.fronts[at])
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


def test_a_signal_that_comes_after_the_end_is_borne() -> None:
    journal = Journal("text", "broker")
    broker = Broker(BrokerSettings(), journal)
    broker.close()
    # Files that are opened now have the numbers of what was closed.
    opened = [end for _ in range(8) for end in socket.socketpair()]
    broker.stop()
    assert select.select(opened, [], [], 0)[0] == []
    for one in opened:
        one.close()
    journal.close()


@contextmanager
def load(fronts: list[str], callers: int = 4) -> Iterator[list[Any]]:
    """Ask from several threads meanwhile; what went wrong is in the list, which should be empty."""
    wrong: list[Any] = []
    stop = threading.Event()
    asked = threading.Semaphore(0)

    def ask() -> None:
        at = 0
        while not stop.is_set():
            at += 1
            try:
                if client.predict([at, -at]) != [at, -at]:
                    wrong.append(at)
            except Exception as error:
                wrong.append(error)
            asked.release()

    with ZClient[Any, Any](fronts, timeout=PATIENCE) as client:
        threads = [threading.Thread(target=ask) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            assert asked.acquire(timeout=PATIENCE)
        yield wrong
        for _ in range(20):
            assert asked.acquire(timeout=PATIENCE)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)


def test_every_worker_and_then_every_broker_is_restarted_under_load(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path)
    workers = [farm.start_worker() for _ in range(2)]
    with load(farm.fronts) as wrong:
        for at, old in enumerate(workers):
            workers[at] = farm.start_worker()
            old.signal(signal.SIGTERM)
            assert old.ends() == 0
        for at, old_broker in enumerate(farm.brokers):
            old_broker.signal(signal.SIGTERM)
            assert old_broker.ends() == 0
            farm.brokers[at] = farm.start_broker(at)
    assert wrong == []


def test_a_new_version_takes_over_from_the_old_one_without_a_gap(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path, brokers=1)
    old = farm.start_worker()
    with load(farm.fronts) as wrong:
        farm.start_worker()
        with ZClient[Any, Any](farm.fronts[0]) as client:
            own = {child.pid for child in old.family()}
            (first,) = [one for one in client.status()["workers"] if one["pid"] in own]
        assert "told to leave" in farm.drain("worker", f"{first['host']}:{first['pid']}")
        assert old.ends() == 0
    assert wrong == []


def test_the_first_signal_to_a_worker_that_an_operator_drained_ends_no_batch(
    run: Start, tmp_path: Path
) -> None:
    farm = Farm(run, tmp_path, brokers=1)
    journal = tmp_path / "ran"
    worker = farm.start_worker("--arg", f"journal={journal}")
    with ZClient[Any, Any](farm.fronts[0], timeout=PATIENCE) as client:
        asked = client.submit([{"sleep": 2.0}])
        until(journal.exists)
        (shown,) = client.status()["workers"]
        farm.drain("worker", f"{shown['host']}:{shown['pid']}")
        worker.says("leaving")
        worker.signal(signal.SIGTERM)
        assert asked.result(PATIENCE) == [{"sleep": 2.0}]
    assert worker.ends() == 0


def test_a_drained_topic_refuses_what_is_new_and_its_workers_leave(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path, brokers=1)
    worker = farm.start_worker()
    with ZClient[Any, Any](farm.fronts[0], timeout=PATIENCE) as client:
        assert client.predict_one(1) == 1
        assert "takes no new requests" in farm.drain("topic", "default")
        assert worker.ends() == 0
        with pytest.raises(UnknownTopic, match="is being drained"):
            client.predict_one(2)
        assert "takes requests again" in farm.drain("topic", "default", "--undo")
        farm.start_worker()
        assert client.predict_one(3) == 3


def test_a_broker_that_is_drained_leaves_and_the_other_one_serves(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path)
    farm.start_worker()
    with load(farm.fronts) as wrong:
        assert "leaves" in farm.drain("broker")
        assert farm.brokers[0].ends() == 0
    assert wrong == []


def test_a_supervised_broker_that_dies_is_back_and_no_request_is_lost(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path, brokers=0)
    farm.fronts, farm.backs = [f"ipc://{tmp_path}/front"], [f"ipc://{tmp_path}/back"]
    broker = farm.start_broker(0, "--supervise")
    farm.start_worker()
    with load(farm.fronts) as wrong:
        for times in range(2, 5):
            (child,) = [one for one in broker.family() if "zbatch.launcher broker" in " ".join(one.cmdline())]
            child.send_signal(signal.SIGABRT)
            broker.says("broker started", times=times)
    assert wrong == []
    farm.drain("broker")
    assert broker.ends() == 0


def test_orders_take_an_admins_key(run: Start, tmp_path: Path) -> None:
    make_farm(tmp_path / "farm")
    front = f"ipc://{tmp_path}/front"
    broker = run(
        *("broker", "--frontend", front, "--backend", f"ipc://{tmp_path}/back"),
        *("--keys", str(tmp_path / "farm")),
    )
    broker.says("broker started")
    admin = tmp_path / "farm" / "admin.key_secret"
    genuine = admin.read_bytes()
    admin.write_bytes((tmp_path / "farm" / "client.key_secret").read_bytes())
    refused = zbatch("drain", "broker", "--endpoint", front, "--keys", str(tmp_path / "farm"))
    assert (refused.returncode, "may not give orders" in refused.stderr) == (1, True)
    admin.write_bytes(genuine)
    assert zbatch("drain", "broker", "--endpoint", front, "--keys", str(tmp_path / "farm")).returncode == 0
    assert broker.ends() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["broker", "x"], 2, "a broker is not"),
        (["worker"], 2, "a worker or a topic is named"),
        (["broker", "--endpoint", "ipc:///tmp/zb-nobody", "--timeout", "0.3s"], 1, "BrokerUnreachable"),
        (["broker", "--endpoint", "ipc:///a,ipc:///b"], 2, "tell them one by one"),
    ],
)
def test_an_impossible_order_gets_a_sentence(arguments: list[str], code: int, sentence: str) -> None:
    ran = zbatch("drain", *arguments)
    assert (ran.returncode, sentence in ran.stderr) == (code, True), ran.stderr


def test_where_no_worker_has_that_name_those_there_are_named(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path, brokers=1)
    farm.start_worker()
    ran = zbatch("drain", "worker", "nowhere", "--endpoint", farm.fronts[0])
    assert ran.returncode == 1
    assert "BadRequest: no worker is 'nowhere'; there are " in ran.stderr
