"""What a stream looks like over HTTP."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from zbatch.gateway.answers import NotAcceptable
from zbatch.gateway.events import EVENTS, LINES, LINES_TOO, Framing, framing_of, written


def framing(accept: str) -> Framing:
    found = framing_of(accept)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (EVENTS, EVENTS),
        ("Text/Event-Stream; charset=utf-8", EVENTS),
        (LINES, LINES),
        (LINES_TOO, LINES_TOO),
        ("text/event-stream, application/json", EVENTS),
        ("application/json;q=0.5, application/x-ndjson", LINES),
        ("text/html, text/event-stream, */*;q=0.1", EVENTS),
    ],
)
def test_a_stream_is_had_by_asking_for_it(accept: str, kind: str) -> None:
    assert framing(accept).kind == kind


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/json",
        "application/msgpack",
        "application/json, text/event-stream",
        "text/html",
        "image/jpeg, text/event-stream",
        "text/*, text/event-stream",
        "text/event-stream;q=0",
    ],
)
def test_who_would_rather_have_one_answer_gets_one(accept: str) -> None:
    assert framing_of(accept) is None


def events(data: bytes) -> list[dict[str, Any]]:
    """Read events as the standard says, as far as they are used here."""
    found: list[dict[str, Any]] = []
    for block in data.decode().split("\n\n")[:-1]:
        fields = [line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")]
        if fields:
            found.append(dict(fields))
    return found


def test_each_part_is_an_event_with_its_number_and_the_end_is_one_too() -> None:
    form = framing(EVENTS)

    data = form.part(0, b'"a"') + form.alive + form.part(1, written("two\nlines")) + form.done(2)

    assert events(data) == [
        {"id": "0", "data": '"a"'},
        {"id": "1", "data": '"two\\nlines"'},
        {"event": "done", "data": '{"parts":2}'},
    ]


@pytest.mark.parametrize("kind", [LINES, LINES_TOO])
def test_each_part_is_a_line_and_the_end_is_one_too(kind: str) -> None:
    form = framing(kind)

    data = form.alive + form.part(0, b"[1]") + form.part(1, b"null") + form.alive + form.alive + form.done(2)

    assert [json.loads(line) for line in data.splitlines()] == [
        {"part": [1]},
        {"part": None},
        {"done": True, "parts": 2},
    ]


def test_an_error_is_told_apart_from_a_part_and_from_the_end() -> None:
    body = b'{"error":"e","code":"c","request_id":"r"}'

    assert events(framing(EVENTS).failed(body)) == [{"event": "error", "data": body.decode()}]
    assert json.loads(framing(LINES).failed(body)) == json.loads(body)


def test_a_part_is_written_as_an_answer_in_json_would_be() -> None:
    assert written({"x": np.arange(3), "y": b"ab", "z": float("nan")}) == b'{"x":[0,1,2],"y":"YWI=","z":null}'
    assert written(b"ab") == b'"YWI="'
    with pytest.raises(NotAcceptable):
        written({"x": 1 + 2j})
