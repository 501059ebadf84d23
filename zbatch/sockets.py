"""Open a socket the zbatch way, and move whole messages over it.

What every socket of the project has in common stands here: limits, heartbeats, reconnection, and that no
send ever blocks.  Which endpoints, and what is said, is the bodies' business.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import random
import shutil
import socket as tcp
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

try:
    import fcntl
except ImportError:  # Windows, where only clients run
    fcntl = None  # type: ignore[assignment]

from zbatch import wire
from zbatch.config import Timing
from zbatch.errors import ConfigError
from zbatch.messages import MAX_FRAMES, AnyMessage, Hello, Message
from zbatch.notation import host_and_port

if TYPE_CHECKING:
    from zbatch.security import Keys

LINK_INTERVAL, LINK_TIMEOUT = 2_000, 10_000
"""Milliseconds between ZMTP heartbeats, and without an answer until a link is dead.  libzmq's own thread
answers them, so a process that holds the interpreter's lock is not mistaken for a dead host."""

HANDSHAKE = 10_000
"""Milliseconds: ten thousand clients that come back at once must all get through."""

HIGH_WATER = 256
"""Messages in a peer's pipe; one carries a whole turn's outcomes, so a reader this far behind is slow."""

ACCEPT_QUEUE = 4_096

ENVELOPE = 1 << 20
"""Bytes that an envelope may have beyond the payloads in it."""

IPC_BUFFER = 2 << 20
"""Bytes that may be on their way over an ipc connection in one direction, as far as the system allows it
(net.core.wmem_max).  By default a message of an array's size is stopped halfway until its reader has read.
libzmq sets such a size for tcp alone."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Options of glibc's mallopt."""

yield_core = getattr(os, "sched_yield", partial(time.sleep, 0))
"""Windows, where only clients run, has no sched_yield."""

SEND_FLAGS = int(zmq.DONTWAIT)
MORE_FLAGS = int(zmq.DONTWAIT | zmq.SNDMORE)
EVENTS, READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain numbers: an enum's & and | cost more than the call they are for."""


class Dealer(zmq.Socket[bytes]):
    """The socket of who connects."""

    is_narrow = True
    """Whether a connection may be new, and has not been widened."""


def connect(context: zmq.Context[Any], endpoint: str, timing: Timing, keys: Keys | None = None) -> Dealer:
    """Return a DEALER that keeps trying to reach an endpoint, with a key where there is one."""
    socket = make_dealer(context, keys)
    # libzmq has no jitter of its own once the longest interval is set: a thousand peers would come together.
    jitter = random.uniform(0.5, 1.5)
    socket.setsockopt(zmq.RECONNECT_IVL, max(1, int(timing.reconnect * 1000 * jitter)))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, max(1, int(timing.reconnect_max * 1000 * jitter * 0.6)))
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(
            f"cannot connect to {endpoint!r}: {error.strerror}; wanted tcp://host:port"
        ) from None
    return socket


def make_dealer(context: zmq.Context[Any], keys: Keys | None) -> Dealer:
    """Return a DEALER that is not connected yet.

    It sets no routing id: with one of its own, a reconnect that overtakes the death of the old connection
    would be muted for ever.
    """
    socket: Dealer = context.socket(zmq.DEALER, socket_class=Dealer)
    _settle(socket)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    return socket


