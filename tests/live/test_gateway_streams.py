"""Streams over HTTP: real gateways and models, readers that are slow, that leave, and that are cut off."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until, zbatch
from zbatch import ZClient

pytestmark = pytest.mark.live

pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
PIECE = 100_000
"""Bytes of a part; as JSON it is twice to four times as long."""

FOREVER = {"parts": 10**9, "pause": 0.002}


class Farm:
    """A broker, a worker whose model talks, and a gateway."""

    def __init__(self, home: Path, *options: str, model: str = "Talker") -> None:
        self.frontend, back = f"ipc://{home}/front", f"ipc://{home}/back"
        self.journal = home / "journal"
        self.journal.touch()
        self.broker = Zbatch(home / "broker.log", "broker", "--frontend", self.frontend, "--backend", back)
        name = f"{ROOT}/tests/live/models.py:{model}"
        arguments = ("--gpu", "cpu", "--backend", back, "--arg", f"journal={self.journal}")
        self.worker = Zbatch(home / "worker.log", "worker", name, *arguments)
        self.worker.says("model ready")
        address = ("--http", "127.0.0.1:0", "--endpoint", self.frontend)
        self.gateway = Zbatch(home / "gateway.log", "gateway", *address, *options)
        said = self.gateway.says("gateway started")
        self.port = int(said.partition("url=http://127.0.0.1:")[2].split()[0])
        until(lambda: self.get("/health/ready")[0] == 200)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", path)
        answer = connection.getresponse()
        told = answer.status, answer.read().decode()
        connection.close()
        return told

    def ask(self, order: Any, accept: str = EVENTS, query: str = "", **headers: str) -> Reading:
        return Reading(self.port, order, accept, query, {k.replace("_", "-"): v for k, v in headers.items()})

    def words(self, word: str) -> int:
        """Return how often the model noted a word."""
        return self.journal.read_text().count(word)

    def counted(self, status: int) -> float:
        """Return how many streams were counted under a status."""
        name = f'zbatch_gateway_requests_total{{call="stream",process="0",status="{status}"}} '
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    def is_idle(self) -> bool:
        """Return whether the broker holds nothing."""
        with ZClient[Any, Any](self.frontend) as client:
            topic = client.status()["topics"]["default"]
        return not topic["waiting"] and not topic["running"]

    def end(self) -> None:
        for one in (self.gateway, self.worker, self.broker):
            one.process.kill()
            one.process.wait()


class Reading:
    """One request, and what comes of it."""

    def __init__(self, port: int, order: Any, accept: str, query: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        body = json.dumps(order).encode()
        named = {"accept": accept} | headers
        self._connection.request("POST", f"/predict/default{query}", body, named)
        self._events = accept == EVENTS

    def answer(self) -> http.client.HTTPResponse:
        """Wait for the head."""
        if not hasattr(self, "_answer"):
            self._answer = self._connection.getresponse()
        return self._answer

    def next(self) -> dict[str, Any] | None:
        """Return the next event or line; None where nothing more comes."""
        told: dict[str, Any] = {}
        while line := self.answer().readline():
            text = line.decode().rstrip("\n")
            if not self._events:
                return dict(json.loads(text))
            if text and not text.startswith(":"):
                name, _, value = text.partition(": ")
                told[name] = json.loads(value) if name in ("data", "id") else value
            elif told:
                return told
        return None

    def all(self) -> list[dict[str, Any]]:
        found = []
        while (told := self.next()) is not None:
            found.append(told)
        return found

    def leave(self) -> None:
        self._connection.close()
        self.answer().close()


def whole(name: str, count: int) -> list[dict[str, Any]]:
    """Return the events of a stream that came to its end."""
    parts = [{"id": step, "data": f"{name}{step}"} for step in range(count)]
    return [*parts, {"event": "done", "data": {"parts": count}}]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Run a farm that no test harms."""
    farm = Farm(tmp_path_factory.mktemp("farm"), "--timeout", "30s")
    yield farm
    farm.end()


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    farm = Farm(tmp_path, "--timeout", "30s")
    yield farm
    farm.end()


