"""Which topics there are, and when each is looked at."""

from __future__ import annotations

import pytest

from zbatch.config import BrokerCoreSettings, Limits
from zbatch.core.topics import Topics
from zbatch.errors import UnknownTopic


def topics(**settings: object) -> Topics:
    return Topics(BrokerCoreSettings(**settings))  # type: ignore[arg-type]


def test_a_topic_is_made_once_with_the_policy_of_the_broker() -> None:
    some = topics(batching="window")
    bert = some.open("bert")
    assert some.open("bert") is bert
    assert (bert.name, bert.policy.name) == ("bert", "window")


def test_a_topic_that_the_broker_was_not_told_of_is_unknown() -> None:
    some = topics(topics=("bert", "resnet"))
    some.open("resnet")
    with pytest.raises(UnknownTopic, match=r"'gpt' is not served here; this broker serves bert, resnet"):
        some.open("gpt")


def test_only_so_many_topics_are_waited_for() -> None:
    some = topics(limits=Limits(unserved_topics=2))
    for name in ("one", "two"):
        some.open(name).items = 1
    with pytest.raises(
        UnknownTopic, match=r"2 topics without a worker are waited for; 'three' is one too many"
    ):
        some.open("three")


def test_a_topic_that_nobody_waits_for_any_more_makes_room() -> None:
    some = topics(limits=Limits(unserved_topics=2))
    some.open("one").items = 1
    some.open("two")
    some.open("three")
    assert list(some.all) == ["one", "three"]


def test_topics_that_workers_serve_do_not_count() -> None:
    some = topics(limits=Limits(unserved_topics=1))
    for name in ("one", "two"):
        some.open(name).served = 0.0
    some.open("three")
    assert list(some.all) == ["one", "two", "three"]


def test_a_touched_topic_is_looked_at_once() -> None:
    some = topics()
    bert = some.open("bert")
    some.touch(bert)
    some.touch(bert)
    assert some.touched(0.0) == [bert]
    assert some.touched(0.0) == []


def test_a_topic_is_looked_at_when_its_policy_wants_to() -> None:
    some = topics()
    bert, resnet = some.open("bert"), some.open("resnet")
    bert.wake, resnet.wake = 2.0, 1.0
    for topic in (bert, resnet):
        some.sleeps(topic)
    assert some.wakeup() == 1.0
    assert some.touched(0.9) == []
    assert some.touched(1.0) == [resnet]
    resnet.wake = None
    assert some.touched(1.5) == []
    assert some.wakeup() == 2.0


def test_a_topic_without_a_wish_does_not_sleep() -> None:
    some = topics()
    some.sleeps(some.open("bert"))
    assert some.wakeup() is None
