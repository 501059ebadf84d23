"""What a caller asks for becomes a call: checked, encoded, and marked with what it may travel with."""

from __future__ import annotations

from typing import Any

import pytest

from zbatch.calls import TOPICS, Ask, Asking
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
    ask = Ask(topic="other", timeout=30.0, priority=0, key="", cost=None)
    asking.prepare(said, ("x",), 100.0, ask=ask)
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
