"""API keys of a gateway: who may ask for which topic, and how many items a second.

The file holds hashes: who reads it cannot ask.  A key is 32 random bytes, so one round of SHA-256 is enough;
a password would need more.  The rate is each gateway process's own.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zbatch import notation
from zbatch.errors import ConfigError, Forbidden, Overloaded, Unauthorized

PREFIX = "zb_"
"""What keys begin with, so that one that was published by mistake can be searched for."""

KEY_BYTES = 32

MOST_BYTES = 4 << 20
"""Of the file, which is read in the gateway's loop: some 40,000 keys."""

MEANS = 'send "Authorization: Bearer KEY" or "X-Api-Key: KEY"'

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True, eq=False)
class Holder:
    """Who holds a key."""

    name: str
    topics: frozenset[str] | None = None
    """Which topics may be asked for; None: any."""
    rate: float | None = None
    """Items a second; None: no bound.  As many may be saved up as one second brings, and at least one."""
    _saved: float = field(default=0.0, init=False)
    _since: float | None = field(default=None, init=False)

    def admit(self, topic: str, items: int, now: float) -> None:
        """Count a request.

        Raises :class:`Forbidden` for a topic that is not this holder's, :class:`Overloaded` above its rate.
        A request of more items than can be saved up is let in by a full measure, and owed for.
        """
        if self.topics is not None and topic not in self.topics:
            named = ", ".join(map(repr, sorted(self.topics))) or "none"
            raise Forbidden(f"the key of {self.name} is not for topic {topic[:100]!r}; it is for {named}")
        if self.rate is None:
            return
        most = max(1.0, self.rate)
        gained = most if self._since is None else (now - self._since) * self.rate
        self._saved = min(most, self._saved + gained)
        self._since = now
        wanted = min(float(items), most)
        if self._saved < wanted:
            pause = (wanted - self._saved) / self.rate
            raise Overloaded(f"the key of {self.name} may ask {self.rate:g} items a second", pause)
        self._saved -= items


class ApiKeys:
    """The holders of keys, as a file names them."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._holders: dict[str, Holder] = {}
        self._seen: tuple[int, ...] | None = None

    def look(self) -> bool:
        """Read the file if it has changed; return whether it had.

        Raises :class:`ConfigError` for one that cannot be read; who held a key before still does.
        """
        try:
            found = self._path.stat()
            # By its last change of any kind: tools that copy files keep the time of the text's.
            seen = (found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return False
            self._seen = seen
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                # To read a pipe is to wait for who writes to it, and the gateway's loop would wait.
                raise ConfigError(f"the API keys in {self._path} are no file of at most {MOST_BYTES} bytes")
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the API keys in {self._path} cannot be read: {error}") from None
        kept = {holder.name: holder for holder in self._holders.values()}
        read = _holders(text, str(self._path))
        for place, holder in read.items():
            before = kept.get(holder.name)
            if before is not None and (before.topics, before.rate) == (holder.topics, holder.rate):
                read[place] = before  # what it has used up stays used up
        self._holders = read
        return True

    def holder(self, authorization: str | None, key: str | None) -> Holder:
        """Return who asks; raises :class:`Unauthorized` for no key, or one that nobody holds."""
        if key is None and authorization is not None:
            scheme, _, key = authorization.partition(" ")
            key = key.strip() if scheme.lower() == "bearer" else None
        if not key:
            raise Unauthorized(f"no API key came; {MEANS}")
        found = self._holders.get(hashed(key))
        if found is None:
            raise Unauthorized("nobody holds this API key; it may have been revoked")
        return found


def hashed(key: str) -> str:
    """Return what the file holds of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def add(path: str, name: str, topics: tuple[str, ...] = (), rate: float | None = None) -> str:
    """Make a key, write its hash into the file, and return the key: nobody will know it again.

    Raises :class:`ConfigError` for a name that is taken or is none, and for a file that cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a holder's name has 1 to 64 letters, digits, - and _; got {name!r}")
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if name in {holder.name for holder in _holders(text, path).values()}:
            raise ConfigError(f"{path} has a key of {name} already; delete its table [{name}] to revoke it")
        key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
        lines = [f"[{name}]", f'sha256 = "{hashed(key)}"']
        lines += [f"topics = {notation.toml(topics)}"] if topics else []
        lines += [f"rate = {rate:g}"] if rate is not None else []
        addition = ("\n" if text else "") + "\n".join(lines) + "\n"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(addition)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None
    return key


def _holders(text: str, path: str) -> dict[str, Holder]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: no valid TOML: {error}") from None
    holders: dict[str, Holder] = {}
    for name, table in tables.items():
        place, holder = _holder(name, table, path)
        if place in holders:
            raise ConfigError(f"{path}: [{name}] has the same key as [{holders[place].name}]")
        holders[place] = holder
    return holders


def _holder(name: str, table: Any, path: str) -> tuple[str, Holder]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: wanted a table [NAME] for each key, got {name} = {table!r:.60}")
    wrong = set(table) - {"sha256", "topics", "rate"}
    if wrong:
        raise ConfigError(f"{path}: [{name}] has {min(wrong)!r}; wanted sha256, topics, rate")
    place = table.get("sha256")
    if not isinstance(place, str) or not _HASH.fullmatch(place):
        raise ConfigError(f"{path}: [{name}] sha256: wanted 64 hexadecimal digits, got {place!r:.80}")
    try:
        topics = notation.topics(table["topics"]) if "topics" in table else None
        rate = notation.number(table["rate"]) if "rate" in table else None
    except ValueError as error:
        raise ConfigError(f"{path}: [{name}]: {error}") from None
    if rate is not None and rate <= 0:
        raise ConfigError(f"{path}: [{name}] rate: wanted items a second above 0, got {rate:g}")
    return place, Holder(name, None if topics is None else frozenset(topics), rate)
