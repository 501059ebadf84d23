"""CURVE keys and roles: who may do what, and where keys lie.

A farm's folder holds the broker's key pair, one pair for each role, and in ``allowed/ROLE`` the public keys
of all who may come in.  A host gets only what it needs: ``broker.key``, which everybody knows, and one
secret.  Adding or removing a file in ``allowed`` takes effect within a second.  Nothing here opens a socket;
who asks at the door, and who was sent away, is ``gate.py``'s.

    farm/broker.key  broker.key_secret  worker.key_secret  client.key_secret  admin.key_secret
    farm/allowed/worker/worker.key  client/client.key  admin/admin.key
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import zmq.auth
from zmq.utils import z85

from zbatch.core.links import Identity
from zbatch.errors import ConfigError

BROKER = "broker"
ROLES = ("worker", "client", "admin")
"""What a key may be for; see ``core/links.py`` for what each may do."""

O_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
"""Windows, where only clients run, has none."""

PUBLIC, SECRET = ".key", ".key_secret"

NAME_LENGTH = 64

KEY_FILE = 1 << 16
"""Bytes: the file of a key has a few hundred; what is larger is none, and is not read."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What one side of a connection needs; the secret shows in no text."""

    public: bytes
    secret: bytes = field(repr=False)
    server: bytes = b""
    """The broker's public key; empty for the broker itself."""


def make_farm(folder: str | Path) -> None:
    """Make keys for a broker and one of each role; raises :class:`ConfigError` where there are some."""
    farm = Path(folder)
    if _is_there(farm / f"{BROKER}{SECRET}"):
        raise ConfigError(f"{farm} has a broker's key; nothing was changed, `zbatch keys add` adds to it")
    _make_pair(farm, BROKER)
    for role in ROLES:
        public = _make_pair(farm, role)
        _allow(farm, role, role, public)


def add(folder: str | Path, role: str, name: str) -> Path:
    """Make one more key of a role; return the folder to copy to the host that uses it."""
    farm = Path(folder)
    if role not in ROLES:
        raise ConfigError(f"wanted a role ({', '.join(ROLES)}), got {role!r}")
    if not name.isidentifier() and not name.replace("-", "").replace(".", "").isalnum():
        raise ConfigError(f"wanted a name of letters, digits, '-' and '.', got {name!r}")
    if len(name) > NAME_LENGTH or name.startswith("."):
        raise ConfigError(
            f"wanted a name of at most {NAME_LENGTH} characters, no dot before it, got {name!r}"
        )
    server = farm / f"{BROKER}{PUBLIC}"
    if not _is_there(server):
        raise ConfigError(f"{farm} has no {server.name}; make one with `zbatch keys new {farm}`")
    home = farm / name
    if _is_there(home) or _is_there(farm / "allowed" / role / f"{name}{PUBLIC}"):
        raise ConfigError(f"{farm} has a {name!r} already; choose another name")
    _allow(farm, role, name, _make_pair(home, role))
    shutil.copyfile(server, home / server.name)
    return home


def own(folder: str | Path, *roles: str) -> Keys:
    """Return the key that a process with one of these roles uses, the first that is there.

    Raises :class:`ConfigError` where none is, where it cannot be read, and where others can read it.
    """
    farm = Path(folder).expanduser()
    for role in roles:
        secret = farm / f"{role}{SECRET}"
        if _is_there(secret):
            public, private = _load_secret(secret)
            return Keys(public, private, _load_public(farm / f"{BROKER}{PUBLIC}"))
    wanted = " or ".join(f"{role}{SECRET}" for role in roles)
    raise ConfigError(f"{farm} has no {wanted}; copy it from the farm's folder (`zbatch keys new` makes one)")


def where_asked(folder: str, *roles: str) -> Keys | None:
    """Return what :func:`own` does; None where no folder is named, for brokers that ask for no key."""
    return own(folder, *roles) if folder else None


def of_broker(folder: str | Path) -> Keys:
    """Return the broker's own key; raises :class:`ConfigError` as :func:`own` does."""
    farm = Path(folder).expanduser()
    secret = farm / f"{BROKER}{SECRET}"
    if not _is_there(secret):
        raise ConfigError(f"{farm} has no {secret.name}; make one with `zbatch keys new {farm}`")
    public, private = _load_secret(secret)
    return Keys(public, private)


