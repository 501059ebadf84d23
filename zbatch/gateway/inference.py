"""Calls of the Open Inference Protocol, as ``app.py`` has calls: a request comes in, a model is asked.

What bodies say is in ``oip.py``.  Reading them, and which topics are served, is left to the app, which hands
over how it does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from zbatch.aio import AsyncZClient
from zbatch.config import version
from zbatch.errors import BadInput, BatchError, NoWorkers, UnknownTopic
from zbatch.gateway import compression, heads, oip
from zbatch.gateway.answers import JSON, Answer
from zbatch.gateway.apikeys import Holder
from zbatch.gateway.heads import Asked, Head
from zbatch.gateway.known import Known
from zbatch.gateway.routes import Route

if TYPE_CHECKING:
    from zbatch.gateway.app import Visit

    Call = Callable[[Route, Visit], Awaitable[Answer]]

AGAIN = 0.1
"""Seconds before another look at whether the workers of a young broker are back."""

LONG = 256 << 10
"""Bytes: to compress more is left to a thread, since the loop would wait for it."""


class Desk(NamedTuple):
    """What the app does for every call."""

    holder: Callable[[Head], Holder | None]
    """Who asks, found before a body is read."""
    body: Callable[[Visit], Awaitable[bytes]]
    asked: Callable[[Head], Asked]
    require_served: Callable[[str, float, float], Awaitable[None]]
    """Wait for a topic's workers so many seconds where it had some, or so many where it is new."""
    look: Callable[[], Awaitable[None]]
    """See a fresh snapshot."""


class Inference:
    """The calls of the protocol.

    Args:
        client: Asks the broker.
        known: Which topics there are.
        desk: What the app does.
        timeout: Seconds that a request may wait for a broker's first workers, where it names no deadline.

    """

    def __init__(
        self,
        client: AsyncZClient[Any, Any],
        known: Known,
        desk: Desk,
        *,
        timeout: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._known = known
        self._desk = desk
        self._timeout = timeout
        self._clock = clock
        self._models: dict[str, oip.Model] = {}
        """Models by topic, of the snapshot below; made when they are first asked for."""
        self._snapshot: Mapping[str, Any] = {}
        self.calls: Mapping[str, Call] = {
            "infer": self._infer,
            "server_metadata": self._server_metadata,
            "model_metadata": self._model_metadata,
            "model_ready": self._model_ready,
            "config": self._config,
            "statistics": self._statistics,
            "repository_index": self._repository_index,
            "load": self._load,
            "unload": self._load,
        }

    async def _infer(self, route: Route, visit: Visit) -> Answer:
        asked, holder = self._desk.asked(visit.request), self._desk.holder(visit.request)
        body = await self._desk.body(visit)
        came = self._clock()
        model = await self._model(route, asked.timeout, asked.wait)
        waited = self._clock() - came
        signature = oip.require_signature(model)
        try:
            ask = oip.read(signature, body, visit.request.headers.get(oip.HEADER_LENGTH))
            if holder is not None:
                holder.admit(route.topic, len(ask.items), self._clock())
            outputs = await self._client.predict(
                ask.items,
                topic=route.topic,
                timeout=heads.left(ask.timeout or asked.timeout, waited, self._timeout),
                priority=ask.priority or asked.priority,
                key=asked.key,
                request_id=visit.request_id,
            )
        except (BadInput, BatchError) as error:
            raise oip.known_to_clients(error) from None
        headers, body = oip.write(ask, signature, outputs, model.name, model.version)
        return await _compressed(Answer(200, headers, body), visit.request.headers.get("accept-encoding"))

    async def _server_metadata(self, route: Route, visit: Visit) -> Answer:
        self._desk.holder(visit.request)
        return _json(oip.server_metadata(version()))

    async def _model_metadata(self, route: Route, visit: Visit) -> Answer:
        self._desk.holder(visit.request)
        return _json(oip.model_metadata(await self._model(route)))

    async def _model_ready(self, route: Route, visit: Visit) -> Answer:
        self._desk.holder(visit.request)
        try:
            model = await self._model(route, timeout=0.0)  # a probe wants to know now
        except NoWorkers:
            model = oip.Model(route.topic, (), None, False)
        return _json(oip.model_ready(model), 200 if model.ready else 503)

    async def _config(self, route: Route, visit: Visit) -> Answer:
        self._desk.holder(visit.request)
        return _json(oip.model_config(await self._model(route)))

    async def _statistics(self, route: Route, visit: Visit) -> Answer:
        self._desk.holder(visit.request)
        if route.topic:
            await self._model(route)
        await self._desk.look()
        topics = self._known.topics
        names = [name for name in topics if route.topic in ("", name)]
        return _json(oip.statistics([(self._seen(name), topics[name]) for name in names]))

    async def _repository_index(self, route: Route, visit: Visit) -> Answer:
        self._desk.holder(visit.request)
        body = await self._desk.body(visit)
        await self._desk.look()
        return _json(oip.repository_index([self._seen(name) for name in self._known.topics], body))

    async def _load(self, route: Route, visit: Visit) -> Answer:
        self._desk.holder(visit.request)
        await self._desk.body(visit)
        raise oip.refuse_loading(route.call, route.topic)

    # --- models ------------------------------------------------------------------------------------

    async def _model(self, route: Route, timeout: float | None = None, wait: float = 0.0) -> oip.Model:
        """Return the model that a path names; of a young broker, once its workers are back.

        Raises what is to be said where nobody serves it, or not in that version.
        """
        patience = self._timeout if timeout is None else timeout
        until = self._clock() + patience
        await self._desk.require_served(route.topic, min(wait, patience), patience)
        while not self._known.has_workers(route.topic):
            if self._clock() >= until:
                raise NoWorkers(f"no worker has come for topic {route.topic[:100]!r}")
            await asyncio.sleep(AGAIN)
            left = until - self._clock()
            if left > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._desk.look()
                left = max(until - self._clock(), heads.SHORTEST)
                await self._desk.require_served(route.topic, min(wait, left), left)
        if route.topic not in self._known.topics:
            raise UnknownTopic(
                f"{route.topic!r} is a pipeline and declares no tensors; ask POST /predict/{route.topic}"
            )
        model = self._seen(route.topic)
        if route.version:
            oip.require_version(model, route.version)
        return model

    def _seen(self, name: str) -> oip.Model:
        """Return a topic of the last snapshot as a model."""
        if self._snapshot is not self._known.topics:
            self._snapshot = self._known.topics
            self._models = {}
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = oip.model_of(name, self._snapshot[name])
        return model


async def _compressed(answer: Answer, accept: str | None) -> Answer:
    """Return the answer as the client would rather have it, where that makes it smaller."""
    body = answer.body
    encoding = compression.chosen(accept)
    if not encoding or not compression.is_worth_it(body):
        return answer
    if len(body) > LONG:
        packed = await asyncio.to_thread(compression.compress, encoding, body)
    else:
        packed = compression.compress(encoding, body)
    return Answer(answer.status, [*answer.headers, ("content-encoding", encoding)], packed)


def _json(body: bytes, status: int = 200) -> Answer:
    return Answer(status, [("content-type", JSON)], body)
