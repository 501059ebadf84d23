"""How a setting is written, and read back: ``10ms``, ``256MiB``, ``tcp://host:port``, ``key=value``.

Each kind of setting is one :class:`Written`: a word for help texts, a reader that takes the text of a
command line or a variable as well as the value of a TOML file, and a writer for people.  A reader raises
``ValueError`` with a sentence that says what was wanted and what was seen; whose setting it was is added
by ``config.py``, which also says what may be set at all.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

UNITS = {"us": (1, 1_000_000), "ms": (1, 1_000), "s": (1, 1), "m": (60, 1), "h": (3_600, 1)}
"""Seconds as fractions, so that what is written as 200us is 0.0002 and not a neighbour of it."""

LONGEST = 366 * 24 * 3_600
"""Seconds: more is a mistake, and would not fit into what carries a deadline or waits for it."""

SIZES = {
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "B": 1,
}

TOPIC_LENGTH = 128
"""Characters of a topic's name: it is a label of metrics and a word of every request."""

IPC_LENGTH = 100
"""Bytes of a socket's path: the kernel takes 107, and a lock file stands beside it."""

DIGITS = 40
"""Of a whole number: more than any setting has, fewer than Python refuses to read."""

WRITTEN = 60
"""Characters of a duration or a size; callers over HTTP write some, too."""

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|h)?")
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(B|[kK]B|MB|GB|KiB|MiB|GiB)?")
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\*|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?\]")
_GPU = re.compile(r"\d+|(GPU|MIG)-[A-Za-z0-9/-]+")
_YES = {"true", "yes", "on", "1"}
_NO = {"false", "no", "off", "0"}


class Written(NamedTuple):
    """One kind of setting."""

    metavar: str
    read: Callable[[object], Any]
    show: Callable[[Any], str]
    many: bool = False
    """It may be given several times on a command line."""


# --- one value -----------------------------------------------------------------------------------


