"""What goes wrong behind HTTP: each of these costs one request, and another server all of them.

Each test is one of the failures that ``docs/compare.md`` lists; the service is ``zbatch serve --http``.
"""

from __future__ import annotations

import json
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Certificate
from tests.live.shell import PATIENCE, Zbatch, all_end, until
from tests.live.test_gateway import MODEL, Gateway
from zbatch import ZClient

Run = Callable[..., Zbatch]


pytestmark = pytest.mark.live


class Service:
    """``zbatch serve --http``, its model's journal, and a client that looks on."""

    def __init__(self, run: Run, home: Path, *more: str) -> None:
        self.home, self.journal = home, home / "journal"
        front = f"ipc://{home}/front"
        arguments = ("--gpu", "cpu", "--batch-size", "8", "--arg", f"journal={self.journal}")
        self.process = run("serve", MODEL, *arguments, "--frontend", front, "--http", "127.0.0.1:0", *more)
        self.gateway = Gateway(self.process)
        self.watching = ZClient[Any, Any](front)
        until(lambda: self.gateway.ask("GET", "/health/ready")[0] == 200)

    def topic(self) -> dict[str, Any]:
        """Return the figures of its topic."""
        found: dict[str, Any] = self.watching.status()["topics"]["default"]
        return found

    @contextmanager
    def held(self, pool: ThreadPoolExecutor) -> Iterator[Future[tuple[int, Any]]]:
        """Keep the model busy with an item of its own; give what becomes of that."""
        let_go = self.home / "let go"
        held = pool.submit(self.gateway.predict, {"until": str(let_go)})
        until(lambda: self.journal.exists() and self.sizes())
        yield held
        let_go.touch()

    def ask_in_one_batch(self, items: Sequence[Any]) -> list[tuple[int, Any]]:
        """Ask for each in a request of its own, all while the model is busy; return the answers."""
        with ThreadPoolExecutor(len(items) + 1) as pool:
            with self.held(pool):
                asked = [pool.submit(self.gateway.predict, item) for item in items]
                until(lambda: self.topic()["waiting"] == len(items))
            return [one.result() for one in asked]

    def sizes(self) -> list[int]:
        """Return how many items each run of the model had."""
        return [int(line.split()[1]) for line in self.journal.read_text().splitlines()]

    def close(self) -> None:
        """Let go of the client."""
        self.watching.close()


