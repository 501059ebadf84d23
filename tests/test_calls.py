"""What a caller asks for becomes a call: checked, encoded, and marked with what it may travel with."""

from __future__ import annotations

from typing import Any

import pytest

from zbatch.calls import TOPICS, Asking
from zbatch.core.calls import Call
from zbatch.errors import BadRequest


def call_for(asking: Asking, topic: Any = None, item: object = "x") -> Call:
    call = Call()
    asking.prepare(call, (item,), 100.0, topic)
    return call


def test_a_call_that_names_the_topic_travels_with_one_that_does_not() -> None:
    asking = Asking("mine", 30.0)
    named, unnamed = call_for(asking, "mine"), call_for(asking)
    assert (named.mark, named.deadline, named.item) == (unnamed.mark, unnamed.deadline, unnamed.item)
    assert call_for(asking, "other").mark != unnamed.mark


def test_one_item_is_prepared_as_it_is_with_everything_said() -> None:
    asking, said = Asking("mine", 30.0), Call()
    asking.prepare(said, ("x",), 100.0, "other", timeout=30.0, priority=0, key="", cost=None)
    short = call_for(asking, "other")
    assert (short.mark, short.deadline, short.item) == (said.mark, said.deadline, said.item)


def test_a_large_item_goes_to_the_topic_that_was_named() -> None:
    call = call_for(Asking("mine", 30.0), "other", bytes(1 << 20))
    assert call.mark[0] == "other"
    assert call.buffers is not None


@pytest.mark.parametrize("topic", ["", "a,b", "a\nb", "x" * 1000, 7, ["mine"]])
def test_what_names_no_topic_is_refused_each_time(topic: object) -> None:
    asking = Asking("mine", 30.0)
    for _ in range(2):
        with pytest.raises(BadRequest, match="topic: "):
            call_for(asking, topic)


def test_who_asks_for_ever_other_topics_does_not_fill_the_memory() -> None:
    asking = Asking("mine", 30.0)
    for number in range(3 * TOPICS):
        call_for(asking, f"topic-{number}")
    assert len(asking._marks) <= TOPICS
    assert call_for(asking, "topic-1").mark[0] == "topic-1"


def test_a_request_id_is_no_part_of_what_a_call_may_travel_with() -> None:
    asking, named, slow, streamed = Asking("mine", 30.0), Call(), Call(), Call()
    asking.prepare(named, ("x",), 100.0, request_id="r-1")
    assert (named.name, named.mark) == ("r-1", call_for(asking).mark)
    asking.prepare(slow, ("x",), 100.0, timeout=5.0, request_id="r-2")
    assert (slow.name, slow.mark) == ("r-2", named.mark)
    asking.prepare_stream(streamed, "x", 100.0, request_id="r-3")
    assert streamed.name == "r-3"


@pytest.mark.parametrize("request_id", [7, ["r"], "x" * 129, "a\nb", "\x1b[2J", "\ud800", "\u202e"])
def test_what_is_no_request_id_is_refused(request_id: Any) -> None:
    asking = Asking("mine", 30.0)
    with pytest.raises(BadRequest, match="wanted a printable text of at most 128"):
        asking.prepare(Call(), ("x",), 100.0, request_id=request_id)
    with pytest.raises(BadRequest, match="wanted a printable text of at most 128"):
        asking.prepare_stream(Call(), "x", 100.0, request_id=request_id)


def test_a_call_without_a_request_id_has_an_empty_name() -> None:
    asking, call = Asking("mine", 30.0), Call()
    asking.prepare(call, ("x",), 100.0, request_id="")
    assert call.name == ""
    assert "name" not in vars(call)
