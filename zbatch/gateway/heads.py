"""What a request's head says beside its path: the forms of its body and its answer, how it wants to be asked.

Nothing here reads a body.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs

import msgspec

from zbatch import notation
from zbatch.errors import BadRequest
from zbatch.gateway import bodies, events


class Headers(Protocol):
    """A request's headers."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return one, by its name in small letters."""


class Scope(Protocol):
    """What came before the body."""

    method: str
    path: str
    query_string: str
    headers: Headers


class Asked(msgspec.Struct, frozen=True):
    """How a request wants to be asked, beside its items."""

    timeout: float | None = None
    priority: int = 0
    key: str = ""
    wait: float = 0.0


NOTHING_SPECIAL = Asked()


class Wanted(NamedTuple):
    """What a request for a model's outputs wants."""

    form: str
    """Of its body."""
    accept: str
    """Of its answer."""
    framing: events.Framing | None
    """Of its answer, if that is to be a stream."""
    asked: Asked


def wanted(scope: Scope) -> Wanted:
    """Read what a request wants; raises :class:`BadRequest` for what cannot be had."""
    headers = scope.headers
    accept = headers.get("accept") or ""
    form = bodies.form_of(headers.get("content-type") or "")
    return Wanted(form, accept, events.framing_of(accept), asked(scope))


def asked(scope: Scope) -> Asked:
    """Read how the request wants to be asked: from the query, the deadline also from a header."""
    query, header = scope.query_string, scope.headers.get("x-timeout")
    if not query and header is None:
        return NOTHING_SPECIAL
    found = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    if header is not None:
        found.setdefault("timeout", header)
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
