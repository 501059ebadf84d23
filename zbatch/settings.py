"""What may be set: typed, frozen structs, refused early; each field is explained where it stands.

One struct for each command, and the parts that they share.  The defaults are here, and what a value must
be; how it is written (``10ms``, ``256MiB``, ``tcp://host:port``) is
``notation.py``'s.  Where values come from (command line, environment, file) is decided in ``config.py``,
which hands on all the names of this file.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

from msgspec import NODEFAULT, Struct, structs

from zbatch import notation, pipelines
from zbatch.errors import ConfigError
from zbatch.messages import Route
from zbatch.notation import Written

FRONTEND = "tcp://127.0.0.1:5555"
"""Where clients find a broker when nobody says otherwise."""

BACKEND = "tcp://127.0.0.1:5556"
"""Where workers find it."""

Text = Annotated[str, notation.TEXT]
Item = Annotated[str, notation.ITEM]
Whole = Annotated[int, notation.WHOLE]
Number = Annotated[float, notation.NUMBER]
Flag = Annotated[bool, notation.FLAG]
Seconds = Annotated[float, notation.SECONDS]
Size = Annotated[int, notation.SIZE]
TopicName = Annotated[str, notation.TOPIC]
TopicNames = Annotated[tuple[str, ...], notation.TOPICS]
Gpus = Annotated[tuple[str, ...], notation.GPUS]
Arguments = Annotated[dict[str, Any], notation.ARGUMENTS]
BindTo = Annotated[tuple[str, ...], notation.BIND]
ConnectTo = Annotated[tuple[str, ...], notation.CONNECT]
Address = Annotated[str, notation.ADDRESS]
Pipelines = Annotated[dict[str, Any], pipelines.NAMED]
Batching = Annotated[Literal["eager", "window"], notation.choice("eager", "window")]
LogFormat = Annotated[Literal["text", "json"], notation.choice("text", "json")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], notation.choice("debug", "info", "warning", "error")
]


class Wrong(ConfigError):
    """A value that its field refuses; the sentence is kept apart, so that its source can be named too."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(f"{field}: {sentence}")
        self.field = field
        self.sentence = sentence


def _at_least(settings: Struct, lowest: float, *fields: str) -> None:
    for field in fields:
        value = getattr(settings, field)
        if value is not None and value < lowest:
            raise Wrong(field, f"wanted at least {lowest}, got {value}")


def _above_zero(settings: Struct, *fields: str) -> None:
    for field in fields:
        value = getattr(settings, field)
        if value is not None and value <= 0:
            raise Wrong(field, f"wanted more than 0, got {value}")


def _not_below(settings: Struct, field: str, other: str) -> None:
    value, bound = getattr(settings, field), getattr(settings, other)
    if value < bound:
        raise Wrong(field, f"wanted at least {other}, which is {bound}, got {value}")


def _private_metrics(address: str | None, *, insecure: bool) -> None:
    if address is not None and not insecure and not notation.is_loopback(f"tcp://{address}"):
        raise Wrong(
            "metrics",
            f"{address} can be reached from other hosts, and HTTP asks nobody for a key; serve a loopback "
            "address (127.0.0.1:port), or say --insecure if all who reach it may read how busy this is",
        )


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What one command needs to know."""


# --- shared parts --------------------------------------------------------------------------------


class Limits(Settings, frozen=True):
    """What a broker holds at most; beyond it callers get ``Overloaded`` or ``TooLarge`` at once."""

    topic_items: Whole = 65_536
    """Items that one topic may hold without an outcome, running ones included."""

    topic_bytes: Size = 2 << 30
    """Bytes of items that one topic may hold without an outcome, running ones included."""

    topic_age: Seconds | None = None
    """The longest that an item may be expected to wait in one topic; None: as long as its deadline allows."""

    broker_bytes: Size = 4 << 30
    """Bytes of items that all topics may hold without an outcome: what a broker's memory is sized by."""

    client_items: Whole = 16_384
    """Items that one client may have open."""

    client_bytes: Size = 512 << 20
    """Bytes that one client may have open."""

    message_bytes: Size = 256 << 20
    """The largest message that is read."""

    unserved_topics: Whole = 1_000
    """Topics that may be asked for before any worker serves them; beyond it: UnknownTopic."""

    def __post_init__(self) -> None:
        _at_least(
            self,
            1,
            "topic_items",
            "topic_bytes",
            "broker_bytes",
            "client_items",
            "client_bytes",
        )
        # A buffer travels in frames of up to 768 KiB.
        _at_least(self, 1 << 20, "message_bytes")
        _at_least(self, 0, "unserved_topics")