@dataclass(frozen=True, slots=True)
class Allowed:
    """All who may come in, as the farm's folder had them at one time."""

    by_key: Mapping[bytes, Identity] = field(default_factory=dict)
    """By public key, 40 characters of Z85."""
    refused: Sequence[str] = ()
    """Sentences about files that could not be used."""


class AllowList:
    """The farm's folder of public keys, looked at again and again; each look may wait for a disk."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).expanduser() / "allowed"
        self._seen: dict[Path, tuple[int, int, int]] = {}
        self._by_file: dict[Path, Identity] = {}

    def look(self) -> Allowed | None:
        """Return who is allowed now; None where nothing changed since the last look."""
        files = dict(self._files())
        if files == self._seen:
            return None
        refused: list[str] = []
        found: dict[Path, Identity] = {}
        for path, state in files.items():
            known = self._by_file.get(path)
            if known is not None and self._seen.get(path) == state:
                found[path] = known
                continue
            try:
                found[path] = Identity(_load_public(path), path.parent.name, path.stem)
            except ConfigError as error:
                # A file that cannot be read lets nobody in.
                refused.append(str(error))
        self._seen, self._by_file = files, found
        # Of a key that stands in two places the weaker role counts.
        ordered = sorted(found.values(), key=lambda one: ROLES.index(one.role), reverse=True)
        return Allowed({one.key: one for one in ordered}, refused)

    def _files(self) -> Iterator[tuple[Path, tuple[int, int, int]]]:
        for role in ROLES:
            try:
                entries = list(os.scandir(self._folder / role))
            except OSError:
                continue
            for entry in entries:
                if entry.name.endswith(PUBLIC):
                    try:
                        state = entry.stat()
                    except OSError:
                        continue
                    yield Path(entry.path), (state.st_mtime_ns, state.st_size, state.st_ino)


# --- files ---------------------------------------------------------------------------------------


def _make_pair(folder: Path, name: str) -> bytes:
    """Write a key pair that only its owner can read; return the public key."""
    with _private(), _sentence(folder):
        folder.mkdir(parents=True, exist_ok=True)
        public_file, _ = zmq.auth.create_certificates(folder, name)
        public = _load_public(Path(public_file))
        if name != BROKER:
            # The broker finds it in ``allowed``; beside the secret nobody needs it.
            Path(public_file).unlink()
    return public


def _allow(farm: Path, role: str, name: str, public: bytes) -> None:
    """Put a public key where the broker looks, whole or not at all."""
    folder = farm / "allowed" / role
    with _private(), _sentence(folder):
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{name}.new"
        beside.write_text(f'curve\n    public-key = "{public.decode()}"\n')
        beside.replace(folder / f"{name}{PUBLIC}")


def _is_there(path: Path) -> bool:
    """Return whether a file is there; raises :class:`ConfigError` where that cannot be told."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:
        raise ConfigError(f"{str(path)!r}: no key can be read: {error}") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: no key can be read: {error.strerror}; run this as the user whose keys they are"
        ) from None
    return True


def _load_secret(path: Path) -> tuple[bytes, bytes]:
    try:
        mode = path.stat().st_mode
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"{path} can be read by others (mode {stat.S_IMODE(mode):o}); say `chmod 600 {path}`, and "
                "make a new key if somebody may have seen this one"
            )
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no key can be read: {error}") from None
    if secret is None:
        raise ConfigError(f"{path} has no secret key; it is a public one under a wrong name")
    return public, secret


def _load_public(path: Path) -> bytes:
    try:
        public = _public_in(_read(path))
        z85.decode(public)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: no public key can be read: {error}") from None
    if len(public) != 40:
        raise ConfigError(f"{path}: wanted a public key of 40 characters, got {len(public)}")
    return public


def _public_in(text: bytes) -> bytes:
    """Return what stands after ``public-key =``, the form of ``zmq.auth``, which opens anything."""
    for line in text.splitlines():
        name, _, value = line.strip().partition(b"=")
        if name.strip() == b"public-key":
            return value.strip(b" \t'\"")
    raise ValueError("it has no public-key")


def _read(path: Path) -> bytes:
    """Return what a small file has; who puts something else there must not keep its reader waiting."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no file")
    if found.st_size > KEY_FILE:
        raise ValueError(f"it has {found.st_size} bytes, at most {KEY_FILE} are read")
    # Should it be a FIFO by now, opening it waits for nobody.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | O_NONBLOCK)) as stream:
        return stream.read(KEY_FILE)


@contextmanager
def _private() -> Iterator[None]:
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _sentence(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{folder}: keys cannot be written: {error.strerror}") from None
