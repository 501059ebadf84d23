"""What any bytes are fed to: a decoder, or a broker with a client, a worker and a supervisor.

Only declared errors may come out, a message that is refused leaves no trace, and no bound is passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from tests.core.driving import Cluster, Peer
from zbatch import payload, wire
from zbatch.config import Limits, Timing
from zbatch.core.broker import BrokerCore
from zbatch.core.client import ClientCore
from zbatch.core.worker import WorkerCore
from zbatch.errors import BadOutput, ZbatchError
from zbatch.gateway import compression, oip
from zbatch.messages import AnyMessage
from zbatch.signature import Signature, Tensor

LIMITS = Limits(topic_items=50, topic_bytes=5_000, client_items=40, client_bytes=4_000, unserved_topics=5)

CONN = b"conn...."
"""What everybody's messages say; that of the golden bytes."""

STRANGER = b"F\0none"

TENSORS = (Tensor("x", "FP32", (-1,)), Tensor("t", "BYTES", (1,)))
ECHO = Signature(TENSORS, TENSORS)
"""What an imaginary model takes, and gives back."""

EXPANDED = 10_000
"""Bytes that a compressed body may stand for."""


class Broker:
    """A broker's core and those who speak to it."""

    def __init__(self) -> None:
        self.cluster = Cluster(limits=LIMITS)
        self.core: BrokerCore = self.cluster.core
        self.client: Peer = self.cluster.client()
        self.worker: Peer = self.cluster.worker()
        self.supervisor: Peer = self.cluster.supervisor()
        self.now = 1.0
        for link in self.core.links.by_life.values():
            link.conn = CONN

    @property
    def peers(self) -> tuple[bytes, ...]:
        """Return who may speak: three that are known, and one that is not."""
        return self.client.peer, self.worker.peer, self.supervisor.peer, STRANGER

    def hear(self, peer: bytes, message: AnyMessage, frames: Sequence[Any]) -> None:
        """Let somebody say something, and the turn end."""
        self.now += 0.01
        self.core.handle(peer, message, frames, self.now)
        self.core.tick(self.now)
        self.check()

    def check(self) -> None:
        """No bound is passed, and the tables agree."""
        for topic in self.core.topics.all.values():
            assert 0 <= topic.items <= LIMITS.topic_items
            assert 0 <= topic.size <= LIMITS.topic_bytes
        for client in self.core.ledger.clients.values():
            assert 0 <= client.items <= LIMITS.client_items
            assert 0 <= client.size <= LIMITS.client_bytes
        assert set(self.core.links.by_peer.values()) <= set(self.core.links.by_life.values())

    def digest(self) -> list[Any]:
        """Return everything that a refused message must not change; who was counted is none of it."""
        core = self.core
        return [
            sorted((link.life, link.peer, link.conn, link.role) for link in core.links.by_life.values()),
            sorted(
                (name, topic.items, topic.size, topic.backlog.items)
                for name, topic in core.topics.all.items()
            ),
            sorted((life, client.items, client.held()) for life, client in core.ledger.clients.items()),
            sorted((life, sorted(worker.holds)) for life, worker in core.dispatcher.workers.items()),
            sorted(core.dispatcher.children),
        ]


def message_of(data: bytes) -> tuple[AnyMessage, list[bytes]] | None:
    """Return the message that bytes are, with as many buffers as it speaks of; None where they are none."""
    for buffers in range(4):
        try:
            return wire.decode(data, buffers), [b"buffer"] * buffers
        except wire.Malformed:
            continue
    return None


def feed(data: bytes) -> None:
    """Feed bytes to everything that reads what others send."""
    if len(data) < 2:
        return
    first, rest = data[0], data[1:]
    with suppress(payload.Malformed):
        payload.decode(rest[1:], [rest[:1] * 8] * (first % 3))
    infer(first, rest)
    broker = Broker()
    client = ClientCore(2, b"l" * 16, lambda size: b"c" * size, Timing())
    worker = WorkerCore(1, b"w" * 16, b"inc.....", lambda size: b"c" * size, Timing())
    client.start(0.0)
    worker.start(0.0)
    for piece in pieces(rest):
        found = message_of(b"\x01" + piece)
        if found is None:
            continue
        message, frames = found
        broker.hear(broker.peers[first % 4], message, frames)
        client.handle(bytes([first % 2]), message, frames, 1.0)
        worker.handle(b"\0", message, frames, 1.0)
        client.tick(2.0)
        worker.tick(2.0)


def infer(first: int, data: bytes) -> None:
    """Ask the imaginary model over the Open Inference Protocol; what is read fits it."""
    with suppress(ZbatchError):
        assert len(compression.decompress(("gzip", "deflate")[first % 2], data, EXPANDED)) <= EXPANDED
    for header in (None, str(first), "0"):
        try:
            ask = oip.read(ECHO, data, header)
        except ZbatchError as error:
            assert len(str(error)) < 2_000, error
            continue
        for item in ask.items:
            ECHO.check_item(item)
        with suppress(BadOutput):  # NaN came as bytes, and JSON is asked for
            assert oip.write(ask, ECHO, ask.items, "m", "").body


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut bytes into a few messages."""
    yield from data.split(b"\xc1", 4)
