"""Whoever can reach a broker's port may send anything: it is refused and counted, and the others go on."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tests.live.shell import PATIENCE, ROOT, Zbatch, environment, free_port
from zbatch import BadOutput, TooLarge, ZClient, wire
from zbatch.config import Timing
from zbatch.messages import Beat, Cancel, Child, Children, Done, Facts, Group, Hello, Ready, Request
from zbatch.sockets import connect

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]

CONN, LIFE = b"conn....", b"the life of one."
CRAFTED = b"\x80\x04\x95" + b"\0" * 20
MIB = 1 << 20

POISONED = """
import pickle
def boom(*args, **kwargs):
    open(CANARY, "w").close()
    raise SystemExit("pickle was called")
pickle.loads = pickle.load = pickle.Unpickler = pickle._loads = boom
from zbatch.cli import main
main(prog_name="zbatch")
"""
"""A broker whose pickle tells on itself."""


class Farm:
    """A broker on tcp, a worker, and a client that must not notice anything."""

    def __init__(self, run: Start, home: Path) -> None:
        self.front, self.back = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.broker = run("broker", "--frontend", self.front, "--backend", self.back)
        self.broker.says("broker started")
        model = f"{ROOT}/tests/live/models.py:Obedient"
        self.worker = run("worker", model, "--gpu", "cpu", "--backend", self.back)
        self.worker.says("model ready")
        self.client: ZClient[Any, Any] = ZClient(self.front, timeout=PATIENCE)
        self.context: zmq.Context[Any] = zmq.Context()

    def peer(self, side: str = "front") -> zmq.Socket[bytes]:
        return connect(self.context, self.front if side == "front" else self.back, Timing())

    def raw(self, side: str = "front") -> socket.socket:
        host, _, port = (self.front if side == "front" else self.back).removeprefix("tcp://").partition(":")
        return socket.create_connection((host, int(port)), PATIENCE)

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.client.status(timeout=PATIENCE)["counters"]
        return counters

    def counts(self, name: str, least: int) -> None:
        """Wait until the broker has counted something so often."""
        until = time.monotonic() + PATIENCE
        while self.counters().get(name, 0) < least:
            assert time.monotonic() < until, (name, self.counters())
            time.sleep(0.02)

    def serves(self) -> None:
        """Everybody else is answered, each with what is its own."""
        assert self.client.predict(list(range(40))) == list(range(40))
        assert self.broker.process.poll() is None

    def memory(self) -> int:
        return int(psutil.Process(self.broker.process.pid).memory_info().rss)


@pytest.fixture
def farm(run: Start, tmp_path: Path) -> Iterator[Farm]:
    farm = Farm(run, tmp_path)
    yield farm
    farm.client.close()
    farm.context.destroy(0)


def hello(role: Any = "client", life: bytes = LIFE) -> bytes:
    return wire.encode(Hello(CONN, 1, 0, life, role, 1))


@pytest.mark.parametrize("side", ["front", "back"])
def test_frames_that_are_no_message_are_counted_and_dropped(farm: Farm, side: str) -> None:
    attacks = [[b""], [b"", b"", b""], [b"\x01"], [b"GET / HTTP/1.1"], [b"\x01" + b"\x91" * 10_000]]
    attacks += [[b"\x01\xdf\xff\xff\xff\xff"], [b"\x01\xc6\xff\xff\xff\xff"], [b"\x01" + os.urandom(100)]]
    attacks += [[b"\x01\x95\xa7REQUEST", b"x"], [hello() + b"trailing"], [hello(), b"a buffer too many"]]
    attacks += [[b"\x01" + pickle.dumps({"a": 1})], [CRAFTED]]
    peer = farm.peer(side)
    for frames in attacks:
        peer.send_multipart(frames)
    foreign = [frames for frames in attacks if frames[0][:1] not in (b"", b"\x01")]
    farm.counts("foreign_version", len(foreign))
    farm.counts("malformed", len(attacks) - len(foreign))
    farm.serves()
    peer.close(0)


def test_commands_of_another_role_change_nothing(farm: Farm) -> None:
    peer = farm.peer()
    peer.send(hello())
    assert peer.poll(int(PATIENCE * 1000))
    messages: list[Any] = [
        Ready(CONN, 2, 1, "default", 2, 8, None, 0.0, 0, True, Facts()),
        Done(CONN, 3, 1, b"epoch...", 1, 1, b"inc.....", [b"x"], None, None, 1.0),
        Children(CONN, 4, 1, "default", [Child(b"inc.....", False, exit=-9)]),
    ]
    for message in messages:
        peer.send(wire.encode(message))
        farm.counts(f"unexpected_{type(message).__name__.lower()}", 1)
    assert [one["topic"] for one in farm.client.status()["workers"]] == ["default"]
    farm.serves()
    peer.close(0)


def test_a_worker_at_the_clients_door_is_not_let_in(farm: Farm) -> None:
    peer = farm.peer("front")
    peer.send(hello("worker"))
    farm.counts("refused_hellos", 1)
    farm.serves()
    peer.close(0)


def test_nobody_cancels_or_forgets_what_is_anothers(farm: Farm) -> None:
    peer = farm.peer()
    peer.send(hello())
    assert peer.poll(int(PATIENCE * 1000))
    slow = farm.client.submit([{"sleep": 1.0}])
    peer.send(wire.encode(Cancel(CONN, 2, 1, [(0, 2**40)])))
    peer.send(wire.encode(Beat(CONN, 3, 1, [], 2**40)))
    assert slow.result(PATIENCE) == [{"sleep": 1.0}]
    peer.close(0)


def test_an_answer_to_no_question_is_dropped_and_the_real_one_arrives(farm: Farm) -> None:
    peer = farm.peer("back")
    peer.send(hello("worker"))
    peer.send(wire.encode(Ready(CONN, 2, 1, "other", 2, 8, None, 0.0, 0, True, Facts())))
    for batch in range(1, 200):
        done = Done(CONN, 2 + batch, 1, b"epoch...", batch, 1, b"inc.....", [b"x"], None, None, 1.0)
        peer.send(wire.encode(done))
    farm.counts("answer_without_a_question", 1)
    farm.serves()
    peer.close(0)


def test_a_million_topics_are_refused_beyond_a_bound(farm: Farm) -> None:
    peer = farm.peer()
    peer.send(hello())
    before = farm.memory()
    for at in range(200):
        groups = [Group(at * 500 + one + 1, f"t{at}-{one}", 60_000, [b"x"]) for one in range(500)]
        peer.send(wire.encode(Request(CONN, at + 2, 1, groups)))
        while peer.poll(0):
            peer.recv()
    farm.serves()
    assert len(farm.client.status()["topics"]) <= 1_001
    assert farm.memory() - before < 150 * MIB
    peer.close(0)


def test_a_flood_of_beats_and_strange_messages_holds_nobody_up(farm: Farm) -> None:
    stop = threading.Event()

    def flood() -> None:
        peer = farm.peer()
        beat = wire.encode(Beat(CONN, 1, 0, [(0, 10)], 10))
        while not stop.is_set():
            try:
                peer.send(beat, zmq.DONTWAIT)
            except zmq.Again:
                time.sleep(0.001)
        peer.close(0)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        farm.counts("strange_messages", 1_000)
        farm.serves()
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert farm.broker.log.read_text().count("\n") < 100


def test_raw_words_half_greetings_and_five_hundred_idle_connections_hurt_nobody(farm: Farm) -> None:
    greeting = b"\xff" + b"\0" * 8 + b"\x7f"
    signature = greeting + b"\x03\x01NULL" + b"\0" * 48
    words = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + os.urandom(60), greeting, signature[:20], b"\xff"]
    words += [signature + b"\x06" + struct.pack(">Q", 2**63), signature + b"\xf8\x05", os.urandom(500)]
    held = []
    for at in range(500):
        one = farm.raw("front" if at % 2 else "back")
        one.sendall(words[at % len(words)])
        held.append(one)
    farm.serves()
    for one in held:
        one.close()
    farm.serves()


def is_cut_off(one: socket.socket, byte: int) -> bool:
    """Send one more byte; return whether nobody takes it any more."""
    try:
        one.sendall(bytes([byte]))
    except OSError:
        return True
    return False


def test_one_byte_a_second_is_cut_off_and_hurts_nobody(farm: Farm) -> None:
    slow = farm.raw()
    slow.settimeout(PATIENCE)
    greeting = iter(b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00NULL" + b"\0" * 60)
    while not is_cut_off(slow, next(greeting)):
        farm.serves()
        time.sleep(0.5)
    farm.serves()
    slow.close()


def test_a_message_without_end_costs_memory_once(farm: Farm) -> None:
    greeting = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00NULL" + b"\0" * 16 + b"\0" + b"\0" * 31
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
    part = b"\x03" + struct.pack(">Q", MIB) + b"x" * MIB
    after = []
    for _ in range(4):
        one = farm.raw()
        one.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
        for _ in range(64):
            one.sendall(part)
        farm.serves()
        one.close()
        farm.serves()
        after.append(farm.memory())
    # What is free again is kept for the next large message; it does not add up.
    assert after[-1] - after[0] < 80 * MIB, after


def test_a_message_beyond_the_bound_ends_its_connection_only(
    run: Start, context: zmq.Context[Any], tmp_path: Path
) -> None:
    front = f"tcp://127.0.0.1:{free_port()}"
    back = f"ipc://{tmp_path}/b"
    broker = run("broker", "--frontend", front, "--backend", back, "--limits-message-bytes", "1MiB")
    broker.says("broker started")
    run("worker", f"{ROOT}/tests/live/models.py:Obedient", "--gpu", "cpu", "--backend", back).says(
        "model ready"
    )
    peer = connect(context, front, Timing())
    gone = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    peer.send(hello())
    assert peer.poll(int(PATIENCE * 1000))
    peer.send(b"\x01" + b"x" * 3 * MIB)
    assert gone.poll(int(PATIENCE * 1000))
    with ZClient[Any, Any](front, timeout=PATIENCE) as client:
        client.predict_one(1)
        with pytest.raises(TooLarge):
            client.predict_one("x" * (2 * MIB))
        assert client.predict_one(2) == 2


def test_an_output_beyond_the_bound_is_an_error_of_its_item_and_its_worker_goes_on(
    run: Start, tmp_path: Path
) -> None:
    front, back = (f"ipc://{tmp_path}/{side}" for side in "fb")
    broker = run("broker", "--frontend", front, "--backend", back, "--limits-message-bytes", "1MiB")
    broker.says("broker started")
    run("worker", f"{ROOT}/tests/live/models.py:Obedient", "--gpu", "cpu", "--backend", back).says(
        "model ready"
    )
    with ZClient[Any, Any](front, timeout=PATIENCE) as client:
        large, small = client.submit(["large"]), client.submit(["small"])
        with pytest.raises(BadOutput, match=r"2,097,157 bytes, a message may have 1,048,576"):
            large.result()
        assert small.result() == ["small"]
        together = [f"{number}" + "x" * 700_000 for number in range(4)]
        assert list(client.map(together)) == together


def test_no_bytes_from_outside_reach_pickle(context: zmq.Context[Any], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    front = f"tcp://127.0.0.1:{free_port()}"
    program = POISONED.replace("CANARY", repr(str(canary)))
    broker = subprocess.Popen(
        [sys.executable, "-c", program, "broker", "--frontend", front, "--backend", f"ipc://{tmp_path}/b"],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        peer = connect(context, front, Timing())
        bomb = pickle.dumps(print)
        peer.send(hello())
        assert peer.poll(int(PATIENCE * 1000))
        peer.send_multipart([wire.encode(Request(CONN, 2, 1, [Group(1, "t", 9_000, [bomb], [1])])), bomb])
        peer.send_multipart([b"\x01" + bomb, bomb])
        peer.send(bomb)
        with ZClient[Any, Any](front) as client:
            until = time.monotonic() + PATIENCE
            while not client.status(timeout=PATIENCE)["counters"].get("malformed"):
                assert time.monotonic() < until
        assert broker.poll() is None
        assert not canary.exists()
    finally:
        broker.kill()
        broker.wait(PATIENCE)
