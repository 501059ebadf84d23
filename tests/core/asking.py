"""A client's core, the calls that it carries and what brokers say to it, as short to write as to read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.calls import Action, Answered, Call, Failed, Finished
from zbatch.core.client import ClientCore
from zbatch.messages import Group, Hello, Pulse, Refusal, Refused, Request, Result, Results, Welcome

LIFE = b"life of a client"
EPOCH, LATER_EPOCH = b"epoch..1", b"epoch..2"
FIRST, SECOND = b"\0", b"\1"


def conn(number: int) -> bytes:
    return number.to_bytes(8)


def started(brokers: int = 1, where: str = "tcp://here:1") -> tuple[ClientCore, list[Action]]:
    """Return a client whose connections are numbered from 1, and its greeting."""
    numbers = count(1)
    core = ClientCore(
        *(brokers, LIFE, lambda size: next(numbers).to_bytes(size), Timing()),
        where=where,
        host="web-1",
        pid=12,
    )
    return core, core.start(0.0)


def connected(brokers: int = 1) -> ClientCore:
    """Return a client that a broker knows since 0.0; its next message is number 2."""
    core, _ = started(brokers)
    welcome(core)
    return core


def welcome(
    core: ClientCore,
    *missing: tuple[int, int],
    peer: bytes = FIRST,
    connection: int = 1,
    epoch: bytes = EPOCH,
    now: float = 0.0,
) -> list[Action]:
    return core.handle(peer, Welcome(conn(connection), 1, 1, epoch, 1, list(missing)), [], now)


def pulse(
    core: ClientCore,
    *missing: tuple[int, int],
    seen: int = 99,
    peer: bytes = FIRST,
    connection: int = 1,
    unserved: Sequence[str] = (),
    now: float = 0.0,
) -> list[Action]:
    """Answer a beat."""
    message = Pulse(conn(connection), 2, seen, list(missing), seen, list(unserved))
    return core.handle(peer, message, [], now)


def call(
    item: bytes = b"x",
    *,
    timeout: float = 30.0,
    topic: str = "bert",
    key: str = "",
    priority: int = 0,
    buffers: Sequence[Any] | None = None,
    cost: float | None = None,
    name: str = "",
) -> Call:
    """Return a call of one item, made at 0.0."""
    one = Call()
    one.mark = (topic, key, priority, buffers is None, cost is None)
    one.deadline = timeout
    one.item = item
    if buffers is not None:
        one.buffers = [buffers]
    if cost is not None:
        one.costs = [cost]
    if name:
        one.name = name
    return one


def call_of(*items: bytes, timeout: float = 30.0, **more: Any) -> Call:
    """Return a call of several items, made at 0.0."""
    one = Call()
    one.mark = ("bert", "", 0, one)
    one.deadline = timeout
    one.items = list(items)
    one.buffers = more.get("buffers")
    one.costs = more.get("costs")
    one.outputs = [None] * len(items)
    one.left = len(items)
    one.name = more.get("name", "")
    return one


def ask(core: ClientCore, *calls: Call, now: float = 0.0) -> list[Action]:
    """Submit calls and let the turn end."""
    for one in calls:
        core.submit(one)
    return core.flush(now)


def result(
    core: ClientCore,
    base: int,
    *outputs: bytes,
    buffers: list[int] | None = None,
    frames: Sequence[Any] = (),
    peer: bytes = FIRST,
    connection: int = 1,
    now: float = 0.0,
) -> list[Action]:
    """Let a broker bring outputs."""
    message = Result(conn(connection), 3, 9, [Results(base, list(outputs), buffers)])
    return core.handle(peer, message, frames, now)


def refuse(
    core: ClientCore,
    fault: Any,
    *ids: tuple[int, int],
    peer: bytes = FIRST,
    connection: int = 1,
    now: float = 0.0,
) -> list[Action]:
    """Let a broker refuse some ids."""
    return core.handle(peer, Refused(conn(connection), 3, 9, [Refusal(list(ids), fault)]), [], now)


def ended(actions: Sequence[Action]) -> list[Any]:
    """Return what became of calls: (call, output), (call, fault code) or the finished call itself."""
    found: list[Any] = []
    for action in actions:
        if isinstance(action, Answered):
            found += [(one, output) for one, output in zip(action.calls, action.outputs, strict=False) if one]
        elif isinstance(action, Failed):
            found += [(one, action.fault.code) for one in action.calls]
        elif isinstance(action, Finished):
            found.append(action.call)
    return found


def hello(connection: int, *open: tuple[int, int], next: int) -> Hello:
    return Hello(conn(connection), 1, 0, LIFE, "client", 1, list(open), next, host="web-1", pid=12)


def sent_again(actions: list[Any]) -> list[Group]:
    return [
        group
        for one in actions
        if isinstance(one, Send) and isinstance(one.message, Request)
        for group in one.message.groups
    ]
