"""What travels: DEALERs, connections that break in many ways, and the ROUTER's side of each.

Modelled after what was measured on libzmq.  A connection keeps the order of its messages; when it breaks,
the end of what was under way is lost, the beginning may still arrive, on the ROUTER's side even after the
HELLO of the connection that replaces it.  What a DEALER is given while it has no connection waits for the
next one.  A side learns that the other is gone at once, or only by the heartbeats that it misses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulator.world import World
from zbatch import wire
from zbatch.core.links import BACK
from zbatch.messages import Message

Parcel = tuple[bytes, list[Any]]
"""What travels: an envelope and its buffers."""

HIGH_WATER = 256
"""Messages that a DEALER keeps while it has no connection."""

HEARTBEATS = 10.0
"""Seconds without a sign of the other side's libzmq until a side drops the connection."""


def pack(message: Message, frames: Any) -> Parcel:
    """Return a message as it travels: through the real wire format."""
    return wire.encode(message), list(frames)


class Way:
    """One direction of a connection: first in, first out."""

    def __init__(self, world: World, deliver: Callable[[Parcel], None], delay: Callable[[], float]) -> None:
        self._world = world
        self._deliver = deliver
        self._delay = delay
        self._parcels: deque[tuple[float, Parcel]] = deque()
        self._last = 0.0
        self.stalled = False
        """Whether nothing passes now; it waits, as in the kernel's buffers."""
        self.lossy = False
        """Whether what is sent vanishes: the other end is gone and nobody said so."""

    def __len__(self) -> int:
        return len(self._parcels)

    def send(self, parcel: Parcel) -> None:
        """Let something leave."""
        if self.lossy:
            return
        self._last = max(self._last, self._world.now + self._delay())
        self._parcels.append((self._last, parcel))
        self._world.after(self._last - self._world.now, self.pump)

    def pump(self) -> None:
        """Deliver what has arrived."""
        while self._parcels and not self.stalled and self._parcels[0][0] <= self._world.now + 1e-9:
            self._deliver(self._parcels.popleft()[1])

    def cut(self) -> None:
        """Lose the end of what is under way; what remains arrives."""
        keep = self._world.random.randint(0, len(self._parcels)) if self._parcels else 0
        while len(self._parcels) > keep:
            self._parcels.pop()
        self.stalled = False
        self.lossy = True
        self.pump()


class Connection:
    """One life of the pipe between a DEALER and a ROUTER."""

    def __init__(self, dealer: Dealer, router: Router, peer: bytes) -> None:
        self.dealer = dealer
        self.router = router
        self.peer = peer
        world = dealer.world
        self.up = Way(world, lambda parcel: router.arrived(peer, parcel), dealer.delay)
        self.down = Way(world, dealer.arrived, dealer.delay)

    def close(self) -> None:
        """End it on both sides."""
        self.up.cut()
        self.down.cut()
        self.router.lost(self)
        self.dealer.lost(self)


class Router:
    """A broker's sockets: who is connected, and what has arrived."""

    def __init__(self, world: World, arrived: Callable[[bytes, Parcel], None]) -> None:
        self.world = world
        self.arrived = arrived
        self.listens = False
        self.is_forlorn = False
        """Whether no worker reaches it any more."""
        self.connections: dict[bytes, Connection] = {}

    def accept(self, dealer: Dealer) -> Connection:
        """Take up a connection; its name is new."""
        peer = dealer.side + b"\0" + self.world.mint(4)
        connection = self.connections[peer] = Connection(dealer, self, peer)
        return connection

    def send(self, peer: bytes, parcel: Parcel) -> bool:
        """Send to a peer; return False where there is none of that name."""
        connection = self.connections.get(peer)
        if connection is None:
            return False
        connection.down.send(parcel)
        return True

    def lost(self, connection: Connection) -> None:
        """Learn that a connection is gone."""
        self.connections.pop(connection.peer, None)

    def forsake(self) -> None:
        """Lose every worker for good."""
        self.is_forlorn = True
        for connection in list(self.connections.values()):
            if connection.dealer.side == BACK:
                connection.close()

    def close(self) -> None:
        """End with the process."""
        self.listens = False
        for connection in list(self.connections.values()):
            connection.close()


class Dealer:
    """A DEALER that keeps trying to reach one broker."""

    def __init__(
        self, world: World, router: Router, side: bytes, arrived: Callable[[Parcel], None], delay: float
    ) -> None:
        self.world = world
        self.router = router
        self.side = side
        self.arrived = arrived
        self.blocked = False
        """Whether the network lets nothing through: a partition."""
        self.asleep = False
        """Whether its process is stopped, libzmq's thread with it."""
        self.connection: Connection | None = None
        self.connections = 0
        """How many it has had."""
        self._slowness = delay
        self._waiting: deque[Parcel] = deque()
        self._closed = False
        self._tries = 0
        self._connect()

    def delay(self) -> float:
        """Return how long a message takes."""
        return self._slowness * self.world.between(0.3, 1.7)

    def send(self, message: Message, frames: Any) -> None:
        """Send without waiting; a full pipe loses the message."""
        if self.connection is not None:
            self.connection.up.send(pack(message, frames))
        elif len(self._waiting) < HIGH_WATER:
            self._waiting.append(pack(message, frames))

    def close(self) -> None:
        """End with the process; what it said last may still arrive."""
        self._closed = True
        if self.connection is not None:
            self.connection.close()

    def lost(self, connection: Connection) -> None:
        """Learn that the connection is gone, and look for another."""
        if self.connection is connection:
            self.connection = None
            self._tries = 0
            self._again()

    def stall(self, *, up: bool, down: bool) -> None:
        """Let nothing pass in some direction."""
        if self.connection is not None:
            self.connection.up.stalled |= up
            self.connection.down.stalled |= down

    def go_on(self) -> None:
        """Let what was held up arrive."""
        if self.connection is not None:
            for way in (self.connection.up, self.connection.down):
                way.stalled = False
                way.pump()

    def half_open(self) -> None:
        """Lose the connection without a word: each side finds out by its own heartbeats."""
        connection = self.connection
        if connection is None:
            return
        connection.up.cut()
        connection.down.cut()
        self.world.after(self.world.between(0.5, HEARTBEATS), lambda: self.lost(connection))
        self.world.after(self.world.between(0.5, HEARTBEATS), lambda: connection.router.lost(connection))

    def _again(self) -> None:
        pause = min(0.1 * 2.0 ** min(self._tries, 10), 3.0) * self.world.between(0.5, 1.5)
        self._tries += 1
        self.world.after(pause, self._connect)

    def _connect(self) -> None:
        if self._closed or self.connection is not None:
            return
        forlorn = self.router.is_forlorn and self.side == BACK
        if self.blocked or self.asleep or forlorn or not self.router.listens:
            self._again()
            return
        self._tries = 0
        self.connection = self.router.accept(self)
        self.connections += 1
        while self._waiting:
            self.connection.up.send(self._waiting.popleft())
