"""What HTTP says of an error: its status, its headers and a body that names no path of this host.

The statuses of zbatch's own errors stand with them (``errors.py``); here are those that only HTTP knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from zbatch.errors import BadInput, BadRequest, BatchError, UnknownTopic, ZbatchError

JSON = "application/json"

UNAUTHORIZED = 401
"""The status that says how a key is sent."""

UNAVAILABLE = 503
"""The status that says when to come back, though nobody knows better than: soon."""

LONGEST_TEXT = 2_000
"""Characters of an error that a body tells."""


class NoSuchPath(BadRequest):
    """Nothing is at this path."""

    code = "not_found"
    http_status = 404


class WrongMethod(BadRequest):
    """The path takes other methods."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(self, path: str, method: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{path[:200]} takes {' or '.join(allowed)}, got {method[:20]}")
        self.allowed = tuple(allowed)

    @property
    def http_headers(self) -> dict[str, str]:
        """Which methods there are."""
        return {"Allow": ", ".join(self.allowed)}


class NotAcceptable(BadRequest):
    """The output cannot be written in any form that Accept names."""

    code = "not_acceptable"
    http_status = 406


class SlowBody(BadRequest):
    """The body did not come in time."""

    code = "body_timeout"
    http_status = 408


class HeadTooLarge(BadRequest):
    """The request's line and headers are longer than is read."""

    code = "head_too_large"
    http_status = 431


class UnsupportedMedia(BadRequest):
    """The body is of a type, or in an encoding, that is not read here."""

    code = "unsupported_media_type"
    http_status = 415


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def of_error(error: BaseException, request_id: str) -> Answer:
    """Return what is answered to a request that ended in an error.

    What is none of ours is an error of the gateway itself: 500, without its text.
    """
    if not isinstance(error, ZbatchError):
        return _answer(500, {}, {"error": "the gateway failed", "code": "internal", "request_id": request_id})
    told = {"error": text_of(error), "code": error.code, "request_id": request_id}
    headers = error.http_headers
    if error.http_status == UNAUTHORIZED:
        headers = {"WWW-Authenticate": "Bearer"} | headers
    if error.http_status == UNAVAILABLE:
        headers = {"Retry-After": "1"} | headers
    return _answer(error.http_status, headers, told)


def of_batch(error: BatchError, request_id: str) -> Answer:
    """Return what is answered where some of several items failed: 207, with what there is of each."""
    told = {
        "error": text_of(error),
        "code": error.code,
        "request_id": request_id,
        "results": error.results,
        "errors": [
            {"index": place, "error": text_of(one), "code": one.code, "status": one.http_status}
            for place, one in sorted(error.errors.items())
        ],
    }
    try:
        return _answer(207, {}, told)
    except (TypeError, ValueError, RecursionError) as fault:
        # This body is JSON whatever Accept says, so what is none has no place in it.
        return of_error(
            NotAcceptable(f"{told['error']}; the others' outputs are no JSON: {fault}"), request_id
        )


def text_of(error: ZbatchError) -> str:
    """Return what is told of an error: of a model's, not where on its host it happened."""
    if isinstance(error, BadRequest | UnknownTopic) and not isinstance(error, BadInput):
        return str(error)[:LONGEST_TEXT]  # it speaks of what came from the client
    return without_paths(str(error))


def without_paths(text: str) -> str:
    """Return a text of bounded length in which no path of a host stands."""
    return _PATH.sub("<path>", _QUOTED.sub(r"\1<path>\1", text[:LONGEST_TEXT]))


_QUOTED = re.compile(r"""(['"])/[^'"\n]*\1""")
"""A path as Python's own errors tell it: its end is known, and one part is enough."""

_PATH = re.compile(r"(?<![\w/.>])(?://)?/[\w.@+~=,-]+(?:/[\w.@+~=,-]+)+")
"""A path without quotes: what is behind a blank in it cannot be told from other words."""


def _answer(status: int, headers: Mapping[str, str], told: Mapping[str, object]) -> Answer:
    pairs = [("content-type", JSON), ("x-request-id", str(told["request_id"]))]
    pairs += [(name.lower(), value) for name, value in headers.items()]
    return Answer(status, pairs, _encode(told))


def _plain(value: object) -> object:
    from zbatch.gateway.bodies import plain  # noqa: PLC0415  it raises what stands here

    return plain(value)


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
