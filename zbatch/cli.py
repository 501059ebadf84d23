"""The command line: parse, build the settings of one command, call one function.

Options are made from the fields of the settings (``settings.py``), so command line, environment and file say
the same names and one explanation serves all.  What a command does is in the module that it imports; the
imports stand inside the commands, so that ``zbatch --help`` is quick and a client needs no Linux.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec

from zbatch import config
from zbatch.config import (
    BenchSettings,
    BrokerSettings,
    CheckSettings,
    ClientSettings,
    DrainSettings,
    GatewaySettings,
    Leaf,
    Resolved,
    ServeSettings,
    Settings,
    StatusSettings,
    WorkerSettings,
)
from zbatch.errors import BadRequest, ConfigError, ZbatchError
from zbatch.notation import json_or_text, text

if TYPE_CHECKING:
    from zbatch.client import ZClient
    from zbatch.doubt import Doubt
    from zbatch.messages import Target

INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C ended."""

SCARCE = {
    errno.EMFILE: "too many open files for one process; allow more with ulimit -n",
    errno.ENFILE: "too many open files on this host",
    errno.ENOSPC: "no space left on the device that is written to",
}
"""What a host may lack, whatever a command does; every other error of the system keeps its traceback."""

F = TypeVar("F", bound=Callable[..., Any])


# --- how commands look ---------------------------------------------------------------------------


class Failure(click.ClickException):
    """It was tried and failed."""

    exit_code = 1


class WrongSettings(click.ClickException):
    """It was not tried."""

    exit_code = 2


class Setting(click.Option):
    """An option made from a field of the settings; its text is read in ``config.py``, like a variable's."""

    def __init__(self, leaf: Leaf) -> None:
        name = leaf.path.replace(".", "__")
        flag = leaf.written.metavar == ""
        default = (
            "" if leaf.default in (msgspec.NODEFAULT, None, (), {}, "") else f"  [{leaf.say(leaf.default)}]"
        )
        super().__init__(
            [name, f"{leaf.option}/--no-{leaf.option[2:]}" if flag else leaf.option],
            type=click.BOOL if flag else click.STRING,
            multiple=leaf.written.many,
            metavar=leaf.written.metavar or None,
            default=None,
            help=f"{leaf.help}{default}",
        )
        self.is_fine_tuning = "." in leaf.path


class Command(click.Command):
    """A command whose help keeps bounds and timing apart, and says where else options can be said."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write two lists of options."""
        parts: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                parts[getattr(parameter, "is_fine_tuning", False)].append(record)
        for is_fine_tuning, title in ((False, "Options"), (True, "Bounds and timing")):
            if parts[is_fine_tuning]:
                with formatter.section(title):
                    formatter.write_dl(parts[is_fine_tuning])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say where else an option can be said."""
        name = str(self.name)
        formatter.write_paragraph()
        formatter.write_text(
            f"Each option can also be said as ZBATCH_{name.upper()}_<OPTION>, or under [{SECTIONS[name]}] "
            "in the file of --config.  The command line wins over the environment, that over the file."
        )


class Asking(Command):
    """A command whose arguments may be negative numbers."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; what begins like a negative number is no option."""
        try:
            rest = super().parse_args(ctx, [f"\0{one}" if _NEGATIVE.match(one) else one for one in args])
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            told = f"{error.message} An item that begins with a dash goes behind --"
            raise click.NoSuchOption(error.option_name, told, ctx=ctx) from None
        ctx.params = {name: _unmarked(value) for name, value in ctx.params.items()}
        return rest


_NEGATIVE = re.compile(r"-\.?\d")


def _unmarked(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_unmarked(one) for one in value)
    return value.removeprefix("\0") if isinstance(value, str) else value


