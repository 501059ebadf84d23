"""What others are told of the types that a model declares, and how they hold an item to that.

A worker tells its broker ``{"item": ..., "output": ...}`` with the model's facts, as JSON.  Each of the two
is a JSON Schema of its own, with its own ``$defs``; one that was not declared, or has no form in JSON, is
left out.  Where more may come than the item's says, ``"takes"`` says what (``declared.py``).  A gateway
makes a :data:`Judge` of the first, so that a bad body is refused before it is queued.
What JSON cannot say of a type, the worker judges (``declared.py``).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from zbatch.declared import VALUES, Declared, placed
from zbatch.errors import BadInput
from zbatch.payload import DEPTH

SCHEMA_BYTES = 16_384
"""What fits into :class:`~zbatch.messages.Facts`; a larger one is not told."""

UNFOLDED = 10_000
"""Schemas within a schema, each counted as often as it is referred to: far more than people write."""

APART = frozenset(("properties", "additionalProperties", "items", "prefixItems"))
"""By these each part of a value is looked into once."""

FORKING = frozenset(("not", "if", "then", "else", "contains", "dependencies", "dependentSchemas"))
FORKING |= {"patternProperties", "propertyNames", "additionalItems", "unevaluatedItems"}
FORKING |= {"unevaluatedProperties"}
"""By these it may be looked into once more."""

PLAIN = frozenset(("type", "enum", "const", "default", "examples", "required"))
"""These look into nothing, whatever stands behind them."""

REBASED = frozenset(
    ("$schema", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef")
)
"""With these a reference means something else than its path; neither msgspec nor pydantic writes them."""

SCALARS = frozenset(("boolean", "integer", "number", "string"))
"""Each may be made of another; nothing is made of null, a list or an object, nor these of a scalar."""

SURE = frozenset(("required", "additionalProperties", "minimum", "maximum"))
SURE |= {"exclusiveMinimum", "exclusiveMaximum"}
"""Other faults than those of types that no conversion mends.  A text may be stripped before it is judged, a
number be the text of another, and of several types one may be made."""

Judge = Callable[[Any], None]
"""Raises :class:`BadInput` with the path of the fault for an item that is not of the declared type."""

PYTHON = {"array": "list", "boolean": "bool", "integer": "int", "number": "float", "null": "null"}
PYTHON |= {"object": "object", "string": "str"}
"""JSON's types as a worker would name them."""


def schema_of(declared: Declared) -> bytes:
    """Return what a worker tells of these types; empty where there is nothing to tell."""
    told: dict[str, Any] = {}
    for what, kind, mode in (
        ("item", declared.item, "validation"),
        ("output", declared.output, "serialization"),
    ):
        if kind is not None:
            try:
                told[what] = msgspec.Raw(msgspec.json.encode(kind.describe(mode)))
            except (TypeError, ValueError, RuntimeError, NameError):
                continue  # it has no form in JSON; pydantic's word for that is a RuntimeError
            if what == "item" and kind.takes:
                told["takes"] = kind.takes
    return msgspec.json.encode(told) if told else b""


def judge_of(schema: Any) -> Judge | None:
    """Return who judges items by the schema in a model's facts; None where that says nothing of them.

    A schema that cannot be used says nothing, too: it came over the network, and its worker judges anyway.
    What it refers to must stand in it, its patterns are matched in linear time, and one by which an item
    could take longer than its size says (:class:`_Shape`) is not used.
    """
    item = schema.get("item") if isinstance(schema, dict) else None
    takes = schema.get("takes", "") if isinstance(schema, dict) else ""
    if item is None or takes not in ("", VALUES) or not _Shape(item).is_tame():
        return None
    library: Any = importlib.import_module("jsonschema_rs")
    try:
        validator = library.validator_for(
            _loosened(item), retriever=_refuse, pattern_options=library.RegexOptions(), mask="it"
        )
    except (ValueError, library.ReferencingError):
        return None

    def judge(value: Any) -> None:
        if _is_deep(value):  # what cannot be sent could end this process there
            raise BadInput(f"$: nested more than {DEPTH} deep")
        try:
            validator.validate(value)
        except library.ValidationError as error:
            # Only the first fault is looked at: to find them all may take a thousand times as long.
            if takes and not _is_sure(error):
                return
            if _holds_no_number(value):
                return  # NaN and infinity, which were taken for null: JSON does not know them either
            raise BadInput(_explained(error, value)) from None
        except ValueError:
            pass  # it holds what JSON does not know, such as bytes: that is the worker's to judge

    return judge