def bind(
    context: zmq.Context[Any],
    endpoints: Sequence[str],
    message_bytes: int,
    *,
    keys: Keys | None = None,
    group: str = "",
) -> Bound:
    """Return a ROUTER that listens on every endpoint; with keys, to those whose key is allowed.

    Raises :class:`ConfigError` where an endpoint is taken or cannot be listened on.
    """
    socket = context.socket(zmq.ROUTER)
    _settle(socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    # What our own peers send is measured before it leaves; heads and errors may add a little.
    socket.setsockopt(zmq.MAXMSGSIZE, message_bytes + ENVELOPE)
    socket.setsockopt(zmq.BACKLOG, ACCEPT_QUEUE)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        # Without a word from the gate nobody gets in, not even when there is no gate.
        socket.setsockopt(zmq.ZAP_DOMAIN, b"zbatch")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    bound = Bound(socket, group)
    for endpoint in endpoints:
        try:
            bound.add(endpoint)
        except zmq.ZMQError as error:
            bound.close()
            reason = (
                "it is in use; is another broker running?"
                if error.errno == zmq.EADDRINUSE
                else error.strerror
            )
            raise ConfigError(f"cannot listen on {endpoint}: {reason}") from None
        except ConfigError:
            bound.close()
            raise
    return bound


class Bound:
    """A listening socket, its ipc paths and the locks on them."""

    def __init__(self, socket: zmq.Socket[bytes], group: str = "") -> None:
        self.socket = socket
        self._group = group
        self.endpoints: list[str] = []
        """Where it listens; a port that was left to the system is named."""
        self._locks: list[tuple[int, Path]] = []
        self._paths: list[Path] = []

    def add(self, endpoint: str) -> None:
        """Listen on one more endpoint; of a path only this user, and a group that is named, may use it."""
        if not endpoint.startswith("ipc://") or endpoint.startswith("ipc://@"):
            self.socket.bind(endpoint)
            self.endpoints.append(self.socket.getsockopt_string(zmq.LAST_ENDPOINT))
            return
        path = Path(endpoint.removeprefix("ipc://"))
        self._make_home(path.parent)
        self._lock(path)
        before = os.umask(0o177)
        try:
            self.socket.bind(endpoint)
        finally:
            os.umask(before)
        self._paths.append(path)
        if self._group:
            self._open_to_group(path, 0o660)
        self.endpoints.append(endpoint)

    def close(self, linger: int = 0) -> None:
        """Stop listening; what lies at the paths is removed while they are still locked."""
        self.socket.close(linger)
        # libzmq leaves the socket behind; who lists the folder would think that a broker runs.
        for path in self._paths:
            with suppress(OSError):
                path.unlink()
        self._paths.clear()
        for descriptor, path in self._locks:
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)
        self._locks.clear()

    def _make_home(self, folder: Path) -> None:
        """Make the folder of a socket where it is missing; whoever can enter it could put another there."""
        if folder.exists():
            return
        try:
            folder.mkdir(0o700, parents=True)
        except OSError as error:
            raise ConfigError(f"cannot listen in {folder}: {error.strerror}") from None
        if self._group:
            self._open_to_group(folder, 0o750)

    def _open_to_group(self, path: Path, mode: int) -> None:
        try:
            shutil.chown(path, group=self._group)
            path.chmod(mode)
        except (OSError, LookupError) as error:
            raise ConfigError(
                f"ipc_group: {path} cannot be given to group {self._group!r}: {error}"
            ) from None

    def _lock(self, path: Path) -> None:
        # libzmq takes over the path of a living listener without a word; a lock beside it says who is first.
        try:
            lock = path.with_name(path.name + ".lock")
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot listen on ipc://{path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise ConfigError(f"cannot listen on ipc://{path}: another broker listens there") from None
        self._locks.append((descriptor, lock))


def receive(socket: Dealer) -> tuple[bytes, list[Any]]:
    """Return the next message's envelope and its buffers; the caller knows that one is there."""
    if socket.is_narrow:
        socket.is_narrow = False
        frame = socket.recv(SEND_FLAGS, copy=False)
        widen(frame)
        envelope = frame.bytes
    else:
        envelope = socket.recv(SEND_FLAGS)
    if not socket.getsockopt(zmq.RCVMORE):
        return envelope, []
    return envelope, _rest(socket)


def receive_from(
    socket: zmq.Socket[bytes], side: bytes, known: Mapping[bytes, Any]
) -> tuple[bytes, bytes, list[Any], zmq.Frame | None]:
    """Return the next message's routing id, envelope and buffers, read from a ROUTER.

    Where the sender is not known, the envelope's frame comes last: its connection and its key hang on that.
    To look at them costs more than all else, so it is done once a connection.
    """
    peer = socket.recv(SEND_FLAGS)
    # A routing id never comes alone: libzmq puts it before a whole message.
    if side + peer in known:
        envelope = socket.recv(SEND_FLAGS)
        return peer, envelope, _rest(socket) if socket.getsockopt(zmq.RCVMORE) else [], None
    frame = socket.recv(SEND_FLAGS, copy=False)
    return peer, frame.bytes, _rest(socket) if frame.more else [], frame


def widen(frame: zmq.Frame) -> None:
    """Let more be on its way over the connection that a message came over, if that is ipc; see IPC_BUFFER."""
    if not hasattr(tcp, "AF_UNIX"):
        return
    # The connection is libzmq's: if it is closed meanwhile and its number taken by another one, that has
    # more room than it needs.
    with suppress(OSError, zmq.ZMQError):
        connection = tcp.socket(fileno=frame.get(zmq.SRCFD))
        try:
            if connection.family == tcp.AF_UNIX:
                connection.setsockopt(tcp.SOL_SOCKET, tcp.SO_SNDBUF, IPC_BUFFER)
        finally:
            connection.detach()


def send(socket: Dealer, message: Message, frames: Sequence[Any]) -> bool:
    """Send a message without waiting; return whether there was room for it."""
    if type(message) is Hello:
        socket.is_narrow = True  # libzmq has connected anew, perhaps
    try:
        if not frames:
            socket.send(wire.encode(message), SEND_FLAGS)
            return True
        socket.send(wire.encode(message), MORE_FLAGS)
        _send_frames(socket, frames)
    except zmq.Again:
        return False
    return True


