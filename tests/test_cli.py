"""The command line: what it hands to whom, what it prints, and its exit codes.

What runs behind a command is a small real thing here; tests/live starts the processes.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from zbatch import cli, config, screen
from zbatch.__main__ import run
from zbatch.config import BenchSettings, BrokerSettings, CheckSettings, ServeSettings, WorkerSettings
from zbatch.errors import BrokerUnreachable, ConfigError, ModelFailed

CONFIGS = Path(__file__).parent.parent / "configs"


class FakeClient:
    """Doubles numbers, and has a broker that is well."""

    made: ClassVar[list[tuple[Any, ...]]] = []
    snapshots: ClassVar[list[Any]] = []

    def __init__(self, endpoint: tuple[str, ...], **options: Any) -> None:
        self.made.append((endpoint, options))

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, items: Iterable[Any], **options: Any) -> Iterator[Any]:
        self.made.append(tuple(sorted(options.items())))
        for item in items:
            yield ModelFailed("no such word", kind="KeyError") if item == "bad" else item * 2

    def status(self, *, timeout: float) -> Any:
        self.made.append(("status", timeout))
        snapshot = self.snapshots.pop(0)
        if isinstance(snapshot, BaseException):
            raise snapshot
        return snapshot


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ZBATCH_")]:
        monkeypatch.delenv(name)
    FakeClient.made.clear()
    FakeClient.snapshots.clear()
    monkeypatch.setitem(sys.modules, "zbatch.client", SimpleNamespace(ZClient=FakeClient))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was started with which settings; the exit code is that of ``outcome``."""
    seen: list[Any] = []

    def run(settings: Any) -> int:
        seen.append(settings)
        return 0

    for module, function in (
        ("broker", "run"),
        ("worker", "run"),
        ("launcher", "serve"),
        ("loadgen", "bench"),
        ("check", "run"),
    ):
        monkeypatch.setitem(sys.modules, f"zbatch.{module}", SimpleNamespace(**{function: run}))
    return seen


def zbatch(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, list(arguments), input=stdin)


# --- the commands that run on ---------------------------------------------------------------------


def test_broker_runs_on_its_settings(started: list[Any]) -> None:
    result = zbatch(
        "broker",
        *("--frontend", "tcp://127.0.0.1:7000", "--frontend", "ipc:///f", "--topics", "a,b"),
        *("--insecure", "--limits-topic-items", "5"),
    )
    assert (result.exit_code, result.output) == (0, "")
    assert started == [
        BrokerSettings(
            frontend=("tcp://127.0.0.1:7000", "ipc:///f"),
            topics=("a", "b"),
            insecure=True,
            limits=config.Limits(topic_items=5),
        )
    ]


def test_worker_runs_the_model_that_is_named(started: list[Any]) -> None:
    zbatch(
        *("worker", "m.py:Model", "--topic", "bert", "--gpu", "0,1", "--num", "2", "--batch-size", "64"),
        *("--max-latency", "0.01", "--backend", "tcp://host:5556", "--arg", "path=x", "--arg", "bits=8"),
    )
    assert started == [
        WorkerSettings(
            "m.py:Model",
            args={"path": "x", "bits": 8},
            topic="bert",
            gpu=("0", "1"),
            num=2,
            batch_size=64,
            backend=("tcp://host:5556",),
        )
    ]


def test_serve_runs_both(started: list[Any]) -> None:
    zbatch("serve", "m:M", "--gpu", "cpu")
    assert started == [ServeSettings(BrokerSettings(backend=()), (WorkerSettings("m:M", gpu=("cpu",)),))]


def test_bench_makes_the_load_that_is_asked_for(started: list[Any]) -> None:
    zbatch("bench", "bert", "--rate", "100", "--size", "588KiB")
    assert started == [BenchSettings(topic="bert", rate=100.0, size=588 * 1024)]


def test_check_tries_the_model_that_is_named(started: list[Any]) -> None:
    zbatch("check", "m:M", "--gpu", "0", "--batch-size", "8", "--arg", "bits=8", "--item", "[1]", "--json")
    assert started == [
        CheckSettings("m:M", args={"bits": 8}, gpu=("0",), batch_size=8, item="[1]", json=True)
    ]


