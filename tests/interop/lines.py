"""A model that declares its types."""

from __future__ import annotations

import math

import msgspec


class Point(msgspec.Struct):
    """Where a line begins or ends."""

    x: float
    y: float


class Line(msgspec.Struct):
    """What the model takes."""

    start: Point
    end: Point
    name: str = ""


class Length(msgspec.Struct):
    """What it returns."""

    length: float
    name: str


def lengths(batch: list[Line]) -> list[Length]:
    """Measure lines."""
    return [Length(math.dist((one.start.x, one.start.y), (one.end.x, one.end.y)), one.name) for one in batch]