class Timing(Settings, frozen=True):
    """How long silence lasts before it means something."""

    beat: Seconds = 1.0
    """Everybody gives a sign of life this often."""

    quiet: Seconds = 3.0
    """A client asks elsewhere when its broker has been silent this long: one lost beat is no death."""

    suspect: Seconds = 3.0
    """A worker silent this long gets no new work."""

    rejoin: Seconds = 4.0
    """A worker whose connection is gone may come back on a new one this long."""

    silent: Seconds = 12.0
    """A peer silent this long is gone."""

    client_silent: Seconds = 10.0
    """A client with open requests that is silent this long is gone: what waits is dropped."""

    reconnect: Seconds = 0.1
    """The first pause before a lost connection is tried again; it doubles from there."""

    reconnect_max: Seconds = 5.0
    """The longest pause between two tries."""

    drain: Seconds = 25.0
    """After SIGTERM, what runs may finish this long; less than the 30 s that containers are given."""

    def __post_init__(self) -> None:
        _above_zero(self, *(field.name for field in structs.fields(self)))
        _not_below(self, "quiet", "beat")
        _not_below(self, "suspect", "beat")
        _not_below(self, "reconnect_max", "reconnect")


class BrokerCoreSettings(Settings, frozen=True):
    """What the broker's core needs to know."""

    topics: tuple[str, ...] | None = None
    """The topics that may be asked for; None: any."""

    batching: str = "eager"
    """When waiting for company pays, see ``core/batching.py``."""

    batch_size: int | None = None
    """A cap over what workers announce."""

    max_latency: float | None = None
    """A cap over what workers announce."""

    limits: Limits = Limits()
    """What it holds at most."""

    timing: Timing = Timing()
    """How long silence lasts before it means something."""

    keyed: bool = False
    """Whether everybody must have a key that is allowed."""

    pipelines: dict[str, Route] = {}
    """Pipelines that may be asked for as if each was a topic."""


# --- one for each command ------------------------------------------------------------------------


