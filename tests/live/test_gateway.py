"""HTTP in front of a cluster: real gateways, real connections, real clients that leave."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.live.conftest import Certificate
from tests.live.shell import PATIENCE, ROOT, Zbatch, all_end, free_port, until, zbatch
from zbatch import ZClient

pytestmark = pytest.mark.live

pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

DEFAULT = "/predict/default"
MODEL = f"{ROOT}/tests/live/models.py:Obedient"


class Gateway:
    """Where a gateway listens, and how it is asked."""

    def __init__(self, process: Zbatch) -> None:
        self.process = process
        said = process.says("gateway started")
        self.port = int(said.partition("url=http://127.0.0.1:")[2].split()[0])

    def ask(
        self, method: str, path: str, body: Any = None, raw: Any = None, **headers: Any
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask on a connection of its own; return status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data, named)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def predict(self, item: Any, topic: str = "default", query: str = "", **headers: str) -> tuple[int, Any]:
        """Ask for one item in JSON; return the status and what came."""
        status, _, data = self.ask("POST", f"/predict/{topic}{query}", item, **headers)
        return status, json.loads(data)

    def connect(self) -> socket.socket:
        """Return a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Run a broker that is no longer young, and a worker; give the frontend and the model's journal."""
    home = tmp_path_factory.mktemp("cluster")
    front, back, journal = f"ipc://{home}/front", f"ipc://{home}/back", home / "journal"
    journal.touch()
    broker = Zbatch(home / "broker.log", "broker", "--frontend", front, "--backend", back)
    arguments = ("--gpu", "cpu", "--backend", back, "--batch-size", "8", "--arg", f"journal={journal}")
    worker = Zbatch(home / "worker.log", "worker", MODEL, *arguments)
    worker.says("model ready")
    yield front, journal
    for one in (worker, broker):
        one.process.kill()
        one.process.wait()


