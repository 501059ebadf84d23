"""A request for a topic without workers: what it waits for, how long, and what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

from zbatch.errors import BrokerUnreachable, NoWorkers, UnknownTopic
from zbatch.gateway.app import App
from zbatch.gateway.known import Known
from zbatch.journal import Journal

PATIENCE = 10.0
"""Seconds: only against hanging."""


class Broker:
    """What a client tells of a broker: its age, who works there, and how often it was asked."""

    def __init__(self) -> None:
        self.began = asyncio.get_running_loop().time() - 100.0
        self.workers: dict[str, int] = {"bert": 1}
        self.only: list[str] | None = None
        self.looks = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_gone = False

    @property
    def age(self) -> float:
        return asyncio.get_running_loop().time() - self.began

    @age.setter
    def age(self, seconds: float) -> None:
        self.began = asyncio.get_running_loop().time() - seconds

    async def status(self, *, timeout: float) -> dict[str, Any]:
        self.looks += 1
        await self.answers.wait()
        if self.is_gone:
            raise BrokerUnreachable("nobody")
        topics = {name: {"workers": count, "batches": 0} for name, count in self.workers.items()}
        return {"topics": topics, "pipelines": {}, "uptime_s": self.age, "only_topics": self.only}

    async def close(self) -> None:
        """Be a client that is closed."""


class Asking:
    """A request for one item."""

    method = "POST"
    is_whole = True
    is_lost = False
    when_lost: Callable[[], object] | None = None
    answered: bytes | None = None

    def __init__(self, path: str, query: str) -> None:
        self.path, self.query = path, query
        self.headers: dict[str, str] = {"content-length": "1"}
        self.notes: dict[str, Any] = {}

    def taken(self) -> bytes:
        return b"1"

    async def body(self) -> bytes:
        return b"1"

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.answered = body


def with_an_app(test: Callable[[App, Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = Broker()
        bounds: dict[str, Any] = {"max_body": 1_000, "body_timeout": PATIENCE, "timeout": PATIENCE}
        app = App(broker, Known(), Journal("text", "gateway"), **bounds)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(test(app, broker), PATIENCE)
        finally:
            await app.close()

    asyncio.run(run())


def test_a_gateway_that_has_heard_of_no_broker_looks_before_it_asks_for_a_name() -> None:
    async def test(app: App, broker: Broker) -> None:
        await app._require_served("bert", 0.0, 5.0)
        with pytest.raises(UnknownTopic, match="nobody has served topic 'brt'; there are 'bert'"):
            await app._require_served("brt", 0.0, 5.0)

    with_an_app(test)


def test_where_no_broker_answers_the_question_itself_finds_out() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.is_gone = True
        await app._require_served("brt", 0.0, 5.0)
        assert broker.looks == 1

    with_an_app(test)


def test_at_a_young_broker_a_name_is_waited_for_and_asked_when_its_workers_come() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.age = 1.0
        waiting = asyncio.create_task(app._require_served("late", 0.0, 9.0))
        while app._waiting == 0:
            await asyncio.sleep(0)
        broker.workers["late"] = 1
        await waiting
        assert app._known.has_workers("late")

    with_an_app(test)


def test_a_name_that_has_not_come_by_the_end_of_a_brokers_youth_is_unknown() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.age = 9.8
        with pytest.raises(UnknownTopic):
            await app._require_served("brt", 0.0, 9.0)

    with_an_app(test)


def test_whose_time_ends_before_that_is_told_that_no_worker_came() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.age = 1.0
        with pytest.raises(NoWorkers, match="no worker has come for topic 'brt'"):
            await app._require_served("brt", 0.0, 0.05)

    with_an_app(test)


def test_a_broker_that_falls_silent_takes_no_more_than_the_time_of_the_request() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.age = 1.0
        await app._look()
        broker.answers.clear()
        with pytest.raises(NoWorkers):
            await app._require_served("brt", 0.0, 0.05)
        broker.answers.set()

    with_an_app(test)


def test_a_probe_that_finds_workers_in_its_one_look_finds_them() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.age = 1.0
        await app._look()
        broker.workers["late"] = 1
        app._looked = -1.0
        await app._require_served("late", 0.0, 0.0)
        assert (app._known.has_workers("late"), broker.looks) == (True, 2)

    with_an_app(test)


def test_who_waits_for_workers_does_so_within_its_timeout() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.workers["gone"] = 1
        await app._look()
        broker.workers["gone"] = 0
        app._looked = -1.0
        await app._look()
        app._timeout = 0.05
        request = Asking("/predict/gone", "wait=1h")
        coroutine = app.begin(request)  # type: ignore[arg-type]
        assert coroutine is not None
        await coroutine
        assert request.answered is not None
        assert json.loads(request.answered)["code"] == "no_workers"

    with_an_app(test)


def test_many_who_wait_look_as_often_as_one() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.age = 9.0
        many = [asyncio.create_task(app._require_served("brt", 0.0, 9.0)) for _ in range(500)]
        told = await asyncio.gather(*many, return_exceptions=True)
        assert {type(one) for one in told} == {UnknownTopic}
        assert broker.looks <= 15
        assert app._waiting == 0

    with_an_app(test)


def test_who_leaves_while_it_waits_is_not_counted_on() -> None:
    async def test(app: App, broker: Broker) -> None:
        broker.age = 1.0
        waiting = asyncio.create_task(app._require_served("brt", 0.0, 9.0))
        while app._waiting == 0:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert app._waiting == 0

    with_an_app(test)
