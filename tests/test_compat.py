"""service_streamer's names: the same paths, positions and defaults."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import zbatch
from zbatch.compat import service_streamer
from zbatch.compat.service_streamer import managed_model
from zbatch.compat.service_streamer import service_streamer as module
from zbatch.streamer import endpoints_of

PATIENCE = 20.0

EMPTY = inspect.Parameter.empty


def positions(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return what a caller may give by position, with its default."""
    return [
        (one.name, one.default)
        for one in inspect.signature(function).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ]


FOREVER = [
    ("model_class", EMPTY),
    ("batch_size", EMPTY),
    ("max_latency", 0.1),
    ("worker_num", 1),
    ("cuda_devices", None),
]
MADE_OF = [("model_init_args", None), ("model_init_kwargs", None)]


@pytest.mark.parametrize("streamer", [zbatch.ThreadedStreamer, service_streamer.ThreadedStreamer])
def test_threaded_streamer_takes_what_it_took(streamer: Any) -> None:
    assert positions(streamer) == [
        ("predict_function", EMPTY),
        ("batch_size", EMPTY),
        ("max_latency", 0.1),
        ("worker_timeout", None),
    ]


@pytest.mark.parametrize("streamer", [zbatch.Streamer, service_streamer.Streamer])
def test_streamer_takes_what_it_took(streamer: Any) -> None:
    assert positions(streamer) == [
        ("predict_function_or_model", EMPTY),
        *FOREVER[1:],
        *MADE_OF,
        ("wait_for_worker_ready", False),
        ("mp_start_method", "spawn"),
        ("worker_timeout", None),
    ]


def test_the_redis_pair_takes_what_it_took() -> None:
    assert positions(service_streamer.RedisStreamer) == [("redis_broker", "localhost:6379"), ("prefix", "")]
    redis = [("redis_broker", "localhost:6379"), ("prefix", "")]
    assert positions(service_streamer.run_redis_workers_forever) == [
        *FOREVER,
        *redis,
        ("mp_start_method", "spawn"),
        *MADE_OF,
    ]
    assert positions(service_streamer.RedisWorker) == [*FOREVER[:3], *redis, *MADE_OF]
    assert positions(service_streamer.RedisWorker.run_forever)[1:] == [("gpu_id", None)]


def test_the_pair_in_its_place_has_the_same_positions() -> None:
    assert positions(zbatch.ZStreamer) == [("broker", "localhost:5555"), ("topic", "")]
    assert positions(zbatch.run_zbatch_workers_forever) == [
        *FOREVER,
        ("broker", "localhost:5555"),
        ("topic", ""),
        ("mp_start_method", "spawn"),
        *MADE_OF,
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("batch_size", value) for value in (0, -1, None, 8.0, "8")),
        *(("max_latency", value) for value in (-0.1, None, "0.1", float("inf"), float("nan"))),
        *(("worker_num", value) for value in (0, None, 1.5)),
    ],
)
def test_numbers_with_which_nothing_could_run_are_refused_by_name(name: str, value: Any) -> None:
    given: dict[str, Any] = {"batch_size": 8, name: value}
    streamers: list[Any] = [module.Streamer, module.run_redis_workers_forever]
    if name != "worker_num":
        streamers += [module.ThreadedStreamer, module.RedisWorker]
    for streamer in streamers:
        with pytest.raises(zbatch.ConfigError, match=re.escape(f"{name} is {value!r}, wanted")):
            streamer(positions, **given)


def test_every_name_is_where_it_was() -> None:
    for name in service_streamer.__all__:
        assert getattr(service_streamer, name) is getattr(module, name)
    assert (module.TIMEOUT, module.TIME_SLEEP, module.WORKER_TIMEOUT) == (1, 0.001, 20)
    assert managed_model.ManagedModel is zbatch.ManagedModel
    assert module.Future is zbatch.Future


def test_the_timeout_that_people_set_counts_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def slow(batch: list[Any]) -> list[Any]:
        release.wait(PATIENCE)
        return batch

    streamer = module.ThreadedStreamer(slow, 4)
    monkeypatch.setattr(module, "WORKER_TIMEOUT", 0.05)
    with pytest.raises(TimeoutError):
        streamer.predict([1])
    monkeypatch.setattr(module, "WORKER_TIMEOUT", 20)
    release.set()
    assert streamer.predict([2]) == [2]
    streamer.destroy_workers()


def test_a_streamer_of_remote_workers_does_not_end_them() -> None:
    streamer = service_streamer.RedisStreamer("localhost:9")
    with pytest.raises(NotImplementedError, match="end them where they were started"):
        streamer.destroy_workers()
    streamer.close()


@pytest.mark.parametrize(
    ("broker", "endpoints"),
    [
        ("localhost:6379", ("tcp://127.0.0.1:6379", "tcp://127.0.0.1:6380")),
        ("gpu-1:5555", ("tcp://gpu-1:5555", "tcp://gpu-1:5556")),
        ("tcp://[::1]:7000", ("tcp://[::1]:7000", "tcp://[::1]:7001")),
        ("LOCALHOST:7000", ("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7001")),
    ],
)
def test_a_broker_is_its_frontend_and_the_next_port(broker: str, endpoints: tuple[str, str]) -> None:
    assert endpoints_of(broker) == endpoints


WRONG = [
    *("localhost", ":1", "host:", "host:65535", "host:0", "redis://host", "redis://host:6379"),
    *("::1", "*:6379", "a host:6379", "host:6379/0", "ipc:///tmp/front", None),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_names_no_broker_gets_a_sentence(wrong: Any) -> None:
    with pytest.raises(ValueError, match="wanted host:port of its frontend"):
        endpoints_of(wrong)
