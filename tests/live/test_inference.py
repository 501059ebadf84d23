"""The Open Inference Protocol at a real gateway: what calls say of a cluster, and what hostile bodies get."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until, zbatch
from tests.live.test_gateway import Gateway
from zbatch import ZClient

pytestmark = pytest.mark.live
pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

MODEL = f"{ROOT}/examples/oip_model.py:Judge"
INFER = "/v2/models/judge/infer"

OTHERS = """
import pathlib, time
import numpy as np

ONE = {"name": "x", "datatype": "FP32", "shape": [1]}

class Held:
    signature = {"inputs": [ONE], "outputs": [ONE]}

    def __init__(self, gate=""):
        self.gate = gate

    def predict(self, batch):
        while self.gate and max(item["x"][0] for item in batch) > 99 and not pathlib.Path(self.gate).exists():
            time.sleep(0.005)
        return [ValueError("it is negative") if item["x"][0] < 0 else item for item in batch]

class Liar(Held):
    def predict(self, batch):
        return [item["x"].astype(np.float64) for item in batch]

class Bare:
    def predict(self, batch):
        return batch
"""


class Cluster:
    """A broker that is no longer young, a gateway, and workers beside the example's."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.front, self.back = f"ipc://{home}/front", f"ipc://{home}/back"
        (home / "others.py").write_text(OTHERS)
        self.running = [
            Zbatch(home / "broker.log", "broker", "--frontend", self.front, "--backend", self.back)
        ]
        self.work(MODEL, "judge")
        for name in ("Liar", "Bare"):
            self.work(f"{home}/others.py:{name}", name.lower())
        self.gate = home / "gate"
        self.work(f"{home}/others.py:Held", "held", "--arg", f"gate={self.gate}")
        ends = ("--http", "127.0.0.1:0", "--endpoint", self.front, "--max-body", "1MiB", "--timeout", "30s")
        process = Zbatch(home / "gateway.log", "gateway", *ends)
        self.running.append(process)
        self.gateway = Gateway(process)
        for topic in ("judge", "liar", "bare", "held"):
            until(lambda topic=topic: self.get(f"/v2/models/{topic}/ready")[0] == 200)  # type: ignore[misc]

    def work(self, model: str, topic: str, *more: str) -> Zbatch:
        """Run a worker."""
        log = self.home / f"{topic}-{len(self.running)}.log"
        worker = Zbatch(log, "worker", model, "--topic", topic, "--gpu", "cpu", "--backend", self.back, *more)
        worker.says("model ready")
        self.running.append(worker)
        return worker

    def get(self, path: str) -> tuple[int, Any]:
        """Ask for what a path says."""
        status, _, body = self.gateway.ask("GET", path)
        return status, json.loads(body)

    def infer(self, path: str, body: Any = None, raw: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Ask a model; give the status and the JSON that came."""
        status, _, data = self.gateway.ask("POST", path, body, raw, **headers)
        return status, json.loads(data)

    def close(self) -> None:
        """End it."""
        for one in reversed(self.running):
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run it for all tests."""
    cluster = Cluster(tmp_path_factory.mktemp("inference"))
    yield cluster
    cluster.close()


def judged(rows: int = 1, **more: Any) -> dict[str, Any]:
    """Return a request of that many rows."""
    features = {"name": "features", "datatype": "FP32", "shape": [rows, 4], "data": [1.0] * 4 * rows}
    names = {"name": "name", "datatype": "BYTES", "shape": [rows, 1], "data": ["Ada"] * rows}
    return {"inputs": [features, names]} | more


def held(*values: float, **more: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}]
    } | more


def test_rows_of_many_requests_are_answered_each_with_its_own(cluster: Cluster) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda at: cluster.infer("/v2/models/held/infer", held(at, at + 0.5)), range(50))
        )
    assert [status for status, _ in answers] == [200] * 50
    assert [told["outputs"][0]["data"] for _, told in answers] == [[at, at + 0.5] for at in range(50)]


