"""Which call a method and a path are.

Nothing here reads a header or a body; what a call then does is ``app.py``'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from zbatch import notation
from zbatch.errors import BadRequest
from zbatch.gateway.answers import NoSuchPath, WrongMethod


class Route(NamedTuple):
    """A call, and what its path says beside it."""

    call: str
    topic: str = ""
    version: str = ""


REMEMBERED = 128
"""Calls whose path need not be read again; few, since a path may be as long as a head."""

PREDICT = "/predict/"
BATCH = "/batch"
DOCS = "/docs/"

FIXED: Mapping[str, Mapping[str, str]] = {
    "/": {"GET": "about"},
    "/health/live": {"GET": "live"},
    "/health/ready": {"GET": "ready"},
    "/metrics": {"GET": "metrics"},
    "/openapi.json": {"GET": "openapi"},
    "/docs": {"GET": "docs"},
    "/v2": {"GET": "server_metadata"},
    "/v2/": {"GET": "server_metadata"},
    "/v2/health/live": {"GET": "live"},
    "/v2/health/ready": {"GET": "ready"},
    "/v2/models/stats": {"GET": "statistics"},
    "/v2/repository/index": {"POST": "repository_index"},
}
"""Calls whose path is always the same, by method."""

MODELS, REPOSITORY, VERSIONS = "/v2/models/", "/v2/repository/models/", "versions"

OF_MODELS: Mapping[str, Mapping[str, str]] = {
    "": {"GET": "model_metadata"},
    "ready": {"GET": "model_ready"},
    "infer": {"POST": "infer"},
    "config": {"GET": "config"},
    "stats": {"GET": "statistics"},
}
"""Calls of the Open Inference Protocol that name a model, and may name its version, by what follows."""

OF_REPOSITORY: Mapping[str, Mapping[str, str]] = {"load": {"POST": "load"}, "unload": {"POST": "unload"}}


@lru_cache(maxsize=REMEMBERED)
def find(method: str, path: str) -> Route:
    """Return what is called.

    Raises :class:`NoSuchPath` (404), :class:`WrongMethod` (405), and :class:`BadRequest` (400) where no topic
    can have such a name.
    """
    if path.startswith(PREDICT):
        return _predict(method, path)
    if path.startswith(DOCS):
        return Route(_allowed(method, path, {"GET": "docs_file"}), path[len(DOCS) :])
    by_method = FIXED.get(path)
    if by_method is not None:
        return Route(_allowed(method, path, by_method))
    if path.startswith(MODELS):
        return _model(method, path)
    if path.startswith(REPOSITORY):
        topic, _, call = path[len(REPOSITORY) :].partition("/")
        return _named(method, path, topic, "", OF_REPOSITORY.get(call))
    raise NoSuchPath(f"there is nothing at {path[:200]!r}; ask POST {PREDICT}TOPIC, or GET / what there is")


def _predict(method: str, path: str) -> Route:
    topic, call = path[len(PREDICT) :], "predict"
    if topic.endswith(BATCH):
        topic, call = topic[: -len(BATCH)], "predict_batch"
    if not topic or "/" in topic:
        raise NoSuchPath(
            f"there is nothing at {path[:200]!r}; wanted {PREDICT}TOPIC or {PREDICT}TOPIC{BATCH}"
        )
    _allowed(method, path, {"POST": call})
    return Route(call, _topic(topic))


def _model(method: str, path: str) -> Route:
    """Return what is called where a path of the Open Inference Protocol names a model."""
    topic, *rest = path[len(MODELS) :].split("/")
    version = ""
    if rest[:1] == [VERSIONS] and len(rest) > 1:
        version, *rest = rest[1:]
    return _named(method, path, topic, version, OF_MODELS.get("/".join(rest)))


def _named(method: str, path: str, topic: str, version: str, by_method: Mapping[str, str] | None) -> Route:
    if by_method is None or not topic:
        raise NoSuchPath(f"there is nothing at {path[:200]!r}; there is POST {MODELS}MODEL/infer")
    return Route(_allowed(method, path, by_method), _topic(topic), unquote(version))


def _topic(written: str) -> str:
    try:
        return notation.topic(unquote(written))
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _allowed(method: str, path: str, by_method: Mapping[str, str]) -> str:
    call = by_method.get("GET" if method == "HEAD" else method)
    if call is None:
        raise WrongMethod(path, method, tuple(by_method))
    return call
