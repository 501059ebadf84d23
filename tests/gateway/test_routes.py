"""Which call a method and a path are."""

from __future__ import annotations

import pytest

from zbatch.errors import BadRequest
from zbatch.gateway.answers import NoSuchPath, WrongMethod
from zbatch.gateway.routes import Route, find


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/predict/bert", Route("predict", "bert")),
        ("POST", "/predict/bert/batch", Route("predict_batch", "bert")),
        ("POST", "/predict/my%20bert", Route("predict", "my bert")),
        ("POST", "/predict/batch", Route("predict", "batch")),
        ("POST", "/predict/batch/batch", Route("predict_batch", "batch")),
        ("GET", "/", Route("about")),
        ("HEAD", "/health/ready", Route("ready")),
        ("GET", "/health/live", Route("live")),
        ("GET", "/openapi.json", Route("openapi")),
        ("GET", "/docs", Route("docs")),
        ("GET", "/docs/swagger-ui.css", Route("docs_file", "swagger-ui.css")),
        ("GET", "/v2", Route("server_metadata")),
        ("GET", "/v2/", Route("server_metadata")),
        ("GET", "/v2/health/live", Route("live")),
        ("GET", "/v2/health/ready", Route("ready")),
        ("GET", "/v2/models/bert", Route("model_metadata", "bert")),
        ("GET", "/v2/models/bert/", Route("model_metadata", "bert")),
        ("GET", "/v2/models/bert/versions/1", Route("model_metadata", "bert", "1")),
        ("GET", "/v2/models/bert/ready", Route("model_ready", "bert")),
        ("GET", "/v2/models/bert/versions/1/ready", Route("model_ready", "bert", "1")),
        ("POST", "/v2/models/my%20bert/infer", Route("infer", "my bert")),
        ("POST", "/v2/models/bert/versions/1%2F2/infer", Route("infer", "bert", "1/2")),
        ("GET", "/v2/models/bert/config", Route("config", "bert")),
        ("GET", "/v2/models/bert/stats", Route("statistics", "bert")),
        ("GET", "/v2/models/stats", Route("statistics")),
        ("POST", "/v2/repository/index", Route("repository_index")),
        ("POST", "/v2/repository/models/bert/load", Route("load", "bert")),
        ("POST", "/v2/repository/models/bert/unload", Route("unload", "bert")),
    ],
)
def test_a_path_is_a_call(method: str, path: str, route: Route) -> None:
    assert find(method, path) == route


@pytest.mark.parametrize("name", ["a,b", "a%0Ab", "a%00", "x" * 129])
def test_a_name_that_no_topic_can_have_is_a_bad_request(name: str) -> None:
    for path in (f"/predict/{name}", f"/predict/{name}/batch", f"/v2/models/{name}/infer"):
        with pytest.raises(BadRequest, match="wanted a topic's name, 1 to 128 printable characters"):
            find("POST", path)


@pytest.mark.parametrize(
    "path",
    [
        "/predict",
        "/predict/",
        "/predict//batch",
        "/predict/a/b",
        "/predict/a/batch/x",
        "/nothing",
        "",
        "/predict/a/",
        "/v2/health",
        "/v2/models",
    ],
)
def test_what_is_no_path_is_404_and_says_what_there_is(path: str) -> None:
    with pytest.raises(NoSuchPath, match="/predict/TOPIC") as refused:
        find("POST", path)
    assert refused.value.http_status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/bert/generate",
        "/v2/models/bert/infer/",
        "/v2/models/bert/versions",
        "/v2/models/bert/versions/1/infer/x",
        "/v2/repository/models/bert",
        "/v2/repository/models/bert/load/x",
    ],
)
def test_what_names_no_call_of_a_model_is_404(path: str) -> None:
    with pytest.raises(NoSuchPath, match="/v2/models/MODEL/infer"):
        find("POST", path)


def test_a_topic_may_hold_a_slash_that_is_written_as_one() -> None:
    assert find("POST", "/predict/org%2Fbert") == Route("predict", "org/bert")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/predict/bert"), ("DELETE", "/predict/bert/batch"), ("HEAD", "/predict/a")]
)
def test_a_prediction_is_asked_by_post_alone(method: str, path: str) -> None:
    with pytest.raises(WrongMethod) as refused:
        find(method, path)
    assert (refused.value.http_status, refused.value.http_headers) == (405, {"Allow": "POST"})


def test_health_is_asked_by_get_alone() -> None:
    with pytest.raises(WrongMethod) as refused:
        find("POST", "/health/live")
    assert refused.value.http_headers == {"Allow": "GET"}