def test_a_switch_of_a_file_can_be_turned_off_again(started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "z.toml").write_text("[broker]\ninsecure = true")
    zbatch("broker", "--config", str(tmp_path / "z.toml"), "--no-insecure")
    assert started == [BrokerSettings(insecure=False)]


def test_what_a_command_returns_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zbatch.broker", SimpleNamespace(run=lambda settings: 3))
    assert zbatch("broker").exit_code == 3


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("port 5555 is in use"), 2, "Error: port 5555 is in use\n"),
        (BrokerUnreachable("nobody there"), 1, "Error: BrokerUnreachable: nobody there\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_each_way_to_end_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    def run(settings: object) -> int:
        raise error

    monkeypatch.setitem(sys.modules, "zbatch.broker", SimpleNamespace(run=run))
    result = zbatch("broker")
    assert (result.exit_code, result.output) == (code, text)


@pytest.mark.parametrize(("lack", "sentence"), cli.SCARCE.items())
def test_what_the_host_lacks_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, lack: int, sentence: str
) -> None:
    def run(settings: object) -> int:
        raise OSError(lack, os.strerror(lack))

    monkeypatch.setitem(sys.modules, "zbatch.broker", SimpleNamespace(run=run))
    result = zbatch("broker")
    assert (result.exit_code, result.output) == (1, f"Error: {sentence}\n")


def test_another_error_of_the_system_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: object) -> int:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setitem(sys.modules, "zbatch.broker", SimpleNamespace(run=run))
    assert isinstance(zbatch("broker").exception, PermissionError)


@pytest.mark.parametrize("arguments", ["config broker", "config broker --json", "--help", "--version"])
def test_a_full_disk_is_told_in_a_sentence(arguments: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "zbatch", *arguments.split()]
        found = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (found.returncode, found.stderr) == (1, "Error: no space left on the device that is written to\n")


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("worker m:M --gpus 0", "No such option '--gpus'. Did you mean '--gpu'?"),
        ("broker --frontend 0.0.0.0:5555", "--frontend: wanted tcp://host:port or ipc:///path"),
        ("broker --frontend tcp://0.0.0.0:5555", "--insecure"),
        ("worker", "model: wanted one, got none; name it on the command line"),
        ("worker model.py", "path/file.py:Name, got 'model.py'; did you forget :Name after model.py?"),
        ("serve model", "MODEL: wanted package.module:Name or path/file.py:Name, got 'model'\n"),
        ("worker m:M --gpu gpu0", "--gpu: wanted all, cpu, or GPUs by index or UUID such as 0,1, got 'gpu0'"),
        ("broker --config nowhere.toml", "nowhere.toml: cannot be read: No such file or directory"),
        ("broker --batching lazy", "--batching: wanted eager or window, got 'lazy'"),
        ("frobnicate", "No such command 'frobnicate'"),
        ("serve caf\udce9.py:Model", "MODEL: wanted UTF-8, got 'caf\\udce9.py:Model'"),
        ("worker m:M --name caf\udce9", "--name: wanted UTF-8, got 'caf\\udce9'"),
        ("bench caf\udce9", "--topic: wanted UTF-8, got 'caf\\udce9'"),
        ("bench bert --item caf\udce9", "--item: wanted UTF-8, got 'caf\\udce9'"),
        ("drain topic caf\udce9", "the name: wanted UTF-8, got 'caf\\udce9'"),
        ("predict bert x --timeout 99999999999999999", "--timeout: wanted a year at most, got 1e+17 s"),
    ],
)
def test_a_mistake_is_told_in_a_sentence_at_once(arguments: str, sentence: str, started: list[Any]) -> None:
    result = zbatch(*arguments.split())
    assert (result.exit_code, started) == (2, [])
    assert sentence in result.stderr


