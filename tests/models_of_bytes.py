"""What the model of a cluster in memory makes of an item, and what a pipeline of such models makes.

It answers ``y`` and the item, and each of its buffers likewise; of an item of several parts ``y`` and the
parts with ``&`` between them, and all of their buffers.  An item that begins with ``>`` is answered by what
follows that, so that what an item does to its model it may do to a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zbatch.core.pipeline import Joined
from zbatch.messages import Route

Made = tuple[bytes, list[bytes]]
"""An output and its buffers."""


def buffers_of(item: bytes) -> list[bytes]:
    """Return the buffers of an item that travels with some: none, one or two, each its own."""
    return [b"%s/%d" % (item, at) for at in range(len(item) % 3)]


def opened(item: Any, buffers: Sequence[Any]) -> Made:
    """Return what a model sees: of an item of several parts, all of them."""
    if not isinstance(item, Joined):
        return item, [bytes(one) for one in buffers]
    parts = [(name, payload, own) for name, payload, own in item.parts]
    return b"&".join(payload for _, payload, _ in parts), [bytes(one) for *_, own in parts for one in own]


def made(item: bytes, buffers: Sequence[bytes]) -> Made:
    """Return what a model makes of an item."""
    return item[1:] if item[:1] == b">" else b"y" + item, [b"y" + one for one in buffers]


def made_along(route: Route | None, item: bytes, buffers: Sequence[bytes]) -> Made:
    """Return what comes out of a pipeline; None: of one model."""
    if route is None:
        return made(item, buffers)
    outputs: list[Made] = [(item, list(buffers))]
    for stage in route:
        sources = [(name, *outputs[source]) for name, source in stage.inputs]
        whole: Any = Joined(sources) if len(sources) > 1 or sources[0][0] else sources[0][1]
        outputs.append(made(*opened(whole, sources[0][2])))
    return outputs[-1]


def mark_of(item: bytes) -> bytes:
    """Return what an item does to a model, to the first or to a later one."""
    return item.lstrip(b">")[:1]


def root_of(item: bytes) -> bytes:
    """Return what was asked for, of an item of any stage."""
    return item.lstrip(b"y>").partition(b"&")[0]
