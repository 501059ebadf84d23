"""What others are told of the types that a model declares, and how they hold an item to that.

A worker tells its broker ``{"item": ..., "output": ...}`` with the model's facts, as JSON.  Each of the two
is a JSON Schema of its own, with its own ``$defs``; one that was not declared, or has no form in JSON, is
left out.  A gateway makes a :data:`Judge` of the first, so that a bad body is refused before it is queued.
What JSON cannot say of a type, the worker judges (``declared.py``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from zbatch.declared import Declared, placed
from zbatch.errors import BadInput
from zbatch.payload import DEPTH

SCHEMA_BYTES = 16_384
"""What fits into :class:`~zbatch.messages.Facts`; a larger one is not told."""

Judge = Callable[[Any], None]
"""Raises :class:`BadInput` with the path of the fault for an item that is not of the declared type."""

PYTHON = {"array": "list", "boolean": "bool", "integer": "int", "number": "float", "null": "null"}
PYTHON |= {"object": "object", "string": "str"}
"""JSON's types as a worker would name them."""


def schema_of(declared: Declared) -> bytes:
    """Return what a worker tells of these types; empty where there is nothing to tell."""
    told = {}
    for what, kind, mode in (
        ("item", declared.item, "validation"),
        ("output", declared.output, "serialization"),
    ):
        if kind is not None:
            try:
                told[what] = msgspec.Raw(msgspec.json.encode(kind.describe(mode)))
            except (TypeError, ValueError, RuntimeError, NameError):
                continue  # it has no form in JSON; pydantic's word for that is a RuntimeError
    return msgspec.json.encode(told) if told else b""


def judge_of(schema: Any) -> Judge | None:
    """Return who judges items by the schema in a model's facts; None where that says nothing of them.

    A schema that cannot be used says nothing, too: it came over the network, and its worker judges anyway.
    What it refers to must stand in it; its patterns are matched in linear time.
    """
    item = schema.get("item") if isinstance(schema, dict) else None
    if item is None:
        return None
    library: Any = importlib.import_module("jsonschema_rs")
    try:
        validator = library.validator_for(
            item, retriever=_refuse, pattern_options=library.RegexOptions(), mask="it"
        )
    except (ValueError, library.ReferencingError):
        return None

    def judge(value: Any) -> None:
        if _is_deep(value):  # what cannot be sent could end this process there
            raise BadInput(f"$: nested more than {DEPTH} deep")
        try:
            validator.validate(value)
        except library.ValidationError as error:
            raise BadInput(_explained(error, value)) from None
        except ValueError:
            pass  # it holds what JSON does not know, such as bytes: that is the worker's to judge

    return judge


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


_CONTAINERS = frozenset((dict, list, tuple))


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is elsewhere")


def _explained(error: Any, value: Any) -> str:
    path = list(error.instance_path)
    place = "$" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    if error.kind.name != "type":
        return placed(place, error.message)
    for one in path:
        value = value[one]
    wanted = " or ".join(PYTHON.get(one, one) for one in error.kind.types)
    return placed(place, f"expected {wanted}, got {'null' if value is None else type(value).__name__}")