def test_parts_come_as_events_when_they_are_there(shared: Farm) -> None:
    reading = shared.ask({"parts": 3, "name": "w", "pause": 0.2}, x_request_id="mine-7")

    answer = reading.answer()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    assert (answer.status, headers["content-type"], headers["x-request-id"]) == (200, EVENTS, "mine-7")
    assert reading.next() == {"id": 0, "data": "w0"}
    assert not shared.is_idle()
    assert reading.all() == whole("w", 3)[1:]


def test_parts_come_as_lines_of_json(shared: Farm) -> None:
    for accept in (LINES, "application/jsonl"):
        reading = shared.ask({"parts": 2}, accept)
        assert reading.answer().getheader("content-type") == accept
        assert reading.all() == [{"part": "0"}, {"part": "1"}, {"done": True, "parts": 2}]


def test_a_part_that_json_cannot_hold_is_written_as_an_answer_is(shared: Farm) -> None:
    assert shared.ask({"parts": 1, "size": 3}, LINES).all() == [
        {"part": [0, 0, 0]},
        {"done": True, "parts": 1},
    ]


def test_an_item_without_parts_has_an_end_all_the_same(shared: Farm) -> None:
    assert shared.ask({"parts": 0}).all() == whole("", 0)


def test_curl_shows_a_stream(shared: Farm) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is what shows it")
    url = f"http://127.0.0.1:{shared.port}/predict/default"
    command = ["curl", "-sN", "-H", f"Accept: {EVENTS}", "-d", '{"parts": 2}', url]
    told = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE).stdout

    assert told == b'id: 0\ndata: "0"\n\nid: 1\ndata: "1"\n\nevent: done\ndata: {"parts":2}\n\n'


def test_a_connection_serves_on_after_a_stream(shared: Farm) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=PATIENCE)
    for _ in range(3):
        connection.request("POST", "/predict/default", b'{"parts": 1}', {"accept": LINES})
        assert connection.getresponse().read().endswith(b'{"done":true,"parts":1}\n')
        connection.request("POST", "/predict/default", b'{"parts": 1}')
        assert connection.getresponse().read() == b'["0"]'
    connection.close()