def send_to(socket: zmq.Socket[bytes], peer: bytes, envelope: bytes, frames: Sequence[Any]) -> None:
    """Send a message to one peer of a ROUTER without waiting.

    Raises ``zmq.Again`` where the peer's pipe is full, and ``ZMQError`` (EHOSTUNREACH) where it is gone.
    """
    socket.send(peer, MORE_FLAGS)
    if not frames:
        socket.send(envelope, SEND_FLAGS)
        return
    socket.send(envelope, MORE_FLAGS)
    _send_frames(socket, frames)


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message is there; the descriptor alone would not say, it is edge-triggered."""
    return bool(int(socket.getsockopt(EVENTS)) & READABLE)


def busy_poll(sockets: Sequence[zmq.Socket[bytes]], until: float) -> bool:
    """Look for a message without sleeping; return whether one is there.

    A thread that sleeps is woken late, above all on a virtual machine.  The core is offered to others at each
    look, so this takes only time that nobody else wants; the interpreter's lock it keeps.
    """
    while time.monotonic() < until:
        for socket in sockets:
            if is_readable(socket):
                return True
        yield_core()
    return False


def is_green() -> bool:
    """Return whether gevent took the place of this process's blocking calls: threads are greenlets then."""
    monkey = sys.modules.get("gevent.monkey")
    # Only with both: greenlets that wait for each other at real locks would all stand still.
    return monkey is not None and all(map(monkey.is_module_patched, ("select", "threading")))


def make_poller() -> zmq.Poller:
    """Return what waits for messages; under gevent one that lets other greenlets run meanwhile.

    libzmq waits in C, which no patch reaches: the whole process would stand still.
    """
    if not is_green():
        return zmq.Poller()
    from zmq import green  # noqa: PLC0415  # it imports gevent, which is here only where it was asked for

    poller: zmq.Poller = green.Poller()
    return poller


def file_descriptor(socket: zmq.Socket[bytes]) -> int:
    """Return what to poll for input; it is edge-triggered: look with :func:`is_readable` after each use."""
    return int(socket.getsockopt(zmq.FD))


def decode(envelope: bytes, frames: Sequence[Any]) -> AnyMessage:
    """Return the message that came; raises ``wire.Malformed``."""
    return wire.decode(envelope, len(frames))


def settle_allocator() -> None:
    """Tune the allocator of a process that moves messages all day; call it before the first socket is made.

    libzmq allocates each large message, and glibc would map and return it every time: 31 page faults an
    array of 588 KiB.  One arena for all threads, or libzmq's own would keep the old ways.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(M_MMAP_THRESHOLD, 1 << 30):
            mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that some versions allow
        mallopt(M_TRIM_THRESHOLD, 256 << 20)
        mallopt(M_ARENA_MAX, 1)


def settle_collector() -> None:
    """Keep the garbage collector out of the hot path, which makes no cycles; call it when all is set up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _settle(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.HEARTBEAT_IVL, LINK_INTERVAL)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, LINK_TIMEOUT)
    socket.setsockopt(zmq.HEARTBEAT_TTL, LINK_TIMEOUT)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE)
    socket.setsockopt(zmq.IPV6, 1)


def _rest(socket: zmq.Socket[bytes]) -> list[Any]:
    frames: list[Any] = []
    more = True
    while more:
        frame = socket.recv(SEND_FLAGS, copy=False)
        # A foreign peer may send frames without end; beyond the bound they are read and let go.
        if len(frames) <= MAX_FRAMES:
            frames.append(frame)
        more = frame.more
    return frames


def _send_frames(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
    for frame in frames[:-1]:
        socket.send(frame, MORE_FLAGS, copy=False)
    socket.send(frames[-1], SEND_FLAGS, copy=False)


def cannot_listen(address: str, error: OSError) -> ConfigError:
    """Return what is said of an address for HTTP that cannot be had."""
    why = str(error.strerror or error).lower()
    if error.errno == errno.EADDRINUSE:
        why = "somebody else listens there; stop them, or say another port"
    return ConfigError(f"--http {address} cannot be listened on: {why}")


def require_free(address: str) -> None:
    """Raise :class:`ConfigError` where somebody listens.

    Processes that share an address share it with whoever else does: those of another gateway would each get
    some of the connections, and nobody would say so.  A socket that does not share hears of them.
    """
    host, port = host_and_port(address)
    with tcp.socket(tcp.AF_INET6 if ":" in host else tcp.AF_INET) as probe:
        probe.setsockopt(tcp.SOL_SOCKET, tcp.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise cannot_listen(address, error) from None
