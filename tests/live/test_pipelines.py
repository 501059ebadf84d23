"""Pipelines of real processes: what goes from stage to stage, and what a death in the middle costs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until
from zbatch import ModelFailed, ZClient, pipeline

pytestmark = pytest.mark.live

Run = Callable[..., Zbatch]
MODELS = f"{ROOT}/tests/live/models.py"


def broker(run: Run, home: Path) -> tuple[Zbatch, str]:
    """Start a broker; return it with its endpoint for clients."""
    front = f"ipc://{home}/front"
    return run("broker", "--frontend", front, "--backend", f"ipc://{home}/back"), front


def worker(run: Run, home: Path, topic: str, *more: str, model: str = "Obedient") -> Path:
    """Start a worker of a topic; return its journal."""
    journal = home / f"{topic}.journal"
    journal.touch()
    noted = ("--arg", f"journal={journal}") if model == "Obedient" else ()
    where = ("--gpu", "cpu", "--topic", topic, "--backend", f"ipc://{home}/back")
    run("worker", f"{MODELS}:{model}", *where, *noted, *more).says("model ready")
    return journal


def runs(journal: Path) -> list[int]:
    """Return the processes that ran a batch, one each run."""
    return [int(line.split()[0]) for line in journal.read_text().splitlines()]


def test_large_arrays_go_through_branches_and_meet_as_a_dict(run: Run, tmp_path: Path) -> None:
    _, front = broker(run, tmp_path)
    for topic in ("pre", "left", "right"):
        worker(run, tmp_path, topic)
    worker(run, tmp_path, "post", model="Meeting")
    pipe = pipeline("pre", {"a": "left", "b": ["right", "left"], "c": []}, "post")
    ones = np.ones((256, 1024), np.float32)
    with ZClient[object, object](front, topic=pipe, timeout=PATIENCE) as client:
        for future in [client.submit([ones * at for at in range(4)]) for _ in range(4)]:
            assert future.result() == [["a+b+c", 3.0 * at * ones.size] for at in range(4)]


def test_a_process_killed_in_one_stage_costs_no_other_stage_a_run(run: Run, tmp_path: Path) -> None:
    _, front = broker(run, tmp_path)
    first, second = worker(run, tmp_path, "pre"), worker(run, tmp_path, "post", "--arg", "pause=1.0")
    with ZClient[str, str](front, topic=pipeline("pre", "post"), timeout=PATIENCE) as client:
        future = client.submit(["x"])
        until(lambda: runs(second))
        os.kill(runs(second)[0], signal.SIGKILL)
        assert future.result() == ["x"]
    assert len(runs(first)) == 1
    assert len(set(runs(second))) == 2


def test_a_failure_names_its_stage_and_its_neighbours_get_their_results(run: Run, tmp_path: Path) -> None:
    _, front = broker(run, tmp_path)
    worker(run, tmp_path, "pre", model="Unquoting")
    worker(run, tmp_path, "post")
    with ZClient[str, object](front, topic=pipeline("pre", "post"), timeout=PATIENCE) as client:
        good, bad = client.predict(["good", "'fail'"], return_exceptions=True)
    assert good == "good"
    assert isinstance(bad, ModelFailed)
    assert str(bad) == """KeyError: stage 'post': 'told to fail'"""


def test_a_broker_that_is_killed_midway_costs_a_new_beginning_and_no_error(run: Run, tmp_path: Path) -> None:
    one, front = broker(run, tmp_path)
    first, second = worker(run, tmp_path, "pre"), worker(run, tmp_path, "post", "--arg", "pause=1.0")
    with ZClient[str, str](front, topic=pipeline("pre", "post"), timeout=PATIENCE) as client:
        future = client.submit(["x"])
        until(lambda: runs(second))
        one.signal(signal.SIGKILL)
        one.ends()
        broker(run, tmp_path)
        assert future.result() == ["x"]
    assert len(runs(first)) == 2


def test_a_pipeline_is_asked_by_its_name(run: Run, tmp_path: Path) -> None:
    front = f"ipc://{tmp_path}/front"
    named = ("--pipeline", "both=pre,post", "--topics", "pre,post")
    run("broker", "--frontend", front, "--backend", f"ipc://{tmp_path}/back", *named)
    for topic in ("pre", "post"):
        worker(run, tmp_path, topic)
    with ZClient[str, str](front, topic="both", timeout=PATIENCE) as client:
        assert client.predict(["x", "y"]) == ["x", "y"]
        assert client.status()["pipelines"]["both"]["ready"]


def test_a_stream_of_a_pipeline_is_its_output_in_one_part_also_where_a_stage_yields_parts(
    run: Run, tmp_path: Path
) -> None:
    front = f"ipc://{tmp_path}/front"
    named = ("--pipeline", "both=pre,post")
    run("broker", "--frontend", front, "--backend", f"ipc://{tmp_path}/back", *named)
    worker(run, tmp_path, "pre")
    worker(run, tmp_path, "post", model="Talker")
    with ZClient[Any, Any](front, timeout=PATIENCE) as client:
        assert list(client.stream({"parts": 2}, topic="post")) == ["0", "1"]
        for topic in ("both", pipeline("pre", "post")):
            assert list(client.stream({"parts": 2}, topic=topic)) == [["0", "1"]]


def test_a_pipeline_is_asked_over_http_by_its_name(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")
    front = f"ipc://{tmp_path}/front"
    named = ("--pipeline", "both=pre,post")
    run("broker", "--frontend", front, "--backend", f"ipc://{tmp_path}/back", *named)
    worker(run, tmp_path, "pre", model="Unquoting")
    gateway = run("gateway", "--http", "127.0.0.1:0", "--endpoint", front)
    url = gateway.says("gateway started").partition("url=")[2].split()[0]
    until(lambda: asked(f"{url}/predict/pre", "'x'") == (200, "x"))
    worker(run, tmp_path, "post")
    until(lambda: asked(f"{url}/predict/both", "'x'")[0] == 200)
    assert asked(f"{url}/predict/both", "'x'") == (200, "x")
    # The gateway looks once a second.
    until(lambda: told(url)["pipelines"] == {"both": {"stages": ["pre", "post"], "ready": True}})
    assert "/predict/both" in told(f"{url}/openapi.json")["paths"]
    status, refused = asked(f"{url}/predict/both", "'fail'")
    assert (status, refused["code"]) == (500, "model_failed")
    assert "stage 'post'" in refused["error"]
    with pytest.raises(HTTPError) as none:
        urlopen(f"{url}/v2/models/both", timeout=PATIENCE)
    assert none.value.code == 404


def told(url: str) -> Any:
    with urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


def asked(url: str, item: object) -> tuple[int, Any]:
    """Return the status and what came for an item."""
    request = Request(url, json.dumps(item).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        return refused.code, json.load(refused)