class BrokerSettings(Settings, frozen=True):
    """``zbatch broker``: where it listens and what it allows."""

    frontend: BindTo = (FRONTEND,)
    """Where clients connect to; several with commas."""

    backend: BindTo = (BACKEND,)
    """Where workers connect to; several with commas."""

    topics: TopicNames | None = None
    """The only topics that may be asked for; any other is UnknownTopic at once."""

    pipelines: Pipelines = {}
    """Pipelines that callers ask for as if each was a topic: a name and its steps, see docs/pipelines.md."""

    batching: Batching = "eager"
    """eager: an idle worker takes what waits; window: it waits for company up to max_latency."""

    batch_size: Whole | None = None
    """A cap over the batch sizes that workers announce."""

    max_latency: Seconds | None = None
    """A cap over the max_latency that workers announce."""

    busy_poll: Seconds = 0.000_3
    """Look for messages this long before sleeping, giving way to others, where the last came as soon;
    0: never.  To wake a sleeping thread costs 30 us and more; a lone request wakes the broker twice."""

    keys: Text = ""
    """The folder of keys, see `zbatch keys new`; none: nobody is asked for a key."""

    insecure: Flag = False
    """Allow addresses that other hosts can reach, although nobody is asked for a key."""

    metrics: Address | None = None
    """Serve /metrics for Prometheus here, such as 127.0.0.1:9100; another address than a loopback one takes
    --insecure also where there are keys, for nobody who comes by HTTP is asked for one."""

    ipc_group: Text = ""
    """A group of this host whose members may use the ipc endpoints, too; none: only this user."""

    supervise: Flag = False
    """Stay beside the broker, and start it again when it dies."""

    log_format: LogFormat = "text"
    """How log lines on stderr look."""

    log_level: LogLevel = "info"
    """The least important log lines to print."""

    limits: Limits = Limits()
    """What it holds at most."""

    timing: Timing = Timing()
    """How long silence lasts before it means something."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_size")
        for name, route in ((name, pipelines.build(steps)) for name, steps in self.pipelines.items()):
            missing = [one.topic for one in route if self.topics is not None and one.topic not in self.topics]
            if missing:
                raise Wrong("pipelines", f"{name}: topic {missing[0]!r} is none of the topics of this broker")
        if not self.frontend:
            raise Wrong("frontend", f"wanted an endpoint such as {FRONTEND}, got none")
        for field, endpoints in (("frontend", self.frontend), ("backend", self.backend)):
            for endpoint in endpoints:
                self._require_private(field, endpoint)
        for endpoint in self.backend:
            if endpoint in self.frontend and not endpoint.endswith((":*", ":0")):
                raise Wrong(
                    "backend", f"wanted another endpoint than the frontend's, got {endpoint} for both"
                )
        _private_metrics(self.metrics, insecure=self.insecure)

    def _require_private(self, field: str, endpoint: str) -> None:
        if not self.insecure and not self.keys and not notation.is_loopback(endpoint):
            raise Wrong(
                field,
                f"{endpoint} can be reached from other hosts, and nobody is asked for a key; use --keys "
                "(`zbatch keys new` makes some), bind a loopback address (tcp://127.0.0.1:port) or ipc, or "
                "say --insecure if all who reach it are trusted",
            )

    def core(self) -> BrokerCoreSettings:
        """Return what the core needs to know."""
        return BrokerCoreSettings(
            topics=self.topics,
            pipelines={name: pipelines.build(steps) for name, steps in self.pipelines.items()},
            batching=self.batching,
            batch_size=self.batch_size,
            max_latency=self.max_latency,
            keyed=bool(self.keys),
            limits=self.limits,
            timing=self.timing,
        )


class WorkerSettings(Settings, frozen=True):
    """``zbatch worker``: which model, on what, in batches of what size."""

    model: Text
    """What to run: package.module:Name or path/file.py:Name; a path in a file is relative to that file."""

    args: Arguments = {}
    """Keyword arguments of the model's class, key=value; a value is JSON, or else a string."""

    topic: TopicName = "default"
    """The name that callers ask for."""

    gpu: Gpus = ("all",)
    """GPUs by index or UUID, with commas; all: every visible one, or the CPU if there is none; cpu."""

    num: Whole = 1
    """Model processes per GPU (or, on the CPU, in all)."""

    batch_size: Whole = 32
    """A batch closes at this many items."""

    batch_cost: Number | None = None
    """The most that the costs of a batch's items (such as tokens) may add up to."""

    max_latency: Seconds = 0.010
    """The longest an item waits for company while a worker is idle; 0: never."""

    lease: Seconds | None = None
    """The longest a batch may run before its process is killed; zbatch.progress() renews it.  None: two
    thirds of the longest time that is left in the batch, but at least 20 s and at most 60 s."""

    slots: Whole = 2
    """Batches that a model process may hold: one runs, the others are on their way."""

    backend: ConnectTo = (BACKEND,)
    """The brokers to serve; several with commas."""

    keys: Text = ""
    """The folder with this host's key and the broker's public one; none: the broker asks for no key."""

    metrics: Address | None = None
    """Serve /metrics for Prometheus here, such as 127.0.0.1:9101; another address than a loopback one takes
    --insecure also where there are keys, for nobody who comes by HTTP is asked for one."""

    insecure: Flag = False
    """Allow --metrics at an address that other hosts can reach."""

    name: Text = ""
    """What people call this worker; picks its table where a file has several."""

    log_format: LogFormat = "text"
    """How log lines on stderr look."""

    log_level: LogLevel = "info"
    """The least important log lines to print."""

    timing: Timing = Timing()
    """How long silence lasts before it means something."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "num", "batch_size", "slots")
        _above_zero(self, "batch_cost", "lease")
        if self.slots > 64:
            raise Wrong("slots", f"wanted at most 64, got {self.slots}")
        _require_model(self.model)
        if not self.backend:
            raise Wrong("backend", f"wanted an endpoint such as {BACKEND}, got none")
        _private_metrics(self.metrics, insecure=self.insecure)


class GatewaySettings(Settings, frozen=True):
    """``zbatch gateway``: where HTTP is spoken, for which broker, within which bounds."""

    http: Address = "127.0.0.1:8000"
    """Where HTTP is listened to; port 0: any free one."""

    endpoint: ConnectTo = (FRONTEND,)
    """The broker's frontend; several with commas, the next is used when one goes quiet."""

    keys: Text = ""
    """The folder with this host's key and the broker's public one; none: the broker asks for no key."""

    topics: TopicNames | None = None
    """Topics that must be served before the gateway says it is ready, beside at least one; none: any one."""

    processes: Whole = 1
    """Gateway processes that share the address."""

    timeout: Seconds = 30.0
    """The longest that a request may take, where it does not say so itself."""

    max_body: Size = 64 << 20
    """The largest body of a request."""

    max_header: Size = 64 << 10
    """The largest head of a request: its line and its headers."""

    max_connections: Whole = 10_000
    """Connections that one process holds; more wait to be accepted."""

    body_timeout: Seconds = 10.0
    """The longest that the head of a request, or its body, may take to come."""

    drain: Seconds = 30.0
    """The longest that what is in flight may take when the gateway leaves."""

    busy_poll: Seconds = 0.000_1
    """Stay awake this long after a request came, giving way to others, where the last came as soon; 0:
    never."""

    api_keys: Text = ""
    """A file of hashed keys, see `zbatch keys http`; none: nobody is asked for one."""

    tls_cert: Text = ""
    """A file with the certificate, and those between it and its root; none: no TLS."""

    tls_key: Text = ""
    """A file with the certificate's key."""

    insecure: Flag = False
    """Allow an address that other hosts can reach, although nobody is asked for a key."""

    log_format: LogFormat = "text"
    """How log lines on stderr look."""

    log_level: LogLevel = "info"
    """The least important log lines to print."""

    timing: Timing = Timing()
    """How long silence lasts before it means something."""

    def __post_init__(self) -> None:
        _require_endpoint(self.endpoint)
        _above_zero(self, "timeout", "body_timeout")
        _at_least(self, 1, "processes", "max_body", "max_header", "max_connections")
        if bool(self.tls_cert) != bool(self.tls_key):
            said, missing = ("tls_cert", "--tls-key") if self.tls_cert else ("tls_key", "--tls-cert")
            raise Wrong(said, f"wanted both a certificate and its key, got one of them; say {missing}, too")
        if not self.insecure and not self.api_keys and not notation.is_loopback(f"tcp://{self.http}"):
            raise Wrong(
                "http",
                f"{self.http} can be reached from other hosts, and nobody is asked for a key; use --api-keys "
                "(`zbatch keys http` makes some), a loopback address behind a proxy that asks, or say "
                "--insecure if all who reach it are trusted",
            )
        if self.processes > 1 and self.http.endswith(":0"):
            raise Wrong("http", "wanted a port: several processes cannot share any free one")


