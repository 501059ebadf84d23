"""The gateway as an application of RSGI, its servers' interface: a request is read, asked, and answered.

Each request is one coroutine.  What a path means is in ``routes.py``, what a body says in ``bodies.py``, what
an error looks like in ``answers.py``, which topics there are in ``known.py``; the server around this, its
processes and signals, is ``server.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from zbatch import notation
from zbatch.aio import AsyncZClient
from zbatch.config import version
from zbatch.errors import BadInput, BadRequest, BatchError, ConfigError, TooLarge, ZbatchError
from zbatch.exposition import page
from zbatch.gateway import answers, bodies, compression, events, openapi, pages, routes, streams
from zbatch.gateway.answers import Answer, NotAcceptable, SlowBody, UnsupportedMedia
from zbatch.gateway.apikeys import ApiKeys, Holder
from zbatch.gateway.inference import Desk, Inference
from zbatch.gateway.judges import Judges
from zbatch.gateway.known import Known
from zbatch.gateway.metrics import Figures, GatewaySeries
from zbatch.gateway.streams import ALIVE, GONE, Outlet, Sent
from zbatch.journal import Journal
from zbatch.model_metrics import Shelf
from zbatch.schema import Judge

LOOK = 1.0
"""Seconds between two looks at the broker's snapshot."""

AGAIN = 0.1
"""Seconds before another look, where a question is for a topic that was not there at the last one."""

SWEEP = 0.25
"""Seconds between two looks for bodies that do not come and clients that have left."""

SMALL = 8 << 10
"""Bytes of a compressed body that is decompressed in the loop: a longer one may be a thousand times as long
when it is not, and would hold up the others."""

WATCHED = 0.1
"""Seconds of waiting from which on it is watched whether the client is still there: most have their answer
by then, and a watch costs more than such a request."""


UNBUFFERED = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""What tells proxies to hand on each part of a stream when it comes."""


class Headers(Protocol):
    """A request's headers."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return one, by its name in small letters."""


class Scope(Protocol):
    """What came before the body."""

    proto: str
    method: str
    path: str
    query_string: str
    headers: Headers


class Exchange(Protocol):
    """The connection, as far as one request may use it."""

    async def __call__(self) -> bytes:
        """Read the whole body."""

    def __aiter__(self) -> Any:
        """Read the body in pieces."""

    async def client_disconnect(self) -> None:
        """Wait until the client is gone."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer."""

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> Any:
        """Answer in pieces, see :class:`zbatch.gateway.streams.Pieces`."""


class Visit:
    """One request that has no answer yet."""

    __slots__ = (
        "began",
        "call",
        "headers",
        "is_reading",
        "outlet",
        "proto",
        "request_id",
        "since",
        "task",
        "watch",
        "why",
    )

    def __init__(
        self, proto: Exchange, headers: Headers, task: asyncio.Task[Any], request_id: str, now: float
    ) -> None:
        self.proto = proto
        self.request_id = request_id
        self.call = ""
        """What it is counted as."""
        self.outlet: Outlet | None = None
        """Where its answer goes, if that is a stream."""
        self.headers = headers
        """The scope makes them anew each time it is asked."""
        self.task = task
        self.began = now
        self.since = now
        """Since when it has been doing what it does: its body comes, or its items are asked for."""
        self.is_reading = False
        self.watch: asyncio.Task[None] | None = None
        self.why = ""
        """Why its task was cancelled: ``slow`` or ``gone``."""


class Asked(msgspec.Struct, frozen=True):
    """How a request wants to be asked, beside its items."""

    timeout: float | None = None
    priority: int = 0
    key: str = ""
    wait: float = 0.0


NOTHING_SPECIAL = Asked()


