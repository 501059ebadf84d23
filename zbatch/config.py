"""Where settings come from: command line over environment over file over default.

This file reads TOML files and, alone in the program, the environment; it says of every setting where it
came from, and names that place in every error.  What may be set is in ``settings.py``, whose names it hands
on: the program imports all of them from here.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import structs

from zbatch import notation
from zbatch.errors import ConfigError
from zbatch.settings import (
    BACKEND,
    FRONTEND,
    BenchSettings,
    BrokerCoreSettings,
    BrokerSettings,
    CheckSettings,
    ClientSettings,
    DrainSettings,
    GatewaySettings,
    Leaf,
    Limits,
    ServeSettings,
    Settings,
    StatusSettings,
    Timing,
    WorkerSettings,
    Wrong,
    describe,
    flatten,
    leaves,
)

__all__ = [
    "BACKEND",
    "FRONTEND",
    "BenchSettings",
    "BrokerCoreSettings",
    "BrokerSettings",
    "CheckSettings",
    "ClientSettings",
    "DrainSettings",
    "GatewaySettings",
    "Leaf",
    "Limits",
    "NotGiven",
    "Resolved",
    "ServeSettings",
    "Settings",
    "StatusSettings",
    "Table",
    "Timing",
    "WorkerSettings",
    "client_endpoints",
    "config_file",
    "describe",
    "flatten",
    "leaves",
    "load",
    "resolve_bench",
    "resolve_broker",
    "resolve_check",
    "resolve_client",
    "resolve_gateway",
    "resolve_serve",
    "resolve_status",
    "resolve_worker",
    "serve_leaves",
    "to_toml",
    "version",
]

S = TypeVar("S", bound=Settings)

# --- files ---------------------------------------------------------------------------------------

SECTIONS: dict[str, tuple[type[Settings], ...]] = {
    "broker": (BrokerSettings,),
    "worker": (WorkerSettings,),
    "serve": (WorkerSettings, BrokerSettings, GatewaySettings),
    "client": (ClientSettings,),
    "status": (StatusSettings,),
    "bench": (BenchSettings,),
    "drain": (DrainSettings,),
    "check": (CheckSettings,),
    "gateway": (GatewaySettings,),
}
"""The tables of a file; only ``[[worker]]`` may stand several times."""

FILES = {"keys", "api_keys", "tls_cert", "tls_key"}
"""Settings that name a file or a folder: what a file of settings names lies beside it."""


class Table(NamedTuple):
    """One table of a file, flat: ``{"limits.topic_items": 10}``."""

    place: str
    """For errors: ``farm.toml: [broker]``."""
    origin: str
    """For people: ``farm.toml``."""
    values: Mapping[str, Any]

    def label(self, path: str) -> str:
        """Name the place of one setting."""
        return f"{self.place} {path}"


def load(path: str | Path) -> dict[str, list[Table]]:
    """Read a file and check it whole, also the tables that this command does not use."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: no valid TOML: {error}") from error
    return {section: list(_tables(path, section, value)) for section, value in content.items()}


def _tables(path: Path, section: str, value: object) -> Iterator[Table]:
    if section not in SECTIONS:
        raise ConfigError(f"{path}: has an unknown table [{section}]{_instead(section, SECTIONS)}")
    found: list[object] = value if section == "worker" and isinstance(value, list) else [value]
    several = found is value
    for number, table in enumerate(found, 1):
        place = f"{path}: [[{section}]] {number}" if several else f"{path}: [{section}]"
        if not isinstance(table, dict):
            raise ConfigError(f"{place}: wanted a table, got {table!r}")
        values = dict(_flat(table))
        _check(place, SECTIONS[section], values)
        if "model" in values:
            values["model"] = _beside(path, values["model"])
        for name in FILES & values.keys():
            if values[name]:
                values[name] = str(path.parent / Path(values[name]).expanduser())
        yield Table(place, str(path), values)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key in ("limits", "timing") and isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        else:
            yield prefix + key, value


def _check(place: str, kinds: Sequence[type[Settings]], values: Mapping[str, Any]) -> None:
    known = {leaf.path: leaf for kind in reversed(kinds) for leaf in leaves(kind)}
    for path, value in values.items():
        if path not in known:
            raise ConfigError(f"{place} has no setting {path!r}{_instead(path, known)}")
        _read(known[path], value, f"{place} {path}")


