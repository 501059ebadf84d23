"""A request id is found again in the worker's log, whatever became of the request."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until, zbatch
from tests.live.test_gateway import Gateway
from tests.live.test_inference import OTHERS
from zbatch import AsyncZClient, BadInput, Future, PoisonItem, ZClient

pytestmark = pytest.mark.live
pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

MODELS = f"{ROOT}/tests/live/models.py"
HELD = {"name": "x", "datatype": "FP32", "shape": [1, 1]}


class Farm:
    """A broker with a pipeline of its own, workers that say all they can, and a gateway."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.front, self.back = f"ipc://{home}/front", f"ipc://{home}/back"
        (home / "others.py").write_text(OTHERS)
        ends = ("--frontend", self.front, "--backend", self.back, "--pipeline", "both=pre,bert")
        self.running = [Zbatch(home / "broker.log", "broker", *ends)]
        self.bert = self.work("bert", f"{MODELS}:Obedient")
        self.pre = self.work("pre", f"{MODELS}:Unquoting")
        self.talk = self.work("talk", f"{MODELS}:Talker")
        self.held = self.work("held", f"{home}/others.py:Held")
        address = ("--http", "127.0.0.1:0", "--endpoint", self.front, "--timeout", "30s")
        self.running.append(Zbatch(home / "gateway.log", "gateway", *address))
        self.gateway = Gateway(self.running[-1])
        for topic in ("bert", "pre", "talk", "held"):
            ready = f"/v2/models/{topic}/ready"
            until(lambda ready=ready: self.gateway.ask("GET", ready)[0] == 200)  # type: ignore[misc]

    def work(self, topic: str, model: str, *more: str) -> Zbatch:
        """Run a worker."""
        where = ("--topic", topic, "--gpu", "cpu", "--backend", self.back, "--log-level", "debug", *more)
        worker = Zbatch(self.home / f"{topic}.log", "worker", model, *where)
        worker.says("model ready")
        self.running.append(worker)
        return worker

    def end(self) -> None:
        for one in reversed(self.running):
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    farm = Farm(tmp_path_factory.mktemp("named"))
    yield farm
    farm.end()


def line_of(worker: Zbatch, event: str, request_id: str) -> str:
    """Wait for the line of an event that names a request; return it."""
    found: list[str] = []

    def is_there() -> bool:
        names = re.compile(rf"request_ids=(?:\S+,)?{re.escape(request_id)}(?:,|\s|$)")
        lines = worker.log.read_text().splitlines()
        found[:] = [line for line in lines if f": {event} " in line and names.search(line)]
        return bool(found)

    until(is_there)
    return found[0]


def test_a_request_that_failed_is_found_by_the_id_that_its_client_gave(farm: Farm) -> None:
    status, answer = farm.gateway.predict("fail", "bert", x_request_id="given-1")

    assert (status, answer["request_id"]) == (500, "given-1")
    line = line_of(farm.bert, "requests failed", "given-1")
    assert "topic=bert" in line
    assert "code=model_failed kind=KeyError" in line


def test_a_request_that_failed_is_found_by_the_id_that_the_gateway_made(farm: Farm) -> None:
    status, headers, _ = farm.gateway.ask("POST", "/predict/bert", "raise")

    assert status == 500
    line = line_of(farm.bert, "requests failed", headers["x-request-id"])
    assert f"kind=ValueError at={MODELS}:" in line


def test_a_request_that_failed_is_found_by_the_id_that_a_shell_gave(farm: Farm) -> None:
    asked = zbatch("predict", "--endpoint", farm.front, "--request-id", "shell-1", "bert", "fail")

    assert asked.returncode == 1
    assert "code=model_failed" in line_of(farm.bert, "requests failed", "shell-1")


def test_a_request_of_several_items_is_named_once(farm: Farm) -> None:
    status, _, _ = farm.gateway.ask(
        "POST", "/predict/bert/batch", ["good", "fail", "fail"], x_request_id="several-1"
    )

    assert status == 207
    assert line_of(farm.bert, "requests failed", "several-1").count("several-1") == 1
    assert line_of(farm.bert, "batch ran", "several-1").count("several-1") == 1


def test_a_request_that_went_well_is_found_by_who_asks_for_debug_lines(farm: Farm) -> None:
    assert farm.gateway.predict("good", "bert", x_request_id="well-1") == (200, "good")

    line = line_of(farm.bert, "batch ran", "well-1")
    assert re.search(r"topic=bert batch=\d+ items=1 seconds=\S+ request_ids=well-1$", line)
    assert "requests failed" not in farm.bert.log.read_text().rpartition("well-1")[0].splitlines()[-1]


