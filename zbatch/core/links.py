"""Which connection is whose, what was received on it, and when it was last heard.

A peer is a connection of a ROUTER socket; who stands behind it is said once, in its HELLO, together with a
``conn`` that every later message repeats.  A message whose conn does not fit comes from a stranger, and a
stranger is only ever asked who it is.  What a client or a worker means to the broker is not decided here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from zbatch.messages import Hello

FRONT, BACK = b"F", b"B"
"""A peer's name is the letter of its side and its routing id: ids of two sockets may agree."""

STRANGERS = 4_096
"""Connections remembered to limit how often each is asked WHO."""

WHO_INTERVAL = 1.0
"""At most one WHO per connection and second: a flood of strange messages is not answered by a flood."""


MAY_BE = {"worker": ("worker", "supervisor"), "client": ("client",), "admin": ("client",)}
"""What a key's role lets its holder introduce itself as; an admin is a client who may also give orders."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a connection belongs to, by its key."""

    key: bytes
    """The public key, 40 characters of Z85."""
    role: str
    name: str


@dataclass(slots=True, eq=False)
class Link:
    """An introduced connection."""

    peer: bytes
    conn: bytes
    life: bytes
    role: str
    host: str
    pid: int
    heard: float
    sent: int = 0
    received: int = 1
    acked: int = 0
    origin: bytes = b""
    identity: Identity | None = None
    """Whose key it has, where keys are asked for."""
    gone: float | None = None
    """When sending found the connection gone."""
    look: float = 0.0
    """When somebody will look at its silence, and where that is noted."""
    bucket: int = 0

    def stamp(self) -> tuple[bytes, int, int]:
        """Return the head of the next message on this connection."""
        self.sent += 1
        return self.conn, self.sent, self.received


class Links:
    """Every introduced connection, by peer and by life."""

    def __init__(self) -> None:
        self.by_peer: dict[bytes, Link] = {}
        self.by_life: dict[bytes, Link] = {}
        self._asked: OrderedDict[bytes, float] = OrderedDict()

    def introduce(
        self, peer: bytes, hello: Hello, now: float, identity: Identity | None = None
    ) -> Link | None:
        """Remember who is behind a peer; the life's older connection is heard no more.

        Returns None for a peer that chose its own routing id (it could have chosen another's), for one
        that says another life than before (each would have to be remembered), for another role, and for
        one that does not belong to its side: who may only ask must not become a worker.
        """
        other = self.by_peer.get(peer)
        if not _is_given(peer) or (other is not None and other.life != hello.life):
            return None
        if (hello.role == "client") != (peer[:1] == FRONT):
            return None
        old = self.by_life.get(hello.life)
        if old is not None:
            if old.role != hello.role:
                return None
            self.by_peer.pop(old.peer, None)
        link = Link(peer, hello.conn, hello.life, hello.role, hello.host, hello.pid, now)
        if old is not None and (old.peer, old.conn) == (peer, hello.conn):
            # Said again because the answer was slow: what was sent meanwhile has its numbers.
            link.sent, link.acked = old.sent, old.acked
        link.origin = origin_of(hello.life)
        link.identity = identity
        self.by_peer[peer] = self.by_life[hello.life] = link
        self._asked.pop(peer, None)
        return link

    def forget(self, link: Link) -> None:
        """Drop a connection; its life may come back with a HELLO."""
        if self.by_peer.get(link.peer) is link:
            del self.by_peer[link.peer]
        if self.by_life.get(link.life) is link:
            del self.by_life[link.life]

    def may_ask(self, peer: bytes, now: float) -> bool:
        """Return whether this stranger may be asked WHO now."""
        last = self._asked.get(peer)
        if last is not None and now - last < WHO_INTERVAL:
            return False
        self._asked[peer] = now
        self._asked.move_to_end(peer)
        if len(self._asked) > STRANGERS:
            self._asked.popitem(last=False)
        return True


def moved(then: float, since: float, now: float) -> float:
    """Return when something was, to who counts no time between ``since`` and now."""
    return then + now - since if then <= since else max(then, now)


def origin_of(life: bytes) -> bytes:
    """Return what others may know of a life: enough to tell clients apart, useless for a HELLO."""
    return blake2b(life, digest_size=8).digest()


def _is_given(peer: bytes) -> bool:
    # One letter for the side; ids given by libzmq are a zero and 4 bytes.
    return len(peer) == 6 and peer[1] == 0
