"""What HTTP says of an error."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zbatch.errors import (
    BadInput,
    BadRequest,
    BatchError,
    BrokerUnreachable,
    DeadlineExceeded,
    Forbidden,
    ModelFailed,
    NoWorkers,
    Overloaded,
    PoisonItem,
    TooLarge,
    Unauthorized,
    UnknownTopic,
    WorkerLost,
    ZbatchError,
)
from zbatch.gateway.answers import (
    NotAcceptable,
    SlowBody,
    UnsupportedMedia,
    WrongMethod,
    of_batch,
    of_error,
    without_paths,
)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BadRequest("x"), 400, "bad_request"),
        (BadInput("x"), 422, "bad_input"),
        (Unauthorized("x"), 401, "unauthorized"),
        (Forbidden("x"), 403, "forbidden"),
        (UnknownTopic("x"), 404, "unknown_topic"),
        (WrongMethod("/", "PUT", ["GET"]), 405, "method_not_allowed"),
        (NotAcceptable("x"), 406, "not_acceptable"),
        (SlowBody("x"), 408, "body_timeout"),
        (TooLarge("x"), 413, "too_large"),
        (UnsupportedMedia("x"), 415, "unsupported_media_type"),
        (Overloaded("x"), 429, "overloaded"),
        (ModelFailed("x"), 500, "model_failed"),
        (PoisonItem("x"), 500, "poison_item"),
        (WorkerLost("x"), 503, "worker_lost"),
        (NoWorkers("x"), 503, "no_workers"),
        (BrokerUnreachable("x"), 503, "broker_unreachable"),
        (DeadlineExceeded("x"), 504, "deadline_exceeded"),
    ],
)
def test_each_error_has_its_status_and_a_body_of_json(error: ZbatchError, status: int, code: str) -> None:
    answer = of_error(error, "r-1")

    assert answer.status == status
    told = json.loads(answer.body)
    assert told == {"error": str(error), "code": code, "request_id": "r-1"}
    assert ("content-type", "application/json") in answer.headers
    assert ("x-request-id", "r-1") in answer.headers


def test_overload_says_when_to_come_back_and_an_outage_says_soon() -> None:
    assert ("retry-after", "3") in of_error(Overloaded("x", retry_after=2.2), "r").headers
    assert ("retry-after", "1") in of_error(NoWorkers("x"), "r").headers
    assert "retry-after" not in dict(of_error(ModelFailed("x"), "r").headers)


def test_who_has_no_key_is_told_how_one_is_sent() -> None:
    answer = of_error(Unauthorized("x"), "r")
    assert (answer.status, dict(answer.headers)["www-authenticate"]) == (401, "Bearer")


def test_an_error_of_the_gateway_itself_tells_nothing_of_it() -> None:
    answer = of_error(KeyError("secret"), "r")

    assert answer.status == 500
    assert json.loads(answer.body) == {"error": "the gateway failed", "code": "internal", "request_id": "r"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("No such file: '/srv/models/bert/x.bin'", "No such file: '<path>'"),
        ('File "/home/me/app.py", line 3', 'File "<path>", line 3'),
        ("cannot read:/home/me/x.bin", "cannot read:<path>"),
        ("ipc:///srv/zbatch/front and file:///home/me/x", "ipc:<path> and file:<path>"),
        ("cannot open '/srv/secret dir/model.pt' or '/model.pt'", "cannot open '<path>' or '<path>'"),
        ("no /data/run=3/a,b/x.bin there", "no <path> there"),
        ("3 / 4 and 1/2 and http://host/a/b", "3 / 4 and 1/2 and http://host/a/b"),
        ("wanted 'a/b'", "wanted 'a/b'"),
    ],
)
def test_no_path_of_a_host_is_told(text: str, told: str) -> None:
    assert without_paths(text) == told
    assert json.loads(of_error(ModelFailed(text), "r").body)["error"] == told


def test_what_the_client_itself_said_is_told_back_whole() -> None:
    for error in (BadRequest("no /a/b/c"), UnknownTopic("'x' is a pipeline; ask POST /predict/x")):
        assert json.loads(of_error(error, "r").body)["error"] == str(error)


def test_a_text_has_an_end() -> None:
    assert len(json.loads(of_error(ModelFailed("x" * 100_000), "r").body)["error"]) <= 2_000


def test_where_some_items_failed_each_has_its_own_word() -> None:
    error = BatchError({1: ModelFailed("it is odd", kind="ValueError")}, [np.float32(0.5), None, [1]])

    answer = of_batch(error, "r")

    assert answer.status == 207
    assert json.loads(answer.body) == {
        "error": "1 of 3 items failed; item 1: ModelFailed: ValueError: it is odd",
        "code": "batch_error",
        "request_id": "r",
        "results": [0.5, None, [1]],
        "errors": [{"index": 1, "error": "ValueError: it is odd", "code": "model_failed", "status": 500}],
    }


def test_where_some_items_failed_and_the_others_outputs_are_no_json_that_is_said() -> None:
    error = BatchError({1: ModelFailed("it is odd", kind="ValueError")}, [np.array([1j]), None])

    answer = of_batch(error, "r")

    told = json.loads(answer.body)
    assert (answer.status, told["code"], told["request_id"]) == (406, "not_acceptable", "r")
    assert told["error"].startswith("1 of 2 items failed; item 1: ModelFailed: ValueError: it is odd; ")
