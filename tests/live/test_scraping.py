"""/metrics of real processes, read as Prometheus reads it."""

from __future__ import annotations

import re
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live.shell import PATIENCE, ROOT, Zbatch, until
from zbatch import ZClient

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]
MODEL = f"{ROOT}/tests/live/models.py:Obedient"
ANY = ("--metrics", "127.0.0.1:0")
Samples = dict[tuple[str, ...], float]


def scrape(process: Zbatch, times: int = 1) -> Callable[[], Samples]:
    """Return what reads a process's metrics, by name and labels' values in the order of the labels' names."""
    (url, *_) = re.findall(r"at=(http://\S+)", process.says("metrics served", times=times))

    def read() -> Samples:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        return {
            (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }

    return read


def shows(read: Callable[[], Samples], wanted: Samples) -> None:
    """Wait until all of these are among what is read."""
    until(lambda: wanted.items() <= read().items())


@pytest.fixture
def ends(tmp_path: Path) -> tuple[str, ...]:
    return ("--frontend", f"ipc://{tmp_path}/front", "--backend", f"ipc://{tmp_path}/back")


def test_a_broker_shows_what_it_did(run: Start, ends: tuple[str, ...]) -> None:
    read = scrape(run("broker", *ends, *ANY))
    run("worker", MODEL, "--topic", "bert", "--gpu", "cpu", *ends[2:]).says("model ready")
    with ZClient[Any, Any](ends[1], topic="bert", timeout=PATIENCE) as client:
        assert client.predict(["a", "b"])
        shows(
            read,
            {
                ("zbatch_topic_answered_items_total", "bert"): 2.0,
                ("zbatch_topic_latency_seconds_count", "bert"): 2.0,
                ("zbatch_topic_batch_items_sum", "bert"): 2.0,
                ("zbatch_topic_workers", "idle", "bert"): 1.0,
                ("zbatch_broker_clients",): 1.0,
                ("zbatch_broker_model_processes", "ready"): 1.0,
            },
        )
    found = read()
    assert found["zbatch_broker_received_bytes_total", "clients"] > 0
    assert found["zbatch_broker_sent_bytes_total", "workers"] > 0


def test_a_broker_that_has_nothing_to_do_shows_that_it_lives(run: Start, ends: tuple[str, ...]) -> None:
    read = scrape(run("broker", *ends, *ANY))
    first = read()["zbatch_broker_uptime_seconds",]
    until(lambda: read()["zbatch_broker_uptime_seconds",] > first + 2)
    assert read()["zbatch_broker_snapshot_age_seconds",] < PATIENCE


def test_who_does_not_read_the_page_keeps_no_broker_from_leaving(run: Start, ends: tuple[str, ...]) -> None:
    broker = run("broker", *ends, *ANY)
    scrape(broker)()
    (port,) = re.findall(r"at=http://127.0.0.1:(\d+)", broker.says("metrics served"))
    with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE) as silent:
        silent.sendall(b"GET")
        broker.signal(signal.SIGTERM)
        assert broker.ends() == 0


def test_a_port_that_is_taken_ends_a_broker_that_should_serve_its_metrics_there(
    run: Start, ends: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = run("broker", *ends, "--metrics", f"127.0.0.1:{taken.getsockname()[1]}")
        assert broker.ends() == 2
        assert "metrics: cannot listen on" in broker.log.read_text()


# --- workers --------------------------------------------------------------------------------------

COUNTING = """
from prometheus_client import Counter

SEEN = Counter("seen", "Items that were seen.")


class Counting:
    def predict(self, batch):
        SEEN.inc(len(batch))
        return batch
"""


@pytest.fixture
def counting(tmp_path: Path) -> str:
    (tmp_path / "counting.py").write_text(COUNTING)
    return f"{tmp_path}/counting.py:Counting"


def test_a_worker_shows_what_its_processes_did_and_what_the_model_keeps(
    run: Start, ends: tuple[str, ...], counting: str
) -> None:
    run("broker", *ends)
    worker = run("worker", counting, "--gpu", "cpu", "--num", "2", *ends[2:], *ANY)
    read = scrape(worker)
    worker.says("model ready", times=2)
    with ZClient[Any, Any](ends[1], timeout=PATIENCE) as client:
        assert client.predict(list(range(200))) == list(range(200))

    def seen() -> tuple[float, ...]:
        found = read()
        return tuple(
            sum(found.get((name, slot, "default"), 0.0) for slot in ("0", "1"))
            for name in ("seen_total", "zbatch_worker_items_total", "zbatch_worker_batch_items_sum")
        )

    until(lambda: seen() == (200.0, 200.0, 200.0))
    shows(read, {("zbatch_worker_model_processes", "ready", "default"): 2.0})
    assert read()["process_resident_memory_bytes", "1", "default"] > 0


def test_a_process_that_died_is_counted_by_its_reason_and_begins_anew(
    run: Start, ends: tuple[str, ...], counting: str
) -> None:
    run("broker", *ends)
    worker = run("worker", counting, "--gpu", "cpu", *ends[2:], *ANY)
    read = scrape(worker)
    worker.says("model ready")
    with ZClient[Any, Any](ends[1], timeout=PATIENCE) as client:
        client.predict([1, 2, 3])
        shows(read, {("seen_total", "0", "default"): 3.0})
        (process,) = [one for one in worker.family() if "zbatch.model_process" in " ".join(one.cmdline())]
        process.kill()
        worker.says("model ready", times=2)
        client.predict([4])
        shows(
            read,
            {
                ("zbatch_worker_restarts_total", "SIGKILL", "0", "default"): 1.0,
                ("zbatch_worker_items_total", "0", "default"): 1.0,
                ("seen_total", "0", "default"): 1.0,
            },
        )


def test_serve_shows_its_broker_and_the_workers_behind_it(
    run: Start, ends: tuple[str, ...], counting: str
) -> None:
    serve = run("serve", counting, "--gpu", "cpu", *ends[:2], *ANY)
    serve.says("model ready")
    serve.says("metrics served", times=2)
    shown = [one for url in re.findall(r"at=(http://\S+)", serve.log.read_text()) for one in names(url)]
    assert {"zbatch_broker_uptime_seconds", "zbatch_worker_snapshot_age_seconds"} <= set(shown)


def names(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return re.findall(r"^(\w+)", answer.read().decode(), flags=re.M)


def test_a_worker_that_nobody_scrapes_has_neither_thread_nor_library_for_it(
    run: Start, ends: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "looking.py").write_text(
        "import sys, threading\n"
        "class Looking:\n"
        "    def predict(self, batch):\n"
        "        names = sorted(one.name for one in threading.enumerate())\n"
        "        return [('prometheus_client' in sys.modules, names)] * len(batch)\n"
    )
    run("broker", *ends)
    run("worker", f"{tmp_path}/looking.py:Looking", "--gpu", "cpu", *ends[2:]).says("model ready")
    with ZClient[Any, Any](ends[1], timeout=PATIENCE) as client:
        imported, threads = client.predict_one("x")
    assert not imported
    assert "zbatch-metrics" not in threads
