"""What one item costs in the broker's core, and whether that grows with what waits, who works and who asks.

No socket, no bytes, no other process: literal messages in, actions out, time as a number.  Only the core's
own calls are timed, in CPU seconds of their thread.  A turn is what a busy broker sees: some workers say
DONE, some clients ask for as much again, and one tick hands out the next batches; so what waits stays as
deep as it was.
"""

from __future__ import annotations

import gc
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

from benchmarks.rounds import Outcome
from zbatch.config import BrokerCoreSettings, Limits
from zbatch.core.actions import Send
from zbatch.core.broker import BrokerCore
from zbatch.core.links import BACK, FRONT
from zbatch.messages import AnyMessage, Batch, Done, Group, Hello, Message, Ready, Request
from zbatch.sockets import settle_collector

BATCH = 32
GROUP = 8
"""Items a client asks for at once; four clients make a batch."""

BATCHES = 4
"""Batches that end in one turn."""

SLICE_TURNS = 50
"""Turns measured at a stretch, before the next cluster's: what else a machine does then meets all alike."""

TURN_SECONDS = 0.001
EPOCH = b"epoch..."
ITEMS = [b"hello-%d" % number for number in range(GROUP)]
OUTPUTS = [b"answer-%d" % number for number in range(BATCH)]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a cluster is."""

    title: str
    waiting: int = 1_000
    workers: int = 2
    clients: int = 2
    reach: float = 0.0


SMALL = Scale("1,000 waiting, 2 workers, 2 clients")
SCALES = (
    Scale("core: 1,000 -> 200,000 waiting", waiting=200_000, reach=1.3),
    Scale("core: 2 -> 1,000 workers", workers=1_000, reach=1.3),
    Scale("core: 2 -> 10,000 clients", clients=10_000, reach=1.5),
    Scale("core: all three at once", 200_000, 1_000, 10_000, reach=2.0),
)


class Peer:
    """The far end of one connection: numbers its messages and acknowledges what it got."""

    __slots__ = ("conn", "got", "incarnation", "life", "name", "next_id", "sent")

    def __init__(self, side: bytes, number: int) -> None:
        self.name = side + b"\0" + number.to_bytes(4, "big")
        self.conn = side * 4 + number.to_bytes(4, "big")
        self.life = side * 12 + number.to_bytes(4, "big")
        self.incarnation = side * 4 + number.to_bytes(4, "big")
        self.sent = self.got = self.next_id = 0

    def head(self) -> tuple[bytes, int, int]:
        self.sent += 1
        return self.conn, self.sent, self.got


class Cluster:
    """A core with as many peers as a scale says, kept equally busy."""

    def __init__(self, scale: Scale) -> None:
        limits = Limits(topic_items=1 << 24, client_items=1 << 24)
        self.core = BrokerCore(BrokerCoreSettings(limits=limits), EPOCH)
        self.now = 0.0
        self.clients = deque(Peer(FRONT, number) for number in range(scale.clients))
        self.workers = [Peer(BACK, number) for number in range(scale.workers)]
        self.peers = {peer.name: peer for peer in (*self.clients, *self.workers)}
        self.handed: deque[Send] = deque()
        for client in self.clients:
            self._say(client, Hello(*client.head(), client.life, "client", 1))
        for worker in self.workers:
            hello = Hello(*worker.head(), worker.life, "worker", 1, incarnation=worker.incarnation)
            self._say(worker, hello)
            self._say(worker, Ready(*worker.head(), "default", 2, BATCH, None, 10.0, 60_000))
        prefetched = 2 * BATCH * scale.workers
        for _ in range((scale.waiting + prefetched) // GROUP):
            self._say(*self._request())
        self._heed(self.core.tick(self.now))

    def turn(self) -> float:
        """Let some batches end and as much be asked for; return the seconds that the core took."""
        self.now += TURN_SECONDS
        said = [self._finish(self.handed.popleft()) for _ in range(BATCHES)]
        said += [self._request() for _ in range(BATCHES * BATCH // GROUP)]
        now, handle = self.now, self.core.handle
        began = thread_time()
        sends = [handle(peer.name, message, (), now) for peer, message in said]
        sends.append(self.core.tick(now))
        took = thread_time() - began
        for some in sends:
            self._heed(some)
        return took

    def _finish(self, send: Send) -> tuple[Peer, AnyMessage]:
        worker, batch = self.peers[send.peer], send.message
        assert isinstance(batch, Batch)
        outputs = OUTPUTS[: sum(len(span.items) for span in batch.spans)]
        which = (EPOCH, batch.batch, batch.attempt)
        return worker, Done(*worker.head(), *which, worker.incarnation, outputs, run_ms=20.0)

    def _request(self) -> tuple[Peer, AnyMessage]:
        client = self.clients[0]
        self.clients.rotate(-1)
        group = Group(client.next_id, "default", 600_000, ITEMS)
        client.next_id += GROUP
        return client, Request(*client.head(), [group])

    def _say(self, peer: Peer, message: AnyMessage) -> None:
        self._heed(self.core.handle(peer.name, message, (), self.now))

    def _heed(self, sends: list[Send]) -> None:
        for send in sends:
            message = send.message
            assert isinstance(message, Message)
            self.peers[send.peer].got = message.number
            if isinstance(message, Batch):
                self.handed.append(send)


def run(rounds: int, slices: int, note: Callable[[str], None]) -> list[Outcome]:
    """Measure every scale beside the small one, by turns in short slices, and return the rows."""
    note("core: filling")
    thresholds = gc.get_threshold()
    # As a broker's process does at its start; the collector's pauses count here as they do there.
    settle_collector()
    clusters = [Cluster(scale) for scale in (SMALL, *SCALES)]
    basis: list[float] = []
    costs: list[list[float]] = [[] for _ in SCALES]
    for turn in range(rounds):
        note(f"core: round {turn + 1} of {rounds}")
        seen = [[cost(cluster) for cluster in clusters] for _ in range(slices)]
        small, *others = (statistics.median(column) for column in zip(*seen, strict=True))
        basis.append(small)
        for mine, other in zip(costs, others, strict=True):
            mine.append(other)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    return [
        Outcome(
            scale.title, "core", SMALL.title, "µs/item", mine, basis, scale.reach, None, less_is_better=True
        )
        for scale, mine in zip(SCALES, costs, strict=True)
    ]


def cost(cluster: Cluster) -> float:
    """Return the microseconds of CPU that one item costs in the core, from request to result."""
    for _ in range(SLICE_TURNS // 4):
        cluster.turn()
    seconds = sum(cluster.turn() for _ in range(SLICE_TURNS))
    return 1e6 * seconds / (SLICE_TURNS * BATCHES * BATCH)
