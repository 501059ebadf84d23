"""The gateway as an application: a request is read, asked, and answered.

One item whose body is there has no coroutine of its own: it is asked for at once, and its output answers it
(:class:`Prompt`).  Every other request is one coroutine (:class:`Visit`).  What a path means is in
``routes.py``, what a head says in ``heads.py``, a body in ``bodies.py``, what an error looks like in
``answers.py``, which topics there are in ``known.py``; the server around this, its processes and signals, is
``server.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from zbatch.aio import AsyncCall, AsyncZClient
from zbatch.config import version
from zbatch.errors import (
    BadInput,
    BadRequest,
    BatchError,
    ClientClosed,
    ConfigError,
    NoWorkers,
    TooLarge,
    ZbatchError,
)
from zbatch.exposition import Pages
from zbatch.gateway import answers, bodies, compression, events, heads, openapi, pages, routes, streams
from zbatch.gateway.answers import Answer, NotAcceptable, SlowBody, UnsupportedMedia
from zbatch.gateway.apikeys import ApiKeys, Holder
from zbatch.gateway.heads import Asked, Head, RequestIds
from zbatch.gateway.inference import Desk, Inference
from zbatch.gateway.judges import Judges
from zbatch.gateway.known import Known
from zbatch.gateway.metrics import Figures, GatewaySeries
from zbatch.gateway.streams import ALIVE, GONE, Outlet, Sent
from zbatch.journal import Journal
from zbatch.model_metrics import Shelf

LOOK = 1.0
"""Seconds between two looks at the broker's snapshot."""

AGAIN = 0.1
"""Seconds before another look, where a question is for a topic that was not there at the last one."""

SWEEP = 0.25
"""Seconds between two looks for bodies that do not come."""

SMALL = 8 << 10
"""Bytes of a compressed body that is decompressed in the loop: a longer one may be a thousand times as long
when it is not, and would hold up the others."""

UNBUFFERED = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""What tells proxies to hand on each part of a stream when it comes."""


class Request(Head, Protocol):
    """A request, as far as it is read and answered here; see :class:`zbatch.gateway.http1.Request`."""

    is_whole: bool
    """Whether all of its body has come."""
    is_lost: bool
    """Whether the client has left."""
    notes: dict[str, Any]
    """What was made of its head; shared by all requests that come with the same."""
    when_lost: Callable[[], object] | None
    """Called if it leaves before its answer is whole."""

    def taken(self) -> bytes:
        """Return a body that is whole."""

    async def body(self) -> bytes:
        """Return the whole body, once it has come."""

    def pieces(self) -> AsyncIterator[bytes | bytearray]:
        """Yield the body piece by piece."""

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer."""

    def begin_answer(self, status: int, headers: list[tuple[str, str]]) -> Any:
        """Answer in pieces, see :class:`zbatch.gateway.streams.Pieces`."""


class Visit:
    """One request that has no answer yet, and a coroutine that works on it."""

    __slots__ = (
        "began",
        "call",
        "is_reading",
        "outlet",
        "request",
        "request_id",
        "task",
        "why",
    )

    def __init__(self, request: Request, request_id: str, now: float) -> None:
        self.request = request
        self.request_id = request_id
        self.call = ""
        """What it is counted as."""
        self.outlet: Outlet | None = None
        """Where its answer goes, if that is a stream."""
        self.task = asyncio.current_task()
        self.began = now
        self.is_reading = False
        self.why = ""
        """Why its task was cancelled: ``slow``, ``gone`` or ``leaving``."""

    def leave(self) -> None:
        """End it: its client is gone."""
        self.end("gone")

    def end(self, why: str) -> None:
        """Cancel what works on it, and withdraw with that what it asked for."""
        self.why = why
        assert self.task is not None
        self.task.cancel()