def test_metadata_and_readiness_are_of_the_workers_that_are_there(cluster: Cluster) -> None:
    assert cluster.get("/v2")[1]["name"] == "zbatch"
    assert cluster.get("/v2/health/live")[0] == cluster.get("/v2/health/ready")[0] == 200
    assert cluster.get("/v2/models/judge/versions/1/ready") == (200, {"name": "judge", "ready": True})
    status, told = cluster.get("/v2/models/judge/versions/2")
    assert (status, told["error"]) == (404, "model 'judge' has no version '2'; it has 1")
    # While the broker is young, its workers may be on their way.
    until(lambda: cluster.get("/v2/models/nobody/ready")[0] == 404)
    assert "nobody" in cluster.get("/v2/models/nobody/ready")[1]["error"]
    assert cluster.get("/v2/models/bare")[1]["inputs"] == []
    status, told = cluster.infer("/v2/models/bare/infer", held(1))
    assert status == 400
    assert "declares no signature" in told["error"]


def test_statistics_count_what_was_asked(cluster: Cluster) -> None:
    def figures() -> Any:
        (shown,) = cluster.get("/v2/models/judge/stats")[1]["model_stats"]
        return shown

    before = figures()["inference_count"]
    assert cluster.infer(INFER, judged(3))[0] == 200
    until(lambda: figures()["inference_count"] == before + 3)
    assert figures()["inference_stats"]["success"]["ns"] > 0
    assert len(cluster.get("/v2/models/stats")[1]["model_stats"]) == 4


def test_the_index_names_every_model(cluster: Cluster) -> None:
    _, told = cluster.infer("/v2/repository/index", {"ready": True})
    assert sorted((one["name"], one["version"], one["state"]) for one in told) == [
        ("bare", "", "READY"),
        ("held", "", "READY"),
        ("judge", "1", "READY"),
        ("liar", "", "READY"),
    ]
    status, told = cluster.infer("/v2/repository/models/judge/load", {})
    assert status == 400
    assert "workers bring them" in told["error"]


def test_a_row_that_fails_fails_its_request_and_no_other(cluster: Cluster) -> None:
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(cluster.infer, "/v2/models/held/infer", held(1, 2))
        status, told = cluster.infer("/v2/models/held/infer", held(1, -1))
        assert good.result()[0] == 200
    assert (status, told["error"], told["code"]) == (500, "ValueError: it is negative", "model_failed")


def test_an_output_that_is_not_declared_names_it(cluster: Cluster) -> None:
    status, told = cluster.infer("/v2/models/liar/infer", held(1))
    assert (status, told["code"]) == (500, "bad_output")
    assert told["error"] == "output 'x' of item 0 has datatype FP64, wanted FP32"


def test_the_timeout_of_a_request_is_its_deadline(cluster: Cluster) -> None:
    status, told = cluster.infer("/v2/models/held/infer", held(100, parameters={"timeout": 200_000}))
    cluster.gate.touch()
    assert (status, told["code"]) == (504, "deadline_exceeded")


def test_a_body_may_be_compressed_and_so_may_its_answer(cluster: Cluster) -> None:
    plain = json.dumps(judged(200)).encode()
    for encoding, pack, unpack in (
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
    ):
        status, headers, body = cluster.gateway.ask(
            "POST", INFER, raw=pack(plain), content_encoding=encoding, accept_encoding=encoding
        )
        assert (status, headers["content-encoding"]) == (200, encoding)
        assert len(body) < len(unpack(body)) / 2
        assert json.loads(unpack(body))["outputs"][0]["shape"] == [200, 1]


def test_an_answer_that_is_short_is_not_compressed(cluster: Cluster) -> None:
    _, headers, _ = cluster.gateway.ask("POST", INFER, judged(), accept_encoding="gzip")
    assert "content-encoding" not in headers


