"""What a model says its items and outputs are, by the annotations of ``predict``.

``predict(self, batch: Sequence[Item]) -> list[Answer]`` declares both.  An item that came as plain data is
made into its type before the model sees it; one that does not fit is :class:`BadInput`, alone, with the path
of the fault.  Outputs of such types leave as plain data; ``-> Iterator[list[Part]]`` of a generator declares
that an output is a list of parts.  What says nothing (Any, a TypeVar), what travels as
it is (arrays, tensors) and what is not understood declares nothing, and costs nothing.

msgspec converts: Structs, dataclasses, TypedDicts, containers, scalars.  Where a type holds a model of
pydantic, pydantic does; it is never imported unless the program did.  What others are told of it, and
how they hold a body to that, is in ``schema.py``.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from zbatch.errors import BadInput, text_of

BATCHES = (
    list,
    tuple,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
"""Of what a batch may be said to be one."""

STEPS = (
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
)
"""What a ``predict`` that yields steps may be said to return."""

CARRIED = (bytes, datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
"""What has a form of its own on the wire, so it stays what it is."""

WORDED = (Enum, UUID, Decimal, set, frozenset)
"""What msgspec has a plain form for, and the wire none."""

ATOMS = frozenset((str, int, float, bool, type(None), *CARRIED))

VALUES, ANYTHING = "values", "anything"
"""Pydantic makes the number of the text "1".  Where a model has code of its own that looks first, or names by
which its schema does not call a field, nothing can be said of what it takes."""

OWN_CODE = frozenset(("function-before", "function-wrap", "function-plain", "call", "arguments"))
"""What pydantic's core calls code that sees a value before it is judged."""

Encode = Callable[[Any], tuple[Any, Sequence[Any]]]


class Kind(NamedTuple):
    """A type that items or outputs were declared to be."""

    annotation: Any
    validate: Callable[[Any], Any]
    """Return a value as this type, or raise what ``explain`` can put into words."""
    explain: Callable[[BaseException], str]
    describe: Callable[[str], Any]
    """Return its JSON Schema for ``"validation"`` (what may come) or ``"serialization"`` (what leaves)."""
    takes: str = ""
    """What else may come than its schema says, see :data:`VALUES` and :data:`ANYTHING`; empty: nothing."""

    def __str__(self) -> str:
        if isinstance(self.annotation, type) and not typing.get_args(self.annotation):
            return self.annotation.__name__
        return str(self.annotation).replace("typing.", "")

    def convert(self, value: Any) -> Any:
        """Return a value as this type; raises :class:`BadInput` with the path of what does not fit."""
        first: BaseException | None = None
        for reading in _readings(value):
            try:
                return self.validate(reading)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # what a type checks for itself is the model's code
                first = first or error
        assert first is not None
        raise BadInput(self.explain(first)) from None


