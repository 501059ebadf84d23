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