@pytest.fixture(scope="module")
def gateway(cluster: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway for that cluster, with small bounds."""
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    bounds = ("--max-body", "1MiB", "--body-timeout", "1s", "--timeout", "30s")
    process = Zbatch(log, "gateway", "--http", "127.0.0.1:0", "--endpoint", cluster[0], *bounds)
    made = Gateway(process)
    until(lambda: made.ask("GET", "/health/ready")[0] == 200)
    yield made
    process.process.kill()
    process.process.wait()


@pytest.fixture
def pair(run: Callable[..., Zbatch], cluster: tuple[str, Path]) -> Gateway:
    """Run a gateway of two processes for that cluster."""
    port = free_port()
    process = run("gateway", "--http", f"127.0.0.1:{port}", "--endpoint", cluster[0], "--processes", "2")
    process.says("gateway started", times=2)
    made = Gateway(process)
    until(lambda: made.ask("GET", "/health/ready")[0] == 200)
    return made


def test_one_item_is_asked_and_answered_in_json(gateway: Gateway) -> None:
    status, headers, body = gateway.ask("POST", DEFAULT, {"text": "hi"}, content_type="application/json")

    assert (status, json.loads(body)) == (200, {"text": "hi"})
    assert headers["content-type"] == "application/json"


def test_an_item_without_a_content_type_is_read_as_json(gateway: Gateway) -> None:
    assert gateway.predict([1, 2]) == (200, [1, 2])


def test_many_callers_each_get_their_own_answers(gateway: Gateway) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(gateway.predict, range(200)))

    assert answers == [(200, number) for number in range(200)]


def test_items_of_several_requests_share_a_batch(gateway: Gateway, cluster: tuple[str, Path]) -> None:
    before = cluster[1].read_text().count("\n")
    with ThreadPoolExecutor(9) as pool:
        held = pool.submit(gateway.predict, {"sleep": 1.0})
        until(lambda: cluster[1].read_text().count("\n") > before)
        list(pool.map(gateway.predict, range(8)))
        assert held.result()[0] == 200

    sizes = [int(line.split()[1]) for line in cluster[1].read_text().splitlines()[before:]]
    assert max(sizes) > 1


def test_an_array_goes_and_comes_as_npy(gateway: Gateway) -> None:
    array = np.arange(20_000, dtype="f4").reshape(2, -1)
    stream = io.BytesIO()
    np.save(stream, array)

    status, headers, body = gateway.ask(
        "POST",
        "/predict/default",
        raw=stream.getvalue(),
        content_type="application/x-npy",
        accept="application/x-npy",
    )

    assert (status, headers["content-type"]) == (200, "application/x-npy")
    np.testing.assert_array_equal(np.load(io.BytesIO(body)), array)


def test_raw_bytes_go_and_come_as_they_are(gateway: Gateway) -> None:
    photo = os.urandom(100_000)

    status, headers, body = gateway.ask("POST", DEFAULT, raw=photo, content_type="image/jpeg")

    assert (status, headers["content-type"], body) == (200, "application/octet-stream", photo)


def test_a_batch_is_answered_in_order(gateway: Gateway) -> None:
    status, _, body = gateway.ask("POST", "/predict/default/batch", list(range(50)))

    assert (status, json.loads(body)) == (200, list(range(50)))


def test_an_empty_batch_has_an_empty_answer(gateway: Gateway) -> None:
    assert gateway.ask("POST", "/predict/default/batch", [])[::2] == (200, b"[]")


def test_in_a_batch_a_bad_item_fails_alone(gateway: Gateway) -> None:
    status, _, body = gateway.ask("POST", "/predict/default/batch", ["a", "fail", "b"])

    told = json.loads(body)
    assert (status, told["results"]) == (207, ["a", None, "b"])
    assert [(one["index"], one["code"], one["status"]) for one in told["errors"]] == [
        (1, "model_failed", 500)
    ]


def test_a_model_that_fails_is_500_and_its_traceback_stays_at_home(gateway: Gateway) -> None:
    status, told = gateway.predict("raise")

    assert (status, told["code"]) == (500, "model_failed")
    assert told["error"] == "ValueError: told to raise"


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("POST", DEFAULT, b"{x", {}, 400, "bad_request"),
        ("POST", DEFAULT, b"", {}, 400, "bad_request"),
        ("POST", DEFAULT, b"NaN", {}, 400, "bad_request"),
        ("POST", DEFAULT, b"[" * 50_000, {}, 400, "bad_request"),
        ("POST", "/predict/default?timeout=soon", b"1", {}, 400, "bad_request"),
        ("POST", "/predict/default?timeot=1s", b"1", {}, 400, "bad_request"),
        ("POST", "/predict/default?priority=x", b"1", {}, 400, "bad_request"),
        ("POST", "/predict/a,b", b"1", {}, 400, "bad_request"),
        ("GET", "/predict/default", None, {}, 405, "method_not_allowed"),
        ("GET", "/nothing", None, {}, 404, "not_found"),
        ("POST", DEFAULT, b"1", {"accept": "text/html"}, 406, "not_acceptable"),
        (
            "POST",
            "/predict/default",
            b"1",
            {"content-type": "application/xml"},
            415,
            "unsupported_media_type",
        ),
        ("POST", DEFAULT, b"1", {"content-encoding": "br"}, 415, "unsupported_media_type"),
        ("POST", DEFAULT, b"", {}, 400, "bad_request"),
        ("POST", DEFAULT, b"", {"content-encoding": "Identity"}, 400, "bad_request"),
    ],
)
def test_what_cannot_be_done_has_its_status_and_a_body_of_json(
    gateway: Gateway,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    answered, answer_headers, data = gateway.ask(method, path, raw=body, **headers)

    told = json.loads(data)
    assert (answered, told["code"]) == (status, code), told
    assert answer_headers["content-type"] == "application/json"
    assert told["request_id"] == answer_headers["x-request-id"]
    assert gateway.predict("still there") == (200, "still there")


def test_a_body_that_is_too_large_is_refused_before_it_comes(gateway: Gateway) -> None:
    with gateway.connect() as connection:
        connection.sendall(b"POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n")
        answer = _answer(connection)
    assert b" 413 " in answer
    assert b"the body has 1048577 bytes, wanted at most 1048576" in answer


def test_a_request_id_is_taken_or_made_and_returned(gateway: Gateway) -> None:
    given = gateway.ask("POST", DEFAULT, 1, x_request_id="mine-7")[1]["x-request-id"]
    made = [gateway.ask("POST", DEFAULT, 1)[1]["x-request-id"] for _ in range(2)]

    assert given == "mine-7"
    assert made[0] != made[1]
    assert gateway.ask("POST", DEFAULT, 1, x_request_id="a b")[1]["x-request-id"] != "a b"


@pytest.mark.parametrize(("query", "headers"), [("?timeout=200ms", {}), ("", {"x_timeout": "0.2"})])
def test_a_timeout_is_said_by_query_or_header_with_units(
    gateway: Gateway, cluster: tuple[str, Path], query: str, headers: dict[str, str]
) -> None:
    status, told = gateway.predict({"sleep": 1.0}, query=query, **headers)

    assert (status, told["code"]) == (504, "deadline_exceeded")
    with ZClient[Any, Any](cluster[0]) as watching:
        until(lambda: not watching.status()["topics"]["default"]["running"])


def test_a_body_in_chunks_is_bounded_too(gateway: Gateway) -> None:
    with gateway.connect() as connection:
        connection.sendall(b"POST /predict/default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n")
        assert b"[1,2]" in _answer(connection)
    with gateway.connect() as connection:
        connection.sendall(b"POST /predict/default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        for _ in range(20):
            try:
                connection.sendall(piece)
            except OSError:
                break
        assert b" 413 " in _answer(connection)


def test_a_body_that_does_not_come_is_408(gateway: Gateway) -> None:
    with gateway.connect() as connection:
        connection.sendall(b"POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12")
        assert b" 408 " in _answer(connection)
    assert gateway.predict(1) == (200, 1)


@pytest.mark.parametrize(
    "said",
    [
        b"NONSENSE\r\n\r\n",
        b"POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        b"POST /predict/default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /predict/default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n1",
        b"GET /health/live HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"a" * 200_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_broken_http_is_refused_and_the_gateway_goes_on(gateway: Gateway, said: bytes) -> None:
    with gateway.connect() as connection:
        try:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            answer = _answer(connection)
        except OSError:
            answer = b""
    assert b" 200 " not in answer
    assert gateway.predict("on") == (200, "on")


def test_a_request_smuggled_behind_another_is_not_run(gateway: Gateway, cluster: tuple[str, Path]) -> None:
    before = cluster[1].read_text().count("\n")
    smuggled = b"POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n666"
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
    said = b"POST /predict/default HTTP/1.1\r\nHost: x\r\n" + lengths + b"\r\n0\r\n\r\n" + smuggled
    with gateway.connect() as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        answer = _answer(connection)

    # Both lengths at once: the chunks count, or the request is refused; nobody reads the body by its length.
    assert answer.count(b"HTTP/1.1 200") <= 1
    assert cluster[1].read_text().count("\n") - before <= 1


def test_a_client_that_leaves_takes_its_waiting_item_with_it(
    gateway: Gateway, cluster: tuple[str, Path]
) -> None:
    with ZClient[Any, Any](cluster[0]) as watching, ThreadPoolExecutor(1) as pool:
        holding = pool.submit(gateway.predict, {"sleep": 2.0})
        until(lambda: watching.status()["topics"]["default"]["running"])
        left = gateway.connect()
        left.sendall(b'POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"left"')
        until(lambda: watching.status()["topics"]["default"]["waiting"] == 1)
        left.close()

        until(lambda: watching.status()["topics"]["default"]["waiting"] == 0)

        assert not holding.done()
        assert holding.result()[0] == 200


def test_health_tells_live_from_ready(gateway: Gateway) -> None:
    assert json.loads(gateway.ask("GET", "/health/live")[2]) == {"live": True}
    assert json.loads(gateway.ask("GET", "/health/ready")[2]) == {"live": True, "ready": True}
    assert gateway.ask("HEAD", "/health/ready")[2] == b""


def test_what_there_is_is_told(gateway: Gateway) -> None:
    told = json.loads(gateway.ask("GET", "/")[2])
    assert told["topics"] == {"default": {"workers": 1}}


def test_an_unknown_topic_is_404_at_once_and_one_that_lost_its_workers_503(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    run("broker", "--frontend", front, "--backend", back)
    worker = run("worker", MODEL, "--gpu", "cpu", "--backend", back, "--topic", "bert")
    worker.says("model ready")
    gateway = Gateway(run("gateway", "--http", "127.0.0.1:0", "--endpoint", front, "--topics", "bert"))
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 200)

    # A young broker may still be found by its workers; a question can bound how long it waits for them.
    assert gateway.predict(1, "brt", "?timeout=200ms")[1]["code"] == "no_workers"
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(gateway.predict, 1, "brt")
        with ZClient[Any, Any](front) as watching:
            until(lambda: watching.status()["uptime_s"] > 10.5)
        for status, told in (early.result(), gateway.predict(1, "brt")):
            assert (status, told["code"]) == (404, "unknown_topic")
            assert "'bert'" in told["error"]

    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 503)
    status, headers, body = gateway.ask("POST", "/predict/bert", 1)
    assert (status, headers["retry-after"], json.loads(body)["code"]) == (503, "1", "no_workers")
    # Who waits for workers does so within the one deadline.
    assert gateway.predict(7, "bert", "?wait=1h&timeout=300ms")[1]["code"] == "no_workers"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gateway.predict, 7, "bert", "?wait=30s")
        again = run("worker", MODEL, "--gpu", "cpu", "--backend", back, "--topic", "bert")
        again.says("model ready")
        assert waiting.result() == (200, 7)


def test_who_waits_for_workers_is_told_that_the_gateway_leaves_at_once(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    run("broker", "--frontend", front, "--backend", back)
    worker = run("worker", MODEL, "--gpu", "cpu", "--backend", back, "--topic", "bert")
    worker.says("model ready")
    process = run("gateway", "--http", "127.0.0.1:0", "--endpoint", front, "--topics", "bert")
    gateway = Gateway(process)
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 200)
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 503)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gateway.predict, 7, "bert", "?wait=1h")
        # It, and the one that looks.
        both = re.compile(rb"zbatch_gateway_in_flight_requests\S* 2")
        until(lambda: both.search(gateway.ask("GET", "/metrics")[2]))
        for order in ("leaving", "gateway ended"):
            process.signal(signal.SIGTERM)
            process.says(order)
        status, told = waiting.result()
        assert (status, told["code"]) == (500, "client_closed")


def test_a_gateway_that_is_told_to_leave_answers_what_is_in_flight_and_refuses_nothing_meanwhile(
    run: Callable[..., Zbatch], cluster: tuple[str, Path]
) -> None:
    process = run("gateway", "--http", "127.0.0.1:0", "--endpoint", cluster[0])
    gateway = Gateway(process)
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 200)
    with ThreadPoolExecutor(2) as pool, ZClient[Any, Any](cluster[0]) as watching:
        held = pool.submit(gateway.predict, {"sleep": 1.5})
        until(lambda: watching.status()["topics"]["default"]["running"])

        process.signal(signal.SIGTERM)
        process.says("leaving")

        assert gateway.ask("GET", "/health/ready")[0] == 503
        status, headers, body = gateway.ask("POST", DEFAULT, "late")
        assert (status, body, headers["connection"]) == (200, b'"late"', "close")
        assert held.result()[0] == 200
    assert process.ends() == 0


def test_a_gateway_whose_clients_never_pause_ends_all_the_same_and_answers_what_it_has_taken(
    run: Callable[..., Zbatch], cluster: tuple[str, Path]
) -> None:
    address = ("--http", "127.0.0.1:0", "--endpoint", cluster[0])
    process = run("gateway", *address, "--drain", "2s")
    gateway = Gateway(process)
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 200)

    def asks_on(_: int) -> list[int]:
        statuses: list[int] = []
        request = b"POST /predict/default HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"
        while True:
            try:
                connection = gateway.connect()
            except ConnectionError:
                return statuses  # nobody takes connections any more
            with connection:
                try:
                    connection.sendall(request)
                    told = connection.recv(1_000)
                except ConnectionError:
                    continue  # it waited to be taken
                statuses.append(int(told.split()[1]))

    with ThreadPoolExecutor(4) as pool:
        asking = pool.map(asks_on, range(4))
        process.signal(signal.SIGTERM)
        assert process.ends() == 0
        assert {status for statuses in asking for status in statuses} == {200}


def test_with_api_keys_only_who_holds_one_is_answered_for_its_topics_within_its_rate(
    run: Callable[..., Zbatch], cluster: tuple[str, Path], tmp_path: Path
) -> None:
    file = str(tmp_path / "keys.toml")
    alice = zbatch("keys", "http", file, "alice", "--topic", "default", "--rate", "0.01").stdout.strip()
    bob = zbatch("keys", "http", file, "bob", "--topic", "bert").stdout.strip()
    process = run("gateway", "--http", "127.0.0.1:0", "--endpoint", cluster[0], "--api-keys", file)
    gateway = Gateway(process)
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 200)

    status, headers, body = gateway.ask("POST", DEFAULT, 1)
    assert (status, headers["www-authenticate"], json.loads(body)["code"]) == (401, "Bearer", "unauthorized")
    assert gateway.predict(1, x_api_key="zb_guessed")[0] == 401
    assert gateway.predict(1, authorization=f"Bearer {bob}")[1]["code"] == "forbidden"
    assert gateway.predict(1, authorization=f"Bearer {alice}") == (200, 1)
    status, headers, _ = gateway.ask("POST", DEFAULT, 1, x_api_key=alice)
    assert (status, headers["retry-after"]) == (429, "100")
    assert gateway.ask("GET", "/")[0] == 401
    # The page that shows the document is no secret; the document is.
    assert [gateway.ask("GET", path)[0] for path in ("/docs", "/openapi.json")] == [200, 401]
    assert gateway.ask("GET", "/openapi.json", x_api_key=alice)[0] == 200

    carol = zbatch("keys", "http", file, "carol").stdout.strip()
    process.says("API keys read")
    assert gateway.predict(2, x_api_key=carol) == (200, 2)


def test_a_file_of_keys_that_went_away_is_told_of_once_and_its_keys_hold(
    run: Callable[..., Zbatch], cluster: tuple[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    alice = zbatch("keys", "http", str(file), "alice").stdout.strip()
    process = run("gateway", "--http", "127.0.0.1:0", "--endpoint", cluster[0], "--api-keys", str(file))
    gateway = Gateway(process)

    file.unlink()
    process.says("API keys not read")
    time.sleep(2.5)  # it looks every second
    assert gateway.predict(1, x_api_key=alice) == (200, 1)
    file.write_text("[alice")
    assert process.says("no valid TOML").count("API keys not read") == 2
    file.unlink()
    process.says("API keys not read", times=3)
    zbatch("keys", "http", str(file), "bob")
    process.says("API keys read")
    assert gateway.predict(1, x_api_key=alice)[0] == 401


def test_what_a_gateway_does_is_counted_for_prometheus(gateway: Gateway) -> None:
    gateway.predict(1)
    gateway.ask("GET", "/nothing")

    # A page is kept for a second.
    wanted = b'zbatch_gateway_requests_total{call="other",process="0",status="404"}'
    until(lambda: wanted in gateway.ask("GET", "/metrics")[2])
    status, headers, body = gateway.ask("GET", "/metrics")

    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    text = body.decode()
    assert 'zbatch_gateway_requests_total{call="predict",process="0",status="200"}' in text
    assert 'zbatch_gateway_request_seconds_bucket{call="predict",le="+Inf",process="0"}' in text
    assert 'zbatch_gateway_ready{process="0"} 1.0' in text
    assert 'zbatch_gateway_in_flight_requests{process="0"} 1.0' in text


def test_whichever_process_of_a_gateway_is_scraped_shows_all(pair: Gateway) -> None:
    for number in range(40):
        assert pair.predict(number) == (200, number)

    def shown() -> list[float]:
        text = pair.ask("GET", "/metrics")[2].decode()
        return [
            float(value)
            for value in re.findall(
                r'^zbatch_gateway_requests_total\{call="predict",process="[01]",status="200"} (\S+)',
                text,
                re.M,
            )
        ]

    # Each connection goes to either of them, as the kernel likes.
    until(lambda: len(shown()) == 2 and all(sum(shown()) == 40 for _ in range(8)))


def test_an_item_of_another_type_than_the_model_declares_is_refused_with_its_path(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    model = tmp_path / "typed.py"
    model.write_text(
        "import msgspec\nclass Item(msgspec.Struct):\n    n: int\n"
        "def double(batch: list[Item]) -> list[int]:\n    return [one.n * 2 for one in batch]\n"
    )
    front = f"ipc://{tmp_path}/front"
    gateway = Gateway(
        run("serve", f"{model}:double", "--gpu", "cpu", "--frontend", front, "--http", "127.0.0.1:0")
    )
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 200)

    assert gateway.predict({"n": 21}) == (200, 42)
    status, told = gateway.predict({"n": "x"})
    assert (status, told["code"]) == (422, "bad_input")
    assert "$.n: expected int, got str" in told["error"]
    status, _, body = gateway.ask("POST", "/predict/default/batch", [{"n": 1}, {"m": 1}])
    assert (status, json.loads(body)["error"].startswith("item 1: $")) == (422, True)
    with ZClient[Any, Any](front) as client:
        assert client.status()["topics"]["default"]["items"] == 1


def test_the_calls_are_described_and_their_page_comes_from_this_host(gateway: Gateway) -> None:
    told = json.loads(gateway.ask("GET", "/openapi.json")[2])
    assert "/predict/default" in told["paths"]

    status, headers, page = gateway.ask("GET", "/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"swagger-ui-bundle.js" in page
    status, headers, _ = gateway.ask("GET", "/docs/swagger-ui-bundle.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert gateway.ask("GET", "/docs/../app.py")[0] == 404


def test_with_a_certificate_a_gateway_speaks_tls(
    run: Callable[..., Zbatch], cluster: tuple[str, Path], certificate: Certificate
) -> None:
    process = run("gateway", "--http", "127.0.0.1:0", "--endpoint", cluster[0], *certificate.options)
    port = int(process.says("gateway started").partition("url=https://127.0.0.1:")[2].split()[0])

    trusted = ssl.create_default_context(cafile=certificate.path)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=trusted)
    connection.request("POST", DEFAULT, b"[7]")
    answer = connection.getresponse()

    assert (answer.status, answer.read()) == (200, b"[7]")
    connection.close()


def test_a_certificate_that_is_none_is_told_by_a_sentence(certificate: Certificate, tmp_path: Path) -> None:
    nothing, locked = tmp_path / "nothing.pem", tmp_path / "locked.pem"
    nothing.write_text("no certificate")
    locking = ["openssl", "pkey", "-aes256", "-passout", "pass:secret"]
    locking += ["-in", str(certificate.key), "-out", str(locked)]
    subprocess.run(locking, check=True, capture_output=True, timeout=PATIENCE)
    cert, key = str(certificate.path), str(certificate.key)
    told = {
        ("--tls-cert", cert): "got one of them; say --tls-key, too",
        ("--tls-key", key): "got one of them; say --tls-cert, too",
        ("--tls-cert", f"{cert}-", "--tls-key", key): "cannot be read: No such file or directory",
        ("--tls-cert", str(nothing), "--tls-key", key): "wanted a certificate and its key, both in PEM",
        ("--tls-cert", cert, "--tls-key", str(locked)): "both in PEM, without a password",
    }
    for options, sentence in told.items():
        ended = zbatch("gateway", "--http", "127.0.0.1:0", *options)
        assert (ended.returncode, sentence in ended.stderr) == (2, True), ended.stderr
        assert "Traceback" not in ended.stderr


def test_serve_runs_a_gateway_too_and_leaves_nothing_behind(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    serving = run(
        "serve", MODEL, "--gpu", "cpu", "--frontend", f"ipc://{tmp_path}/front", "--http", "127.0.0.1:0"
    )
    gateway = Gateway(serving)
    until(lambda: gateway.ask("GET", "/health/ready")[0] == 200)
    assert gateway.predict("hi") == (200, "hi")
    family = serving.family()

    serving.signal(signal.SIGTERM)

    assert serving.ends() == 0
    assert all_end(family)


def test_a_gateway_process_that_dies_is_started_again(pair: Gateway) -> None:

    pair.process.family()[0].kill()

    pair.process.says("gateway started", times=3)
    assert pair.predict("on") == (200, "on")
    pair.process.signal(signal.SIGTERM)
    assert pair.process.ends() == 0


def test_an_address_that_is_taken_is_a_sentence(
    run: Callable[..., Zbatch], gateway: Gateway, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = run("gateway", "--http", f"127.0.0.1:{port}", "--endpoint", f"ipc://{tmp_path}/none")
        assert process.ends() == 2
    assert (
        f"--http 127.0.0.1:{port} cannot be listened on: somebody else listens there"
        in process.log.read_text()
    )


def test_a_second_gateway_does_not_take_a_part_of_the_first_ones_connections(
    run: Callable[..., Zbatch], gateway: Gateway, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{gateway.port}"

    second = run("gateway", "--http", address, "--endpoint", f"ipc://{tmp_path}/none")

    assert second.ends() == 2
    assert f"--http {address} cannot be listened on: somebody else listens there" in second.log.read_text()


@pytest.mark.parametrize("command", [["gateway"], ["serve", MODEL, "--gpu", "cpu"]])
def test_a_second_gateway_of_several_processes_takes_none_either(
    run: Callable[..., Zbatch], pair: Gateway, tmp_path: Path, command: list[str]
) -> None:
    address, front = f"127.0.0.1:{pair.port}", f"ipc://{tmp_path}/front"
    its = ["--processes", "2", "--endpoint" if command == ["gateway"] else "--frontend"]

    second = run(*command, "--http", address, *its, front)

    assert second.ends() == 2
    sentence = (
        f"--http {address} cannot be listened on: somebody else listens there; stop them, or say another port"
    )
    assert second.log.read_text() == f"Error: {sentence}\n"
    assert pair.predict("on") == (200, "on")


def test_a_gateway_says_when_no_broker_is_heard_and_when_one_is(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    alone = run("gateway", "--http", "127.0.0.1:0", "--endpoint", front)
    assert f"endpoint={front}" in alone.says("broker does not answer")

    run("broker", "--frontend", front, "--backend", back)

    assert f"endpoint={front}" in alone.says("broker answers")


def _answer(connection: socket.socket) -> bytes:
    """Return the head of an answer and as much as comes with it."""
    until_end = time.monotonic() + PATIENCE
    connection.settimeout(0.2)
    came = b""
    while time.monotonic() < until_end:
        try:
            piece = connection.recv(65_536)
        except TimeoutError:
            if b"\r\n\r\n" in came:
                return came
            continue
        if not piece:
            return came
        came += piece
    raise AssertionError("no answer came")