class ServeSettings(Settings, frozen=True):
    """``zbatch serve``: a broker and its workers on this host.

    Between them is a private ipc endpoint, beside those that ``broker.backend`` names.
    """

    broker: BrokerSettings
    """The broker."""

    workers: tuple[WorkerSettings, ...]
    """One supervisor each."""

    gateway: GatewaySettings | None = None
    """HTTP in front of them, where it is wanted."""


class ClientSettings(Settings, frozen=True):
    """``zbatch predict``: which broker, and how long a caller waits."""

    endpoint: ConnectTo = (FRONTEND,)
    """The broker's frontend; several with commas, the next is used when one goes quiet."""

    keys: Text = ""
    """The folder with this host's key and the broker's public one; none: the broker asks for no key."""

    topic: TopicName = "default"
    """The model to ask."""

    timeout: Seconds = 30.0
    """The longest that a request may take."""

    priority: Whole = 0
    """Higher goes first."""

    key: Text = ""
    """Items only share a batch with those of the same key."""

    window: Whole = 1_000
    """Items in flight at a time when they come from stdin."""

    request_id: Text = ""
    """What workers' logs call these items, where they name any."""

    timing: Timing = Timing()
    """How long silence lasts before it means something."""

    def __post_init__(self) -> None:
        _require_endpoint(self.endpoint)
        _above_zero(self, "timeout")
        _at_least(self, 1, "window")