@pytest.fixture
def serve(run: Run, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start a service that is ready."""
    started: list[Service] = []

    def serve(*more: str) -> Service:
        started.append(Service(run, tmp_path, *more))
        return started[-1]

    yield serve
    for one in started:
        one.close()


@pytest.mark.parametrize(
    ("guilty", "code"), [("raise", "model_failed"), ("short", "bad_output"), ("die", "poison_item")]
)
def test_of_four_requests_in_one_batch_only_the_guilty_one_fails_and_the_only_process_serves_on(
    serve: Callable[..., Service], guilty: str, code: str
) -> None:
    service = serve("--num", "1")

    answers = service.ask_in_one_batch(["a", guilty, "b", "c"])

    assert 4 in service.sizes()
    assert [status for status, _ in answers] == [200, 500, 200, 200]
    assert answers[1][1]["code"] == code
    assert [told for status, told in answers if status == 200] == ["a", "b", "c"]
    assert service.gateway.predict("on") == (200, "on")


def test_a_body_that_cannot_be_read_is_that_requests_error_and_joins_no_batch(
    serve: Callable[..., Service],
) -> None:
    service = serve()
    with ThreadPoolExecutor(4) as pool, service.held(pool):
        good = [pool.submit(service.gateway.predict, item) for item in ("a", "b")]
        assert service.gateway.ask("POST", "/predict/default", raw=b"{x")[0] == 400
        assert service.gateway.ask("POST", "/predict/default", raw=b"")[0] == 400
        until(lambda: service.topic()["waiting"] == 2)

    assert [one.result() for one in good] == [(200, "a"), (200, "b")]


# Nobody is missed for being silent, so what runs again was told of by whoever saw the process die.
UNHURRIED = [
    f"--timing-{name}={value}"
    for name, value in {
        "beat": "1h",
        "quiet": "1h",
        "suspect": "1h",
        "rejoin": "2h",
        "silent": "2h",
        "client-silent": "2h",
    }.items()
]


def test_a_process_that_is_killed_in_a_batch_is_seen_at_once_and_costs_no_request_an_error(
    serve: Callable[..., Service],
) -> None:
    service = serve("--num", "2", *UNHURRIED)
    with ThreadPoolExecutor(1) as pool, service.held(pool) as held:
        working = int(service.journal.read_text().split()[0])
        next(one for one in service.process.family() if one.pid == working).kill()
        until(lambda: len(service.sizes()) == 2)

    assert held.result()[0] == 200
    assert service.gateway.predict("on") == (200, "on")


def test_a_lone_request_waits_for_no_company(serve: Callable[..., Service]) -> None:
    # Longer than anybody here has patience: who waited for it would not be answered.
    assert serve("--max-latency", "10m").gateway.predict("alone") == (200, "alone")


def test_what_was_asked_for_by_clients_that_left_is_never_run(serve: Callable[..., Service]) -> None:
    service = serve()
    with ThreadPoolExecutor(1) as pool, service.held(pool):
        for _ in range(2):
            left = service.gateway.connect()
            left.sendall(b'POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"left"')
            until(lambda: service.topic()["waiting"] == 1)
            left.close()
            until(lambda: service.topic()["waiting"] == 0)

    assert service.gateway.predict("next") == (200, "next")
    assert service.sizes() == [1, 1]


def test_what_is_beyond_the_bound_of_a_topic_is_429_at_once_with_the_time_to_come_back(
    serve: Callable[..., Service],
) -> None:
    service = serve("--limits-topic-items", "3")  # one runs, two wait
    with ThreadPoolExecutor(3) as pool, service.held(pool):
        waiting = [pool.submit(service.gateway.predict, item) for item in ("a", "b")]
        until(lambda: service.topic()["waiting"] == 2)

        status, headers, body = service.gateway.ask("POST", "/predict/default", "one too many")

        assert (status, json.loads(body)["code"]) == (429, "overloaded")
        assert int(headers["retry-after"]) >= 1
    assert [one.result() for one in waiting] == [(200, "a"), (200, "b")]


def test_a_model_that_hangs_is_ended_and_the_next_request_is_answered(serve: Callable[..., Service]) -> None:
    service = serve("--lease", "1s")

    status, told = service.gateway.predict({"sleep": 1_000_000})

    assert (status, told["code"]) == (500, "poison_item")
    assert service.gateway.predict("on") == (200, "on")


def test_a_request_in_flight_is_answered_when_the_whole_service_is_told_to_leave(
    serve: Callable[..., Service],
) -> None:
    service = serve()
    with ThreadPoolExecutor(1) as pool:
        with service.held(pool) as held:
            service.process.signal(signal.SIGTERM)
            service.process.says("leaving")
        assert held.result()[0] == 200
    assert service.process.ends() == 0


def test_a_model_that_does_not_load_ends_the_service_with_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "class Broken:\n"
        "    def setup(self, context):\n        raise RuntimeError('no weights')\n"
        "    def predict(self, batch):\n        return batch\n"
    )
    model, front = f"{tmp_path}/broken.py:Broken", f"ipc://{tmp_path}/front"

    service = run("serve", model, "--gpu", "cpu", "--frontend", front, "--http", "127.0.0.1:0")

    assert service.ends() == 1
    assert "RuntimeError: no weights" in service.log.read_text()


def test_no_process_and_no_open_port_outlives_a_service_that_is_killed(
    serve: Callable[..., Service],
) -> None:
    service = serve("--num", "2")
    family = service.process.family()
    assert len(family) >= 4  # a broker, a worker and its two processes, a gateway

    service.process.signal(signal.SIGKILL)

    assert all_end(family)
    with socket.socket() as nobody:
        assert nobody.connect_ex(("127.0.0.1", service.gateway.port)) != 0


def test_over_tls_http_1_1_is_what_is_offered(run: Run, tmp_path: Path, certificate: Certificate) -> None:
    options = ("--frontend", f"ipc://{tmp_path}/front", *certificate.options)
    service = run("serve", MODEL, "--gpu", "cpu", "--http", "127.0.0.1:0", *options)
    port = int(service.says("gateway started").partition("url=https://127.0.0.1:")[2].split()[0])

    trusting = ssl.create_default_context(cafile=certificate.path)
    trusting.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as plain,
        trusting.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        assert connection.selected_alpn_protocol() == "http/1.1"
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
