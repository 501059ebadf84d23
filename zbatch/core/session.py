"""One's own side of a connection to a broker: introduced or not, what was said, when to speak again.

Client, worker and supervisor each keep one session a broker.  A session never ends: when the broker does
not know the connection (it was restarted, or the link was renewed) a new ``conn`` is minted and the HELLO
says what is still held, so that both sides find out what was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zbatch.core.actions import Send
from zbatch.messages import AnyMessage, Bulk, Welcome, Who

Mint = Callable[[int], bytes]
"""Random bytes; a core makes none of its own."""

CONN_BYTES = 8

LARGE = 1 << 20
"""Bytes: a message of this many and more is announced; at SLOWEST a smaller one holds a beat up for 10 s."""

SLOWEST = 100_000
"""Bytes a second that a link is believed to carry at least."""

EXCUSED = 30.0
"""Seconds of silence that an announced message explains at most.  It is a call's default timeout: who waits
longer for one message has given up, and a broker that dies after announcing one must be left at last."""


def announce(peer: bytes, stamp: Callable[[], tuple[bytes, int, int]], size: int) -> list[Send]:
    """Say to a peer before a large message that silence follows; nothing before others."""
    return [Send(peer, Bulk(*stamp(), size))] if size >= LARGE else []


@dataclass(slots=True, eq=False)
class Session:
    """What one side knows of its connection to one broker."""

    peer: bytes
    mint: Mint
    beat: float
    conn: bytes = b""
    sent: int = 0
    received: int = 0
    acked: int = 0
    welcomed: bool = False
    epoch: bytes = b""
    message_bytes: int = 2**53
    """What the broker reads at most; it says so in its WELCOME."""
    heard: float | None = None
    """When the broker was last heard, on any connection."""
    speaks: float = 0.0
    """When the next HELLO or beat is due."""

    def renew(self) -> None:
        """Begin a new connection: nothing said on the old one is certain."""
        self.conn = self.mint(CONN_BYTES)
        self.sent = self.received = self.acked = 0
        self.welcomed = False

    def stamp(self) -> tuple[bytes, int, int]:
        """Return the head of the next message."""
        self.sent += 1
        return self.conn, self.sent, self.received

    def announce(self, size: int) -> list[Send]:
        """Say before a large message that silence follows."""
        return announce(self.peer, self.stamp, size)

    def spoke(self, now: float) -> None:
        """Remember that a HELLO or a beat has just left."""
        self.speaks = now + self.beat

    def accepts(self, message: AnyMessage, now: float) -> bool:
        """Take note of a message; return whether it is for this connection.

        What an older connection left in the pipe is not: its numbers mean nothing now.
        """
        if message.conn != self.conn:
            return False
        self.heard = now
        if isinstance(message, Bulk):
            self.heard += min(message.size / SLOWEST, EXCUSED)
        if isinstance(message, Who):
            return True
        self.received = message.number
        self.acked = max(self.acked, message.ack)
        if isinstance(message, Welcome):
            self.welcomed = True
            self.message_bytes = message.message_bytes or self.message_bytes
        return True
