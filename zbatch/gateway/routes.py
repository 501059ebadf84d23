"""Which call a method and a path are.

Nothing here reads a header or a body; what a call then does is ``app.py``'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from zbatch.gateway.answers import NoSuchPath, WrongMethod


class Route(NamedTuple):
    """A call, and what its path says beside it."""

    call: str
    topic: str = ""
    version: str = ""


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
}
"""Calls whose path is always the same, by method."""


def find(method: str, path: str) -> Route:
    """Return what is called.

    Raises :class:`NoSuchPath` (404) and :class:`WrongMethod` (405).
    """
    if path.startswith(PREDICT):
        return _predict(method, path)
    if path.startswith(DOCS):
        return Route(_allowed(method, path, {"GET": "docs_file"}), path[len(DOCS) :])
    by_method = FIXED.get(path)
    if by_method is None:
        raise NoSuchPath(
            f"there is nothing at {path[:200]!r}; ask POST {PREDICT}TOPIC, or GET / what there is"
        )
    return Route(_allowed(method, path, by_method))


def _predict(method: str, path: str) -> Route:
    topic, call = path[len(PREDICT) :], "predict"
    if topic.endswith(BATCH):
        topic, call = topic[: -len(BATCH)], "predict_batch"
    if not topic or "/" in topic:
        raise NoSuchPath(
            f"there is nothing at {path[:200]!r}; wanted {PREDICT}TOPIC or {PREDICT}TOPIC{BATCH}"
        )
    _allowed(method, path, {"POST": call})
    return Route(call, unquote(topic) if "%" in topic else topic)


def _allowed(method: str, path: str, by_method: Mapping[str, str]) -> str:
    call = by_method.get("GET" if method == "HEAD" else method)
    if call is None:
        raise WrongMethod(path, method, tuple(by_method))
    return call
