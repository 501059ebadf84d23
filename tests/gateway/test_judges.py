"""Who judges the items of a topic before they are queued."""

from __future__ import annotations

from typing import Any

import pytest

from zbatch.errors import BadInput
from zbatch.gateway.judges import Judges

WHOLE = {"item": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}


def topic(*schemas: Any) -> dict[str, Any]:
    return {"models": [{"schema": schema} for schema in schemas]}


def judges(**topics: Any) -> Judges:
    made = Judges()
    made.learn(topics)
    return made


def test_a_declared_item_is_judged_and_the_path_of_the_fault_is_told() -> None:
    judge = judges(count=topic(WHOLE)).of("count")

    assert judge is not None
    judge({"n": 1})
    with pytest.raises(BadInput, match=r"\$\.n.*expected int, got str"):
        judge({"n": "one"})


@pytest.mark.parametrize(
    "told",
    [{}, topic(), topic(None), topic({"output": {}}), topic(WHOLE, None), topic(WHOLE, {"item": {}})],
)
def test_where_nothing_or_several_things_are_declared_the_worker_judges_alone(told: Any) -> None:
    assert judges(count=told).of("count") is None


def test_a_topic_that_nobody_speaks_of_has_no_judge() -> None:
    assert judges().of("count") is None


def test_versions_and_topics_that_declare_the_same_have_one_judge() -> None:
    made = judges(count=topic(WHOLE, dict(WHOLE)), sum=topic(WHOLE))

    assert made.of("count") is made.of("sum") is not None


def test_a_judge_is_made_once_and_forgotten_with_its_topic() -> None:
    made = judges(count=topic(WHOLE))
    first = made.of("count")

    made.learn({"count": topic(dict(WHOLE))})
    assert made.of("count") is first

    made.learn({})
    assert made.of("count") is None
    made.learn({"count": topic(WHOLE)})
    assert made.of("count") is not first
