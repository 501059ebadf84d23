"""Tensors of the Open Inference Protocol, as JSON and as bytes, and the rows that are items.

A request's tensor becomes an array (of BYTES: a nested list), without a copy where it came as bytes, and its
rows are views of it.  The rows of an output are written as they lie, one after the other.  Bytes are
little-endian, as the hosts are that zbatch runs on.  What a request is beside its tensors, ``oip.py`` knows.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from zbatch.errors import BadInput, BadOutput
from zbatch.signature import ANY, BYTES, DIMENSIONS, DTYPES, Tensor, datatype_of, fits

FP16 = "FP16"
"""It has no form in JSON."""

_LENGTH = struct.Struct("<I")
"""What stands before each element of BYTES."""

_DTYPES = {datatype: np.dtype(name) for datatype, name in DTYPES.items()}

_LIMITS = {
    datatype: np.iinfo(dtype)
    for datatype, dtype in _DTYPES.items()
    if dtype.kind in "iu" and dtype.itemsize < 8
}
"""Which numbers JSON may name.  Those of 64 bits are left to NumPy, which raises beyond them."""

_NUMBER = "any number"
"""No datatype, but what JSON may say where one of whole numbers is wanted."""

_NESTED = re.compile(rb"\s*\[\s*\[")


class Column(NamedTuple):
    """One output of all items."""

    tensor: Tensor
    shape: tuple[int, ...]
    rows: list[Any]
    """For each item a contiguous array; of BYTES a list of bytes."""


# --- coming in ------------------------------------------------------------------------------------


def check_shape(shape: Sequence[int], tensor: Tensor, path: str) -> None:
    """Raise :class:`BadInput` unless the rows of a tensor with this shape are what is declared."""
    if not shape or not fits(shape[1:], tensor.shape):
        raise BadInput(f"{path} has shape {_shown(shape)}, wanted {_shown((ANY, *tensor.shape))}")
    if min(shape) < 1:
        raise BadInput(f"{path} has shape {_shown(shape)}, wanted lengths of 1 and more")


def read_binary(tensor: Tensor, shape: Sequence[int], raw: memoryview, path: str) -> Any:
    """Return the tensor that these bytes are; an array is a view of them.

    Raises :class:`BadInput` where they are more or fewer than the shape wants.
    """
    count = math.prod(shape)
    if tensor.datatype == BYTES:
        return _stacked(_split(raw, count, path), shape)
    dtype = _DTYPES[tensor.datatype]
    if count * dtype.itemsize != len(raw):
        raise BadInput(
            f"{path} has {len(raw)} bytes, wanted {count * dtype.itemsize}: "
            f"{tensor.datatype} of shape {_shown(shape)}"
        )
    if dtype.kind == "b" and np.frombuffer(raw, np.uint8).max() > 1:
        raise BadInput(f"{path} has bytes that are neither 0 nor 1, wanted BOOL")
    return np.frombuffer(raw, dtype).reshape(shape)


def read_raw(tensor: Tensor, raw: memoryview, path: str) -> Any:
    """Return the tensor of one item of which there are only bytes: its one free length is found from them.

    Raises :class:`BadInput` where that is no whole number, or more than one is free.
    """
    if tensor.datatype == BYTES:
        if not fits((1,) * len(tensor.shape), tensor.shape):
            raise BadInput(f"{path} is BYTES {_shown(tensor.shape)}; a body without a header is one element")
        return _stacked([bytes(raw)], (1, *map(abs, tensor.shape)))
    free = tensor.shape.count(ANY)
    if free > 1:
        raise BadInput(
            f"{path} has shape {_shown(tensor.shape)}; a body without a header leaves one length free"
        )
    if not free:
        return read_binary(tensor, (1, *tensor.shape), raw, path)
    step = abs(math.prod(tensor.shape)) * _DTYPES[tensor.datatype].itemsize
    length, rest = divmod(len(raw), step)
    if rest or not length:
        raise BadInput(
            f"{path} has {len(raw)} bytes, wanted a multiple of {step}: "
            f"{tensor.datatype} of shape {_shown(tensor.shape)}"
        )
    shape = [length if one == ANY else one for one in tensor.shape]
    return read_binary(tensor, (1, *shape), raw, path)


def read_json(tensor: Tensor, shape: Sequence[int], data: msgspec.Raw, path: str) -> Any:
    """Return the tensor that JSON says, row by row, nested as deep as its shape is long or flat.

    Raises :class:`BadInput` with the path of what does not fit.
    """
    datatype = tensor.datatype
    if datatype == FP16:
        raise BadInput(f"{path} is FP16, which has no form in JSON; send it as binary data")
    depth = len(shape) if _NESTED.match(data) else 1
    try:
        level: list[Any] = [_decoded(datatype, depth, data)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(sentence(error, f"{path}.data")) from None
    for length in shape if depth > 1 else (math.prod(shape),):
        for seen in set(map(len, level)):
            if seen != length:
                raise BadInput(f"{path}.data has {seen} elements, wanted {length}: shape {_shown(shape)}")
        level = list(chain.from_iterable(level))
    if datatype == BYTES:
        return _stacked([text.encode() for text in level], shape)
    try:
        with np.errstate(over="raise"):
            return np.array(level, _DTYPES[datatype]).reshape(shape)
    except ArithmeticError:
        raise BadInput(f"{path}.data has a number beyond those of {datatype}") from None


def sentence(error: Exception, path: str) -> str:
    """Return what msgspec says, of bounded length, with the path in front."""
    text, _, at = str(error).rpartition(" - at `$")
    return f"{path}{at.rstrip('`')[:200]}: {text[:500]}" if text else f"{path}: {str(error)[:500]}"


def _split(raw: memoryview, count: int, path: str) -> list[bytes]:
    """Return elements of BYTES."""
    elements: list[bytes] = []
    start, end = 0, len(raw)
    if count * _LENGTH.size > end:
        raise BadInput(f"{path} has {end} bytes, wanted {count} elements of BYTES, at least 4 bytes each")
    for place in range(count):
        data = start + _LENGTH.size
        stop = data + _LENGTH.unpack_from(raw, start)[0] if data <= end else data
        if stop > end:
            raise BadInput(f"{path} is cut off: element {place} ends at byte {stop} of {end}")
        elements.append(bytes(raw[data:stop]))
        start = stop
    if start != end:
        raise BadInput(f"{path} has {end} bytes, but its {count} elements of BYTES end at {start}")
    return elements


def _stacked(flat: list[bytes], shape: Sequence[int]) -> list[Any]:
    stacked: list[Any] = flat
    for length in reversed(shape[1:]):
        stacked = [stacked[at : at + length] for at in range(0, len(stacked), length)]
    return stacked


def _decoded(datatype: str, depth: int, data: msgspec.Raw) -> Any:
    """Return JSON's lists; some clients write whole numbers as 1.0, which is the same number to JSON."""
    decoder = _decoder(datatype, depth)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        if datatype == BYTES or _DTYPES[datatype].kind not in "iu":
            raise
        try:
            numbers = _decoder(_NUMBER, depth).decode(data)
        except msgspec.ValidationError:
            raise error from None
        return msgspec.convert(_whole(numbers), decoder.type)


