"""Faults done to real processes and links: what was asked is answered, or fails in time and says why."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zmq

from tests.live.shell import PATIENCE, ROOT, Zbatch, all_end, environment, free_port
from zbatch import AsyncZClient, NoWorkers, PoisonItem, ZClient, wire
from zbatch import broker as broker_body
from zbatch.broker import Broker
from zbatch.config import BrokerSettings, Timing
from zbatch.core.links import BACK, FRONT
from zbatch.journal import Journal
from zbatch.messages import Beat, Group, Hello, Ready, Request
from zbatch.sockets import connect

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]

QUICK = Timing(beat=0.2, quiet=0.6, suspect=0.6, rejoin=0.8, silent=2.0, client_silent=2.0)
"""Silences short enough to wait for."""

OFFER = ("bert", 2, 32, None, 10.0, 60_000)
"""What a worker says of itself in READY."""

OPTIONS = [
    text
    for name in ("beat", "quiet", "suspect", "rejoin", "silent", "client_silent")
    for text in (f"--timing-{name.replace('_', '-')}", f"{getattr(QUICK, name)}s")
]

MODEL = """
import ctypes, os, time

class Model:
    def predict(self, batch):
        with open({journal!r}, "a") as stream:
            stream.write(f"{{os.getpid()}} {{batch}}\\n")
        for item in batch:
            if isinstance(item, dict):
                if "hold" in item:
                    # A call that keeps the interpreter's lock.
                    ctypes.PyDLL(None).usleep(int(item["hold"] * 1e6))
                time.sleep(item.get("sleep", 0.0))
                if "die" in item:
                    os.abort()
        return batch
