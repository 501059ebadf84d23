"""A snapshot of a broker for people: what waits, who works, how fast.  It decides nothing."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from zbatch.core.roster import Worker
from zbatch.core.topics import Topic
from zbatch.messages import Facts, Route

if TYPE_CHECKING:
    from zbatch.core.broker import BrokerCore

MOST = 1_000
"""Workers, and processes, that a snapshot names; a farm larger than this reads its totals."""

MODELS = 8
"""Models that a topic names: while versions change there are two."""

MODEL_BYTES = 512 << 10
"""Of signatures and schemas that one snapshot shows; topics beyond that show none."""

DEEPEST = 64
"""Levels of nesting in those: a snapshot must be readable to everybody."""


def snapshot(core: BrokerCore, now: float) -> bytes:
    """Return the state of a broker as JSON."""
    workers = islice(core.dispatcher.workers.values(), MOST)
    room = _Room(MODEL_BYTES)
    shown = {
        "protocol": 1,
        "epoch": core.epoch.hex(),
        "uptime_s": round(now - core.started, 3) if core.started is not None else 0.0,
        "topics": {name: _topic(core, topic, now, room) for name, topic in core.topics.all.items()},
        "only_topics": core.settings.topics,
        "pipelines": {name: _pipeline(core, route) for name, route in core.settings.pipelines.items()},
        "workers": [_worker(core, worker) for worker in workers],
        "processes": [
            {
                "incarnation": incarnation.hex(),
                "gpu": child.gpu,
                "state": child.state,
                "alive": child.alive,
                "exit": child.exit,
                "reason": child.reason,
                "restarts": child.restarts,
            }
            for incarnation, (_, child) in islice(core.dispatcher.children.items(), MOST)
        ],
        "clients": len(core.ledger.clients),
        "counters": dict(core.counters),
    }
    return msgspec.json.encode(shown)


class _Room:
    """What is left of the bytes that a snapshot gives to signatures and schemas."""

    def __init__(self, size: int) -> None:
        self._left = size

    def show(self, raw: bytes) -> msgspec.Raw | None:
        """Return JSON as it came, or None where it is none or too much."""
        shown = _json(raw) if len(raw) <= self._left else None
        if shown is not None:
            self._left -= len(raw)
        return shown


def _topic(core: BrokerCore, topic: Topic, now: float, room: _Room) -> dict[str, Any]:
    tally = topic.tally
    oldest = topic.backlog.oldest()
    return {
        "waiting": topic.backlog.items,
        "unfinished": topic.items,
        "coming": topic.coming,
        "unfinished_bytes": topic.size,
        "oldest_age_s": round(now - oldest, 3) if oldest is not None else None,
        "running": topic.running,
        "batches_apart": len(topic.apart),
        "models": [_model(facts, room) for facts in islice(topic.roster.models, MODELS)],
        "workers": len(topic.roster),
        "idle_workers": topic.roster.idle,
        "draining": topic.name in core.topics.drained,
        "batching": topic.policy.name,
        "items": tally.items,
        "answered": tally.answered,
        "items_per_s": round(tally.rate.per_second(now), 1),
        "batches": tally.batches,
        "mean_batch": round(tally.batched_items / tally.batches, 2) if tally.batches else None,
        "fill": round(tally.batched_items / tally.batched_room, 3) if tally.batched_room else None,
        "closed": dict(tally.closed),
        "retries": tally.retries,
        "errors": dict(tally.errors),
        "latency_ms": _milliseconds(tally.latency),
        "run_ms": _milliseconds(tally.run),
    }


def _model(facts: Facts, room: _Room) -> dict[str, Any]:
    return {
        "name": facts.name,
        "version": facts.version,
        "signature": room.show(facts.signature),
        "schema": room.show(facts.schema),
    }


@lru_cache(maxsize=1024)
def _json(raw: bytes) -> msgspec.Raw | None:
    """Return what a worker sent as JSON, if it is some; looked at once, since it stays the same."""
    try:
        parts = [msgspec.json.decode(raw)]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    for _ in range(DEEPEST):
        parts = [
            one
            for part in parts
            if isinstance(part, dict | list)
            for one in (part.values() if isinstance(part, dict) else part)
        ]
        if not parts:
            return msgspec.Raw(raw)
    return None


def _pipeline(core: BrokerCore, route: Route) -> dict[str, Any]:
    topics = (core.topics.all.get(stage.topic) for stage in route)
    return {
        "stages": [{"name": stage.name, "topic": stage.topic} for stage in route],
        "ready": all(topic is not None and len(topic.roster) > 0 for topic in topics),
    }


def _milliseconds(histogram: Any) -> dict[str, float | None]:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: histogram.quantile(share) for name, share in shares.items()}
    found["mean"] = histogram.total / histogram.count if histogram.count else None
    return {name: None if value is None else round(value * 1000, 3) for name, value in found.items()}


def _worker(core: BrokerCore, worker: Worker) -> dict[str, Any]:
    _, child = core.dispatcher.children.get(worker.incarnation, (b"", None))
    return {
        "topic": worker.ready.topic,
        "host": worker.link.host,
        "pid": worker.link.pid,
        "gpu": worker.ready.facts.gpu,
        "state": worker.state,
        "batches": worker.batches,
        "holds": len(worker.holds),
        "restarts": child.restarts if child is not None else None,
        "model": worker.ready.facts.name,
        "version": worker.ready.facts.version,
        "batch_size": worker.room.items,
    }
