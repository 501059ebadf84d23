"""What a request's head says beside its path: the forms of its body and its answer, how it wants to be asked.

Nothing here reads a body.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs

import msgspec

from zbatch import notation
from zbatch.errors import BadRequest
from zbatch.gateway import bodies, events

SHORT = 512
"""Characters of what is remembered, so that it need not be taken apart again."""


class Headers(Protocol):
    """A request's headers."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return one, by its name in small letters."""


class Head(Protocol):
    """What came before the body."""

    method: str
    path: str
    query: str
    headers: Headers


class Asked(msgspec.Struct, frozen=True):
    """How a request wants to be asked, beside its items."""

    timeout: float | None = None
    priority: int = 0
    key: str = ""
    wait: float = 0.0


NOTHING_SPECIAL = Asked()

NOTICED = 0.1
"""Seconds of waiting for workers from which on they count against a timeout."""

SHORTEST = 0.001
"""Seconds that are left at least to who waited for workers: then the broker says that they are over."""


def left(timeout: float | None, waited: float, default: float) -> float | None:
    """Return what is left of a timeout; untouched where nobody waited, so that equal ones share a group."""
    if waited < NOTICED:
        return timeout
    return max((default if timeout is None else timeout) - waited, SHORTEST)


class Wanted(NamedTuple):
    """What a request for a model's outputs wants."""

    form: str
    """Of its body."""
    accept: str
    """Of its answer."""
    framing: events.Framing | None
    """Of its answer, if that is to be a stream."""
    asked: Asked


def wanted(head: Head) -> Wanted:
    """Read what a request wants; raises :class:`BadRequest` for what cannot be had."""
    get, query = head.headers.get, head.query
    kind, accept, timeout = get("content-type", ""), get("accept", ""), get("x-timeout")
    if timeout is None and len(kind) + len(accept) + len(query) < SHORT:
        return _known(kind, accept, query, timeout)
    return _wanted(kind, accept, query, timeout)


def asked(head: Head) -> Asked:
    """Read how the request wants to be asked: from the query, the deadline also from a header."""
    return _asked(head.query, head.headers.get("x-timeout"))


def _wanted(content_type: str, accept: str, query: str, timeout: str | None) -> Wanted:
    return Wanted(bodies.form_of(content_type), accept, events.framing_of(accept), _asked(query, timeout))


_known = lru_cache(maxsize=1_024)(_wanted)


def _asked(query: str, timeout: str | None) -> Asked:
    if not query and timeout is None:
        return NOTHING_SPECIAL
    found = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    if timeout is not None:
        found.setdefault("timeout", timeout)
    told: dict[str, Any] = {}
    for name, text in found.items():
        read = _QUERY.get(name)
        if read is None:
            raise BadRequest(f"the query has {name[:50]!r}, wanted {', '.join(_QUERY)}")
        try:
            told[name] = read(text)
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
    return Asked(**told)


class RequestIds:
    """The id of each request: the one that it came with, or one that no other has."""

    def __init__(self) -> None:
        self._named = f"{os.urandom(6).hex()}-"
        self._numbers = itertools.count(1)

    def of(self, headers: Headers) -> str:
        """Return a request's id."""
        given = headers.get("x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return str(given)
        return f"{self._named}{next(self._numbers)}"


_QUERY: Mapping[str, Callable[[object], Any]] = {
    "timeout": notation.seconds,
    "priority": notation.whole,
    "key": notation.text,
    "wait": notation.seconds,
}

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
