"""How a broker's snapshot looks on a terminal, and whether it is well.

Tolerant of what a newer or older broker leaves out; what came over the network cannot speak to the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

NOTHING = "-"


def trouble(snapshot: Mapping[str, Any], topic: str | None) -> str | None:
    """Say what a probe should fail for, or None: the broker answered, and topic or pipeline is served."""
    if topic is None:
        return None
    known, pipelines = _of(snapshot, "topics"), _of(snapshot, "pipelines")
    if topic in pipelines:  # it goes before a topic of its name
        return _trouble_of_stages(known, topic, _of(pipelines, topic).get("stages") or ())
    if _of(known, topic).get("draining"):
        undo = f"zbatch drain topic {topic} --undo"
        return f"topic {topic!r} is being drained; until {undo} it takes no new requests"
    if not _of(known, topic).get("workers"):
        whole = [name for name in pipelines if _of(pipelines, name).get("ready")]
        served = ", ".join([*(name for name in known if _is_served(_of(known, name))), *whole]) or "none"
        return f"topic {topic!r} has no worker; served here: {served}"
    return None


def _trouble_of_stages(
    known: Mapping[str, Any], name: str, stages: Iterable[Mapping[str, Any]]
) -> str | None:
    for stage in stages:
        if not _of(known, str(stage.get("topic"))).get("workers"):
            return f"stage {stage.get('name')!r} of pipeline {name!r} has no worker"
    return None


def _is_served(topic: Mapping[str, Any]) -> bool:
    return bool(topic.get("workers")) and not topic.get("draining")


def console() -> Console:
    """Return where to print; piped into a file or a pager, a line has no width to keep to."""
    found = Console()
    return found if found.is_terminal else Console(width=200)


def render(snapshot: Mapping[str, Any], topic: str | None = None) -> RenderableType:
    """Return tables of topics and workers, and a line about the broker; of one name, or of all."""
    pipelines = _of(snapshot, "pipelines")
    pipelines = {name: _of(pipelines, name) for name in pipelines if topic in (None, name)}
    # A pipeline goes before a topic of its name, and is shown with the topics that it goes through.
    shown = _topics_of(pipelines[topic]) if topic in pipelines else {topic}
    topics = {
        name: _of(_of(snapshot, "topics"), name)
        for name in _of(snapshot, "topics")
        if topic is None or name in shown
    }
    workers = [one for one in snapshot.get("workers") or () if topic is None or one.get("topic") in shown]
    parts: list[RenderableType] = [_headline(snapshot), _topics(topics)]
    parts.append(
        _workers(workers) if workers else Text("no worker: start one with zbatch worker MODEL", "yellow")
    )
    if pipelines:
        parts.append(_pipelines(pipelines))
    counters = [f"{name} {count}" for name, count in _of(snapshot, "counters").items() if count]
    if counters:
        parts.append(Text(plain("counters: " + ", ".join(counters)), "dim"))
    return Group(*parts)


def _headline(snapshot: Mapping[str, Any]) -> Text:
    words = [f"broker {snapshot.get('epoch', NOTHING)}", f"up {seconds(snapshot.get('uptime_s'))}"]
    words.append(f"{snapshot.get('clients', NOTHING)} clients")
    return Text(plain(", ".join(words)), "bold")


def _topics(topics: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    if not topics:
        return Text("no topic yet: none was asked for or served", "yellow")
    titles = "topic waiting oldest running workers items/s p50 p99 batch fill closed errors"
    return _table(titles.split(), (_topic(name, one) for name, one in sorted(topics.items())))


def _topic(name: str, topic: Mapping[str, Any]) -> list[str]:
    latency, fill = _of(topic, "latency_ms"), topic.get("fill")
    return [
        f"{name} (draining)" if topic.get("draining") else name,
        number(topic.get("waiting")),
        seconds(topic.get("oldest_age_s")),
        number(topic.get("running")),
        number(topic.get("workers")),
        number(topic.get("items_per_s")),
        milliseconds(latency.get("p50")),
        milliseconds(latency.get("p99")),
        number(topic.get("mean_batch")),
        NOTHING if fill is None else f"{fill:.0%}",
        _counts(_of(topic, "closed")),
        _counts(_of(topic, "errors")),
    ]


def _workers(workers: Iterable[Mapping[str, Any]]) -> Table:
    titles = ["topic", "host", "pid", "gpu", "state", "batches", "restarts", "model"]
    return _table(titles, ([_word(worker.get(title)) for title in titles] for worker in workers))


def _topics_of(pipeline: Mapping[str, Any]) -> set[str]:
    return {str(stage.get("topic")) for stage in pipeline.get("stages") or ()}


def _pipelines(pipelines: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = (_pipeline(name, pipelines[name]) for name in sorted(pipelines))
    return _table(["pipeline", "topics", "ready"], rows)


def _pipeline(name: str, told: Mapping[str, Any]) -> list[str]:
    topics = ", ".join(_word(stage.get("topic")) for stage in told.get("stages") or ())
    return [name, topics or NOTHING, "yes" if told.get("ready") else "no"]


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def plain(text: str) -> str:
    """Return the text without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def seconds(value: float | None) -> str:
    """Return a time span in the unit that people would use."""
    if value is None:
        return NOTHING
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if value >= 2 * length:
            return f"{value / length:.1f}{unit}"
    return f"{value:.1f}s" if value >= 1 else f"{value * 1000:.0f}ms"


def milliseconds(value: float | None) -> str:
    """Return a latency."""
    if value is None:
        return NOTHING
    return f"{value:.3g}ms" if value < 1000 else seconds(value / 1000)


def number(value: Any) -> str:
    """Return a number with its thousands apart, and no more decimals than matter."""
    if value is None:
        return NOTHING
    return f"{value:,.1f}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"


def _counts(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number(count)}" for name, count in counts.items() if count) or NOTHING


def _word(value: object) -> str:
    return NOTHING if value in (None, "") else str(value)


def _of(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return mapping.get(name) or {}