@pytest.mark.parametrize("how", ["fail", "raise"])
def test_an_error_before_the_first_part_has_its_status(shared: Farm, how: str) -> None:
    answer = shared.ask({"parts": 2, how: 0}).answer()

    told = json.loads(answer.read())
    assert (answer.status, answer.getheader("content-type")) == (500, "application/json")
    assert (told["code"], told["request_id"]) == ("model_failed", answer.getheader("x-request-id"))
    late = shared.ask({"parts": 1, "pause": 3.0}, query="?timeout=300ms").answer()
    assert (late.status, json.loads(late.read())["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("accept", [EVENTS, LINES])
def test_an_error_in_the_midst_is_told_and_is_no_end(shared: Farm, accept: str) -> None:
    reading = shared.ask({"parts": 3, "fail": 1}, accept, x_request_id="mine-8")

    assert reading.answer().status == 200
    first, last = reading.all()
    assert "0" in (first.get("data"), first.get("part"))
    told = last["data"] if accept == EVENTS else last
    assert told == {"error": "ValueError: told to fail", "code": "model_failed", "request_id": "mine-8"}
    assert accept == LINES or last["event"] == "error"


def test_a_stream_outlives_its_timeout_while_it_goes_on(shared: Farm) -> None:
    reading = shared.ask({"parts": 8, "pause": 0.4}, query="?timeout=2s")
    assert reading.all() == whole("", 8)


def test_who_waits_long_for_a_part_hears_that_it_is_alive(shared: Farm) -> None:
    events, lines = shared.ask({"parts": 1, "pause": 6.0}), shared.ask({"parts": 1, "pause": 6.0}, LINES)

    assert events.answer().readline() == b":\n"
    assert events.all() == whole("", 1)
    # A blank for every 5 s: the two may have run one after the other.
    told = lines.answer().readline()
    assert told.startswith(b" ")
    assert told.strip() == b'{"part":"0"}'
    assert lines.all() == [{"done": True, "parts": 1}]


def test_several_streams_share_a_batch_and_each_reader_gets_its_own(shared: Farm) -> None:
    before = shared.words("began")
    holding = shared.ask({"parts": 1, "pause": 0.5})
    until(lambda: shared.words("began") == before + 1)
    readings = {name: shared.ask({"parts": 5, "name": name}) for name in "abcdefgh"}

    with ThreadPoolExecutor(8) as pool:
        told = dict(zip(readings, pool.map(Reading.all, readings.values()), strict=True))

    assert told == {name: whole(name, 5) for name in "abcdefgh"}
    assert holding.all() == whole("", 1)
    assert shared.words("began") - before < 9


def test_what_is_asked_wrongly_is_refused_as_without_a_stream(shared: Farm) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=PATIENCE)
    for path, body, headers, status in (
        ("/predict/default", b"{x", {}, 400),
        ("/predict/default?timeot=1", b"{}", {}, 400),
        ("/predict/default", b"{}", {"content-type": "application/xml"}, 415),
        ("/predict/default/batch", b"[{}]", {}, 406),
    ):
        connection.request("POST", path, body, {"accept": EVENTS} | headers)
        answer = connection.getresponse()
        assert (answer.status, "code" in json.loads(answer.read())) == (status, True)
    connection.close()


def test_a_reader_that_leaves_stops_its_item(farm: Farm) -> None:
    for left, accept in enumerate((EVENTS, LINES), 1):
        reading = farm.ask(FOREVER, accept)
        assert reading.next() is not None
        reading.leave()
        until(lambda left=left: farm.words("ended") == left)  # type: ignore[misc]
        until(farm.is_idle)
    until(lambda: farm.counted(499) == 2)
    assert farm.ask({"parts": 1}).all() == whole("", 1)


def test_a_reader_that_does_not_read_holds_back_its_model_and_no_memory(farm: Farm) -> None:
    gateway = psutil.Process(farm.gateway.process.pid)
    before = gateway.memory_info().rss
    asleep = farm.ask({"parts": 600, "size": PIECE}, LINES)
    assert asleep.next() is not None

    time.sleep(3.0)

    assert farm.words("ended") == 0
    assert gateway.memory_info().rss - before < 60 << 20
    assert len(asleep.all()) == 600


def test_a_reader_that_reads_a_little_does_not_hold_up_who_waits_for_the_model(farm: Farm) -> None:
    slow = farm.ask({"parts": 600, "size": PIECE}, LINES, "?timeout=1h")
    assert slow.next() is not None

    late = farm.ask({"parts": 1}).answer()

    assert late.status == 200
    assert slow.all()[-1]["code"] == "reader_too_slow"


def test_a_reader_that_sleeps_beside_others_ends_in_an_error_and_they_are_whole(farm: Farm) -> None:
    holding = farm.ask({"parts": 1, "pause": 0.5})
    until(lambda: farm.words("began") == 1)
    sleeps = farm.ask({"parts": 300, "size": PIECE}, LINES)
    reads = farm.ask({"parts": 300, "size": PIECE}, LINES)

    assert holding.all() == whole("", 1)
    assert len(reads.all()) == 301
    assert farm.words("began") == 2
    told = sleeps.all()
    assert told[-1]["code"] == "reader_too_slow"
    assert 0 < len(told) < 300


def test_a_reader_that_reads_nothing_for_its_timeout_gives_its_worker_back(farm: Farm) -> None:
    sleeps = farm.ask({"parts": 300, "size": PIECE}, LINES, "?timeout=2s")
    assert sleeps.next() is not None
    assert farm.ask({"parts": 1}).all() == whole("", 1)
    until(lambda: farm.counted(429) == 1)

    assert sleeps.all()[-1]["code"] == "reader_too_slow"


def test_a_lost_worker_is_an_error_event(farm: Farm) -> None:
    reading = farm.ask(FOREVER)
    assert reading.next() == {"id": 0, "data": "0"}
    farm.worker.family()[-1].kill()

    last = reading.all()[-1]

    assert (last["event"], last["data"]["code"]) == ("error", "worker_lost")
    until(lambda: farm.counted(503) == 1)
    farm.worker.says("model ready", times=2)
    assert farm.ask({"parts": 1}).all() == whole("", 1)


def test_a_stream_whose_model_dies_before_its_first_part_is_whole(farm: Farm) -> None:
    assert farm.ask({"parts": 3, "die": 0}).all() == whole("", 3)
    assert farm.words("began") == 2


def test_a_gateway_that_is_told_to_leave_sends_its_streams_whole(farm: Farm) -> None:
    reading = farm.ask({"parts": 10, "pause": 0.2})
    assert reading.next() == {"id": 0, "data": "0"}

    farm.gateway.signal(signal.SIGTERM)
    farm.gateway.says("leaving")

    late = farm.ask({"parts": 2})
    assert late.answer().getheader("connection") == "close"
    assert late.all() == whole("", 2)
    assert reading.all() == whole("", 10)[1:]
    assert farm.gateway.ends() == 0


def test_a_gateway_that_is_told_twice_leaves_at_once_and_its_streams_have_no_end(farm: Farm) -> None:
    reading = farm.ask(FOREVER)
    assert reading.next() is not None
    farm.gateway.signal(signal.SIGTERM)
    farm.gateway.says("leaving")
    farm.gateway.signal(signal.SIGTERM)

    try:
        last = reading.all()[-1]
    except http.client.IncompleteRead:
        last = {}

    assert last.get("event") != "done"
    assert farm.gateway.ends() == 0
    until(lambda: farm.words("ended") == 1)


def test_streams_are_counted_once_when_they_end_with_their_bytes(farm: Farm) -> None:
    told = b'id: 0\ndata: "0"\n\nevent: done\ndata: {"parts":1}\n\n'
    reading = farm.ask({"parts": 1})
    assert reading.answer().read() == told

    until(lambda: farm.counted(200) == 1)
    text = farm.get("/metrics")[1]
    assert 'zbatch_gateway_request_seconds_count{call="stream",process="0"} 1.0' in text


def test_with_api_keys_a_stream_is_an_item_of_its_holder(tmp_path: Path) -> None:
    file = str(tmp_path / "keys.toml")
    alice = zbatch("keys", "http", file, "alice", "--topic", "default", "--rate", "0.01").stdout.strip()
    farm = Farm(tmp_path, "--api-keys", file)
    try:
        assert farm.ask({"parts": 1}).answer().status == 401
        assert farm.ask({"parts": 1}, x_api_key=alice).all() == whole("", 1)
        answer = farm.ask({"parts": 1}, x_api_key=alice).answer()
        assert (answer.status, answer.getheader("retry-after")) == (429, "100")
    finally:
        farm.end()


def test_a_model_that_yields_nothing_is_a_stream_of_one_part(tmp_path: Path) -> None:
    farm = Farm(tmp_path, model="Obedient")
    try:
        assert farm.ask("word").all() == [
            {"id": 0, "data": "word"},
            {"event": "done", "data": {"parts": 1}},
        ]
    finally:
        farm.end()


def test_a_cut_connection_is_told_from_an_end(farm: Farm) -> None:
    with socket.create_connection(("127.0.0.1", farm.port), PATIENCE) as connection:
        body = json.dumps(FOREVER).encode()
        head = f"POST /predict/default HTTP/1.1\r\nHost: x\r\nAccept: {LINES}\r\nContent-Length: {len(body)}"
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        came = b""
        while b'{"part":"0"}' not in came:
            came += connection.recv(65_536)
        farm.gateway.signal(signal.SIGKILL)
        while piece := connection.recv(65_536):
            came += piece
    assert b"done" not in came
    assert not came.endswith(b"0\r\n\r\n")
    until(lambda: farm.words("ended") == 1)


def test_a_stream_that_a_second_signal_ends_says_so(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    try:
        reading = farm.ask(FOREVER)
        assert reading.next() is not None
        farm.gateway.signal(signal.SIGTERM)
        farm.gateway.says("leaving")
        farm.gateway.signal(signal.SIGTERM)
        last = reading.all()[-1]
        assert (last["event"], last["data"]["code"]) == ("error", "client_closed")
        assert farm.gateway.ends() == 0
    finally:
        farm.end()
