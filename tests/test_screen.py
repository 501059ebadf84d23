"""How a snapshot looks: every figure that an operator asks for, whatever the broker leaves out."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from zbatch import screen

SNAPSHOT: dict[str, Any] = {
    "epoch": "0a0b",
    "uptime_s": 7_200.0,
    "topics": {
        "bert": {
            "waiting": 1_234,
            "oldest_age_s": 0.25,
            "running": 64,
            "workers": 2,
            "items_per_s": 812.5,
            "latency_ms": {"p50": 12.345, "p99": 1_500.0},
            "mean_batch": 30.5,
            "fill": 0.953,
            "closed": {"full": 120, "idle": 3, "window": 0},
            "errors": {"overloaded": 2},
        },
        "idle": {"oldest_age_s": None, "latency_ms": None},
        "old": {"workers": 1, "draining": True},
    },
    "workers": [
        {
            "topic": "bert",
            "host": "gpu-1",
            "pid": 4242,
            "gpu": "0",
            "state": "ready",
            "batches": 123,
            "restarts": 1,
            "model": "\x1b[31mBert[/]",
        }
    ],
    "clients": 5,
    "counters": {"malformed": 3, "who": 0},
}


def shown(snapshot: dict[str, Any], topic: str | None = None) -> list[str]:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(snapshot, topic))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_a_snapshot_shows_topics_workers_clients_and_what_went_wrong() -> None:
    assert shown(SNAPSHOT) == [
        "broker 0a0b, up 2.0h, 5 clients",
        "topic waiting oldest running workers items/s p50 p99 batch fill closed errors",
        "bert 1,234 250ms 64 2 812.5 12.3ms 1.5s 30.5 95% full 120, idle 3 overloaded 2",
        "idle - - - - - - - - - - -",
        "old (draining) - - - 1 - - - - - - -",
        "topic host pid gpu state batches restarts model",
        "bert gpu-1 4242 0 ready 123 1 ?[31mBert[/]",
        "counters: malformed 3",
    ]


def test_pipelines_are_shown_with_their_topics_and_whether_each_is_served() -> None:
    stages = [{"name": "read", "topic": "bert"}, {"name": "judge", "topic": "old"}]
    told = SNAPSHOT | {"pipelines": {"photos": {"stages": stages, "ready": True}, "late": {"ready": False}}}

    lines = shown(told)

    at = lines.index("pipeline topics ready")
    assert lines[at + 1 : at + 3] == ["late - no", "photos bert, old yes"]


def test_one_pipeline_can_be_shown_alone_with_its_topics_and_their_workers() -> None:
    stages = [{"name": "judge", "topic": "old"}]
    told = SNAPSHOT | {"pipelines": {"bert": {"stages": stages, "ready": True}, "late": {"ready": False}}}

    assert shown(told, "bert") == [
        "broker 0a0b, up 2.0h, 5 clients",
        "topic waiting oldest running workers items/s p50 p99 batch fill closed errors",
        "old (draining) - - - 1 - - - - - - -",
        "no worker: start one with zbatch worker MODEL",
        "pipeline topics ready",
        "bert old yes",
        "counters: malformed 3",
    ]


def test_one_topic_can_be_shown_alone() -> None:
    assert shown(SNAPSHOT, "idle") == [
        "broker 0a0b, up 2.0h, 5 clients",
        "topic waiting oldest running workers items/s p50 p99 batch fill closed errors",
        "idle - - - - - - - - - - -",
        "no worker: start one with zbatch worker MODEL",
        "counters: malformed 3",
    ]


def test_a_broker_that_says_nothing_is_shown_all_the_same() -> None:
    assert shown({}) == [
        "broker -, up -, - clients",
        "no topic yet: none was asked for or served",
        "no worker: start one with zbatch worker MODEL",
    ]


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        (None, None),
        ("bert", None),
        ("idle", "topic 'idle' has no worker; served here: bert"),
        ("other", "topic 'other' has no worker; served here: bert"),
        (
            "old",
            "topic 'old' is being drained; until zbatch drain topic old --undo it takes no new requests",
        ),
    ],
)
def test_a_probe_asks_for_an_answer_and_where_it_names_a_topic_for_a_worker(
    topic: str | None, sentence: str | None
) -> None:
    assert screen.trouble(SNAPSHOT, topic) == sentence


def test_a_probe_of_a_pipeline_asks_for_a_worker_of_each_stage() -> None:
    stages = [{"name": "read", "topic": "bert"}, {"name": "judge", "topic": "idle"}]
    pipelines = {
        "whole": {"stages": stages[:1], "ready": True},
        "lame": {"stages": stages, "ready": False},
    }
    told = {**SNAPSHOT, "pipelines": pipelines}
    assert screen.trouble(told, "whole") is None
    assert screen.trouble(told, "lame") == "stage 'judge' of pipeline 'lame' has no worker"
    assert screen.trouble(told, "other") == "topic 'other' has no worker; served here: bert, whole"


def test_a_probe_of_an_empty_broker_says_so() -> None:
    assert screen.trouble({}, "bert") == "topic 'bert' has no worker; served here: none"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "0ms"), (0.5, "500ms"), (1.0, "1.0s"), (119.0, "119.0s"), (150.0, "2.5m"), (172_800.0, "2.0d")],
)
def test_a_time_span_is_told_in_the_unit_that_people_use(value: float, text: str) -> None:
    assert screen.seconds(value) == text