def text(value: object) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise ValueError(f"wanted a string, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:  # what Python makes of a shell's bytes that it cannot read
        raise ValueError(f"wanted UTF-8, got {value!r}") from None
    return value


def whole(value: object) -> int:
    """Read a whole number."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        if len(value) > DIGITS:
            raise ValueError(f"wanted a whole number of at most {DIGITS} digits, got {value[:20]!r}...")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"wanted a whole number, got {value!r}")
    return value


def number(value: object) -> float:
    """Read a number; nan and infinity are none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"wanted a number, got {value!r}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"wanted a number, got {value!r}")
    return float(value)


def flag(value: object) -> bool:
    """Read yes or no."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise ValueError(f"wanted true or false, got {value!r}")


def seconds(value: object) -> float:
    """Read a duration: a number of seconds, or a string with a unit (``10ms``, ``2s``, ``1m``)."""
    wanted = "a duration such as 10ms, 2s, 1m or 0.5 (seconds)"
    if isinstance(value, str):
        if len(value) > WRITTEN:
            raise ValueError(f"wanted {wanted}, got {value[:20]!r}...")
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"wanted {wanted}, got {value!r}")
        times, parts = UNITS[match[2] or "s"]
        value = float(match[1]) * times / parts
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"wanted {wanted}, got {value!r}")
    if value > LONGEST:
        raise ValueError(f"wanted a year at most, got {value!r} s")
    return float(value)


def size(value: object) -> int:
    """Read a number of bytes: a whole number, or a string with a unit (``64KiB``, ``256MiB``)."""
    wanted = "a size such as 64KiB, 256MiB or 1048576 (bytes)"
    if isinstance(value, str):
        if len(value) > WRITTEN:
            raise ValueError(f"wanted {wanted}, got {value[:20]!r}...")
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"wanted {wanted}, got {value!r}")
        value = round(float(match[1]) * SIZES[match[2] or "B"])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"wanted {wanted}, got {value!r}")
    return value


def json_or_text(value: str) -> object:
    """Return what the JSON says, or the string itself where it is none."""
    try:
        return msgspec.json.decode(text(value))
    except msgspec.DecodeError:
        return value
    except RecursionError:
        raise ValueError(f"wanted JSON that is less deep, got {value[:20]!r}...") from None


def item(value: object) -> str:
    """Read an item to send: JSON, or else a string."""
    written = text(value)
    json_or_text(written)
    return written


# --- several values ------------------------------------------------------------------------------


def words(value: object) -> tuple[str, ...]:
    """Read a list of strings, or one string with commas."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple):
        raise ValueError(f"wanted a string or a list of strings, got {value!r}")
    parts = [part.strip() for item in value for part in text(item).split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def topic(value: object) -> str:
    """Read the name of a topic."""
    name = text(value)
    if not 1 <= len(name) <= TOPIC_LENGTH or not name.isprintable() or "," in name:
        raise ValueError(
            f"wanted a topic's name, 1 to {TOPIC_LENGTH} printable characters without a comma, got {name!r}"
        )
    return name


def topics(value: object) -> tuple[str, ...]:
    """Read the names of topics."""
    return tuple(topic(name) for name in words(value))


def gpus(value: object) -> tuple[str, ...]:
    """Read which GPUs: ``all``, ``cpu``, or indices and UUIDs."""
    many = value if isinstance(value, list | tuple) else [value]
    chosen = words([str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in many])
    alone = len(chosen) == 1 and chosen[0] in ("all", "cpu")
    if not chosen or not (alone or all(_GPU.fullmatch(one) for one in chosen)):
        raise ValueError(f"wanted all, cpu, or GPUs by index or UUID such as 0,1, got {','.join(chosen)!r}")
    return chosen


def arguments(value: object) -> dict[str, Any]:
    """Read keyword arguments: a table, a JSON object, or texts ``key=value`` (JSON, or else a string)."""
    read = pairs(value)
    for key, item in read.items():
        if not key.isidentifier():
            raise ValueError(f"wanted key=value, where the key is a name of Python, got {key!r}")
        _require_json(key, item)
    return read


def pairs(value: object) -> dict[str, Any]:
    """Read named values: a table, a JSON object, or texts ``key=value`` (JSON, or else a string)."""
    if isinstance(value, str):
        decoded = json_or_text(value)
        value = decoded if isinstance(decoded, dict) else [value]
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple):
        read: dict[str, Any] = {}
        for key, item in (_pair(text(one)) for one in value):
            if key in read:
                raise ValueError(f"wanted {key} once, got it twice")
            read[key] = item
        return read
    raise ValueError(f"wanted key=value, got {value!r}")


def _pair(item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not equals:
        raise ValueError(f"wanted key=value, got {item!r}")
    return key.strip(), json_or_text(value)


def _require_json(key: str, item: object) -> None:
    # They travel to the model processes as JSON: what would arrive as something else is refused here.
    if msgspec.json.decode(msgspec.json.encode(item)) != item:
        raise ValueError(
            f"wanted for {key} what JSON can say (text, numbers, true, lists, tables), got {item!r}"
        )


# --- endpoints -----------------------------------------------------------------------------------


def endpoint_to_bind(value: object) -> str:
    """Read an address to listen on; ``*`` is any host or, as a port, any free one."""
    kind, host, port = _parts(text(value).strip())
    if kind == "tcp" and port != "*":
        _require_port(str(value), port, lowest=0)
    return f"tcp://{host}:{port}" if kind == "tcp" else f"ipc://{host}"


def endpoint_to_connect(value: object) -> str:
    """Read an address to connect to."""
    kind, host, port = _parts(text(value).strip())
    if kind == "ipc":
        return f"ipc://{host}"
    _require_port(str(value), port, lowest=1)
    if host in ("*", "0.0.0.0", "[::]"):
        raise ValueError(f"cannot connect to {value!r}; name the host, such as tcp://127.0.0.1:{port}")
    return f"tcp://{host}:{port}"


def endpoints_to_bind(value: object) -> tuple[str, ...]:
    """Read addresses to listen on."""
    return tuple(endpoint_to_bind(one) for one in words(value))


def endpoints_to_connect(value: object) -> tuple[str, ...]:
    """Read addresses to connect to."""
    return tuple(endpoint_to_connect(one) for one in words(value))


def address(value: object) -> str:
    """Read where to serve HTTP: ``host:port``; port 0 is any free one."""
    written = text(value).strip()
    host, colon, port = written.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or host == "*":
        lone = written.removeprefix(":")
        example = (
            f"127.0.0.1:{lone}" if lone.isascii() and lone.isdigit() and len(lone) < 6 else "127.0.0.1:8000"
        )
        raise ValueError(f"wanted host:port such as {example}, got {value!r}")
    _require_port(written, port, lowest=0)
    return written


def host_and_port(address: str) -> tuple[str, int]:
    """Return what an address as :func:`address` has it is made of, for a socket."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(endpoint: str) -> bool:
    """Say whether only this machine can reach the endpoint: ipc, or a loopback address over tcp."""
    kind, host, _ = _parts(endpoint)
    if kind == "ipc" or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def _parts(endpoint: str) -> tuple[str, str, str]:
    """Return the transport, the host (or path) and the port."""
    kind, separator, rest = endpoint.partition("://")
    if not separator:
        hint = f"; say tcp://{endpoint}" if re.fullmatch(r"[\w.*-]+:(\d+|\*)", endpoint) else ""
        raise ValueError(f"wanted tcp://host:port or ipc:///path, got {endpoint!r}{hint}")
    if kind == "ipc":
        if not rest or len(rest.encode()) > IPC_LENGTH:
            raise ValueError(f"wanted ipc:///path of at most {IPC_LENGTH} bytes, got {endpoint!r}")
        return kind, rest, ""
    if kind != "tcp":
        raise ValueError(
            f"wanted tcp://host:port or ipc:///path, got {endpoint!r}: {kind!r} is no transport here"
        )
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):
        raise ValueError(
            f"wanted tcp://host:port, got {endpoint!r}, which has no port; say tcp://{rest}:5555"
        )
    if ":" in host and not host.startswith("["):
        raise ValueError(f"wanted an IPv6 address in brackets, tcp://[{host}]:{port}, got {endpoint!r}")
    if not _HOST.fullmatch(host):
        raise ValueError(f"wanted tcp://host:port, got {endpoint!r}: {host!r} is no host")
    return kind, host, port


def _require_port(endpoint: str, port: str, lowest: int) -> None:
    if not (port.isascii() and port.isdigit() and lowest <= int(port) <= 65_535):
        raise ValueError(f"wanted a port from {lowest} to 65535, got {port!r} in {endpoint!r}")


# --- for people ----------------------------------------------------------------------------------


def toml(value: object) -> str:
    """Return a value as TOML would have it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    # JSON's strings are TOML's, but for the one control character that JSON lets pass.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def show_seconds(value: float) -> str:
    """Return a duration as people write it."""
    for unit in ("s", "ms", "us"):
        scaled = value * UNITS[unit][1]
        if scaled >= 1 or value == 0:
            return f'"{scaled:.6g}{unit}"'
    return toml(value)


def show_size(value: int) -> str:
    """Return a size in the largest binary unit that divides it."""
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % SIZES[unit] == 0:
            return f'"{value // SIZES[unit]}{unit}"'
    return toml(value)


def show_arguments(value: dict[str, Any]) -> str:
    """Return keyword arguments as a table, or, since TOML has no word for None, as JSON in a string."""
    text = msgspec.json.encode(value).decode()
    return toml(text) if "null" in text else toml(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml(key)


# --- the kinds -----------------------------------------------------------------------------------

TEXT = Written("TEXT", text, toml)
ITEM = Written("TEXT", item, toml)
WHOLE = Written("N", whole, toml)
NUMBER = Written("X", number, toml)
FLAG = Written("", flag, toml)
SECONDS = Written("SECONDS", seconds, show_seconds)
SIZE = Written("BYTES", size, show_size)
TOPIC = Written("TOPIC", topic, toml)
TOPICS = Written("TOPIC,...", topics, toml, many=True)
GPUS = Written("all|cpu|N,...", gpus, toml, many=True)
ARGUMENTS = Written("KEY=VALUE", arguments, show_arguments, many=True)
BIND = Written("ENDPOINT,...", endpoints_to_bind, toml, many=True)
ADDRESS = Written("HOST:PORT", address, toml)
CONNECT = Written("ENDPOINT,...", endpoints_to_connect, toml, many=True)


def choice(*allowed: str) -> Written:
    """One of a few words."""

    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"wanted {' or '.join(allowed)}, got {value!r}")
        return str(value)

    return Written("|".join(allowed), read, toml)