class StatusSettings(Settings, frozen=True):
    """``zbatch status``: what to show."""

    endpoint: ConnectTo = (FRONTEND,)
    """The broker's frontend; several with commas, the first that answers is shown."""

    keys: Text = ""
    """The folder with this host's key and the broker's public one; none: the broker asks for no key."""

    topic: TopicName | None = None
    """Only this topic; with --check, one that must have a worker ready."""

    timeout: Seconds = 5.0
    """The longest that the broker may take to answer."""

    watch: Flag = False
    """Show it again and again, until Ctrl-C."""

    interval: Seconds = 1.0
    """The pause between two looks of --watch."""

    json: Flag = False
    """Print the snapshot as JSON, one line each."""

    check: Flag = False
    """Print nothing; exit 0 if the broker answers (and the topic is served), else 1 and a sentence."""

    def __post_init__(self) -> None:
        _require_endpoint(self.endpoint)
        _above_zero(self, "timeout", "interval")


class DrainSettings(Settings, frozen=True):
    """``zbatch drain``: which broker is told."""

    endpoint: ConnectTo = (FRONTEND,)
    """The frontend of the broker to tell."""

    keys: Text = ""
    """The folder with an admin's key and the broker's public one; none: the broker asks for no key."""

    timeout: Seconds = 5.0
    """The longest that the broker may take to answer."""

    def __post_init__(self) -> None:
        _require_endpoint(self.endpoint)
        _above_zero(self, "timeout")
        if len(self.endpoint) != 1:
            raise Wrong("endpoint", f"wanted one broker, got {len(self.endpoint)}; tell them one by one")


class BenchSettings(Settings, frozen=True):
    """``zbatch bench``: the load to make."""

    endpoint: ConnectTo = (FRONTEND,)
    """The broker's frontend; several with commas."""

    keys: Text = ""
    """The folder with this host's key and the broker's public one; none: the broker asks for no key."""

    topic: TopicName = "default"
    """The model to ask."""

    timeout: Seconds = 30.0
    """The longest that a request may take."""

    callers: Whole = 16
    """Callers that each ask, wait for the answer and ask again."""

    rate: Number | None = None
    """Requests a second that arrive whether or not the others are answered, instead of callers."""

    duration: Seconds = 10.0
    """How long to measure."""

    warmup: Seconds = 1.0
    """How long to ask before measuring."""

    items: Whole = 1
    """Items per request."""

    item: Item = "hello"
    """What to send: JSON, or else a string."""

    size: Size | None = None
    """Send an array of this many random bytes instead."""

    json: Flag = False
    """Print the figures as JSON."""

    def __post_init__(self) -> None:
        _require_endpoint(self.endpoint)
        _above_zero(self, "timeout", "rate", "duration")
        _at_least(self, 1, "callers", "items", "size")