def test_one_id_is_found_in_each_stage_of_a_pipeline(farm: Farm) -> None:
    status, answer = farm.gateway.predict("'fail'", "both", x_request_id="stages-1")

    assert (status, answer["code"]) == (500, "model_failed")
    line_of(farm.pre, "batch ran", "stages-1")
    line_of(farm.bert, "requests failed", "stages-1")


def test_a_request_under_which_a_process_dies_is_found(farm: Farm) -> None:
    status, answer = farm.gateway.predict("die", "bert", x_request_id="dies-1")

    assert (status, answer["code"]) == (500, "poison_item")
    assert "reason=SIGABRT" in line_of(farm.bert, "model process ended", "dies-1")


def test_a_request_that_ran_too_long_is_found(farm: Farm) -> None:
    slow = farm.work("slow", f"{MODELS}:Obedient", "--lease", "0.2s")
    with ZClient[Any, Any](farm.front, topic="slow", timeout=PATIENCE) as client, pytest.raises(PoisonItem):
        client.predict_one({"sleep": PATIENCE}, request_id="slow 1")

    text = slow.log.read_text()
    (line, _) = [line for line in text.splitlines() if "model process ended" in line]
    assert "reason=lease" in line
    assert 'request_ids="slow 1"' in line


def test_a_stream_that_fails_is_found(farm: Farm) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", farm.gateway.port, timeout=PATIENCE)
    headers = {"accept": "text/event-stream", "x-request-id": "stream-1"}
    connection.request("POST", "/predict/talk", json.dumps({"parts": 3, "fail": 1}), headers)
    text = connection.getresponse().read().decode()
    connection.close()

    assert "event: error" in text
    assert "kind=ValueError" in line_of(farm.talk, "requests failed", "stream-1")


def test_a_request_of_the_open_inference_protocol_is_found(farm: Farm) -> None:
    body = {"inputs": [HELD | {"data": [-1.0]}]}
    status, _, _ = farm.gateway.ask("POST", "/v2/models/held/infer", body, x_request_id="tensors-1")

    assert status == 500
    assert "kind=ValueError" in line_of(farm.held, "requests failed", "tensors-1")


def test_an_item_that_cannot_be_decoded_is_found(farm: Farm) -> None:
    with ZClient[Any, Any](farm.front, topic="bert", timeout=PATIENCE) as client:
        client._asking._encode = lambda item, place=None: (b"\xc1", ())
        with pytest.raises(BadInput):
            client.predict_one("x", request_id="odd-1")

    assert "code=bad_input" in line_of(farm.bert, "requests failed", "odd-1")


def test_an_id_of_each_of_a_clients_calls_comes_to_the_worker(farm: Farm) -> None:
    async def ask() -> None:
        async with AsyncZClient[Any, Any](farm.front, topic="bert", timeout=PATIENCE) as client:
            await client.predict(["x"], request_id="aio-1")
            await client.predict_one("x", request_id="aio-2", timeout=PATIENCE)
            await client.submit(["x", "y"], request_id="aio-3")
            assert [one async for one in client.map(["x"], request_id="aio-4")] == ["x"]
            assert [one async for one in client.stream("x", request_id="aio-5")] == ["x"]

    asyncio.run(ask())
    with ZClient[Any, Any](farm.front, topic="bert", timeout=PATIENCE) as client:
        client.predict_one("x", request_id="sync-1")
        client.submit(["x"], request_id="sync-2").result()
        assert list(client.map(["x"], request_id="sync-3")) == ["x"]
        assert list(client.stream("x", request_id="sync-4")) == ["x"]

    for request_id in [f"aio-{at}" for at in range(1, 6)] + [f"sync-{at}" for at in range(1, 5)]:
        line_of(farm.bert, "batch ran", request_id)


def test_what_a_stranger_calls_its_request_cannot_start_a_line(farm: Farm) -> None:
    class Stranger(Future[Any]):
        name = "evil\nforged line \x1b[2J"

    with ZClient[Any, Any](farm.front, topic="bert", timeout=PATIENCE) as client:
        client._future = Stranger
        client.predict(["fail"], return_exceptions=True)

    until(lambda: "evil" in farm.bert.log.read_text())
    text = farm.bert.log.read_text()
    assert "\nforged" not in text
    assert "\x1b" not in text
