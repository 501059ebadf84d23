"""What a request's head says of how it wants to be asked."""

from __future__ import annotations

from typing import Any

import pytest

from zbatch.errors import BadRequest
from zbatch.gateway import heads
from zbatch.gateway.heads import Asked, RequestIds


class Told:
    """A head with this query and these headers."""

    method = "POST"
    path = "/predict/default"

    def __init__(self, query: str = "", **headers: str) -> None:
        self.query = query
        self.headers: heads.Headers = {name.replace("_", "-"): value for name, value in headers.items()}


def test_what_asks_for_nothing_special_is_always_the_same() -> None:
    assert heads.asked(Told()) is heads.wanted(Told()).asked is heads.NOTHING_SPECIAL


def test_a_query_says_how_it_wants_to_be_asked() -> None:
    query = "timeout=250ms&priority=-3&key=en&wait=2s"
    assert heads.asked(Told(query)) == Asked(timeout=0.25, priority=-3, key="en", wait=2.0)
    assert heads.wanted(Told(query)).asked == heads.asked(Told(query))


def test_a_timeout_may_stand_in_a_header_and_the_query_goes_first() -> None:
    assert heads.wanted(Told(x_timeout="2s")).asked.timeout == 2.0
    assert heads.wanted(Told("timeout=1s", x_timeout="2s")).asked.timeout == 1.0


@pytest.mark.parametrize(
    ("query", "headers", "said"),
    [
        ("timeot=1s", {}, "the query has 'timeot', wanted timeout, priority, key, wait"),
        ("timeout=soon", {}, "timeout: "),
        ("", {"x_timeout": ""}, "timeout: "),
        ("priority=" + "9" * 5_000, {}, "priority: "),
    ],
)
def test_what_cannot_be_asked_for_is_told_by_name(query: str, headers: dict[str, Any], said: str) -> None:
    for _ in range(2):  # what was refused is not remembered as anything else
        with pytest.raises(BadRequest) as caught:
            heads.wanted(Told(query, **headers))
        assert str(caught.value).startswith(said)


def test_a_long_head_is_read_as_a_short_one_is() -> None:
    accept = "application/json" + " " * heads.SHORT
    assert heads.wanted(Told(accept=accept)).accept == accept


def test_what_was_waited_for_workers_is_taken_from_a_timeout() -> None:
    assert heads.left(None, 0.05, 30.0) is None
    assert heads.left(None, 9.0, 30.0) == 21.0
    assert heads.left(2.0, 0.05, 30.0) == 2.0
    assert heads.left(2.0, 0.5, 30.0) == 1.5
    assert heads.left(2.0, 3.0, 30.0) == heads.SHORTEST


def test_a_request_keeps_the_id_that_it_came_with_unless_that_is_none() -> None:
    ids = RequestIds()
    assert ids.of({"x-request-id": "mine-1"}) == "mine-1"
    made = {
        ids.of({}),
        ids.of({"x-request-id": ""}),
        ids.of({"x-request-id": "a b"}),
        ids.of({"x-request-id": "x" * 129}),
    }
    assert len(made) == 4
    assert not made & {"", "a b", "x" * 129}
