"""Where settings come from: precedence, files, the environment, and errors that name the place."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from zbatch import config
from zbatch.config import BrokerSettings, GatewaySettings, WorkerSettings
from zbatch.errors import ConfigError

Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ZBATCH_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file beside which the test runs, so that errors name it shortly."""
    monkeypatch.chdir(tmp_path)

    def write(content: str) -> str:
        (tmp_path / "z.toml").write_text(content)
        return "z.toml"

    return write


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_default(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write('[worker]\nmodel = "m:M"\nnum = 4\nbatch_size = 5\nmax_latency = "7ms"')
    monkeypatch.setenv("ZBATCH_WORKER_NUM", "3")
    monkeypatch.setenv("ZBATCH_WORKER_BATCH_SIZE", "6")
    found = config.resolve_worker({"num": "2"}, file)
    assert found.settings == WorkerSettings("m:M", num=2, batch_size=6, max_latency=0.007)
    picked = {path: found.sources[path] for path in ("model", "num", "batch_size", "max_latency", "slots")}
    assert picked == {
        "model": "z.toml",
        "num": "--num",
        "batch_size": "ZBATCH_WORKER_BATCH_SIZE",
        "max_latency": "z.toml",
        "slots": "default",
    }


def test_every_setting_can_be_said_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZBATCH_BROKER_FRONTEND", "tcp://127.0.0.1:1,ipc://f")
    monkeypatch.setenv("ZBATCH_BROKER_TOPICS", "a,b")
    monkeypatch.setenv("ZBATCH_BROKER_BATCH_SIZE", "none")
    monkeypatch.setenv("ZBATCH_BROKER_INSECURE", "yes")
    monkeypatch.setenv("ZBATCH_BROKER_LIMITS_TOPIC_BYTES", "1MiB")
    monkeypatch.setenv("ZBATCH_BROKER_TIMING_BEAT", "500ms")
    monkeypatch.setenv("ZBATCH_BROKER_BATCHING", "")
    found = config.resolve_broker({})
    assert found.settings == BrokerSettings(
        frontend=("tcp://127.0.0.1:1", "ipc://f"),
        topics=("a", "b"),
        insecure=True,
        limits=config.Limits(topic_bytes=1 << 20),
        timing=config.Timing(beat=0.5),
    )
    assert found.sources["limits.topic_bytes"] == "ZBATCH_BROKER_LIMITS_TOPIC_BYTES"
    assert found.sources["batching"] == "default"


@pytest.mark.parametrize("no", ["false", "0", "no", "off", "False"])
def test_what_the_environment_says_no_to_is_off(monkeypatch: pytest.MonkeyPatch, no: str) -> None:
    monkeypatch.setenv("ZBATCH_BROKER_SUPERVISE", no)
    assert config.resolve_broker({}).settings.supervise is False


def test_arguments_of_all_sources_are_put_together(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write('[worker]\nmodel = "m:M"\n[worker.args]\npath = "p"\nsize = 1\nbits = 8')
    monkeypatch.setenv("ZBATCH_WORKER_ARG", "size=2")
    found = config.resolve_worker({"args": ("bits=16",)}, file)
    assert found.settings.args == {"path": "p", "size": 2, "bits": 16}
    assert found.sources["args"] == "--arg"


def test_pipelines_stand_in_a_table_of_the_brokers(write: Write) -> None:
    file = write('[broker.pipelines]\nphotos = ["decode", {boxes = "detect", photo = []}, "draw"]')
    found = config.resolve_broker({}, file).settings.pipelines
    assert found == {"photos": ["decode", {"boxes": "detect", "photo": []}, "draw"]}


def test_a_pipeline_that_is_none_is_refused_by_its_place(write: Write) -> None:
    with pytest.raises(ConfigError) as refusal:
        config.load(write('[broker.pipelines]\nphotos = ["decode", {boxes = "detect"}]'))
    assert str(refusal.value).endswith(
        "z.toml: [broker] pipelines: photos: the last step has branches: "
        "wanted a topic behind them that gets what they made"
    )


def test_a_path_in_a_file_is_relative_to_that_file(tmp_path: Path) -> None:
    file = tmp_path / "z.toml"
    file.write_text('[worker]\nmodel = "models/bert.py:Bert"')
    assert config.resolve_worker({}, str(file)).settings.model == f"{tmp_path}/models/bert.py:Bert"
    file.write_text('[worker]\nmodel = "models.bert:Bert"')
    assert config.resolve_worker({}, str(file)).settings.model == "models.bert:Bert"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[brokr]", "z.toml: has an unknown table [brokr]; did you mean 'broker'?"),
        (
            "[xyz]",
            "z.toml: has an unknown table [xyz]; "
            "it can be broker, worker, serve, client, status, bench, drain, check, gateway",
        ),
        ("[broker]\nfrontent = 1", "z.toml: [broker] has no setting 'frontent'; did you mean 'frontend'?"),
        (
            "[broker.limits]\ntopic_item = 1",
            "z.toml: [broker] has no setting 'limits.topic_item'; did you mean 'limits.topic_items'?",
        ),
        (
            "[broker]\nlimits = 5",
            "z.toml: [broker] has no setting 'limits'; did you mean 'limits.topic_age'?",
        ),
        (
            '[broker]\nbatching = "lazy"',
            "z.toml: [broker] batching: wanted eager or window, got 'lazy'",
        ),
        (
            "[broker.limits]\ntopic_items = 0",
            "z.toml: [broker] limits.topic_items: wanted at least 1, got 0",
        ),
        (
            '[[worker]]\nmodel = "m:M"\n[[worker]]\nnum = "x"',
            "z.toml: [[worker]] 2 num: wanted a whole number, got 'x'",
        ),
        ("worker = [5]", "z.toml: [[worker]] 1: wanted a table, got 5"),
        ("[[broker]]", "z.toml: [broker]: wanted a table, got [{}]"),
        ("broker = ", "z.toml: no valid TOML: Invalid value (at end of document)"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_table_and_key(
    write: Write, content: str, sentence: str
) -> None:
    file = write(content)
    with pytest.raises(ConfigError) as caught:
        config.resolve_broker({}, file)
    assert str(caught.value) == sentence


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/nowhere/z.toml: cannot be read: No such file or directory$"):
        config.load("/nowhere/z.toml")


def test_what_is_wrong_elsewhere_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--num: wanted at least 1, got 0$"):
        config.resolve_worker({"model": "m:M", "num": "0"})
    with pytest.raises(ConfigError, match=r"^model: wanted one, got none"):
        config.resolve_worker({})
    monkeypatch.setenv("ZBATCH_WORKER_NUM", "many")
    with pytest.raises(ConfigError, match=r"^ZBATCH_WORKER_NUM: wanted a whole number, got 'many'$"):
        config.resolve_worker({"model": "m:M"})


def test_a_variable_that_is_no_setting_is_noted_but_not_what_an_orchestrator_injects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZBATCH_WORKER_GPUS", "0")
    monkeypatch.setenv("ZBATCH_WORKER_CONFIG", "z.toml")
    monkeypatch.setenv("ZBATCH_WORKER_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("ZBATCH_WORKER_BERT_PORT_5555_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("ZBATCH_WORKER_PORT", "tcp://10.0.0.1:5555")
    assert config.resolve_worker({"model": "m:M"}).notes == (
        "ZBATCH_WORKER_GPUS is set, but is no setting of zbatch worker; did you mean 'ZBATCH_WORKER_GPU'?",
    )


def test_of_several_workers_a_name_or_topic_picks_one(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(
        '[[worker]]\nmodel = "a:A"\nname = "first"\ntopic = "x"\n[[worker]]\nmodel = "b:B"\ntopic = "bert"'
    )
    assert config.resolve_worker({"name": "first"}, file).settings.model == "a:A"
    assert config.resolve_worker({"name": "bert"}, file).settings.model == "b:B"
    monkeypatch.setenv("ZBATCH_WORKER_NAME", "bert")
    assert config.resolve_worker({}, file).settings.model == "b:B"
    monkeypatch.delenv("ZBATCH_WORKER_NAME")
    with pytest.raises(ConfigError) as caught:
        config.resolve_worker({}, file)
    assert str(caught.value) == ("z.toml: has 2 [[worker]] tables (first, bert); say which one with --name")
    with pytest.raises(ConfigError, match=r"say which one with --name, got 'berd'$"):
        config.resolve_worker({"name": "berd"}, file)


# --- clients -------------------------------------------------------------------------------------


def test_a_client_uses_what_it_is_told_else_the_variable_else_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert config.client_endpoints() == ("tcp://127.0.0.1:5555",)
    monkeypatch.setenv("ZBATCH_BROKER", "tcp://a:1, tcp://b:1")
    assert config.client_endpoints() == ("tcp://a:1", "tcp://b:1")
    assert config.client_endpoints("ipc:///x") == ("ipc:///x",)
    assert config.client_endpoints(["ipc:///x", "tcp://c:1"]) == ("ipc:///x", "tcp://c:1")


def test_a_client_told_nonsense_hears_whose_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^endpoint: wanted tcp://host:port or ipc:///path, got 'a:1'"):
        config.client_endpoints("a:1")
    with pytest.raises(ConfigError, match=r"^endpoint: wanted an endpoint such as"):
        config.client_endpoints("")
    monkeypatch.setenv("ZBATCH_BROKER", "tcp://a")
    with pytest.raises(ConfigError, match=r"^ZBATCH_BROKER: wanted tcp://host:port, got 'tcp://a'"):
        config.client_endpoints()


def test_the_endpoint_of_client_commands_has_four_sources(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write('[client]\nendpoint = "tcp://file:1"\ntimeout = 2\n[bench]\ncallers = 3')
    assert config.resolve_client({}, file).settings.endpoint == ("tcp://file:1",)
    assert config.resolve_status({}, file).settings.endpoint == ("tcp://file:1",)
    assert config.resolve_status({}, file).settings.timeout == 5.0
    assert config.resolve_bench({}, file).settings.callers == 3
    monkeypatch.setenv("ZBATCH_BROKER", "tcp://variable:1")
    found = config.resolve_client({}, file)
    assert (found.settings.endpoint, found.sources["endpoint"]) == (("tcp://variable:1",), "ZBATCH_BROKER")
    monkeypatch.setenv("ZBATCH_PREDICT_ENDPOINT", "tcp://predict:1")
    assert config.resolve_client({}, file).settings.endpoint == ("tcp://predict:1",)
    assert config.resolve_bench({}, file).settings.endpoint == ("tcp://variable:1",)
    assert config.resolve_client({"endpoint": ("tcp://said:1",)}, file).settings.endpoint == ("tcp://said:1",)


def test_the_file_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.config_file("broker", None) is None
    monkeypatch.setenv("ZBATCH_CONFIG", "all.toml")
    assert config.config_file("broker", None) == "all.toml"
    monkeypatch.setenv("ZBATCH_BROKER_CONFIG", "broker.toml")
    assert config.config_file("broker", None) == "broker.toml"
    assert config.config_file("broker", "said.toml") == "said.toml"


# --- serve ---------------------------------------------------------------------------------------


def test_serve_needs_no_file_and_shares_what_both_sides_have() -> None:
    found = config.resolve_serve(
        {"model": "m:M", "batch_size": "8", "topics": ("a",), "timing.beat": "0.5", "log_format": "json"}
    )
    timing = config.Timing(beat=0.5)
    assert found.settings.broker == BrokerSettings(
        backend=(), topics=("a",), timing=timing, log_format="json"
    )
    assert found.settings.workers == (WorkerSettings("m:M", batch_size=8, timing=timing, log_format="json"),)
    assert found.sources["broker.backend"] == "private"
    assert found.sources["broker.batch_size"] == "default"
    assert found.sources["worker.0.batch_size"] == "--batch-size"


def test_serve_lays_its_own_table_over_those_of_broker_and_worker(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(
        '[broker]\nfrontend = "ipc://f"\nbackend = "ipc://b"\nbatch_size = 9\n'
        '[worker]\nmodel = "m:M"\nbackend = "tcp://far:1"\nnum = 3\nbatch_size = 4\n'
        "[serve]\nnum = 2\nlimits.topic_items = 7"
    )
    monkeypatch.setenv("ZBATCH_SERVE_BATCH_SIZE", "5")
    found = config.resolve_serve({}, file)
    assert found.settings.broker == BrokerSettings(
        ("ipc://f",), ("ipc://b",), batch_size=9, limits=config.Limits(topic_items=7)
    )
    assert found.settings.workers == (WorkerSettings("m:M", backend=("tcp://far:1",), num=2, batch_size=5),)


def test_serve_starts_every_worker_of_a_file_and_may_change_what_all_have(write: Write) -> None:
    file = write('[[worker]]\nmodel = "a:A"\ntopic = "a"\ngpu = 0\n[[worker]]\nmodel = "b:B"\ntopic = "b"')
    workers = config.resolve_serve({"gpu": "cpu", "timing.beat": "1s"}, file).settings.workers
    assert [(worker.model, worker.topic, worker.gpu) for worker in workers] == [
        ("a:A", "a", ("cpu",)),
        ("b:B", "b", ("cpu",)),
    ]
    with pytest.raises(ConfigError) as caught:
        config.resolve_serve({"topic": "c"}, file)
    assert str(caught.value) == "--topic: z.toml has several [[worker]] tables; say it in one of them"


def test_serve_names_what_it_can_be_told() -> None:
    told = config.serve_leaves()
    assert told["batch_size"].help == "A batch closes at this many items."
    assert told["backend"].default == ()
    assert {"model", "frontend", "limits.topic_items", "timing.beat"} <= set(told)


# --- for people ----------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [{"a": {"b": [1, "x"]}}, {"a": None}])
def test_settings_written_as_a_file_are_read_as_the_same(write: Write, args: dict[str, object]) -> None:
    worker = WorkerSettings("m:M", args=args, gpu=("0", "1"), timing=config.Timing(beat=0.25))
    assert config.resolve_worker({}, write(config.to_toml("[[worker]]", worker))).settings == worker
    broker = BrokerSettings(topics=("a",), batching="window", limits=config.Limits(topic_items=1))
    assert config.resolve_broker({}, write(config.to_toml("[broker]", broker))).settings == broker


def test_what_is_written_says_where_it_came_from() -> None:
    lines = config.to_toml(
        "[client]",
        config.ClientSettings(),
        {"x.endpoint": "z.toml"}
        | dict.fromkeys(
            (f"x.{leaf.path}" for leaf in config.leaves(config.ClientSettings) if leaf.path != "endpoint"),
            "default",
        ),
        "x.",
    ).splitlines()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "[client]",
        'endpoint = ["tcp://127.0.0.1:5555"] # z.toml',
        'keys = "" # default',
    ]


def test_the_version_is_that_of_the_installed_package_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert config.version() == "1.2.3"

    def not_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", not_installed)
    assert config.version() == "unknown"


# --- keys ----------------------------------------------------------------------------------------


def test_a_folder_of_keys_in_a_file_lies_beside_that_file(tmp_path: Path) -> None:
    (tmp_path / "farm.toml").write_text('[broker]\nkeys = "keys"\n')
    found = config.resolve_broker({}, str(tmp_path / "farm.toml"))
    assert found.settings.keys == str(tmp_path / "keys")


def test_the_files_that_a_gateways_table_names_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    (tmp_path / "farm.toml").write_text(
        '[gateway]\nkeys = ""\napi_keys = "http.toml"\ntls_cert = "~/cert.pem"\ntls_key = "/etc/key.pem"\n'
    )
    found = config.resolve_gateway({}, str(tmp_path / "farm.toml")).settings
    files = ("", str(tmp_path / "http.toml"), "/home/alice/cert.pem", "/etc/key.pem")
    assert (found.keys, found.api_keys, found.tls_cert, found.tls_key) == files


def test_one_variable_names_the_keys_of_everybody_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZBATCH_KEYS", "/etc/keys")
    assert config.resolve_client({"topic": "bert"}).settings.keys == "/etc/keys"
    assert config.resolve_drain({"keys": "/root/keys"}).settings.keys == "/root/keys"
    assert config.keys_folder() == "/etc/keys"
    assert config.keys_folder(Path("/other")) == "/other"


def test_where_an_order_goes_may_stand_with_the_clients(tmp_path: Path) -> None:
    (tmp_path / "farm.toml").write_text('[client]\nendpoint = "ipc:///f"\nkeys = "/keys"\n')
    settings = config.resolve_drain({}, str(tmp_path / "farm.toml")).settings
    assert (settings.endpoint, settings.keys) == (("ipc:///f",), "/keys")


def test_only_one_broker_is_told_at_a_time() -> None:
    with pytest.raises(ConfigError, match="wanted one broker, got 2"):
        config.resolve_drain({"endpoint": "ipc:///a,ipc:///b"})


# --- the gateway ---------------------------------------------------------------------------------


def test_a_gateway_finds_its_broker_where_clients_do(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(
        '[client]\nendpoint = "tcp://b:1"\ntimeout = 9\n[gateway]\nhttp = "127.0.0.1:1"\nprocesses = 2'
    )
    found = config.resolve_gateway({"processes": "3"}, file)
    assert found.settings == GatewaySettings("127.0.0.1:1", endpoint=("tcp://b:1",), processes=3)
    monkeypatch.setenv("ZBATCH_BROKER", "tcp://c:2")
    assert config.resolve_gateway({}, file).settings.endpoint == ("tcp://c:2",)


def test_serve_speaks_http_only_where_somebody_says_so(write: Write) -> None:
    file = write('[gateway]\nmax_body = "1MiB"\n[worker]\nmodel = "m:M"')
    assert config.resolve_serve({}, file).settings.gateway is None
    found = config.resolve_serve({"http": "127.0.0.1:1", "log_format": "json"}, file)
    assert found.settings.gateway == GatewaySettings("127.0.0.1:1", max_body=1 << 20, log_format="json")
    assert (found.sources["gateway.http"], found.sources["gateway.max_body"]) == ("--http", file)


# --- metrics ---------------------------------------------------------------------------------------


def test_serve_has_its_workers_metrics_at_the_ports_behind_its_brokers(write: Write) -> None:
    file = write(
        '[[worker]]\nmodel = "a:A"\n'
        '[[worker]]\nmodel = "b:B"\nmetrics = "127.0.0.1:7"\n'
        '[[worker]]\nmodel = "c:C"'
    )
    found = config.resolve_serve({"metrics": "127.0.0.1:9100"}, file)
    assert found.settings.broker.metrics == "127.0.0.1:9100"
    shown = [worker.metrics for worker in found.settings.workers]
    assert shown == ["127.0.0.1:9101", "127.0.0.1:7", "127.0.0.1:9103"]
    assert found.sources["worker.0.metrics"] == "--metrics"


def test_serve_without_metrics_has_none() -> None:
    found = config.resolve_serve({"model": "m:M"})
    assert (found.settings.broker.metrics, found.settings.workers[0].metrics) == (None, None)


def test_any_free_port_is_one_for_each() -> None:
    found = config.resolve_serve({"model": "m:M", "metrics": "127.0.0.1:0"})
    assert [found.settings.broker.metrics, found.settings.workers[0].metrics] == ["127.0.0.1:0"] * 2


def test_serve_lets_others_read_its_metrics_where_that_is_said_aloud(write: Write) -> None:
    found = config.resolve_serve({"model": "m:M", "metrics": "0.0.0.0:9100", "insecure": True})
    assert found.settings.workers[0].metrics == "0.0.0.0:9101"
    with pytest.raises(ConfigError, match="metrics of worker 1: wanted a port from 0 to 65535, got '65536'"):
        config.resolve_serve({"model": "m:M", "metrics": "127.0.0.1:65535"})
    file = write('[broker]\nmetrics = "0.0.0.0:9100"\ninsecure = true\n[worker]\nmodel = "m:M"')
    with pytest.raises(ConfigError, match=r"metrics of worker 1: .*--insecure"):
        config.resolve_serve({}, file)