class Declared(NamedTuple):
    """What a model's ``predict`` declares."""

    item: Kind | None = None
    output: Kind | None = None
    ignored: tuple[str, ...] = ()
    """Why something that was annotated counts for nothing, in sentences."""

    def reading(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        """Return how an item is decoded for this model; where it declares none, that is ``decode`` itself."""
        if self.item is None:
            return decode
        convert = self.item.convert
        return lambda *encoded: convert(decode(*encoded))

    def writing(self, encode: Encode) -> Encode:
        """Return how an output is encoded; ``encode`` itself, unless outputs are declared to need more."""
        if self.output is None or not _needs_lowering(self.output.annotation):
            return encode
        return lambda output: encode(plain(output, WORDED))


def declared_by(predict: Callable[..., Any]) -> Declared:
    """Return what a function or a bound method ``predict(batch)`` declares."""
    try:
        signature = inspect.signature(predict)
    except (TypeError, ValueError):
        return Declared()  # written in C: it cannot be asked
    function = inspect.unwrap(predict)
    # An object that can be called has its class's module alone.
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    names = getattr(function, "__globals__", None) or vars(module or typing)
    said = {"output": signature.return_annotation}
    for batch in signature.parameters.values():
        said["item"] = batch.annotation
        break
    found: dict[str, Kind] = {}
    ignored: list[str] = []
    for what in ("item", "output"):
        try:
            annotation = _resolved(said.get(what, inspect.Signature.empty), names)
            kind = _kind(_element(annotation) if what == "item" else _output(annotation))
        except Exception as error:  # an annotation is the model's code
            ignored.append(f"what predict declares its {what}s to be is ignored: {text_of(error)}")
        else:
            if kind is not None:
                found[what] = kind
    return Declared(found.get("item"), found.get("output"), tuple(ignored))


def plain(value: Any, others: tuple[type, ...] = ()) -> Any:
    """Return an output with plain data in the place of Structs, dataclasses and models of pydantic.

    The same goes for the ``others``, of which msgspec knows a plain form; inside of the former for all that
    have one.  What has none stays, arrays and tensors among it: whether that can be sent is for
    ``payload.py`` to say.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return {key: one if type(one) in ATOMS else plain(one, others) for key, one in value.items()}
    if kind is list or kind is tuple:
        return kind([one if type(one) in ATOMS else plain(one, others) for one in value])
    if isinstance(value, msgspec.Struct):
        return _of_struct(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name), WORDED) for one in dataclasses.fields(value)}
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return plain(value.model_dump(by_alias=True), WORDED)
    if isinstance(value, others):
        return msgspec.to_builtins(value, builtin_types=CARRIED)
    return value


# --- what was said -------------------------------------------------------------------------------


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    if annotation is inspect.Signature.empty:
        return Any
    # One at a time: what one of them cannot name is no reason to ignore the other.
    asked = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(asked, names, include_extras=True)["it"]


def _element(annotation: Any) -> Any:
    """Return what a batch is said to be made of; Any where that is not said."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    of = typing.get_args(annotation)
    if typing.get_origin(annotation) not in BATCHES or of[1:] not in ((), (Ellipsis,)):
        return Any
    return _without_exceptions(of[0])


def _output(annotation: Any) -> Any:
    """Return what an item's output is said to be: of one that is yielded in steps, the list of its parts."""
    steps = typing.get_args(annotation)
    if typing.get_origin(annotation) not in STEPS or not steps:
        return _element(annotation)
    step = steps[0]
    if typing.get_origin(step) in (dict, collections.abc.Mapping):
        part = _without_exceptions(typing.get_args(step)[1])
    else:
        part = _element(step)
    return Any if part is Any else types.GenericAlias(list, (part,))


def _without_exceptions(annotation: Any) -> Any:
    """Return what an output is where it is no error; an exception in its place is one."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    left = [
        one
        for one in typing.get_args(annotation)
        if not (isinstance(one, type) and issubclass(one, BaseException))
    ]
    return functools.reduce(operator.or_, left) if left else Any


def _kind(annotation: Any) -> Kind | None:
    """Return what a type can do, or None where it says nothing; raises for what is not understood."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and _holds_model(annotation, pydantic, set()):
        return _of_pydantic(annotation, pydantic)
    info = msgspec.inspect.type_info(annotation)
    if isinstance(info, msgspec.inspect.AnyType | msgspec.inspect.CustomType):
        return None
    return Kind(
        annotation,
        lambda value: msgspec.convert(value, annotation, dec_hook=_unknown),
        _explain,
        lambda _: msgspec.json.schema(annotation, schema_hook=_unknown_to_json),
    )


# --- msgspec -------------------------------------------------------------------------------------


def _unknown(kind: Any, value: Any) -> Any:
    """Return a value, inside of a type, as what msgspec does not know: as it came, or array for tensor."""
    kind = typing.get_origin(kind) or kind
    if isinstance(value, kind):
        return value
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    if numpy is not None and torch is not None:
        if kind is torch.Tensor and isinstance(value, numpy.ndarray):
            return torch.tensor(value)  # a copy: the memory of items may be read again
        if kind is numpy.ndarray and isinstance(value, torch.Tensor):
            return value.numpy(force=True)
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _unknown_to_json(kind: Any) -> dict[str, Any]:
    kind = typing.get_origin(kind) or kind
    return {"description": f"{kind.__module__}.{kind.__qualname__}: no form in JSON"}


def _explain(error: BaseException) -> str:
    text, _, place = text_of(error).rpartition(" - at `")
    if not text:
        text, place = place, "$"
    return placed(place.replace("`", ""), text.replace("`", ""))  # "key` in `$.names`" is a place, too


def placed(place: str, text: str) -> str:
    """Return what is wrong as one sentence."""
    return f"{place}: {text[:1].lower()}{text[1:]}"


# --- pydantic ------------------------------------------------------------------------------------


def _holds_model(annotation: Any, pydantic: Any, seen: set[int]) -> bool:
    """Return whether a model of pydantic is part of a type."""
    if id(annotation) in seen:
        return False
    seen.add(id(annotation))
    kind = typing.get_origin(annotation) or annotation
    parts = list(typing.get_args(annotation))
    if isinstance(kind, type):
        if issubclass(kind, pydantic.BaseModel) or hasattr(kind, "__pydantic_validator__"):
            return True
        if dataclasses.is_dataclass(kind) or hasattr(kind, "__total__"):  # a TypedDict's, whoever made it
            parts += typing.get_type_hints(kind, include_extras=True).values()
    return any(_holds_model(part, pydantic, seen) for part in parts)


def _of_pydantic(annotation: Any, pydantic: Any) -> Kind:
    adapter = pydantic.TypeAdapter(annotation)
    return Kind(
        annotation,
        adapter.validate_python,
        lambda error: _explain_pydantic(error, pydantic),
        lambda mode: adapter.json_schema(mode=mode),
        ANYTHING if _looks_first(adapter.core_schema) else VALUES,
    )


def _looks_first(schema: Any) -> bool:
    """Return whether more may fit than a model's schema says, but for what is converted."""
    level = [schema]
    seen: set[int] = set()
    while level:
        one = level.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            by_names = one.get("populate_by_name") or one.get("validate_by_name")
            if one.get("type") in OWN_CODE or by_names or isinstance(one.get("validation_alias"), list):
                return True
        if isinstance(one, dict | list | tuple):
            level += one.values() if isinstance(one, dict) else one
    return False


def _explain_pydantic(error: BaseException, pydantic: Any) -> str:
    if not isinstance(error, pydantic.ValidationError):
        return text_of(error)
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    place = "$" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in faults[0]["loc"])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return placed(place, faults[0]["msg"] + more)


