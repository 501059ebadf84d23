"""A broker that asks for keys: the right ones get in, everybody else stays outside and hurts nobody."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.live.shell import PATIENCE, ROOT, Zbatch, environment, free_port, zbatch
from zbatch import BrokerUnreachable, Forbidden, ZClient, wire
from zbatch.core.links import Identity
from zbatch.errors import ConfigError
from zbatch.gate import LOOK, STALE, Gate, try_doors
from zbatch.journal import Journal
from zbatch.messages import NOWHERE, Denied, Fault, Hello
from zbatch.security import Allowed, AllowList, Keys, add, make_farm, of_broker, own
from zbatch.settings import Timing
from zbatch.sockets import Bound, bind, connect

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]
SOON = 3.0
"""A timeout of requests that must not be answered."""


class Farm:
    """A broker with keys, on tcp, and one worker."""

    def __init__(self, run: Start, home: Path) -> None:
        self.keys = home / "farm"
        make_farm(self.keys)
        self.frontend, self.backend = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.broker = run(
            "broker", "--frontend", self.frontend, "--backend", self.backend, "--keys", str(self.keys)
        )
        self.broker.says("broker started")
        self.worker = run(
            *("worker", f"{ROOT}/tests/live/models.py:Obedient", "--gpu", "cpu", "--backend", self.backend),
            *("--keys", str(self.keys)),
        )
        self.worker.says("model ready")

    def client(self, keys: Path | None = None, **more: Any) -> ZClient[Any, Any]:
        return ZClient(self.frontend, keys=self.keys if keys is None else keys, **more)


@pytest.fixture
def farm(run: Start, tmp_path: Path) -> Farm:
    return Farm(run, tmp_path)


def rename(home: Path, old: str, new: str) -> Path:
    """Let a folder's key pass for that of another role."""
    (home / f"{old}.key_secret").rename(home / f"{new}.key_secret")
    return home


def test_who_has_a_key_is_served(farm: Farm) -> None:
    with farm.client(timeout=PATIENCE) as client:
        assert client.predict([1, 2]) == [1, 2]


def test_who_has_none_or_a_foreign_one_is_not_and_reads_why(farm: Farm, tmp_path: Path) -> None:
    make_farm(tmp_path / "other")
    (tmp_path / "other" / "broker.key").write_text((farm.keys / "broker.key").read_text())
    with farm.client(tmp_path / "other", timeout=SOON) as foreign, pytest.raises(BrokerUnreachable) as wrong:
        foreign.predict_one(1)
    assert "is this key allowed there" in str(wrong.value)
    with ZClient[Any, Any](farm.frontend, timeout=SOON) as nobody, pytest.raises(BrokerUnreachable) as none:
        nobody.predict_one(1)
    assert "does it ask for a key" in str(none.value)
    farm.broker.says("stranger at the door")
    with farm.client(timeout=PATIENCE) as client:
        assert client.predict_one(1) == 1


def test_a_workers_key_cannot_ask(farm: Farm) -> None:
    home = rename(add(farm.keys, "worker", "posing"), "worker", "client")
    farm.broker.says("keys read again")
    with farm.client(home, timeout=PATIENCE) as client, pytest.raises(Forbidden, match="role 'worker'"):
        client.predict_one(1)


def test_a_clients_key_cannot_serve(farm: Farm, run: Start) -> None:
    home = rename(add(farm.keys, "client", "posing"), "client", "worker")
    farm.broker.says("keys read again")
    worker = run(
        *("worker", f"{ROOT}/tests/live/models.py:Obedient", "--gpu", "cpu", "--backend", farm.backend),
        *("--keys", str(home), "--topic", "stolen"),
    )
    worker.says("broker refuses this worker")
    with farm.client() as client:
        assert [one["topic"] for one in client.status(timeout=PATIENCE)["workers"]] == ["default"]


def test_a_key_that_is_revoked_ends_its_connection_and_no_other(farm: Farm) -> None:
    home = add(farm.keys, "client", "alice")
    farm.broker.says("keys read again")
    with farm.client(home, timeout=PATIENCE) as alice, farm.client(timeout=PATIENCE) as other:
        assert alice.predict_one(1) == 1
        assert other.predict_one(2) == 2
        (farm.keys / "allowed" / "client" / "alice.key").unlink()
        farm.broker.says("key revoked")
        with pytest.raises(BrokerUnreachable):
            alice.predict_one(3, timeout=SOON)
        assert other.predict_one(4) == 4
        assert other.status(timeout=PATIENCE)["clients"] == 1