def _loosened(schema: Any) -> Any:
    """Return a schema without what msgspec and pydantic write but do not ask for.

    A set may come with an element twice, a decimal as a number.
    """
    if type(schema) is list:
        return [_loosened(one) for one in schema]
    if type(schema) is not dict:
        return schema
    left = {name: _loosened(one) for name, one in schema.items() if (name, one) != ("uniqueItems", True)}
    if left.get("format") == "decimal" and left.get("type") == "string":
        left["type"] = ["string", "number"]
    return left


def _is_sure(error: Any) -> bool:
    """Return whether a fault stays one where values are converted before they are judged."""
    if error.kind.name != "type":
        return error.kind.name in SURE
    found = error.instance
    return found is None or type(found) in _CONTAINERS or SCALARS.isdisjoint(error.kind.types)


class _Shape:
    """Whether an item is judged by a schema in a time that grows with the item and no faster.

    A value for which several schemas hold (``anyOf``, say) is looked at once for each, and where those hold
    themselves again, twice as often at each level below: 30 levels are a billion looks.  So what refers to
    itself may fork nowhere, and what does not may unfold to :data:`UNFOLDED` schemas at most.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = UNFOLDED
        self._path: set[int] = set()
        self._refers_to_itself = False
        self._forks = False

    def is_tame(self) -> bool:
        """Return whether it is."""
        if type(self._root) not in _CONTAINERS:
            return True
        try:
            self._unfold(self._root)
        except (LookupError, TypeError, ValueError, RecursionError):
            return False  # it unfolds too far, or refers to what is not there
        return not (self._refers_to_itself and self._forks)

    def _unfold(self, node: Any) -> None:
        """Walk through a schema, and through what it refers to; raises where that is too much."""
        if id(node) in self._path:
            self._refers_to_itself = True
            return
        self._left -= 1
        if self._left < 0:
            raise ValueError
        self._path.add(id(node))
        parts = node
        if type(node) is dict:
            if not REBASED.isdisjoint(node):
                raise ValueError
            self._forks = self._forks or _forks(node)
            parts = [*node.values()]
            if isinstance(node.get("$ref"), str):
                parts.append(self._named(node["$ref"]))
        for one in parts:
            if type(one) in _CONTAINERS:
                self._unfold(one)
        self._path.remove(id(node))

    def _named(self, ref: str) -> Any:
        """Return what a reference names; raises ``LookupError`` or ``TypeError`` for what is not there."""
        start, *names = ref.split("/")
        if start != "#":
            raise LookupError(ref)
        node = self._root
        for name in names:
            node = node[name.replace("~1", "/").replace("~0", "~")]
        return node


def _forks(schema: dict[str, Any]) -> bool:
    """Return whether one value may be looked into more than once by a schema."""
    looks = sum(1 for name in APART if isinstance(schema.get(name), dict | list))
    looks = min(looks, 1) + isinstance(schema.get("$ref"), str)
    for name in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(name)
        if isinstance(branches, list):
            looks += sum(1 for one in branches if _looks_inside(one))
    return looks > 1 or not FORKING.isdisjoint(schema)


def _looks_inside(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    return "$ref" in schema or any(
        isinstance(value, dict | list) for name, value in schema.items() if name not in PLAIN
    )


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            one
            for parts in level
            if type(parts) in _CONTAINERS
            for one in (parts.values() if type(parts) is dict else parts)
            if type(one) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def _holds_no_number(value: Any) -> bool:
    if type(value) is dict:
        return any(map(_holds_no_number, value.values()))
    if type(value) in _CONTAINERS:
        return any(map(_holds_no_number, value))
    return type(value) is float and not math.isfinite(value)


_CONTAINERS = frozenset((dict, list, tuple))


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is elsewhere")


def _explained(error: Any, value: Any) -> str:
    place = _place(error.instance_path, value)
    if error.kind.name != "type":
        return placed(place, error.message)
    value = error.instance
    wanted = " or ".join(PYTHON.get(one, one) for one in error.kind.types)
    return placed(place, f"expected {wanted}, got {'null' if value is None else type(value).__name__}")


def _place(path: Sequence[str | int], value: Any) -> str:
    """Return a path as the worker would write it; a key that looks like a number stands in it as one."""
    place = "$"
    for one in path:
        is_index = isinstance(one, int) and type(value) is not dict
        place += f"[{one}]" if is_index else f".{one}"
        if type(value) is dict:
            value = value.get(str(one))
        elif type(value) in _CONTAINERS:
            value = value[one]
    return place