# --- NumPy ---------------------------------------------------------------------------------------


def _readings(value: Any) -> Iterator[Any]:
    """Yield what an item may be taken for, as it came first.

    NumPy's numbers and arrays count as the plain values that they hold, where those are wanted.
    """
    yield value
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        yield _with_plain(value, (numpy.generic,))
        yield _with_plain(value, (numpy.generic, numpy.ndarray))


def _with_plain(value: Any, kinds: tuple[type, ...]) -> Any:
    """Return the value with Python's own in the place of what is of these kinds."""
    if isinstance(value, kinds):
        return value.tolist()  # type: ignore[attr-defined]
    if type(value) is dict:
        return {key: _with_plain(one, kinds) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_with_plain(one, kinds) for one in value])
    return value


# --- outputs -------------------------------------------------------------------------------------


def _needs_lowering(annotation: Any) -> bool:
    """Return whether values of a type are, or hold, what only :func:`plain` makes fit to be sent."""
    if isinstance(annotation, type) and (annotation in ATOMS or annotation in (list, dict, tuple)):
        return False
    if typing.get_origin(annotation) in (list, dict, tuple, typing.Union, types.UnionType):
        return any(map(_needs_lowering, typing.get_args(annotation)))
    return annotation not in (Any, Ellipsis)


def _of_struct(value: msgspec.Struct) -> Any:
    config = value.__struct_config__
    values = [plain(getattr(value, name), WORDED) for name in value.__struct_fields__]
    if config.array_like:
        return values if config.tag is None else [config.tag, *values]
    told = dict(zip(value.__struct_encode_fields__, values, strict=True))
    return told if config.tag is None else {cast(str, config.tag_field): config.tag} | told