"""


class Farm:
    """Brokers on tcp and workers that know them, with short silences."""

    def __init__(self, run: Start, home: Path, brokers: int = 1) -> None:
        self.run = run
        self.home = home
        self.journal = home / "ran"
        self.journal.touch()
        (home / "model.py").write_text(MODEL.format(journal=str(self.journal)))
        self.fronts = [f"tcp://127.0.0.1:{free_port()}" for _ in range(brokers)]
        self.backs = [f"tcp://127.0.0.1:{free_port()}" for _ in range(brokers)]
        self.brokers = [self.start_broker(at) for at in range(brokers)]

    def start_broker(self, at: int = 0, *options: str) -> Zbatch:
        broker = self.run(
            *("broker", "--frontend", self.fronts[at], "--backend", self.backs[at]), *OPTIONS, *options
        )
        broker.says("broker started")
        return broker

    def start_worker(self, *options: str, backs: list[str] | None = None, num: int = 1) -> Zbatch:
        worker = self.run(
            *("worker", f"{self.home}/model.py:Model", "--gpu", "cpu", "--num", str(num)),
            *("--backend", ",".join(backs or self.backs), *OPTIONS, *options),
        )
        worker.says("model ready", times=num)
        return worker

    def client(self, *fronts: str, timeout: float = PATIENCE) -> ZClient[Any, Any]:
        return ZClient(list(fronts) or self.fronts, timeout=timeout, timing=QUICK)

    def ran(self, item: Any) -> int:
        """Return how often a batch with this item began to run."""
        return self.journal.read_text().count(repr(item))

    def began(self, item: Any) -> None:
        """Wait until a batch with this item runs."""
        wait_for(lambda: self.ran(item) > 0)


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


def model_processes(worker: Zbatch) -> list[psutil.Process]:
    return [one for one in worker.family() if "zbatch.model_process" in " ".join(one.cmdline())]


# --- workers -------------------------------------------------------------------------------------


def test_a_worker_killed_while_it_idles_costs_the_next_request_nothing(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path)
    first, _ = farm.start_worker(), farm.start_worker()
    with farm.client() as client:
        client.predict(list(range(10)))
        family = first.family()
        first.signal(signal.SIGKILL)
        assert all_end(family)
        assert client.predict(list(range(10))) == list(range(10))


def test_a_worker_stopped_in_a_batch_is_missed_and_its_late_answer_counts_at_most_once(
    run: Start, tmp_path: Path
) -> None:
    farm = Farm(run, tmp_path)
    worker = farm.start_worker()
    item = {"sleep": 0.4}
    with farm.client() as client:
        future = client.submit([item])
        farm.began(item)
        (stopped,) = model_processes(worker)
        stopped.suspend()
        farm.brokers[0].says("worker lost")
        farm.start_worker()
        assert future.result(PATIENCE) == [item]
        stopped.resume()
        # It comes back by itself, and serves again.
        wait_for(lambda: len(client.status()["workers"]) == 2)
        assert client.predict(list(range(20))) == list(range(20))
        assert client.status()["topics"]["default"]["answered"] == 21


class Stopping(Broker):
    """A broker that is stopped once, between reading its workers and its clients."""

    pause = 1.5 * QUICK.silent

    def _read(self, side: bytes, most: int) -> None:
        if side == FRONT:
            time.sleep(self.pause)
            self.pause = 0.0
        super()._read(side, most)


def test_a_broker_stopped_anywhere_in_its_turn_takes_nobody_for_lost(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    broker = Stopping(
        BrokerSettings(frontend=(front,), backend=(back,), timing=QUICK), Journal("text", "broker")
    )
    broker.start()
    turning = threading.Thread(target=broker.run)
    turning.start()
    worker, client = connect(context, back, QUICK), connect(context, front, QUICK)
    for message in (Hello(b"conn....", 1, 0, b"l" * 16, "worker", 1), Ready(b"conn....", 2, 1, *OFFER)):
        worker.send(wire.encode(message))
    wait_for(lambda: len(broker.core.dispatcher.workers) == 1)
    client.send(b"anything that is read")
    wait_for(lambda: broker.pause == 0.0)
    worker.send(wire.encode(Beat(b"conn....", 3, 1)))
    wait_for(lambda: broker.core.links.by_life[b"l" * 16].received == 3)
    broker.stop(at_once=True)
    turning.join(PATIENCE)
    broker.close()
    assert "worker_lost" not in broker.core.counters


def read_until(broker: Broker, side: bytes, happened: Callable[[], bool]) -> None:
    """Let a broker that does not turn read one side."""

    def reads() -> bool:
        broker._read(side, 1)
        return happened()

    wait_for(reads)


def test_batches_that_a_slow_worker_was_never_sent_wait_again_at_once(
    context: zmq.Context[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_body, "OUTBOX_MESSAGES", 1)
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    broker = Broker(BrokerSettings(frontend=(front,), backend=(back,)), Journal("text", "broker"))
    broker.start()
    worker, client = connect(context, back, Timing()), connect(context, front, Timing())
    for message in (
        Hello(b"conn....", 1, 0, b"l" * 16, "worker", 1),
        Ready(b"conn....", 2, 1, *OFFER, False),
    ):
        worker.send(wire.encode(message))
    read_until(broker, BACK, lambda: len(broker.core.dispatcher.workers) == 1)
    # Its pipe is full, and stays so.
    peer = broker.core.links.by_life[b"l" * 16].peer
    broker._outboxes[peer] = broker_body._Outbox(peer)
    items = [b"x"] * 64
    for asked in (
        Hello(b"conn...2", 1, 0, b"m" * 16, "client", 1),
        Request(b"conn...2", 2, 1, [Group(0, "bert", 30_000, items)]),
    ):
        client.send(wire.encode(asked))
    topic = broker.core.topics.all["bert"]
    read_until(broker, FRONT, lambda: topic.items == 64)
    now = time.monotonic()
    broker._perform(broker.core.tick(now), now)
    broker.close()
    assert (broker.core.counters["peer_does_not_read"], topic.backlog.items, topic.running) == (1, 64, 0)


def test_a_model_that_holds_the_interpreter_is_not_taken_for_dead(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path)
    farm.start_worker()
    item = {"hold": 1.8}
    with farm.client() as client:
        assert client.predict([item]) == [item]
        assert farm.ran(item) == 1
        assert client.predict([1]) == [1]
        counters = client.status()["counters"]
        assert "worker_lost" not in counters


def test_a_topic_whose_workers_do_nothing_but_die_is_braked_and_others_are_not(
    run: Start, tmp_path: Path
) -> None:
    farm = Farm(run, tmp_path)
    farm.start_worker("--topic", "bad")
    farm.start_worker("--topic", "good")
    with farm.client() as client:
        deadly = [client.submit([{"die": at}], topic="bad", return_exceptions=True) for at in range(4)]
        for at in range(100):
            assert client.predict([at], topic="good") == [at]
        for future in deadly:
            (outcome,) = future.result(PATIENCE)
            assert isinstance(outcome, PoisonItem)
        bad = [one for one in client.status()["workers"] if one["topic"] == "bad"]
        shown = bad or [one for one in client.status()["processes"] if one["restarts"]]
        assert shown


def test_two_workers_of_the_same_name_are_two(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path)
    first = farm.start_worker("--name", "twin")
    farm.start_worker("--name", "twin")
    with farm.client() as client:
        assert len(client.status()["workers"]) == 2
        first.signal(signal.SIGKILL)
        farm.start_worker("--name", "twin")
        assert client.predict(list(range(100))) == list(range(100))
        wait_for(lambda: len(client.status()["workers"]) == 2)


def test_when_all_workers_are_gone_a_request_waits_and_a_new_worker_drains_what_remains(
    run: Start, tmp_path: Path
) -> None:
    farm = Farm(run, tmp_path)
    worker = farm.start_worker()
    with farm.client() as client:
        client.predict([0])
        worker.signal(signal.SIGKILL)
        wait_for(lambda: not client.status()["workers"])
        short = client.submit([1], timeout=1.0)
        with pytest.raises(NoWorkers):
            short.result(PATIENCE)
        waiting = client.submit([2])
        farm.start_worker()
        assert waiting.result(PATIENCE) == [2]


# --- brokers -------------------------------------------------------------------------------------


def test_a_broker_killed_with_a_thousand_items_waiting_costs_nobody_an_answer(
    run: Start, tmp_path: Path
) -> None:
    farm = Farm(run, tmp_path)
    farm.start_worker("--batch-size", "8", num=2)
    items = [{"sleep": 0.01, "at": at} for at in range(1_000)]
    with farm.client() as client:
        futures = [client.submit([item]) for item in items]
        farm.began({"sleep": 0.01, "at": 40})
        farm.brokers[0].signal(signal.SIGKILL)
        farm.brokers[0].ends()
        farm.start_broker()
        assert [future.result(PATIENCE) for future in futures] == [[item] for item in items]
    again = sum(farm.ran(item) - 1 for item in items)
    assert again <= 2 * 2 * 8


def test_what_only_another_broker_can_answer_is_answered_there(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path, brokers=2)
    farm.start_worker(backs=farm.backs[1:])
    with farm.client() as client:
        assert client.predict([1, 2, 3]) == [1, 2, 3]
        assert client.predict([4]) == [4]

    async def ask() -> list[Any]:
        async with AsyncZClient[Any, Any](farm.fronts, timeout=PATIENCE, timing=QUICK) as one:
            return await one.predict([1, 2, 3])

    assert asyncio.run(ask()) == [1, 2, 3]
    farm.brokers[1].signal(signal.SIGSTOP)
    try:
        with farm.client() as client, pytest.raises(NoWorkers):
            client.predict([5], timeout=3.0)
    finally:
        farm.brokers[1].signal(signal.SIGCONT)


def test_two_halves_of_a_farm_serve_and_heal(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path, brokers=2)
    for back in farm.backs:
        farm.start_worker(backs=[back])
    with farm.client(farm.fronts[0]) as one, farm.client(farm.fronts[1]) as other:
        assert one.predict(list(range(50))) == other.predict(list(range(50))) == list(range(50))
    farm.start_worker()
    with farm.client() as both:
        assert both.predict(list(range(50))) == list(range(50))
        farm.brokers[0].signal(signal.SIGKILL)
        assert both.predict(list(range(50))) == list(range(50))


# --- links ---------------------------------------------------------------------------------------


class Link:
    """A proxy that misbehaves when told to."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").partition(":")
        self._port = free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy", "127.0.0.1", str(self._port), host, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"listening\n"

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def order(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process.stdin.close()
        self._process.stdout.close()


@contextmanager
def links(*targets: str) -> Iterator[list[Link]]:
    made = [Link(target) for target in targets]
    try:
        yield made
    finally:
        for link in made:
            link.close()


@pytest.mark.parametrize("orders", [["slice"], ["delay", 200, 150], ["reset"]], ids=lambda orders: orders[0])
def test_a_bad_link_changes_no_answer(run: Start, tmp_path: Path, orders: list[object]) -> None:
    farm = Farm(run, tmp_path)
    with links(farm.fronts[0], farm.backs[0]) as (front, back):
        farm.start_worker(backs=[back.endpoint])
        with farm.client(front.endpoint) as client:
            client.predict([0])
            for link in (front, back):
                link.order(*orders)
            for at in range(5):
                items: list[Any] = [at, "x" * 300, np.arange(100) + at]
                number, text, array = client.predict(items)
                assert (number, text) == (at, "x" * 300)
                assert np.array_equal(array, items[2])


@pytest.mark.parametrize("which", ["client", "worker"])
def test_a_half_open_connection_is_noticed_and_replaced(run: Start, tmp_path: Path, which: str) -> None:
    farm = Farm(run, tmp_path)
    with links(farm.fronts[0], farm.backs[0]) as (front, back):
        farm.start_worker(backs=[back.endpoint])
        with farm.client(front.endpoint) as client:
            client.predict([0])
            (front if which == "client" else back).order("half")
            assert client.predict([1]) == [1]


def test_a_slow_link_with_large_arrays_is_no_silence(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path)
    farm.start_worker()
    with links(farm.fronts[0]) as (front,), farm.client(front.endpoint) as slow, farm.client() as other:
        slow.predict([0])
        front.order("slow", 8_000)
        array = np.arange(1_250_000, dtype=np.float32)
        # Something else is open meanwhile: its client must not be taken for dead.
        early = slow.submit([{"sleep": 1.0}])
        future = slow.submit([array])
        for at in range(50):
            assert other.predict([at]) == [at]
        assert early.result(PATIENCE) == [{"sleep": 1.0}]
        (back,) = future.result(PATIENCE)
        assert np.array_equal(back, array)
        assert "client_gone" not in other.status()["counters"]


# --- what runs out -------------------------------------------------------------------------------


def test_a_broker_with_few_descriptors_refuses_connections_and_lives(run: Start, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        farm = Farm(run, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resource.prlimit(farm.brokers[0].process.pid, resource.RLIMIT_NOFILE, (64, 64))
    farm.start_worker()
    with farm.client() as client:
        client.predict([0])
        many = [farm.client() for _ in range(100)]
        with ThreadPoolExecutor(20) as pool:
            futures = [pool.submit(one.predict, [at], timeout=3.0) for at, one in enumerate(many)]
            served = sum(future.exception(PATIENCE) is None for future in futures)
        assert served > 0
        assert client.predict([1]) == [1]
        for one in many:
            one.close()
    assert farm.brokers[0].process.poll() is None
    with farm.client() as client:
        assert client.predict([2]) == [2]


def test_a_full_disk_under_the_log_stops_nobody(tmp_path: Path) -> None:
    front, back = f"ipc://{tmp_path}/f", f"ipc://{tmp_path}/b"
    with open("/dev/full", "wb") as full:
        processes = [
            subprocess.Popen([sys.executable, "-m", "zbatch", *command], stderr=full, env=environment())
            for command in (
                ["broker", "--frontend", front, "--backend", back],
                ["worker", f"{ROOT}/tests/live/models.py:Obedient", "--gpu", "cpu", "--backend", back],
            )
        ]
    try:
        with ZClient[Any, Any](front, timeout=PATIENCE) as client:
            assert client.predict(list(range(10))) == list(range(10))
    finally:
        for one in reversed(processes):
            one.send_signal(signal.SIGTERM)
            assert one.wait(PATIENCE) == 0


def test_a_log_that_nobody_reads_holds_up_no_death(tmp_path: Path) -> None:
    front, back = f"ipc://{tmp_path}/f", f"ipc://{tmp_path}/b"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)
    processes = [
        subprocess.Popen([sys.executable, "-m", "zbatch", *command], stderr=writer, env=environment())
        for command in (
            ["broker", "--frontend", front, "--backend", back],
            ["worker", f"{ROOT}/tests/live/models.py:Obedient", "--gpu", "cpu", "--backend", back],
        )
    ]
    try:
        with ZClient[Any, Any](front, timeout=PATIENCE) as client:
            with pytest.raises(PoisonItem):
                client.predict(["interrupt"])
            assert client.predict(list(range(10))) == list(range(10))
    finally:
        for one in reversed(processes):
            one.send_signal(signal.SIGTERM)
            assert one.wait(PATIENCE) == 0
        os.close(reader)
        os.close(writer)


def test_a_client_that_leaves_with_much_waiting_takes_it_along(run: Start, tmp_path: Path) -> None:
    farm = Farm(run, tmp_path)
    farm.start_worker("--batch-size", "1")
    program = (
        "import sys, time\nfrom zbatch import ZClient\n"
        f"c = ZClient({farm.fronts[0]!r})\n"
        "fs = [c.submit([{'sleep': 0.2, 'at': at}]) for at in range(100)]\n"
        "print('asked', flush=True)\ntime.sleep(600)\n"
    )
    asking = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment())
    assert asking.stdout is not None
    assert asking.stdout.readline() == b"asked\n"
    with farm.client() as client:
        wait_for(lambda: client.status()["topics"].get("default", {}).get("unfinished", 0) > 50)
        asking.kill()
        asking.wait(PATIENCE)
        asking.stdout.close()
        wait_for(lambda: client.status()["topics"]["default"]["unfinished"] == 0)
        assert client.predict([1]) == [1]
    assert sum(farm.ran({"sleep": 0.2, "at": at}) for at in range(100)) < 60


def test_nothing_that_decides_reads_the_wall_clock() -> None:
    """A step of the wall clock can expire nothing: only the journal and the futures' callers ever see it."""
    clocks = ("time.time(", "datetime.now", "time.time_ns", "utcnow")
    readers = {
        path.name
        for path in (ROOT / "zbatch").rglob("*.py")
        if any(clock in path.read_text() for clock in clocks)
    }
    assert readers <= {"journal.py"}