def _whole(value: Any) -> Any:
    if type(value) is list:
        return [_whole(one) for one in value]
    return int(value) if type(value) is float and value.is_integer() else value


@lru_cache(maxsize=len(DTYPES) * (DIMENSIONS + 1))
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    """Return what reads a list of this datatype's elements, nested so deep."""
    kind: Any = float
    if datatype == _NUMBER:
        kind = int | float
    elif datatype == BYTES:
        kind = str
    elif datatype == "BOOL":
        kind = bool
    elif datatype in _LIMITS:
        limits = _LIMITS[datatype]
        kind = Annotated[int, msgspec.Meta(ge=int(limits.min), le=int(limits.max))]
    elif datatype == "UINT64":
        kind = Annotated[int, msgspec.Meta(ge=0)]
    elif datatype == "INT64":
        kind = int
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


# --- going out ------------------------------------------------------------------------------------


def column(tensor: Tensor, values: Sequence[Any]) -> Column:
    """Return one output of all items, checked against what is declared.

    Raises :class:`BadOutput`, which names the output and the item.
    """
    wanted = None if tensor.datatype == BYTES else _DTYPES[tensor.datatype]
    rows: list[Any] = []
    first: tuple[int, ...] = ()
    row: Any
    for place, value in enumerate(values):
        if wanted is None:
            row, shape = _elements(tensor, value, place)
        else:
            row = value if type(value) is np.ndarray else _array(tensor, value, place)
            if row.dtype != wanted:
                raise _bad(tensor, place, f"has datatype {datatype_of(row.dtype)}, wanted {tensor.datatype}")
            shape = row.shape
            if not row.flags.c_contiguous:
                row = np.ascontiguousarray(row)
        if place == 0:
            first = shape
            if not fits(shape, tensor.shape):
                raise _bad(tensor, place, f"has shape {_shown(shape)}, wanted {_shown(tensor.shape)}")
        elif shape != first:
            raise _bad(tensor, place, f"has shape {_shown(shape)}, that of item 0 {_shown(first)}")
        rows.append(row)
    return Column(tensor, (len(rows), *first), rows)


