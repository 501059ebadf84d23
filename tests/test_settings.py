"""What may be set: the defaults of the design, what each field refuses, and its explanation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from zbatch import settings as module
from zbatch.config import (
    BenchSettings,
    BrokerCoreSettings,
    BrokerSettings,
    CheckSettings,
    ClientSettings,
    GatewaySettings,
    Limits,
    Settings,
    StatusSettings,
    Timing,
    WorkerSettings,
    describe,
    flatten,
    leaves,
)
from zbatch.errors import ConfigError
from zbatch.pipelines import build

COMMANDS = (
    BrokerSettings,
    WorkerSettings,
    GatewaySettings,
    ClientSettings,
    StatusSettings,
    BenchSettings,
    CheckSettings,
)


def test_defaults_are_those_of_the_design() -> None:
    worker, client, limits = WorkerSettings("m:M"), ClientSettings(), Limits()
    assert BrokerSettings().frontend == ("tcp://127.0.0.1:5555",)
    assert BrokerSettings().backend == worker.backend == ("tcp://127.0.0.1:5556",)
    assert (worker.topic, worker.gpu, worker.num, worker.batch_size) == ("default", ("all",), 1, 32)
    assert (worker.max_latency, worker.lease, worker.slots) == (0.010, None, 2)
    assert (BrokerSettings().batching, client.timeout) == ("eager", 30.0)
    assert (limits.topic_items, limits.topic_bytes) == (65_536, 2 << 30)
    assert (limits.client_items, limits.client_bytes) == (16_384, 512 << 20)
    assert (limits.message_bytes, limits.unserved_topics) == (256 << 20, 1_000)


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_setting_is_explained_in_a_sentence(kind: type[Settings]) -> None:
    for leaf in leaves(kind):
        assert leaf.help.endswith("."), leaf.path


def test_without_source_there_are_no_explanations_and_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_source(_: object) -> str:
        raise OSError("could not get source code")

    module._explanations.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(inspect, "getsource", no_source)
        assert module.explain(BrokerSettings, "frontend") == ""
    module._explanations.cache_clear()
    assert module.explain(BrokerSettings, "frontend") == "Where clients connect to; several with commas."


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Limits(topic_items=0), "topic_items: wanted at least 1, got 0"),
        (lambda: Limits(unserved_topics=-1), "unserved_topics: wanted at least 0, got -1"),
        (lambda: Timing(beat=0.0), "beat: wanted more than 0, got 0.0"),
        (lambda: Timing(beat=4.0), "quiet: wanted at least beat, which is 4.0, got 3.0"),
        (lambda: Timing(reconnect=6.0), "reconnect_max: wanted at least reconnect, which is 6.0, got 5.0"),
        (lambda: BrokerSettings(batch_size=0), "batch_size: wanted at least 1, got 0"),
        (
            lambda: BrokerSettings(frontend=()),
            "frontend: wanted an endpoint such as tcp://127.0.0.1:5555, got none",
        ),
        (
            lambda: BrokerSettings(backend=("tcp://127.0.0.1:5555",)),
            "backend: wanted another endpoint than the frontend's, got tcp://127.0.0.1:5555 for both",
        ),
        (lambda: WorkerSettings("m:M", num=0), "num: wanted at least 1, got 0"),
        (lambda: WorkerSettings("m:M", batch_cost=0.0), "batch_cost: wanted more than 0, got 0.0"),
        (lambda: WorkerSettings("m:M", slots=65), "slots: wanted at most 64, got 65"),
        (
            lambda: WorkerSettings("bert.py"),
            "model: wanted package.module:Name or path/file.py:Name, got 'bert.py'; "
            "did you forget :Name after bert.py?",
        ),
        (
            lambda: WorkerSettings("m:M", backend=()),
            "backend: wanted an endpoint such as tcp://127.0.0.1:5556, got none",
        ),
        (
            lambda: ClientSettings(endpoint=()),
            "endpoint: wanted an endpoint such as tcp://127.0.0.1:5555, got none",
        ),
        (lambda: ClientSettings(timeout=0.0), "timeout: wanted more than 0, got 0.0"),
        (lambda: StatusSettings(interval=0.0), "interval: wanted more than 0, got 0.0"),
        (lambda: BenchSettings(rate=0.0), "rate: wanted more than 0, got 0.0"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_the_value_wanted(
    make: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == sentence


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://10.0.0.7:5555"])
def test_other_hosts_are_let_in_only_when_that_is_said_out_loud(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"can be reached from other hosts.*--insecure"):
        BrokerSettings(frontend=(endpoint,))
    with pytest.raises(ConfigError, match=r"^backend: .*--insecure"):
        BrokerSettings(backend=(endpoint,), frontend=("ipc://f",))
    assert BrokerSettings(frontend=(endpoint,), insecure=True).frontend == (endpoint,)


@pytest.mark.parametrize(
    "settings", [partial(BrokerSettings, keys="k"), partial(WorkerSettings, "m:M", keys="k")]
)
def test_metrics_are_shown_to_other_hosts_only_when_that_is_said_out_loud_keys_or_not(
    settings: Callable[..., BrokerSettings | WorkerSettings],
) -> None:
    assert settings(metrics="127.0.0.1:9100").metrics == "127.0.0.1:9100"
    with pytest.raises(
        ConfigError, match=r"^metrics: 10.0.0.7:9100 can be reached from other hosts.*--insecure"
    ):
        settings(metrics="10.0.0.7:9100")
    assert settings(metrics="10.0.0.7:9100", insecure=True).metrics == "10.0.0.7:9100"


@pytest.mark.parametrize("address", ["0.0.0.0:8000", "10.0.0.7:8000"])
def test_a_gateway_lets_other_hosts_in_only_with_keys_or_when_that_is_said_out_loud(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^http: .* can be reached from other hosts.*--insecure"):
        GatewaySettings(http=address)
    assert GatewaySettings(http=address, api_keys="keys.toml").http == address
    assert GatewaySettings(http=address, insecure=True).http == address


def test_any_free_port_may_be_named_twice() -> None:
    both = ("tcp://127.0.0.1:*",)
    assert BrokerSettings(frontend=both, backend=both).backend == both


def test_the_broker_hands_its_core_what_it_needs() -> None:
    limits, timing = Limits(topic_items=1), Timing(beat=0.5)
    broker = BrokerSettings(
        topics=("a",), batching="window", batch_size=2, max_latency=0.1, limits=limits, timing=timing
    )
    assert broker.core() == BrokerCoreSettings(("a",), "window", 2, 0.1, limits, timing)


def test_pipelines_are_routes_for_the_core() -> None:
    core = BrokerSettings(pipelines={"both": ["a", "b"]}).core()
    assert core.pipelines == {"both": build(["a", "b"])}


def test_a_stage_that_the_brokers_topics_leave_out_is_refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        BrokerSettings(topics=("a",), pipelines={"both": ["a", "b"]})
    assert str(refusal.value) == "pipelines: both: topic 'b' is none of the topics of this broker"


@pytest.mark.parametrize("settings", [BrokerSettings(topics=("a",)), WorkerSettings("m:M", args={"a": [1]})])
def test_settings_travel_as_json(settings: Settings) -> None:
    assert msgspec.json.decode(msgspec.json.encode(settings), type=type(settings)) == settings


def test_settings_are_shown_flat_and_never_the_values_of_arguments() -> None:
    worker = WorkerSettings("m:M", args={"token": "secret"}, batch_cost=None)
    assert flatten(worker)["args"] == {"token": "secret"}
    shown = describe(worker)
    assert shown["args"] == "token"
    assert shown["backend"] == "tcp://127.0.0.1:5556"
    assert shown["batch_cost"] == "none"
    assert shown["max_latency"] == "10ms"
    assert shown["timing.beat"] == "1s"
    assert describe(BrokerSettings())["limits.topic_bytes"] == "2GiB"