def test_binary_tensors_go_and_come_behind_the_json(cluster: Cluster) -> None:
    raw = np.array([1.5, 2.5], "<f4").tobytes()
    one = {"name": "x", "datatype": "FP32", "shape": [2, 1], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
    status, headers, body = cluster.gateway.ask(
        "POST", "/v2/models/held/infer", raw=head + raw, inference_header_content_length=str(len(head))
    )
    length = int(headers["inference-header-content-length"])
    assert (status, headers["content-type"], body[length:]) == (200, "application/octet-stream", raw)
    status, headers, body = cluster.gateway.ask(
        "POST", "/v2/models/held/infer", raw=raw[:4], inference_header_content_length="0"
    )
    assert (status, body[int(headers["inference-header-content-length"]) :]) == (200, raw[:4])


BOMB = gzip.compress(bytes(64 << 20))


@pytest.mark.parametrize(
    ("raw", "headers", "status", "said"),
    [
        (b"{", {}, 400, "the request"),
        (b'{"inputs":' + b"[" * 200_000, {}, 400, "the request"),
        (b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[NaN]}]}', {}, 400, "the request"),
        (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}', {}, 400, "shape [1, 2]"),
        (
            b'{"inputs":[{"name":"x","shape":[1099511627776,1],"datatype":"FP32","data":[1]}]}',
            {},
            413,
            "1099511627776 rows",
        ),
        (b"{}", {"inference_header_content_length": "3"}, 400, "inference-header-content-length"),
        (b"abc", {"inference_header_content_length": "0"}, 400, "wanted 4"),
        (b"{", {"content_encoding": "gzip"}, 400, "the body is no gzip"),
        (b"{}", {"content_encoding": "br"}, 415, "content-encoding is 'br'"),
        (BOMB, {"content_encoding": "gzip"}, 413, "more than 1048576 bytes when decompressed"),
        (zlib.compress(bytes(2 << 20)), {"content_encoding": "deflate"}, 413, "more than 1048576 bytes"),
    ],
)
def test_a_hostile_body_gets_its_status_and_the_gateway_goes_on(
    cluster: Cluster, raw: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    found, told = cluster.infer("/v2/models/held/infer", raw=raw, **headers)
    assert (found, said in told["error"]) == (status, True), told
    assert cluster.infer("/v2/models/held/infer", held(1))[0] == 200


def test_with_api_keys_models_are_told_and_asked_by_those_who_hold_one(
    cluster: Cluster, run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    file = str(tmp_path / "keys.toml")
    key = zbatch("keys", "http", file, "alice", "--topic", "held").stdout.strip()
    gateway = Gateway(
        run("gateway", "--http", "127.0.0.1:0", "--endpoint", cluster.front, "--api-keys", file)
    )
    until(lambda: gateway.ask("GET", "/v2/health/ready")[0] == 200)
    for path in (
        "/v2",
        "/v2/models/held",
        "/v2/models/held/ready",
        "/v2/models/held/config",
        "/v2/models/stats",
    ):
        assert gateway.ask("GET", path)[0] == 401
        assert gateway.ask("GET", path, x_api_key=key)[0] == 200
    assert gateway.ask("POST", "/v2/models/held/infer", held(1))[0] == 401
    assert gateway.ask("POST", "/v2/models/held/infer", held(1), x_api_key=key)[0] == 200
    assert gateway.ask("POST", INFER, judged(), x_api_key=key)[0] == 403
    assert gateway.ask("POST", "/v2/repository/index")[0] == 401
    assert gateway.ask("POST", "/v2/repository/models/held/load")[0] == 401


def test_a_request_that_names_no_timeout_waits_for_workers_as_long_as_the_gateway_says(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    run("broker", "--frontend", front, "--backend", back).says("broker started")
    gateway = Gateway(run("gateway", "--http", "127.0.0.1:0", "--endpoint", front, "--timeout", "300ms"))
    # Once the broker is no longer young this is 404.
    status, _, body = gateway.ask("POST", INFER, judged())
    assert (status, json.loads(body)["code"]) == (503, "no_workers")


def test_a_request_waits_for_the_workers_of_a_young_broker(
    run: Callable[..., Zbatch], tmp_path: Path
) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    run("broker", "--frontend", front, "--backend", back).says("broker started")
    gateway = Gateway(run("gateway", "--http", "127.0.0.1:0", "--endpoint", front))
    with ZClient[Any, Any](front, timeout=PATIENCE) as client, ThreadPoolExecutor(1) as pool:
        until(lambda: client.status()["clients"] == 2)
        assert gateway.ask("GET", "/v2/models/judge/ready")[0] == 503
        status, _, body = gateway.ask("POST", INFER, judged(), x_timeout="10ms")
        assert (status, json.loads(body)["code"]) == (503, "no_workers")
        asked = pool.submit(gateway.ask, "POST", INFER, judged())
        run("worker", MODEL, "--topic", "judge", "--gpu", "cpu", "--backend", back).says("model ready")
        assert asked.result()[0] == 200