def _read(leaf: Leaf, value: object, label: str) -> Any:
    try:
        return leaf.written.read(value)
    except ValueError as error:
        raise ConfigError(f"{label}: {error}") from None


def _instead(word: str, known: Mapping[str, object]) -> str:
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; it can be {', '.join(known)}"


def _beside(path: Path, model: str) -> str:
    """Read a model's path from the file that names it, wherever the command was started."""
    file, colon, name = model.rpartition(":")
    return f"{path.parent / file}{colon}{name}" if file.endswith(".py") else model


# --- the environment -----------------------------------------------------------------------------

_INJECTED = re.compile(r".*_(SERVICE_(HOST|PORT\w*)|PORT|PORT_\d+_(TCP|UDP)\w*)")
"""What Kubernetes puts into every container beside a service named zbatch-something."""


def client_endpoints(endpoint: str | Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the brokers that a client uses: what it was told, else ``$ZBATCH_BROKER``, else the default."""
    told = endpoint if endpoint is not None else os.environ.get("ZBATCH_BROKER") or FRONTEND
    label = "endpoint" if endpoint is not None else "ZBATCH_BROKER"
    try:
        return ClientSettings(endpoint=notation.endpoints_to_connect(told)).endpoint
    except ValueError as error:
        raise ConfigError(f"{label}: {error}") from None


def keys_folder(keys: str | os.PathLike[str] | None = None) -> str:
    """Return the folder of keys that a client uses: what it was told, else ``$ZBATCH_KEYS``; "" is none."""
    return os.fspath(keys) if keys is not None else os.environ.get("ZBATCH_KEYS", "")


def config_file(command: str, given: str | None) -> str | None:
    """Return the file to read: ``--config``, else ``$ZBATCH_<COMMAND>_CONFIG``, else ``$ZBATCH_CONFIG``."""
    return (
        given or os.environ.get(f"ZBATCH_{command.upper()}_CONFIG") or os.environ.get("ZBATCH_CONFIG") or None
    )


def service_manager() -> tuple[str, float]:
    """Return where to tell systemd how we are, and how often at least, in seconds; "" and 0: nobody asked."""
    period = os.environ.get("WATCHDOG_USEC", "")
    # It may have been meant for another process of this service.
    is_meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return os.environ.get("NOTIFY_SOCKET", ""), int(period) / 1e6 if period.isdigit() and is_meant else 0.0


class _Layer(NamedTuple):
    """What one source says."""

    label: Callable[[str], str]
    origin: str
    values: Mapping[str, Any]


def _from_command_line(kinds: Sequence[type[Settings]], given: Mapping[str, Any]) -> _Layer:
    options = {leaf.path: leaf.option for kind in kinds for leaf in leaves(kind)}
    return _Layer(options.__getitem__, "", given)


def _from_environment(command: str, kinds: Sequence[type[Settings]]) -> _Layer:
    names = {leaf.path: leaf.variable(command) for kind in kinds for leaf in leaves(kind)}
    # An empty variable is one that is not set: compose files cannot leave one out.
    values = {path: os.environ[name] for path, name in names.items() if os.environ.get(name)}
    return _Layer(names.__getitem__, "", values)


def _from_table(table: Table) -> _Layer:
    return _Layer(table.label, table.origin, table.values)


def _notes(command: str, kinds: Sequence[type[Settings]]) -> tuple[str, ...]:
    """Name the variables that look like settings of this command and are none.

    No error: an orchestrator may have put them there.
    """
    prefix = f"ZBATCH_{command}_".upper()
    known = dict.fromkeys(leaf.variable(command) for kind in kinds for leaf in leaves(kind))
    known[prefix + "CONFIG"] = None
    return tuple(
        f"{name} is set, but is no setting of zbatch {command}{_instead(name, known)}"
        for name in sorted(os.environ)
        if name.startswith(prefix) and name not in known and not _INJECTED.fullmatch(name)
    )


# --- from all sources ----------------------------------------------------------------------------


NOT_GIVEN = "not given"
"""The source of a setting that must be named and was not; its value stands for it in what people read."""


class NotGiven(Wrong):
    """A setting that has no default, and nobody named."""


class Resolved(NamedTuple, Generic[S]):
    """Settings, and for each (by its path) where it came from."""

    settings: S
    sources: dict[str, str]
    notes: tuple[str, ...]
    """Sentences about what was found and not used."""


def as_far_as_given(
    resolve: Callable[[Mapping[str, Any], str | None], Resolved[S]],
    given: Mapping[str, Any],
    file: str | None = None,
) -> Resolved[S]:
    """Return what ``resolve`` does; a model that nobody named is left open instead of refused."""
    try:
        return resolve(given, file)
    except NotGiven as missing:
        with suppress(ConfigError):
            found = resolve({**given, missing.field: "path/file.py:Name"}, file)
            opened = {path: NOT_GIVEN for path in found.sources if path.rpartition(".")[2] == missing.field}
            return found._replace(sources=found.sources | opened)
        raise


def resolve_broker(given: Mapping[str, Any], file: str | None = None) -> Resolved[BrokerSettings]:
    """Return what ``zbatch broker`` runs on; ``given`` is what its command line said, by path."""
    return _resolve("broker", BrokerSettings, given, _file(file).get("broker", []))


def resolve_worker(given: Mapping[str, Any], file: str | None = None) -> Resolved[WorkerSettings]:
    """Return what ``zbatch worker`` runs on; of several tables, ``name`` picks one."""
    tables = _file(file).get("worker", [])
    if len(tables) > 1:
        tables = [_pick(file, tables, given.get("name") or os.environ.get("ZBATCH_WORKER_NAME"))]
    return _resolve("worker", WorkerSettings, given, tables)


def _pick(file: str | None, tables: Sequence[Table], name: object) -> Table:
    names = [str(table.values.get("name") or table.values.get("topic", "default")) for table in tables]
    if names.count(str(name)) != 1:
        got = "" if name is None else f", got {name!r}"
        raise ConfigError(
            f"{file}: has {len(tables)} [[worker]] tables ({', '.join(names)}); "
            f"say which one with --name{got}"
        )
    return tables[names.index(str(name))]


def resolve_client(given: Mapping[str, Any], file: str | None = None) -> Resolved[ClientSettings]:
    """Return what ``zbatch predict`` runs on."""
    return _resolve("predict", ClientSettings, given, _file(file).get("client", []), broker=True)


def resolve_status(given: Mapping[str, Any], file: str | None = None) -> Resolved[StatusSettings]:
    """Return what ``zbatch status`` runs on; the endpoint may stand in ``[client]`` too."""
    tables = _file(file)
    return _resolve(
        "status", StatusSettings, given, tables.get("status", []) + _endpoint_of(tables), broker=True
    )


def resolve_bench(given: Mapping[str, Any], file: str | None = None) -> Resolved[BenchSettings]:
    """Return what ``zbatch bench`` runs on; the endpoint may stand in ``[client]`` too."""
    tables = _file(file)
    return _resolve(
        "bench", BenchSettings, given, tables.get("bench", []) + _endpoint_of(tables), broker=True
    )


def resolve_check(given: Mapping[str, Any], file: str | None = None) -> Resolved[CheckSettings]:
    """Return what ``zbatch check`` runs on."""
    return _resolve("check", CheckSettings, given, _file(file).get("check", []))


def resolve_drain(given: Mapping[str, Any], file: str | None = None) -> Resolved[DrainSettings]:
    """Return what ``zbatch drain`` runs on; the endpoint may stand in ``[client]`` too."""
    tables = _file(file)
    return _resolve(
        "drain", DrainSettings, given, tables.get("drain", []) + _endpoint_of(tables), broker=True
    )


def resolve_gateway(given: Mapping[str, Any], file: str | None = None) -> Resolved[GatewaySettings]:
    """Return what ``zbatch gateway`` runs on; the endpoint may stand in ``[client]`` too."""
    tables = _file(file)
    return _resolve(
        "gateway", GatewaySettings, given, tables.get("gateway", []) + _endpoint_of(tables), broker=True
    )


SHARED_BY_SERVE = ("timing", "log_format", "log_level", "keys", "insecure")
"""Settings of ``serve`` that mean its broker, its workers and its gateway."""

_OF_ALL_WORKERS = {"gpu", "num", "batch_size", "batch_cost", "max_latency", "lease", "slots"}
"""What the command line of ``serve`` may say for several workers at once."""


def serve_leaves() -> dict[str, Leaf]:
    """Return what ``zbatch serve`` can be told: a worker's settings, and others' of other names."""
    broker = {leaf.path: leaf for leaf in leaves(BrokerSettings)}
    broker["backend"] = broker["backend"]._replace(
        default=(), help="Where workers of other hosts connect to, beside the private endpoint of these."
    )
    gateway = {leaf.path: leaf for leaf in leaves(GatewaySettings) if _is_gateways_alone(leaf.path)}
    gateway["http"] = gateway["http"]._replace(
        default=None, help="Speak HTTP here, too; the settings of zbatch gateway hold for it.  None: do not."
    )
    worker = {leaf.path: leaf for leaf in leaves(WorkerSettings) if leaf.path != "backend"}
    metrics = broker["metrics"]._replace(
        help="Serve the broker's /metrics for Prometheus here, such as 127.0.0.1:9100, and those of the "
        "first worker, the second and so on at the ports behind it."
    )
    return gateway | broker | worker | {"metrics": metrics, "insecure": broker["insecure"]}


def resolve_serve(given: Mapping[str, Any], file: str | None = None) -> Resolved[ServeSettings]:
    """Return what ``zbatch serve`` runs on.

    That is ``[broker]`` and every ``[[worker]]``, and over them ``[serve]``, the environment and the
    command line.
    """
    kinds = (BrokerSettings, WorkerSettings, GatewaySettings)
    tables = _file(file)
    over = [_from_command_line(kinds, given), _from_environment("serve", kinds)]
    over += [_from_table(table) for table in tables.get("serve", [])]
    brokers = [_from_table(table) for table in tables.get("broker", [])]
    nothing = _Layer(str, "private", {"backend": ()})
    broker = _settle(BrokerSettings, [_part(layer, _is_brokers) for layer in over] + brokers + [nothing])
    workers = [_from_table(table) for table in tables.get("worker", [])] or [_Layer(str, "", {})]
    if len(workers) > 1:
        _require_common(file, over)
    settled = [
        _settle(WorkerSettings, [_part(layer, _is_workers) for layer in over] + [one]) for one in workers
    ]
    settled = [_behind(number, worker, broker) for number, worker in enumerate(settled, 1)]
    sources = {f"broker.{path}": source for path, source in broker.sources.items()}
    for number, worker in enumerate(settled):
        sources |= {f"worker.{number}.{path}": source for path, source in worker.sources.items()}
    gateway = _settle_gateway(over, tables)
    if gateway is not None:
        sources |= {f"gateway.{path}": source for path, source in gateway.sources.items()}
    settings = ServeSettings(
        broker.settings,
        tuple(worker.settings for worker in settled),
        gateway.settings if gateway is not None else None,
    )
    return Resolved(settings, sources, _notes("serve", kinds))


def _settle_gateway(
    over: Sequence[_Layer], tables: Mapping[str, list[Table]]
) -> Resolved[GatewaySettings] | None:
    """Return what the gateway of ``serve`` runs on; None where nobody says ``http``."""
    layers = [_part(layer, _is_gateways) for layer in over]
    layers += [_from_table(table) for table in tables.get("gateway", [])]
    if not any("http" in layer.values for layer in layers):
        return None
    return _settle(GatewaySettings, layers)


def _is_brokers(path: str) -> bool:
    worker = {leaf.path for leaf in leaves(WorkerSettings)} - {"backend", "metrics"}
    if path.partition(".")[0] in SHARED_BY_SERVE:
        return True
    return path not in worker and not _is_gateways_alone(path)


def _is_gateways(path: str) -> bool:
    return _is_gateways_alone(path) or path.partition(".")[0] in SHARED_BY_SERVE


def _is_gateways_alone(path: str) -> bool:
    others = {leaf.path for kind in (BrokerSettings, WorkerSettings) for leaf in leaves(kind)}
    return path in {leaf.path for leaf in leaves(GatewaySettings)} - others - {"endpoint"}


def _behind(
    number: int, worker: Resolved[WorkerSettings], broker: Resolved[BrokerSettings]
) -> Resolved[WorkerSettings]:
    """Have a worker that was not told where to serve its metrics serve them behind the broker's."""
    address = broker.settings.metrics
    if address is None or worker.sources["metrics"] != "default":
        return worker
    host, _, port = address.rpartition(":")
    # Port 0 is any free one, for each.
    try:
        behind = notation.address(f"{host}:{int(port) + number if int(port) else 0}")
        settings = structs.replace(worker.settings, metrics=behind)
    except ValueError as error:
        raise ConfigError(f"metrics of worker {number}: {error}") from None
    except Wrong as wrong:
        raise ConfigError(f"metrics of worker {number}: {wrong.sentence}") from None
    return worker._replace(settings=settings, sources=worker.sources | {"metrics": broker.sources["metrics"]})


def _is_workers(path: str) -> bool:
    return path not in ("backend", "metrics") and path in {leaf.path for leaf in leaves(WorkerSettings)}


def _require_common(file: str | None, over: Sequence[_Layer]) -> None:
    for layer in over:
        for path in layer.values:
            if _is_workers(path) and not _is_brokers(path) and path not in _OF_ALL_WORKERS:
                raise ConfigError(
                    f"{layer.label(path)}: {file} has several [[worker]] tables; say it in one of them"
                )


def _part(layer: _Layer, belongs: Callable[[str], bool]) -> _Layer:
    return layer._replace(values={path: value for path, value in layer.values.items() if belongs(path)})


def _file(file: str | None) -> dict[str, list[Table]]:
    return load(file) if file is not None else {}


def _endpoint_of(tables: Mapping[str, list[Table]]) -> list[Table]:
    return [
        table._replace(
            values={path: value for path, value in table.values.items() if path in ("endpoint", "keys")}
        )
        for table in tables.get("client", [])
    ]


def _resolve(
    command: str, kind: type[S], given: Mapping[str, Any], tables: Sequence[Table], *, broker: bool = False
) -> Resolved[S]:
    layers = [_from_command_line([kind], given), _from_environment(command, [kind])]
    if broker and os.environ.get("ZBATCH_BROKER"):
        layers.append(_Layer(lambda path: "ZBATCH_BROKER", "", {"endpoint": os.environ["ZBATCH_BROKER"]}))
    if broker and os.environ.get("ZBATCH_KEYS"):
        layers.append(_Layer(lambda path: "ZBATCH_KEYS", "", {"keys": os.environ["ZBATCH_KEYS"]}))
    layers += [_from_table(table) for table in tables]
    return _settle(kind, layers)._replace(notes=_notes(command, [kind]))


def _settle(kind: type[S], layers: Sequence[_Layer]) -> Resolved[S]:
    """Take each setting from the first layer that has it; keyword arguments are put together."""
    values: dict[str, Any] = {}
    sources = {leaf.path: "default" for leaf in leaves(kind)}
    labels: dict[str, str] = {}
    for leaf in leaves(kind):
        for layer in reversed(layers):
            if leaf.path in layer.values:
                label = layer.label(leaf.path)
                value = _read(leaf, layer.values[leaf.path], label)
                values[leaf.path] = values.get(leaf.path, {}) | value if isinstance(value, dict) else value
                sources[leaf.path] = layer.origin or label
                labels[leaf.path] = label
    try:
        return Resolved(_build(kind, values), sources, ())
    except NotGiven:
        raise
    except Wrong as wrong:
        raise ConfigError(f"{labels.get(wrong.field, wrong.field)}: {wrong.sentence}") from None


def _build(kind: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    chosen: dict[str, Any] = {}
    for field in structs.fields(kind):
        path = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, Settings):
            chosen[field.name] = _build(field.type, values, f"{path}.")
        elif path in values:
            chosen[field.name] = values[path]
        elif field.required:
            raise NotGiven(
                path, f"wanted one, got none; name it on the command line or as {path} = ... in a file"
            )
    try:
        return kind(**chosen)
    except Wrong as wrong:
        raise Wrong(prefix + wrong.field, wrong.sentence) from None


def to_toml(
    title: str, settings: Settings, sources: Mapping[str, str] | None = None, prefix: str = ""
) -> str:
    """Return a table that :func:`load` reads as the same settings; with their sources, as comments."""
    lines, table = [title], ""
    values = flatten(settings)
    for leaf in leaves(type(settings)):
        inner, _, name = leaf.path.rpartition(".")
        if inner != table:
            table = inner
            lines += ["", f"[{title.strip('[]')}.{inner}]"]
        line = f"{name} = {leaf.show(values[leaf.path])}"
        source = sources[prefix + leaf.path] if sources else ""
        # TOML has no word for none; left out it is the default, which is none wherever none is allowed.
        line = line if values[leaf.path] is not None and source != NOT_GIVEN else f"# {line}"
        lines.append(f"{line:<50}  # {source}" if source else line)
    return "\n".join(lines) + "\n"


def version() -> str:
    """Return which zbatch this is; run from a source tree that is not installed it cannot tell."""
    from importlib import metadata  # noqa: PLC0415  twenty milliseconds that only this needs

    try:
        return metadata.version("zbatch")
    except metadata.PackageNotFoundError:
        return "unknown"