class Commands(click.Group):
    """All commands; turns what they return or raise into exit codes."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the command line, help texts included."""
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            if error.errno not in SCARCE:
                raise
            Failure(SCARCE[error.errno]).show()
            sys.exit(Failure.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            code = super().invoke(ctx)
        except ConfigError as error:
            raise WrongSettings(str(error)) from error
        except ZbatchError as error:
            raise Failure(_sentence(error)) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        ctx.exit(code or 0)


SECTIONS = {
    "broker": "broker",
    "worker": "worker",
    "serve": "serve",
    "predict": "client",
    "status": "status",
    "bench": "bench",
    "drain": "drain",
    "check": "check",
    "gateway": "gateway",
}
"""The table of a file in which a command finds its settings."""


def _options(leaves: Iterable[Leaf], *, without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Give a command ``--config`` and an option for each setting."""

    def add(function: F) -> F:
        option = click.option("--config", metavar="FILE", help="Read settings from this TOML file.")
        parameters = [Setting(leaf) for leaf in leaves if leaf.path not in without]
        added: F = option(function)
        added.__click_params__ += reversed(parameters)  # type: ignore[attr-defined]
        return added

    return add


def _said(command: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return what the command line said, by path, and the file to read."""
    said = {name.replace("__", "."): value for name, value in given.items() if value not in (None, ())}
    return said, config.config_file(command, said.pop("config", None))


Found = TypeVar("Found", bound=Settings)


def _noted(found: Resolved[Found]) -> Found:
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    return found.settings


# --- commands ------------------------------------------------------------------------------------


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"zbatch {config.version()}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Many callers, one batch: run models on batches that are gathered from everybody who asks.

    \b
    zbatch serve model.py:Model --topic bert      a broker and its workers on this host
    zbatch predict bert "how are you"             ask it
    zbatch status                                 see how it is

    Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted.
    """


@main.command(cls=Command)
@_options(config.leaves(BrokerSettings))
def broker(**given: Any) -> int:
    """Run a broker: gather what clients ask for into batches.

    It hands them to whichever worker is free, on any host.

    \b
    zbatch broker
    zbatch broker --frontend tcp://127.0.0.1:5555,ipc:///run/zbatch/front --topics bert,resnet
    zbatch broker --config farm.toml --supervise
    """
    settings = _noted(config.resolve_broker(*_said("broker", given)))
    if settings.supervise:
        from zbatch.launcher import supervise

        return supervise(settings)
    from zbatch.broker import run

    return run(settings)


@main.command(cls=Command)
@click.argument("model", required=False)
@_options(config.leaves(WorkerSettings), without=("model",))
def worker(**given: Any) -> int:
    """Run a model for a broker, on the GPUs of this host.

    One supervisor watches --num model processes per GPU.  MODEL is package.module:Name or
    path/file.py:Name, a class with predict(batch) or a function.

    \b
    zbatch worker bert.py:Bert --topic bert --gpu 0,1 --num 2 --batch-size 64
    zbatch worker bert.py:Bert --topic bert --gpu cpu --backend tcp://broker-host:5556
    zbatch worker --config farm.toml --name bert
    """
    settings = _noted(config.resolve_worker(*_said("worker", given)))
    from zbatch.worker import run

    return run(settings)


@main.command(cls=Command)
@click.argument("model", required=False)
@_options(config.serve_leaves().values(), without=("model",))
def serve(**given: Any) -> int:
    """Run a broker and workers on this host, in one, and with --http a gateway.

    The workers run MODEL, or what a file's [[worker]] tables say.  Of a file, [serve] lies over
    [broker] and [[worker]].

    \b
    zbatch serve bert.py:Bert --topic bert
    zbatch serve bert.py:Bert --topic bert --http 127.0.0.1:8000
    zbatch serve --config two-models.toml
    """
    settings = _noted(config.resolve_serve(*_said("serve", given)))
    from zbatch.launcher import serve as run

    return run(settings)


@main.command(cls=Asking)
@click.argument("topic")
@click.argument("item", nargs=-1)
@_options(config.leaves(ClientSettings), without=("topic",))
def predict(item: tuple[str, ...], **given: Any) -> int:
    """Ask the model TOPIC for each ITEM, or for each line of stdin.

    An item is JSON, or else a string.  Prints one line of JSON for each item, in order; an empty one
    for an item that failed, whose error is told on stderr.  Items are counted from 0, as in Python.

    \b
    zbatch predict bert "how are you" "fine, thanks"
    zbatch predict add '[1, 2]'
    zbatch predict bert < sentences.txt > vectors.jsonl
    """
    settings = _noted(config.resolve_client(*_said("predict", given)))
    # Where stdin is closed, Python has none.
    if not item and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("no item: name some, or pipe in one a line")
    from zbatch.client import ZClient

    client: ZClient[Any, Any] = ZClient(
        settings.endpoint,
        topic=settings.topic,
        timeout=settings.timeout,
        keys=settings.keys,
        timing=settings.timing,
    )
    with client:
        return _print_outcomes(client, item or _lines_of_stdin(), settings)


@main.command(cls=Command)
@_options(config.leaves(StatusSettings))
def status(**given: Any) -> int:
    """Show a broker's topics, workers and clients.

    \b
    zbatch status --watch
    zbatch status --json | jq .topics
    zbatch status --check --topic bert            for probes: exit 0, or 1 and a sentence
    """
    settings = _noted(config.resolve_status(*_said("status", given)))
    from zbatch.client import ZClient

    client: ZClient[Any, Any] = ZClient(settings.endpoint, keys=settings.keys)
    with client:
        if settings.check:
            return _check(client, settings)
        if settings.watch:
            return _watch(client, settings)
        _show(client.status(timeout=settings.timeout), settings)
        return 0


@main.command(cls=Command)
@click.argument("topic", required=False)
@_options(config.leaves(BenchSettings), without=("topic",))
def bench(**given: Any) -> int:
    """Make load, and print requests/s and latencies.

    \b
    zbatch bench bert --callers 64 --duration 30s --item "how are you"
    zbatch bench resnet --rate 200 --size 588KiB
    """
    settings = _noted(config.resolve_bench(*_said("bench", given)))
    from zbatch.loadgen import bench as run

    return run(settings)


@main.command(cls=Command)
@click.argument("model", required=False)
@_options(config.leaves(CheckSettings), without=("model",))
def check(**given: Any) -> int:
    """Try a model before it is served: load it, warm it up, run it in batches of every size.

    Says how long a batch takes and which --batch-size pays, what memory it wants, what items it takes, and
    whether a bad one hurts its neighbours.  Exit codes: 0 it is fit, 1 it fails, 2 it was called
    wrongly or what was named is no model.

    \b
    zbatch check bert.py:Bert --gpu 0 --batch-size 64
    zbatch check bert.py:Bert --gpu cpu --item "how are you" --json
    """
    settings = _noted(config.resolve_check(*_said("check", given)))
    from zbatch.check import run

    return run(settings)


@main.command(cls=Command)
@click.argument("what", type=click.Choice(["broker", "worker", "topic"]))
@click.argument("name", required=False, default="")
@click.option("--undo", is_flag=True, help="Let a drained topic take requests again.")
@_options(config.leaves(DrainSettings))
def drain(what: Target, name: str, undo: bool, **given: Any) -> int:
    """Let something leave in order: it takes nothing new, ends what was begun, and goes.

    Where the broker asks for keys, this takes an admin's.

    \b
    zbatch drain worker gpu-host-1            every zbatch worker of a host; or HOST:PID, as status shows
    zbatch drain topic bert                   no new requests; its workers leave after the last one
    zbatch drain broker
    """
    if (what == "broker") == bool(name):
        raise click.UsageError("a worker or a topic is named, a broker is not")
    try:
        text(name)
    except ValueError as error:
        raise click.UsageError(f"the name: {error}") from None
    settings = _noted(config.resolve_drain(*_said("drain", given)))
    from zbatch.admin import give
    from zbatch.security import where_asked

    keys = where_asked(settings.keys, "admin")
    click.echo(give(settings.endpoint[0], what, name, undo=undo, keys=keys, timeout=settings.timeout))
    return 0


@main.command(cls=Command)
@_options(config.leaves(GatewaySettings))
def gateway(**given: Any) -> int:
    """Speak HTTP for a broker: POST /predict/TOPIC.

    Several may run, on any host; batches form in the broker, across them all.

    \b
    zbatch gateway --http 127.0.0.1:8000
    zbatch gateway --http 127.0.0.1:8000 --processes 2 --endpoint tcp://broker-host:5555
    """
    settings = _noted(config.resolve_gateway(*_said("gateway", given)))
    if settings.processes > 1:
        from zbatch.launcher import keep_gateways

        return keep_gateways(settings)
    from zbatch.gateway.server import run

    return run(settings)


COMMANDS = {
    "broker": broker,
    "worker": worker,
    "serve": serve,
    "predict": predict,
    "status": status,
    "bench": bench,
    "drain": drain,
    "check": check,
    "gateway": gateway,
}


def _with_less(command: click.Command) -> click.Command:
    """Return a command that shows its settings also where it would not be told enough to run."""
    lenient = copy(command)
    lenient.params = [copy(one) for one in command.params]
    for one in lenient.params:
        one.required = False
    return lenient


@main.command("config", context_settings={"ignore_unknown_options": True})
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.argument("command", type=click.Choice(list(COMMANDS)))
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
@click.pass_context
def show_config(ctx: click.Context, command: str, rest: tuple[str, ...], as_json: bool) -> int:
    """Print effective settings and where each came from.

    They are those that COMMAND would run on with these options.  What is printed is a TOML file that
    can be used with --config.  What must be named and is not, such as a model, is left open.

    \b
    zbatch config broker
    zbatch config worker bert.py:Bert --config farm.toml --gpu cpu
    """
    asked = _with_less(COMMANDS[command]).make_context(command, list(rest), parent=ctx.parent)
    resolve: dict[str, Callable[..., Resolved[Any]]] = {
        "broker": config.resolve_broker,
        "worker": config.resolve_worker,
        "serve": config.resolve_serve,
        "predict": config.resolve_client,
        "status": config.resolve_status,
        "bench": config.resolve_bench,
        "drain": config.resolve_drain,
        "check": config.resolve_check,
        "gateway": config.resolve_gateway,
    }
    for name in ("item", "what", "name", "undo") if command in ("predict", "drain") else ():
        asked.params.pop(name, None)
    found = config.as_far_as_given(resolve[command], *_said(command, asked.params))
    settings = _noted(found)
    if as_json:
        click.echo(msgspec.json.encode({"settings": settings, "sources": found.sources}))
        return 0
    if isinstance(settings, ServeSettings):
        click.echo(config.to_toml("[broker]", settings.broker, found.sources, "broker."))
        for place, one in enumerate(settings.workers):
            click.echo(config.to_toml("[[worker]]", one, found.sources, f"worker.{place}."))
    else:
        click.echo(config.to_toml(f"[{SECTIONS[command]}]", settings, found.sources))
    return 0


@main.group()
def keys() -> None:
    """Make the keys of a farm.

    \b
    zbatch keys new farm/                  for a broker, and one for each role
    zbatch keys add farm/ client alice     one more, in farm/alice, to copy to its host
    zbatch keys http keys.toml alice       a key for HTTP, for zbatch gateway --api-keys keys.toml

    The public keys in farm/allowed are who may come in; to revoke one, delete its file.
    """


@keys.command("new")
@click.argument("folder")
def keys_new(folder: str) -> int:
    """Make keys for a broker and one of each role in FOLDER."""
    from zbatch.security import make_farm

    make_farm(folder)
    click.echo(f"{folder}: keys for a broker, and one each for the roles worker, client and admin")
    return 0


@keys.command("add")
@click.argument("folder")
@click.argument("role", type=click.Choice(["worker", "client", "admin"]))
@click.argument("name")
def keys_add(folder: str, role: str, name: str) -> int:
    """Make one more key of a ROLE; what its host needs is put into FOLDER/NAME."""
    from zbatch.security import add

    home = add(folder, role, name)
    click.echo(f"{home}: copy this folder to its host, and use it there with --keys")
    return 0


@keys.command("http")
@click.argument("file")
@click.argument("name")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Items a second, at each gateway process."
)
def keys_http(file: str, name: str, topics: tuple[str, ...], rate: float | None) -> int:
    """Make an API key for a gateway, and put its hash into FILE (zbatch gateway --api-keys FILE).

    The key is printed once.  To revoke it, delete the table [NAME] of the file: gateways see it at once.
    """
    from zbatch.gateway.apikeys import add
    from zbatch.notation import topics as read_topics

    try:
        allowed = read_topics(list(topics)) if topics else ()
    except ValueError as error:
        raise click.UsageError(f"--topic: {error}") from None
    click.echo(add(file, name, allowed, rate))
    return 0


# --- what they print -----------------------------------------------------------------------------


def _lines_of_stdin() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A line that is no UTF-8 is refused as an item; the others are read.
        sys.stdin.reconfigure(errors="surrogateescape")
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\r\n")


def _print_outcomes(client: ZClient[Any, Any], texts: Iterable[str], settings: ClientSettings) -> int:
    from zbatch.doubt import Doubt

    code = 0
    refused: dict[int, BadRequest] = {}
    doubt = Doubt(client, settings.topic, lambda why: click.echo(f"note: {why}", err=True))
    outcomes = client.map(
        _items(texts, refused, doubt),
        window=settings.window,
        priority=settings.priority,
        key=settings.key,
        request_id=settings.request_id,
        return_exceptions=True,
    )
    for place, outcome in enumerate(_in_order(outcomes, refused)):
        doubt.end()
        if isinstance(outcome, BaseException):
            code = Failure.exit_code
            click.echo(f"item {place}: {_sentence(outcome)}", err=True)
            click.echo("")
        else:
            click.echo(msgspec.json.encode(outcome, enc_hook=_as_json))
    return code


def _items(texts: Iterable[str], refused: dict[int, BadRequest], doubt: Doubt) -> Iterator[object]:
    """Yield the items that can be sent; why another cannot is noted under its place."""
    from zbatch.payload import encode

    for place, written in enumerate(texts):
        try:
            item = json_or_text(written)
            encode(item)
        except (TypeError, ValueError) as error:
            refused[place] = BadRequest(str(error))
        else:
            doubt.begin()
            yield item


def _in_order(outcomes: Iterable[object], refused: Mapping[int, BadRequest]) -> Iterator[object]:
    """Yield the outcome of every item; those before one that was sent have been looked at by then."""
    place = 0
    for outcome in outcomes:
        while place in refused:
            yield refused[place]
            place += 1
        yield outcome
        place += 1
    while place in refused:
        yield refused[place]
        place += 1


def _as_json(value: Any) -> object:
    # Arrays, tensors and numpy's numbers have it; of anything else people see what Python would print.
    to_list: Callable[[], object] = getattr(value, "tolist", value.__str__)
    return to_list()


def _check(client: ZClient[Any, Any], settings: StatusSettings) -> int:
    from zbatch.screen import trouble

    problem = trouble(client.status(timeout=settings.timeout), settings.topic)
    if problem is not None:
        raise Failure(problem)
    return 0


def _show(snapshot: Mapping[str, Any], settings: StatusSettings) -> None:
    if settings.json:
        click.echo(msgspec.json.encode(snapshot))
        return
    from zbatch.screen import console, render

    console().print(render(snapshot, settings.topic))


def _watch(client: ZClient[Any, Any], settings: StatusSettings) -> int:
    """Show it until Ctrl-C, which is no failure here; a broker that is gone may come back."""
    from zbatch.screen import console

    try:
        if console().is_terminal and not settings.json:
            _draw_again_and_again(client, settings)
        while True:
            try:
                _show(client.status(timeout=settings.timeout), settings)
            except ZbatchError as error:
                click.echo(_sentence(error), err=True)
            time.sleep(settings.interval)
    except KeyboardInterrupt:
        return 0


def _draw_again_and_again(client: ZClient[Any, Any], settings: StatusSettings) -> NoReturn:
    from rich.live import Live
    from rich.text import Text

    from zbatch.screen import console, plain, render

    with Live(console=console(), auto_refresh=False, screen=True) as live:
        while True:
            try:
                live.update(render(client.status(timeout=settings.timeout), settings.topic), refresh=True)
            except ZbatchError as error:
                live.update(Text(plain(_sentence(error)), "red"), refresh=True)
            time.sleep(settings.interval)


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