def test_what_speaks_another_protocol_on_the_port_harms_nobody(farm: Farm) -> None:
    host, _, port = farm.frontend.removeprefix("tcp://").partition(":")
    garbage = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + b"\0" * 64,
        b"\xff" + b"\xff" * 200,
        b"",
    ]
    held = []
    for words in garbage * 25:
        held.append(socket.create_connection((host, int(port)), PATIENCE))
        held[-1].sendall(words)
    with farm.client(timeout=PATIENCE) as client:
        assert client.predict(list(range(50))) == list(range(50))
    for one in held:
        one.close()


def test_no_secret_is_logged_or_shown(farm: Farm) -> None:
    with farm.client(timeout=PATIENCE) as client:
        client.predict_one(1)
        shown = str(client.status(timeout=PATIENCE))
    said = shown + farm.broker.log.read_text() + farm.worker.log.read_text()
    for secret in farm.keys.glob("*.key_secret"):
        words = secret.read_text().split('secret-key = "')[1].split('"')[0]
        assert words not in said


# --- the doors -----------------------------------------------------------------------------------


class Anybody(dict[bytes, Identity]):
    """A table that is broken: everybody is in it."""

    def get(self, key: bytes, default: Any = None) -> Any:
        return Identity(key, "client", "anybody")


class Open(AllowList):
    """An allow-list that everybody is on."""

    def look(self) -> Allowed:
        return Allowed(Anybody())


class Stalling(AllowList):
    """An allow-list on a disk that answers once and not again until it is told to."""

    looks = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.answers = threading.Event()

    def look(self) -> Allowed | None:
        self.looks += 1
        if self.looks > 1:
            self.answers.wait(PATIENCE)
        return super().look()


@contextmanager
def gate_of(context: zmq.Context[Any], home: Path, listed: AllowList) -> Iterator[Gate]:
    """Stand at a gate with keys of its own."""
    make_farm(home)
    journal = Journal("text", "test")
    gate = Gate(context, of_broker(home), listed, journal)
    yield gate
    gate.close()
    journal.close()


def test_a_broker_that_a_wrong_key_opens_does_not_start(context: zmq.Context[Any], tmp_path: Path) -> None:
    with gate_of(context, tmp_path, Open(tmp_path)) as gate:
        bound = bind(context, ["tcp://127.0.0.1:*"], 1 << 20, keys=gate.keys)
        with pytest.raises(ConfigError, match="lets in who has a key that is not allowed"):
            try_doors(gate, bound.endpoints)
        bound.close()


def test_a_broker_that_opens_without_a_key_does_not_start(context: zmq.Context[Any], tmp_path: Path) -> None:
    with gate_of(context, tmp_path, AllowList(tmp_path)) as gate:
        bound = bind(context, ["tcp://127.0.0.1:*"], 1 << 20)
        with pytest.raises(ConfigError, match="lets in who has no key"):
            try_doors(gate, bound.endpoints)
        bound.close()


def test_a_broker_with_a_door_that_says_nothing_does_not_start(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        gate_of(context, tmp_path, AllowList(tmp_path)) as gate,
    ):
        bound = bind(context, ["tcp://127.0.0.1:*"], 1 << 20, keys=gate.keys)
        doors = [*bound.endpoints, f"tcp://127.0.0.1:{silent.getsockname()[1]}"]
        with pytest.raises(ConfigError, match=f"{doors[1]} said neither yes nor no"):
            try_doors(gate, doors)
        bound.close()


def test_without_anybody_at_the_gate_nobody_gets_in(context: zmq.Context[Any], tmp_path: Path) -> None:
    make_farm(tmp_path)
    bound = bind(context, ["tcp://127.0.0.1:*"], 1 << 20, keys=of_broker(tmp_path))
    dealer = connect(zmq.Context.instance(), bound.endpoints[0], Timing(), own(tmp_path, "client"))
    dealer.send(b"let me in")
    assert not bound.socket.poll(1_000)
    dealer.close(0)
    bound.close()