class App:
    """What the server calls for each request.

    Args:
        client: Asks the broker; the app closes it.
        known: Which topics there are.
        max_body: Bytes of a body.
        body_timeout: Seconds for a body to come.
        api_keys: Who may ask; None: everybody.
        timeout: Seconds that a reader of a stream may read nothing, where it names no timeout.
        shelf: Where others at this address show what they count; None: there are none.
        journal: Where failures of the gateway itself are told.

    """

    def __init__(
        self,
        client: AsyncZClient[Any, Any],
        known: Known,
        journal: Journal,
        *,
        max_body: int,
        body_timeout: float,
        timeout: float,
        api_keys: ApiKeys | None = None,
        shelf: Shelf | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._known = known
        self._journal = journal
        self._max_body = max_body
        self._body_timeout = body_timeout
        self._timeout = timeout
        self._api_keys = api_keys
        self._clock = clock
        self._visits: set[Visit] = set()
        self._named = f"{os.urandom(6).hex()}-"
        self._numbers = itertools.count(1)
        self._looking: asyncio.Task[None] | None = None
        self._looked = -LOOK
        self.leaving = False
        """Not ready any more; what comes is answered, and its connection closed."""
        self.figures = Figures()
        self._series = GatewaySeries(self.figures, lambda: (len(self._visits), self._is_ready()), shelf)
        self._judges = Judges()
        self._calls: Mapping[str, Callable[[routes.Route, Scope, Visit], Awaitable[Answer | Sent]]] = {
            "predict": self._predict,
            "predict_batch": self._predict,
            "about": self._about,
            "live": self._live,
            "ready": self._ready,
            "metrics": self._metrics,
            "openapi": self._openapi,
            "docs": self._docs,
            "docs_file": self._docs_file,
            **Inference(
                client,
                known,
                Desk(self._holder, self._body, _asked, self._require_served, self._look),
                clock=clock,
            ).calls,
        }

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._visits)

    async def __rsgi__(self, scope: Scope, proto: Exchange) -> None:
        """Answer one request."""
        task = asyncio.current_task()
        assert task is not None
        headers = scope.headers
        request_id = self._request_id(headers)
        visit = Visit(proto, headers, task, request_id, self._clock())
        self._visits.add(visit)
        try:
            route = routes.find(scope.method, scope.path)
            visit.call = route.call
            answer = await self._calls[route.call](route, scope, visit)
            if isinstance(answer, Sent):
                self.figures.answered(visit.call, answer.status, self._clock() - visit.began, answer.size)
                return
            answer.headers.append(("x-request-id", request_id))
        except BatchError as error:
            answer = answers.of_batch(error, request_id)
        except ZbatchError as error:
            answer = answers.of_error(error, request_id)
        except asyncio.CancelledError:
            if visit.why != "slow":
                sent = 0 if visit.outlet is None else visit.outlet.sent
                self.figures.answered(visit.call, GONE, self._clock() - visit.began, sent)
                if visit.why == "gone":
                    return
                raise
            answer = answers.of_error(self._slow_body(), request_id)
        except ConnectionError:  # the client has left in the middle of its body
            sent = 0 if visit.outlet is None else visit.outlet.sent
            self.figures.answered(visit.call, GONE, self._clock() - visit.began, sent)
            return
        except Exception as error:
            detail = traceback.format_exc()
            self._journal.event("request failed", level="error", request_id=request_id, detail=detail)
            answer = answers.of_error(error, request_id)
        finally:
            self._visits.discard(visit)
            if visit.watch is not None:
                visit.watch.cancel()
        self.figures.answered(visit.call, answer.status, self._clock() - visit.began, len(answer.body))
        if self.leaving:
            answer.headers.append(("connection", "close"))
        try:  # noqa: SIM105  suppress() costs more than what it guards
            proto.response_bytes(answer.status, answer.headers, answer.body)
        except Exception:
            pass  # the client has gone meanwhile

    def _request_id(self, headers: Headers) -> str:
        given = headers.get("x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return str(given)
        return f"{self._named}{next(self._numbers)}"

    # --- calls -------------------------------------------------------------------------------------

    async def _predict(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer | Sent:
        """Ask for one item or several, for an answer or a stream."""
        headers = visit.headers
        accept = headers.get("accept") or ""
        framing = events.framing_of(accept)
        is_one = route.call == "predict"
        if framing is not None:
            visit.call = "stream"
            if not is_one:
                raise NotAcceptable("a stream is of one item; ask /predict/TOPIC")
        form = bodies.form_of(headers.get("content-type") or "")
        asked = _asked(scope)
        holder = self._holder(scope)
        body = await self._body(scope, visit)
        items = [bodies.read_item(form, body)] if is_one else bodies.read_items(form, body)
        if holder is not None:
            holder.admit(route.topic, len(items), self._clock())
        await self._require_served(route.topic, asked.wait)
        judge = self._judges.of(route.topic)
        if judge is not None:
            _judge_all(judge, items, is_one)
        output: Any
        try:
            if framing is not None:
                return await self._stream(route.topic, items[0], asked, framing, visit)
            output = await self._client.submit(
                items, topic=route.topic, timeout=asked.timeout, priority=asked.priority, key=asked.key
            )
        except TypeError as error:
            raise BadRequest(str(error)) from None  # an item holds what no item may
        kind, data = bodies.write(accept, output[0] if is_one else output)
        return Answer(200, [("content-type", kind)], data)

    async def _stream(
        self, topic: str, item: Any, asked: Asked, framing: events.Framing, visit: Visit
    ) -> Sent:
        stream = self._client.stream(
            item, topic=topic, timeout=asked.timeout, priority=asked.priority, key=asked.key
        )
        if visit.watch is None:
            visit.watch = asyncio.get_running_loop().create_task(_end_when_gone(visit))

        def headers() -> list[tuple[str, str]]:
            told = [("content-type", framing.kind), ("x-request-id", visit.request_id), *UNBUFFERED]
            return [*told, ("connection", "close")] if self.leaving else told

        visit.outlet = Outlet(visit.proto, headers, framing.alive, ALIVE)
        patience = self._timeout if asked.timeout is None else asked.timeout
        return await streams.send(stream, visit.outlet, framing, visit.request_id, patience, self._journal)

    async def _about(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer:
        self._holder(scope)
        topics = {name: {"workers": topic["workers"]} for name, topic in self._known.topics.items()}
        return _json(200, {"name": "zbatch", "topics": topics, "ask": "POST /predict/TOPIC", "docs": "/docs"})

    async def _live(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer:
        return _json(200, {"live": True})

    async def _ready(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer:
        ready = self._is_ready()
        answer = _json(200 if ready else 503, {"live": True, "ready": ready})
        if not ready:
            answer.headers.append(("retry-after", "1"))
        return answer

    async def _metrics(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer:
        self._holder(scope)
        headers = scope.headers
        made = page(self._series, headers.get("accept") or "", headers.get("accept-encoding") or "")
        return Answer(200, [(name.lower(), value) for name, value in made.headers], made.body)

    async def _openapi(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer:
        self._holder(scope)
        return _json(200, openapi.document(self._known.topics, version(), keyed=self._api_keys is not None))

    async def _docs(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer:
        return Answer(200, [("content-type", pages.PAGE.kind)], pages.PAGE.data)

    async def _docs_file(self, route: routes.Route, scope: Scope, visit: Visit) -> Answer:
        kind, data = pages.file(route.topic)
        return Answer(200, [("content-type", kind), ("cache-control", "max-age=3600")], data)

    def _is_ready(self) -> bool:
        return not self.leaving and self._known.is_ready(self._clock())

    def _holder(self, scope: Scope) -> Holder | None:
        """Return who asks, before the body is read; None where nobody is asked for a key."""
        if self._api_keys is None:
            return None
        return self._api_keys.holder(scope.headers.get("authorization"), scope.headers.get("x-api-key"))

    # --- reading -----------------------------------------------------------------------------------

    async def _body(self, scope: Scope, visit: Visit) -> bytes:
        """Read a body of bounded size, which it is also bounded to once it is decompressed."""
        headers, proto = visit.headers, visit.proto
        encoding = headers.get("content-encoding")
        if encoding in ("", "identity"):
            encoding = None
        if encoding is not None and not compression.is_known(encoding):
            raise UnsupportedMedia(f"content-encoding is {encoding[:100]!r}, wanted gzip, deflate or none")
        length = headers.get("content-length")
        visit.is_reading = True
        if length is not None:
            if int(length) > self._max_body:
                raise self._too_large(length)
            body = await proto()
        else:
            # Its size is known only in the end: bound it on the way.
            pieces: list[bytes] = []
            size = 0
            async for piece in proto:
                size += len(piece)
                if size > self._max_body:
                    raise self._too_large(f"more than {size}")
                pieces.append(piece)
            body = b"".join(pieces)
        self.figures.received += len(body)
        visit.is_reading = False
        visit.since = self._clock()
        if encoding is None:
            return body
        if len(body) > SMALL:
            return await asyncio.to_thread(compression.decompress, encoding, body, self._max_body)
        return compression.decompress(encoding, body, self._max_body)

    def _too_large(self, size: str) -> TooLarge:
        return TooLarge(f"the body has {size} bytes, wanted at most {self._max_body}")

    def _slow_body(self) -> SlowBody:
        return SlowBody(f"the body did not come within {self._body_timeout:g} s")

    # --- which topics there are ----------------------------------------------------------------------

    async def _require_served(self, topic: str, wait: float) -> None:
        """Raise what is to be said against a question for this topic, unless a fresh look finds workers."""
        objection = self._known.objection(topic, self._clock())
        if objection is None:
            return
        until = self._clock() + wait
        while True:
            await self._look()
            objection = self._known.objection(topic, self._clock())
            if objection is None:
                return
            if self._clock() >= until:
                raise objection
            await asyncio.sleep(AGAIN)

    async def _look(self) -> None:
        """See a snapshot that is no older than AGAIN; everybody who wants one waits for the same."""
        if self._looking is None:
            if self._clock() - self._looked < AGAIN:
                return
            self._looking = asyncio.get_running_loop().create_task(self._learn())
        await asyncio.shield(self._looking)

    async def _learn(self) -> None:
        try:
            snapshot = await self._client.status(timeout=LOOK)
            self._known.learn(snapshot, self._clock())
            # A topic that a pipeline has the name of is not the one that gets the item.
            named = snapshot.get("pipelines", {})
            self._judges.learn({name: one for name, one in snapshot["topics"].items() if name not in named})
        except ZbatchError:
            pass  # nobody answers: what was known grows stale, and questions find out by themselves
        except Exception:
            # What cannot be read must not end the watch over bodies, clients and keys.
            self._journal.event("snapshot not read", level="error", detail=traceback.format_exc())
        finally:
            self._looked = self._clock()
            self._looking = None

    # --- beside the requests -------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the broker, and sweep; until cancelled."""
        looks = -LOOK
        while True:
            now = self._clock()
            if now - looks >= LOOK:
                looks = now
                self._read_keys()
                self._series.leave()
                await self._look()
            self._sweep(self._clock())
            await asyncio.sleep(SWEEP)

    def _read_keys(self) -> None:
        """See who holds keys now; a file that went wrong leaves them as they were."""
        try:
            if self._api_keys is not None and self._api_keys.look():
                self._journal.event("API keys read")
        except ConfigError as error:
            self._journal.event("API keys not read", level="error", why=str(error))

    def _sweep(self, now: float) -> None:
        for visit in list(self._visits):
            age = now - visit.since
            if visit.is_reading:
                if age > self._body_timeout and not visit.why:
                    visit.why = "slow"
                    visit.task.cancel()
            elif age > WATCHED and visit.watch is None:
                visit.watch = asyncio.get_running_loop().create_task(_end_when_gone(visit))

    async def close(self) -> None:
        """Say goodbye to the broker."""
        await self._client.close()


async def _end_when_gone(visit: Visit) -> None:
    await visit.proto.client_disconnect()
    visit.why = "gone"
    visit.task.cancel()


def _judge_all(judge: Judge, items: Sequence[Any], is_one: bool) -> None:
    """Judge items; of several, the path of a fault begins with the item's place."""
    if is_one:
        judge(items[0])
        return
    for place, item in enumerate(items):
        try:
            judge(item)
        except BadInput as error:
            raise BadInput(f"item {place}: {error}") from None


def _asked(scope: Scope) -> Asked:
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


_QUERY: Mapping[str, Callable[[object], Any]] = {
    "timeout": notation.seconds,
    "priority": notation.whole,
    "key": notation.text,
    "wait": notation.seconds,
}

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def _json(status: int, told: object) -> Answer:
    return Answer(status, [("content-type", answers.JSON)], msgspec.json.encode(told))
