"""What a caller waits for, the group it travels in, and what a client's core tells its body.

A call is one request: its items on the way out, its outcome on the way in.  What happens to it is decided
in ``client.py`` beside this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from zbatch.core.actions import Send
from zbatch.core.names import Names
from zbatch.core.stream import Inflow, Part
from zbatch.messages import Fault, Route


class Call:
    """One request of a caller: its items on the way out, its outcome on the way in."""

    # Class attributes are the defaults: a call of one item sets three of them, and there are many such calls.
    mark: tuple[Any, ...]
    """What calls must share to travel together."""
    deadline: float
    item: Any
    """The payload of a call of one item."""
    items: Sequence[Any] | None = None
    """The payloads of a call of several."""
    buffers: Sequence[Sequence[Any]] | None = None
    costs: Sequence[float] | None = None
    group: Sent | None = None
    outputs: list[Any]
    faults: dict[int, Fault] | None = None
    left: int = 0
    closed: bool = False
    inflow: Inflow | None = None
    """Of its one item parts are wanted."""
    name: str = ""
    """Its request id; calls with different ones travel together."""


class Answered(Struct, frozen=True, gc=False):
    """These calls of one item each have their output; a None among them no longer waits."""

    calls: Sequence[Call | None]
    outputs: Sequence[Any]
    buffers: Sequence[Sequence[Any]] | None = None


class Finished(Struct, frozen=True, gc=False):
    """Every item of this call has its outcome: ``outputs`` ((output, buffers) pairs) and ``faults``."""

    call: Call


class Came(Struct, frozen=True, gc=False):
    """These parts of a call's stream have come, each with its weight."""

    call: Call
    parts: Sequence[tuple[Part, int]]


class Failed(Struct, frozen=True, gc=False):
    """These calls end in one error."""

    calls: Sequence[Call]
    fault: Fault


class Shown(Struct, frozen=True, gc=False):
    """The broker's status came."""

    snapshot: bytes


Action = Send | Answered | Finished | Came | Failed | Shown


@dataclass(slots=True, eq=False)
class Sent:
    """A group, from its first sending to its last outcome."""

    topic: str
    key: str
    priority: int
    calls: list[Call | None]
    """One a single item, or the one call of several."""
    items: Sequence[bytes]
    deadline: float
    """The earliest that is still waited for."""
    made: float
    deadlines: list[float] | None = None
    """One an item, where they differ."""
    buffers: Sequence[Sequence[Any]] | None = None
    costs: list[float] | None = None
    whole: bool = False
    route: Route | None = None
    """The pipeline to go through; ``topic`` is its name then."""
    base: int = 0
    open: int = 0
    size: int = 0
    conn: bytes = b""
    number: int = 0
    times: int = 0
    """How often it was sent."""
    rests_until: float = 0.0
    """A broker had no room for it: when to offer it again."""
    moves: int = 0
    """How often it came back unrun, from a broker that left or had no workers."""
    bucket: int = 0
    inflow: Inflow | None = None
    names: Names | None = None
    done: bytearray = field(default_factory=bytearray)
    """Which items of a whole call have their outcome."""