class Prompt(AsyncCall):
    """One item that was asked for as its request came, without a task or a future: most requests are such."""

    call = "predict"

    def __init__(self, app: App, request: Request, accept: str, request_id: str, began: float) -> None:
        self._app = app
        self.request = request
        self.accept = accept
        self.request_id = request_id
        self.began = began

    def arrived(self, output: Any) -> None:
        """Answer with the output."""
        self._app.end_prompt(self, output=output)

    def fail(self, error: ZbatchError) -> None:
        """Answer with an error."""
        self._app.end_prompt(self, error=error)

    def leave(self) -> None:
        """End it: its client is gone."""
        self._app.abandon_prompt(self)


PLAN = "plan"
"""The note of a head that says whether it asks for a prompt, and for which."""

Plan = tuple[routes.Route, heads.Wanted]


def _plan(request: Request) -> Plan | None:
    """Return what a head asks for, where that is one item and its answer in one piece."""
    try:
        route, wanted = routes.find(request.method, request.path), heads.wanted(request)
    except ZbatchError:
        return None
    is_prompt = route.call == Prompt.call and request.headers.get("content-encoding") is None
    return (route, wanted) if is_prompt and wanted.framing is None else None


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
        self._prompts = 0
        """Items that were asked for without a visit."""
        self._request_ids = RequestIds()
        self._looking: asyncio.Task[None] | None = None
        self._looked = -LOOK
        self._changed = asyncio.Event()
        """Set, and made anew, when a snapshot shows others served than the one before."""
        self._polling: asyncio.Task[None] | None = None
        self._waiting = 0
        """Requests that wait for such a change."""
        self._keys_trouble = ""
        """Why the keys could not be read the last time; each reason is said once."""
        self.leaving = False
        """Not ready any more; what comes is answered, and its connection closed."""
        self.figures = Figures()
        self._series = GatewaySeries(self.figures, lambda: (self.in_flight, self._is_ready()), shelf)
        self._metrics_pages = Pages(self._series, clock)
        self._judges = Judges()
        self._calls: Mapping[str, Callable[[routes.Route, Visit], Awaitable[Answer | Sent]]] = {
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
                Desk(self._holder, self._body, heads.asked, self._require_served, self._look),
                timeout=timeout,
                clock=clock,
            ).calls,
        }

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._visits) + self._prompts

    def begin(self, request: Request) -> Coroutine[Any, Any, None] | None:
        """Answer one request; by the coroutine returned, if there is one."""
        if request.is_whole and self._ask_promptly(request):
            return None
        return self._visit(request)

    # --- requests without a coroutine ----------------------------------------------------------------

    def _ask_promptly(self, request: Request) -> bool:
        """Ask for one item now, unless it is no such request or has to wait for something else."""
        if PLAN not in request.notes:
            request.notes[PLAN] = _plan(request)
        plan: Plan | None = request.notes[PLAN]
        now = self._clock()
        if plan is None or not self._known.is_to_be_asked(plan[0].topic, now):
            return False
        route, wanted = plan
        prompt = Prompt(self, request, wanted.accept, self._request_ids.of(request.headers), now)
        self._prompts += 1
        try:
            holder = self._holder(request)
            body = request.taken()
            if len(body) > self._max_body:
                raise self._too_large(str(len(body)))
            self.figures.received += len(body)
            items = self._items(route, wanted, holder, body)
            self._judge(route, items)
            asked = wanted.asked
            request.when_lost = prompt.leave
            self._client.ask(
                prompt,
                items[0],
                topic=route.topic,
                timeout=asked.timeout,
                priority=asked.priority,
                key=asked.key,
                request_id=prompt.request_id,
            )
        except TypeError as error:
            self.end_prompt(prompt, error=BadRequest(str(error)))  # the item holds what no item may
        except Exception as error:
            self.end_prompt(prompt, error=error)
        return True

    def end_prompt(self, prompt: Prompt, output: Any = None, error: Exception | None = None) -> None:
        """Answer a request that has its output, or an error in its place."""
        self._prompts -= 1
        prompt.request.when_lost = None
        try:
            if error is not None:
                raise error
            kind, data = bodies.write(prompt.accept, output)
            answer = Answer(200, [("content-type", kind), ("x-request-id", prompt.request_id)], data)
        except Exception as failure:
            answer = self._failure(failure, prompt.request_id)
        self._send(prompt, answer)

    def abandon_prompt(self, prompt: Prompt) -> None:
        """Ask no more for what nobody waits for."""
        self._prompts -= 1
        self._client.withdraw(prompt)
        self.figures.answered(prompt.call, GONE, self._clock() - prompt.began, 0)

    # --- requests with one ---------------------------------------------------------------------------

    async def _visit(self, request: Request) -> None:
        headers = request.headers
        visit = Visit(request, self._request_ids.of(headers), self._clock())
        if request.is_lost:  # before this coroutine had its first turn
            self._count_gone(visit)
            return
        self._visits.add(visit)
        request.when_lost = visit.leave
        try:
            route = routes.find(request.method, request.path)
            visit.call = route.call
            answer = await self._calls[route.call](route, visit)
            if isinstance(answer, Sent):
                self.figures.answered(visit.call, answer.status, self._clock() - visit.began, answer.size)
                return
            answer.headers.append(("x-request-id", visit.request_id))
        except asyncio.CancelledError:
            if visit.why not in ("slow", "leaving"):
                self._count_gone(visit)
                if visit.why == "gone":
                    return
                raise
            error = self._slow_body() if visit.why == "slow" else _left()
            answer = self._failure(error, visit.request_id)
        except ConnectionError:  # the client has left in the middle of its body
            self._count_gone(visit)
            return
        except Exception as error:
            answer = self._failure(error, visit.request_id)
        finally:
            self._visits.discard(visit)
            request.when_lost = None
        self._send(visit, answer)

    def _count_gone(self, visit: Visit) -> None:
        sent = 0 if visit.outlet is None else visit.outlet.sent
        self.figures.answered(visit.call, GONE, self._clock() - visit.began, sent)

    def _failure(self, error: Exception, request_id: str) -> Answer:
        """Return what is answered to a request that ended in an error."""
        if isinstance(error, BatchError):
            return answers.of_batch(error, request_id)
        if not isinstance(error, ZbatchError):
            detail = "".join(traceback.format_exception(error))
            self._journal.event("request failed", level="error", request_id=request_id, detail=detail)
        return answers.of_error(error, request_id)

    def _send(self, asker: Visit | Prompt, answer: Answer) -> None:
        self.figures.answered(asker.call, answer.status, self._clock() - asker.began, len(answer.body))
        if self.leaving:
            answer.headers.append(("connection", "close"))
        try:  # noqa: SIM105  suppress() costs more than what it guards
            asker.request.answer(answer.status, answer.headers, answer.body)
        except Exception:
            pass  # the client has gone meanwhile

    # --- calls -------------------------------------------------------------------------------------

    async def _predict(self, route: routes.Route, visit: Visit) -> Answer | Sent:
        """Ask for one item or several, for an answer or a stream."""
        is_one = route.call == "predict"
        wanted = heads.wanted(visit.request)
        if wanted.framing is not None:
            visit.call = "stream"
            if not is_one:
                raise NotAcceptable("a stream is of one item; ask /predict/TOPIC")
        holder = self._holder(visit.request)
        body = await self._body(visit)
        asked = wanted.asked
        items = self._items(route, wanted, holder, body)
        came = self._clock()
        timeout = self._timeout if asked.timeout is None else asked.timeout
        await self._require_served(route.topic, min(asked.wait, timeout), timeout)
        waited = self._clock() - came
        self._judge(route, items)
        output: Any
        try:
            if wanted.framing is not None:
                return await self._stream(route.topic, items[0], asked, wanted.framing, visit)
            output = await self._client.submit(
                items,
                topic=route.topic,
                timeout=heads.left(asked.timeout, waited, self._timeout),
                priority=asked.priority,
                key=asked.key,
                request_id=visit.request_id,
            )
        except TypeError as error:
            raise BadRequest(str(error)) from None  # an item holds what no item may
        kind, data = bodies.write(wanted.accept, output[0] if is_one else output)
        return Answer(200, [("content-type", kind)], data)

    def _items(
        self, route: routes.Route, wanted: heads.Wanted, holder: Holder | None, body: bytes
    ) -> Sequence[Any]:
        """Read the items, and count them against the key's rate."""
        items: Sequence[Any]
        if route.call == "predict":
            items = (bodies.read_item(wanted.form, body),)
        else:
            items = bodies.read_items(wanted.form, body)
        if holder is not None:
            holder.admit(route.topic, len(items), self._clock())
        return items

    def _judge(self, route: routes.Route, items: Sequence[Any]) -> None:
        """Judge items; of a batch, the path of a fault begins with the item's place."""
        judge = self._judges.of(route.topic)
        if judge is None:
            return
        if route.call == "predict":
            judge(items[0])
            return
        for place, item in enumerate(items):
            try:
                judge(item)
            except BadInput as error:
                raise BadInput(f"item {place}: {error}") from None

    async def _stream(
        self, topic: str, item: Any, asked: Asked, framing: events.Framing, visit: Visit
    ) -> Sent:
        stream = self._client.stream(
            item,
            topic=topic,
            timeout=asked.timeout,
            priority=asked.priority,
            key=asked.key,
            request_id=visit.request_id,
        )

        def headers() -> list[tuple[str, str]]:
            told = [("content-type", framing.kind), ("x-request-id", visit.request_id), *UNBUFFERED]
            return [*told, ("connection", "close")] if self.leaving else told

        visit.outlet = Outlet(visit.request, headers, framing.alive, ALIVE)
        patience = self._timeout if asked.timeout is None else asked.timeout
        return await streams.send(stream, visit.outlet, framing, visit.request_id, patience, self._journal)

    async def _about(self, route: routes.Route, visit: Visit) -> Answer:
        self._holder(visit.request)
        await self._look()
        topics = {name: {"workers": topic["workers"]} for name, topic in self._known.topics.items()}
        pipelines = {
            name: {"stages": [stage["topic"] for stage in one["stages"]], "ready": one["ready"]}
            for name, one in self._known.pipelines.items()
        }
        told = {"name": "zbatch", "topics": topics, "pipelines": pipelines}
        return _json(200, {**told, "ask": "POST /predict/TOPIC", "docs": "/docs"})

    async def _live(self, route: routes.Route, visit: Visit) -> Answer:
        return _json(200, {"live": True})

    async def _ready(self, route: routes.Route, visit: Visit) -> Answer:
        ready = self._is_ready()
        answer = _json(200 if ready else 503, {"live": True, "ready": ready})
        if not ready:
            answer.headers.append(("retry-after", "1"))
        return answer

    async def _metrics(self, route: routes.Route, visit: Visit) -> Answer:
        self._holder(visit.request)
        headers = visit.request.headers
        made = self._metrics_pages.page(headers.get("accept") or "", headers.get("accept-encoding") or "")
        return Answer(200, [(name.lower(), value) for name, value in made.headers], made.body)

    async def _openapi(self, route: routes.Route, visit: Visit) -> Answer:
        self._holder(visit.request)
        await self._look()
        return _json(200, openapi.document(self._known.offered, version(), keyed=self._api_keys is not None))

    async def _docs(self, route: routes.Route, visit: Visit) -> Answer:
        return Answer(200, [("content-type", pages.PAGE.kind)], pages.PAGE.data)

    async def _docs_file(self, route: routes.Route, visit: Visit) -> Answer:
        kind, data = pages.file(route.topic)
        return Answer(200, [("content-type", kind), ("cache-control", "max-age=3600")], data)

    def _is_ready(self) -> bool:
        return not self.leaving and self._known.is_ready(self._clock())

    def _holder(self, head: Head) -> Holder | None:
        """Return who asks, before the body is read; None where nobody is asked for a key."""
        if self._api_keys is None:
            return None
        return self._api_keys.holder(head.headers.get("authorization"), head.headers.get("x-api-key"))

    # --- reading -----------------------------------------------------------------------------------

    async def _body(self, visit: Visit) -> bytes:
        """Read a body of bounded size, which it is also bounded to once it is decompressed."""
        request, headers = visit.request, visit.request.headers
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding == "identity":
            encoding = ""
        if encoding and not compression.is_known(encoding):
            raise UnsupportedMedia(f"content-encoding is {encoding[:100]!r}, wanted gzip, deflate or none")
        length = headers.get("content-length")
        visit.is_reading = True
        if length is not None:
            if int(length) > self._max_body:
                raise self._too_large(length)
            body = await request.body()
        else:
            # Its size is known only in the end: bound it on the way.
            gathered = bytearray()
            async for piece in request.pieces():
                if len(gathered) + len(piece) > self._max_body:
                    raise self._too_large(f"more than {self._max_body}")
                gathered += piece
            body = bytes(gathered)
        self.figures.received += len(body)
        visit.is_reading = False
        if not encoding:
            return body
        if len(body) > SMALL:
            return await asyncio.to_thread(compression.decompress, encoding, body, self._max_body)
        return compression.decompress(encoding, body, self._max_body)

    def _too_large(self, size: str) -> TooLarge:
        return TooLarge(f"the body has {size} bytes, wanted at most {self._max_body}")

    def _slow_body(self) -> SlowBody:
        return SlowBody(f"the body did not come within {self._body_timeout:g} s")

    # --- which topics there are ----------------------------------------------------------------------

    async def _require_served(self, topic: str, wait: float, patience: float) -> None:
        """Raise what is to be said against a question for this topic, unless a fresh look finds workers.

        Args:
            topic: What is asked for.
            wait: Seconds that workers may take to come where there was an objection.
            patience: Seconds in which a young broker's topic may still come, or prove to be none.

        """
        began = now = self._clock()
        if self._known.is_to_be_asked(topic, now):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait, patience) or LOOK):
                await self._look()
        while not self._known.is_to_be_asked(topic, now := self._clock()):
            waited = now - began
            objection = self._known.objection(topic, now)
            if objection is not None:
                if waited >= wait:
                    raise objection
                await self._change(wait - waited)
            elif not self._known.has_learned:
                return  # nobody answers: the question itself finds out
            elif waited >= patience:
                raise NoWorkers(f"no worker has come for topic {topic[:100]!r}")
            else:
                await self._change(min(patience - waited, self._known.youth_left(now)))

    async def _change(self, most: float) -> None:
        """Wait until other topics are served than were; so many seconds at most."""
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll())
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most):
                    await self._changed.wait()
        finally:
            self._waiting -= 1

    async def _poll(self) -> None:
        """Look often, while somebody waits for what may be served any time."""
        while self._waiting:
            await asyncio.sleep(AGAIN)
            await self._look()
        self._polling = None

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
            if self._known.learn(snapshot, self._clock()):
                self._changed.set()
                self._changed = asyncio.Event()
            self._judges.learn(self._known.offered)
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
            if str(error) != self._keys_trouble:
                self._journal.event("API keys not read", level="error", why=str(error))
            self._keys_trouble = str(error)
        else:
            self._keys_trouble = ""

    def _sweep(self, now: float) -> None:
        for visit in list(self._visits):
            if visit.is_reading and now - visit.began > self._body_timeout and not visit.why:
                visit.end("slow")

    async def close(self) -> None:
        """Say goodbye to the broker; what has no answer yet gets an error."""
        if self._polling is not None:
            self._polling.cancel()
        await self._client.close()
        for visit in list(self._visits):
            # A stream has its error from the client; others may wait for a body, or for workers.
            if visit.outlet is None and not visit.why:
                visit.end("leaving")


def _left() -> ClientClosed:
    return ClientClosed("the gateway left before this request had an outcome")


def _json(status: int, told: object) -> Answer:
    return Answer(status, [("content-type", answers.JSON)], msgspec.json.encode(told))