def test_a_disk_that_stalls_keeps_nobody_waiting_and_after_a_while_nobody_gets_in(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    listed = Stalling(tmp_path)
    with gate_of(context, tmp_path, listed) as gate:
        bound = bind(context, ["tcp://127.0.0.1:*"], 1 << 20, keys=gate.keys)
        gate.start()
        wait_for(lambda: listed.looks == 2)
        now = time.monotonic()
        assert gate.look(now, {}) == []
        assert lets_in(gate, bound, own(tmp_path, "client"))
        for later in (STALE, STALE + 1.2 * LOOK):
            assert gate.look(now + later, {}) == []
        assert not lets_in(gate, bound, own(tmp_path, "client"))
        (tmp_path / "allowed" / "admin" / "admin.key").unlink()
        listed.answers.set()
        # The times given above ran ahead of the clock by which the reader says when it was done.
        wait_for(lambda: gate._reader.finished > now + 3 * LOOK)
        gate.look(now + STALE + 2.5 * LOOK, {})
        assert lets_in(gate, bound, own(tmp_path, "client"))
        assert not lets_in(gate, bound, own(tmp_path, "admin"))
        bound.close()


def lets_in(gate: Gate, bound: Bound, keys: Keys) -> bool:
    """Return whether a message of who has this key arrives, with somebody at the gate."""
    dealer = connect(zmq.Context.instance(), bound.endpoints[0], Timing(), keys)
    dealer.send(b"let me in")
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not bound.socket.poll(10):
        gate.answer()
    came = bool(bound.socket.poll(0))
    while bound.socket.poll(0):
        bound.socket.recv_multipart()
    dealer.close(0)
    return came


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_only_its_user_may_use_an_ipc_endpoint(run: Start, tmp_path: Path) -> None:
    home = tmp_path / "made" / "here"
    broker = run("broker", "--frontend", f"ipc://{home}/front", "--backend", f"ipc://{home}/back")
    broker.says("broker started")
    assert stat.S_IMODE((home / "front").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "back").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to any group")
def test_a_group_that_is_named_may_use_it_too(run: Start, tmp_path: Path) -> None:
    home = tmp_path / "made"
    broker = run("broker", "--frontend", f"ipc://{home}/front", "--ipc-group", "daemon")
    broker.says("broker started")
    found = (home / "front").stat()
    assert (stat.S_IMODE(found.st_mode), stat.S_IMODE(home.stat().st_mode)) == (0o660, 0o750)
    assert found.st_gid == home.stat().st_gid != 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["broker", "--frontend", "tcp://0.0.0.0:7001"], "can be reached from other hosts"),
        (["broker", "--keys", "nowhere"], "has no broker.key_secret"),
        (["predict", "bert", "1", "--keys", "nowhere"], "has no client.key_secret"),
        (["broker", "--frontend", "ipc:///tmp/zb-none/f", "--ipc-group", "nobody-has-this"], "ipc_group"),
    ],
)
def test_a_mistake_with_keys_gets_a_sentence(arguments: list[str], sentence: str) -> None:
    ran = zbatch(*arguments)
    assert ran.returncode == 2
    assert sentence in ran.stderr


# --- another version -----------------------------------------------------------------------------


def test_a_client_is_told_by_a_broker_of_another_version_that_it_is_one(context: zmq.Context[Any]) -> None:
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    with ZClient[Any, Any](f"tcp://127.0.0.1:{port}", timeout=PATIENCE) as client:
        future = client.submit([1])
        peer, _ = router.recv_multipart()
        later = bytes([wire.VERSION + 1]) + b"whatever a later version says"
        router.send_multipart([peer, later])
        error = future.exception(PATIENCE)
    assert type(error).__name__ == "ProtocolMismatch"
    assert f"version {wire.VERSION + 1} was sent, version {wire.VERSION} is spoken here" in str(error)


def test_who_speaks_another_version_is_told_which_is_spoken(run: Start, context: zmq.Context[Any]) -> None:
    frontend = f"tcp://127.0.0.1:{free_port()}"
    broker = run("broker", "--frontend", frontend, "--backend", f"tcp://127.0.0.1:{free_port()}")
    broker.says("broker started")
    dealer = connect(context, frontend, Timing())
    hello = wire.encode(Hello(b"conn....", 1, 0, b"l" * 16, "client", 1))
    dealer.send(bytes([wire.VERSION + 1]) + hello[1:])
    assert dealer.poll(int(PATIENCE * 1000))
    text = f"protocol version {wire.VERSION + 1} was sent, version {wire.VERSION} is spoken here"
    assert wire.decode(dealer.recv()) == Denied(NOWHERE, 0, 0, Fault("protocol_mismatch", text))
    broker.says("peer of another version")


@pytest.mark.parametrize(
    "command",
    [
        ("broker", "--frontend", "ipc:///tmp/front", "--backend", "ipc:///tmp/back"),
        ("worker", "m:M", "--gpu", "cpu", "--backend", "ipc:///tmp/back"),
        ("status", "--endpoint", "ipc:///tmp/front"),
    ],
    ids=["broker", "worker", "status"],
)
def test_keys_that_may_not_be_read_end_a_command_in_a_sentence(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    make_farm(keys)
    keys.chmod(0)
    started = [sys.executable, "-m", "zbatch", *command, "--keys", str(keys)]
    if os.geteuid() == 0:  # who may read everything, unless that is taken from them
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv takes from root what it may")
        started = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *started]
    told = subprocess.run(
        started, capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False
    )
    keys.chmod(0o700)
    assert told.returncode == 2, told.stderr
    assert told.stderr.endswith(
        "no key can be read: Permission denied; run this as the user whose keys they are\n"
    )
    assert "Traceback" not in told.stderr