def test_a_variable_that_means_nothing_is_noted(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZBATCH_WORKER_GPUS", "0")
    result = zbatch("worker", "m:M")
    assert result.stderr == (
        "note: ZBATCH_WORKER_GPUS is set, but is no setting of zbatch worker; "
        "did you mean 'ZBATCH_WORKER_GPU'?\n"
    )


# --- predict -------------------------------------------------------------------------------------


def test_predict_prints_one_line_of_json_for_each_item() -> None:
    result = zbatch("predict", "bert", "21", "how are you", "[1]", "--priority", "2", "--timeout", "5s")
    assert result.stdout.splitlines() == ["42", '"how are youhow are you"', "[1,1]"]
    assert FakeClient.made == [
        (("tcp://127.0.0.1:5555",), {"topic": "bert", "timeout": 5.0, "keys": "", "timing": config.Timing()}),
        (("key", ""), ("priority", 2), ("request_id", ""), ("return_exceptions", True), ("window", 1_000)),
    ]


def test_predict_takes_negative_numbers_as_items_among_options() -> None:
    result = zbatch(
        *("predict", "bert", "1", "-1", "--priority", "-2", "-.5", "-1e2", "--endpoint", "ipc:///f", "-3")
    )
    assert result.stdout.splitlines() == ["2", "-2", '"-.5-.5"', "-200.0", "-6"]
    assert FakeClient.made[1][1] == ("priority", -2)
    assert zbatch("predict", "bert", "--", "-1", "-x").stdout.splitlines() == ["-2", '"-x-x"']


def test_predict_says_where_an_item_goes_that_looks_like_an_option() -> None:
    found = zbatch("predict", "bert", "-x")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "No such option '-x'. An item that begins with a dash goes behind --" in found.stderr
    assert "behind --" not in zbatch("predict", "bert", "--timeot", "5s").stderr


def test_predict_reads_stdin_and_a_failed_item_keeps_its_line() -> None:
    result = zbatch("predict", "bert", stdin="1\n\nbad\r\n3\n")
    assert (result.exit_code, result.stdout) == (1, "2\n\n6\n")
    assert result.stderr == "item 1: ModelFailed: KeyError: no such word\n"


def test_predict_refuses_what_cannot_be_sent_and_asks_for_the_others() -> None:
    items = ("caf\udce9", "1", "[" * 100_000, "[" * 100 + "]" * 100, "2", "caf\udce9")
    result = zbatch("predict", "bert", *items)
    assert (result.exit_code, result.stdout) == (1, "\n2\n\n\n4\n\n")
    told = [line.partition(", got ")[0].partition("[0]")[0] for line in result.stderr.splitlines()]
    assert told == [
        "item 0: BadRequest: wanted UTF-8",
        "item 2: BadRequest: wanted JSON that is less deep",
        "item 3: BadRequest: item",
        "item 5: BadRequest: wanted UTF-8",
    ]


def test_predict_reads_on_after_a_line_that_is_no_utf_8() -> None:
    result = zbatch("predict", "bert", stdin=b"1\n\xff\n3\n")
    assert (result.exit_code, result.stdout) == (1, "2\n\n6\n")
    assert result.stderr == "item 1: BadRequest: wanted UTF-8, got '\\udcff'\n"


def test_predict_without_items_and_with_stdin_closed_says_how_to_name_some() -> None:
    command = [sys.executable, "-m", "zbatch", "predict", "bert"]
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    found = subprocess.run(closed, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert "no item: name some, or pipe in one a line" in found.stderr


def test_predict_without_items_on_a_terminal_says_how_to_name_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    result = zbatch("predict", "bert")
    assert result.exit_code == 2
    assert "no item: name some, or pipe in one a line" in result.stderr


def test_predict_prints_arrays_as_lists_and_anything_else_as_text() -> None:
    assert cli._as_json(np.arange(3)) == [0, 1, 2]
    assert cli._as_json(1 + 2j) == "(1+2j)"


# --- status --------------------------------------------------------------------------------------

WELL = {"epoch": "aa", "topics": {"bert": {"workers": 1}}}


def test_status_shows_a_snapshot() -> None:
    FakeClient.snapshots.append(WELL)
    result = zbatch("status", "--endpoint", "ipc:///x")
    assert result.stdout.startswith("broker aa, up -, - clients\n")
    assert FakeClient.made == [(("ipc:///x",), {"keys": ""}), ("status", 5.0)]


def test_status_prints_json_for_programs() -> None:
    FakeClient.snapshots.append(WELL)
    assert json.loads(zbatch("status", "--json").stdout) == WELL


@pytest.mark.parametrize(
    ("arguments", "snapshot", "code", "text"),
    [
        ("", {}, 0, ""),
        ("--topic bert", WELL, 0, ""),
        ("--topic other", WELL, 1, "Error: topic 'other' has no worker; served here: bert\n"),
        ("", BrokerUnreachable("silence"), 1, "Error: BrokerUnreachable: silence\n"),
    ],
)
def test_check_is_for_probes(arguments: str, snapshot: Any, code: int, text: str) -> None:
    FakeClient.snapshots.append(snapshot)
    result = zbatch("status", "--check", *arguments.split())
    assert (result.exit_code, result.output) == (code, text)


def naps(monkeypatch: pytest.MonkeyPatch, until: int) -> list[float]:
    slept: list[float] = []

    def sleep(duration: float) -> None:
        slept.append(duration)
        if len(slept) == until:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    return slept


def test_watch_looks_again_and_outlives_the_broker_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = naps(monkeypatch, until=3)
    FakeClient.snapshots += [WELL, BrokerUnreachable("silence"), WELL]
    result = zbatch("status", "--watch", "--json", "--interval", "2s")
    assert (result.exit_code, slept) == (0, [2.0, 2.0, 2.0])
    assert result.stdout.count('{"epoch":"aa"') == 2
    assert result.stderr == "BrokerUnreachable: silence\n"


def test_watch_draws_over_itself_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    console = Console(force_terminal=True, width=100, record=True)
    monkeypatch.setattr(screen, "console", lambda: console)
    naps(monkeypatch, until=2)
    FakeClient.snapshots += [WELL, BrokerUnreachable("silence")]
    assert zbatch("status", "--watch").exit_code == 0
    shown = console.export_text()
    assert "broker aa" in shown
    assert "BrokerUnreachable: silence" in shown


# --- config --------------------------------------------------------------------------------------


def test_config_prints_a_file_that_says_the_same_and_where_each_setting_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZBATCH_WORKER_NUM", "3")
    result = zbatch("config", "worker", "m:M", "--gpu", "0,1", "--arg", "a=[1]", "--timing-beat", "500ms")
    lines = result.stdout.splitlines()
    assert lines[0] == "[worker]"
    assert [" ".join(line.split()) for line in lines if "default" not in line and "#" in line] == [
        'model = "m:M" # MODEL',
        "args = {a = [1]} # --arg",
        'gpu = ["0", "1"] # --gpu',
        "num = 3 # ZBATCH_WORKER_NUM",
        'beat = "500ms" # --timing-beat',
    ]
    (tmp_path / "z.toml").write_text(result.stdout)
    monkeypatch.delenv("ZBATCH_WORKER_NUM")
    again = config.resolve_worker({}, str(tmp_path / "z.toml")).settings
    assert again == WorkerSettings(
        "m:M", args={"a": [1]}, gpu=("0", "1"), num=3, timing=config.Timing(beat=0.5)
    )


COMMANDS = ["broker", "predict topic", "status", "bench", "serve m:M", "worker", "serve", "predict", "drain"]
COMMANDS += ["check m:M", "check"]


@pytest.mark.parametrize("command", COMMANDS)
def test_config_knows_every_command(command: str, tmp_path: Path) -> None:
    result = zbatch("config", *command.split())
    assert result.exit_code == 0
    (tmp_path / "z.toml").write_text(result.stdout)
    config.load(tmp_path / "z.toml")


@pytest.mark.parametrize("command", ["worker --num 2", "serve --num 2"])
def test_config_leaves_a_model_open_that_is_not_named(command: str, tmp_path: Path) -> None:
    result = zbatch("config", *command.split())
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert {'# model = "path/file.py:Name" # not given', "num = 2 # --num"} <= set(lines)
    (tmp_path / "z.toml").write_text(result.stdout)
    again = zbatch(command.partition(" ")[0], "--config", str(tmp_path / "z.toml"))
    assert "model: wanted one, got none; name it on the command line or as model = ..." in again.stderr


def test_config_says_what_else_is_wrong_where_a_model_cannot_be_left_open(tmp_path: Path) -> None:
    (tmp_path / "z.toml").write_text('[[worker]]\nmodel = "m:M"\n[[worker]]\ntopic = "b"\n')
    result = zbatch("config", "serve", "--config", str(tmp_path / "z.toml"))
    assert result.exit_code == 2
    assert "model: wanted one, got none" in result.stderr


def test_config_shows_what_drain_would_use() -> None:
    result = zbatch("config", "drain", "worker", "gpu-1", "--timeout", "7s")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "[drain]")
    assert 'timeout = "7s"                                      # --timeout' in result.stdout.splitlines()


def test_config_prints_json_for_programs() -> None:
    told = json.loads(zbatch("config", "--json", "broker", "--topics", "a").stdout)
    assert told["settings"]["topics"] == ["a"]
    assert told["sources"]["topics"] == "--topics"


# --- help ----------------------------------------------------------------------------------------


def test_version_is_told() -> None:
    assert zbatch("--version").stdout == f"zbatch {config.version()}\n"


@pytest.mark.parametrize("name", sorted(cli.main.commands))
def test_every_command_has_a_help_text_with_an_example(name: str) -> None:
    result = zbatch(name, "-h")
    assert result.exit_code == 0
    assert f"\n  zbatch {name}" in result.stdout


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_names_the_variable_and_the_table_of_every_option(name: str) -> None:
    shown = " ".join(zbatch(name, "-h").stdout.split())
    assert f"ZBATCH_{name.upper()}_<OPTION>, or under [{cli.SECTIONS[name]}]" in shown


def test_no_two_options_of_a_command_are_alike() -> None:
    for command in cli.COMMANDS.values():
        said = [word for option in command.params if isinstance(option, click.Option) for word in option.opts]
        assert len(said) == len(set(said))


def test_help_needs_neither_sockets_nor_tables() -> None:
    code = (
        "import sys, zbatch.cli; print([m for m in ('zmq', 'numpy', 'rich', 'psutil') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_the_package_can_be_run() -> None:
    shown = subprocess.run([sys.executable, "-m", "zbatch", "-h"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("Usage: zbatch [OPTIONS] COMMAND")


class Interrupting(ModuleType):
    """A module during whose import, or in whose function, Ctrl-C is pressed."""

    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt


def interrupted(**options: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("module", [Interrupting("zbatch.cli"), SimpleNamespace(main=interrupted)])
def test_ctrl_c_ends_a_command_that_is_still_being_loaded(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zbatch.cli", module)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130


# --- the files of configs/ -------------------------------------------------------------------------

STARTS: list[tuple[str, Callable[[str], Any]]] = [
    ("one_host.toml", lambda file: config.resolve_serve({}, file)),
    ("cpu.toml", lambda file: config.resolve_serve({}, file)),
    ("two_models.toml", lambda file: config.resolve_serve({}, file)),
    ("two_models.toml", lambda file: config.resolve_broker({}, file)),
    ("two_models.toml", lambda file: config.resolve_worker({"name": "shout"}, file)),
    ("farm.toml", lambda file: config.resolve_broker({}, file)),
    ("farm.toml", lambda file: config.resolve_worker({"name": "large"}, file)),
    ("farm.toml", lambda file: config.resolve_worker({"name": "small"}, file)),
    ("farm.toml", lambda file: config.resolve_gateway({}, file)),
    ("farm.toml", lambda file: config.resolve_client({}, file)),
]


@pytest.mark.parametrize(("name", "resolve"), STARTS)
def test_every_example_file_is_read(name: str, resolve: Callable[[str], Any]) -> None:
    assert resolve(str(CONFIGS / name)).notes == ()


def test_every_example_file_is_tested() -> None:
    assert {name for name, _ in STARTS} == {path.name for path in CONFIGS.glob("*.toml")}


@pytest.mark.parametrize("name", ["one_host.toml", "cpu.toml", "two_models.toml"])
def test_the_models_of_example_files_are_there(name: str) -> None:
    for one in config.resolve_serve({}, str(CONFIGS / name)).settings.workers:
        assert Path(one.model.rpartition(":")[0]).is_file()
