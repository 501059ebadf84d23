"""Which call a method and a path are."""

from __future__ import annotations

import pytest

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
    ],
)
def test_a_path_is_a_call(method: str, path: str, route: Route) -> None:
    assert find(method, path) == route


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
    ],
)
def test_what_is_no_path_is_404_and_says_what_there_is(path: str) -> None:
    with pytest.raises(NoSuchPath, match="/predict/TOPIC") as refused:
        find("POST", path)
    assert refused.value.http_status == 404


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