class CheckSettings(Settings, frozen=True):
    """``zbatch check``: which model to try, and how."""

    model: Text
    """What to try: package.module:Name or path/file.py:Name."""

    args: Arguments = {}
    """Keyword arguments of the model's class, key=value; a value is JSON, or else a string."""

    gpu: Gpus = ("all",)
    """The GPU to try it on, by index or UUID; of several the first; all: the first, or the CPU; cpu."""

    batch_size: Whole = 32
    """The largest batch to try; the others are powers of two."""

    duration: Seconds = 1.0
    """How long each batch size is measured."""

    patience: Seconds = 600.0
    """How long one step may take: to load, to warm up, a batch size."""

    item: Item | None = None
    """What to run instead of the model's example: JSON, or else a string."""

    json: Flag = False
    """Print what was found as JSON."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_size")
        _require_model(self.model)


def _require_model(model: str) -> None:
    if not all(model.rpartition(":")):
        hint = f"; did you forget :Name after {model}?" if model.endswith(".py") else ""
        raise Wrong("model", f"wanted package.module:Name or path/file.py:Name, got {model!r}{hint}")


def _require_endpoint(endpoint: tuple[str, ...]) -> None:
    if not endpoint:
        raise Wrong("endpoint", f"wanted an endpoint such as {FRONTEND}, got none")


# --- what there is to set ------------------------------------------------------------------------

OPTIONS = {"args": "--arg", "model": "MODEL", "pipelines": "--pipeline"}
"""Settings that a command line says otherwise than by their name: one at a time, or without an option."""


class Leaf(NamedTuple):
    """One setting."""

    path: str
    """Its name; of one inside ``limits`` or ``timing``: ``limits.topic_items``."""
    written: Written
    default: Any
    """``msgspec.NODEFAULT`` where there is none."""
    help: str

    @property
    def option(self) -> str:
        """How it is said on a command line."""
        return OPTIONS.get(self.path) or "--" + self.path.replace("_", "-").replace(".", "-")

    def variable(self, command: str) -> str:
        """How the environment says it."""
        return f"ZBATCH_{command}_{self.option.lstrip('-')}".replace("-", "_").upper()

    def show(self, value: Any) -> str:
        """Return the value as a file would have it; ``none`` where there is none."""
        return "none" if value is None else self.written.show(value)

    def say(self, value: Any) -> str:
        """Return the value as a command line would have it."""
        return ",".join(value) if isinstance(value, tuple) else self.show(value).strip('"')


@functools.cache
def leaves(kind: type[Settings]) -> tuple[Leaf, ...]:
    """Return every setting of a command, in the order of their definition."""
    found: list[Leaf] = []
    for field in structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, Settings):
            found += [leaf._replace(path=f"{field.name}.{leaf.path}") for leaf in leaves(field.type)]
            continue
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        found.append(Leaf(field.name, _written(field.type), default, explain(kind, field.name)))
    return tuple(found)


def _written(annotation: Any) -> Written:
    """Return how a field of this type is written; one that may be None reads ``none`` as that."""
    if not hasattr(annotation, "__metadata__"):
        written = _written(get_args(annotation)[0])
        return written._replace(read=functools.partial(_read_or_none, written.read))
    return cast(Written, annotation.__metadata__[0])


def _read_or_none(read: Callable[[object], Any], value: object) -> Any:
    return None if value in ("none", ("none",)) else read(value)


def explain(kind: type[Settings], field: str) -> str:
    """Return what stands under the field in this file."""
    return _explanations().get((kind.__name__, field), "")


@functools.cache
def _explanations() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    tree = ast.Module([], [])
    with contextlib.suppress(OSError):  # installed without source: no help texts, all else works
        tree = ast.parse(inspect.getsource(sys.modules[__name__]))
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, text in zip(cls.body, cls.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[cls.name, name] = " ".join(words.split())
    return found


def flatten(settings: Settings) -> dict[str, Any]:
    """Return every setting by its path."""
    return {
        leaf.path: functools.reduce(getattr, leaf.path.split("."), settings)
        for leaf in leaves(type(settings))
    }


def describe(settings: Settings) -> dict[str, str]:
    """Return every setting as text, for a log line; of ``args`` only the names, values may be secret."""
    values = flatten(settings)
    if "args" in values:
        values["args"] = tuple(values["args"])
    return {leaf.path: leaf.say(values[leaf.path]) for leaf in leaves(type(settings))}