def write_binary(column: Column) -> tuple[list[Any], int]:
    """Return the buffers of a tensor, and their bytes in all."""
    if column.tensor.datatype != BYTES:
        return column.rows, math.prod(column.shape) * _DTYPES[column.tensor.datatype].itemsize
    parts = [part for row in column.rows for one in row for part in (_LENGTH.pack(len(one)), one)]
    return parts, sum(map(len, parts))


def write_json(column: Column) -> list[Any]:
    """Return the elements of a tensor in one list, for JSON.

    Raises :class:`BadOutput` for what JSON cannot say.
    """
    tensor = column.tensor
    if tensor.datatype == BYTES:
        try:
            return [one.decode() for row in column.rows for one in row]
        except UnicodeDecodeError:
            raise BadOutput(
                f"output {tensor.name!r} has bytes that are no UTF-8; ask for binary data"
            ) from None
    stacked = np.array(column.rows)
    if stacked.dtype.kind == "f" and not np.isfinite(stacked).all():
        raise BadOutput(f"output {tensor.name!r} has NaN or infinity, which JSON lacks; ask for binary data")
    return stacked.ravel().tolist()


def _array(tensor: Tensor, value: Any, place: int) -> Any:
    """Return what is no array as one, of the wanted dtype where nothing is lost by that."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    wanted = _DTYPES[tensor.datatype]
    try:
        array = np.asarray(value)
        if type(value) not in (bool, int, float, list, tuple):
            return array  # a tensor, or what else knows its own dtype
        if array.dtype.kind in "iu" and wanted.kind in "iu":
            made = array.astype(wanted)
            if not (made == array).all():
                raise OverflowError("it has a number beyond those")
            return made
        with np.errstate(over="raise"):
            return array.astype(wanted, casting="same_kind")
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise _bad(tensor, place, f"is no {tensor.datatype}: {str(error)[:200]}") from None


def _elements(tensor: Tensor, value: Any, place: int) -> tuple[list[bytes], tuple[int, ...]]:
    """Return the elements of a value of BYTES, and its shape."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    shape: list[int] = []
    level = [value]
    while isinstance(level[0], list | tuple) and len(shape) <= DIMENSIONS:
        lengths = {len(one) if isinstance(one, list | tuple) else 0 for one in level}
        if len(lengths) > 1 or not min(lengths):
            raise _bad(tensor, place, "is nested unevenly, or has no elements")
        shape += lengths
        level = list(chain.from_iterable(level))
    elements: list[bytes] = []
    for one in level:
        if isinstance(one, str):
            elements.append(one.encode("utf-8", "replace"))
        elif isinstance(one, bytes):
            elements.append(one)
        else:
            raise _bad(tensor, place, f"holds a {type(one).__name__}, wanted bytes or str")
    return elements, tuple(shape)


def _bad(tensor: Tensor, place: int, fault: str) -> BadOutput:
    return BadOutput(f"output {tensor.name!r} of item {place} {fault}")


def _shown(shape: Sequence[int]) -> str:
    shown = ", ".join(str(one) for one in shape[: DIMENSIONS + 1])
    return f"[{shown[:300]}]"
