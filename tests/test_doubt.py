"""What is said to who waits for a first answer, and when nothing is."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from zbatch.doubt import Doubt
from zbatch.errors import BrokerUnreachable

PATIENCE = 60.0
"""Seconds: only against hanging."""


class Broker:
    """What a client says of a broker, once it may."""

    def __init__(self, snapshot: Any = None, error: Exception | None = None) -> None:
        self.snapshot = snapshot or {"topics": {"bert": {"workers": 1}}}
        self.error = error
        self.asked = threading.Event()
        self.may_say = threading.Event()
        self.may_say.set()

    def status(self, *, timeout: float) -> Any:
        self.asked.set()
        assert self.may_say.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.snapshot


def said(broker: Broker, topic: str) -> list[str]:
    """Return what is said of a topic from which nothing comes."""
    words: SimpleQueue[str] = SimpleQueue()
    doubt = Doubt(broker, topic, words.put, patience=0.0)
    doubt.begin()
    doubt.begin()
    doubt._thread.join(PATIENCE)
    assert not doubt._thread.is_alive()
    return [words.get() for _ in range(words.qsize())]


def test_of_a_topic_that_nobody_serves_those_are_named_that_are_served() -> None:
    assert said(Broker(), "brt") == ["topic 'brt' has no worker; served here: bert"]


def test_a_broker_that_does_not_answer_is_named() -> None:
    assert said(Broker(error=BrokerUnreachable("no broker at x")), "bert") == ["no broker at x"]


def test_of_workers_that_are_slow_nothing_is_said() -> None:
    assert said(Broker(), "bert") == []


def test_nothing_is_said_once_an_answer_came() -> None:
    broker, words = Broker(), list[str]()
    broker.may_say.clear()
    doubt = Doubt(broker, "brt", words.append, patience=0.0)
    doubt.begin()
    assert broker.asked.wait(PATIENCE)
    doubt.end()
    broker.may_say.set()
    doubt._thread.join(PATIENCE)
    assert words == []


def test_nobody_is_asked_where_an_answer_comes_soon() -> None:
    broker = Broker()
    doubt = Doubt(broker, "brt", lambda why: None, patience=PATIENCE)
    doubt.begin()
    doubt.end()
    doubt._thread.join(PATIENCE)
    assert not broker.asked.is_set()
