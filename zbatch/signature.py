"""What tensors a model takes and gives, as its class attribute ``signature`` declares them.

``signature = {"inputs": [{"name", "datatype", "shape"}], "outputs": [...]}``.  A shape is that of one item,
so without the batch's dimension, and -1 stands for any length.  Items are then dicts of arrays by input name,
and outputs are dicts by output name.  Datatypes are those of the Open Inference Protocol.

BYTES are no array of NumPy's, whose own strings lose zeros at their end: of shape [] such a value is a bytes,
else a list, nested as deep as its shape is long.  BF16 is left out, since NumPy has no such type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from zbatch.errors import BadInput, BadOutput, ConfigError, ZbatchError
from zbatch.payload import np

DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""Each datatype that has an array, with NumPy's name for it."""

BYTES = "BYTES"

ANY = -1
"""A length in a shape that may be any."""

DIMENSIONS = 31
"""The most that a shape may have: NumPy before 2.0 knows 32, and the batch is one of them."""

ELEMENTS = 1 << 40
"""More than this in one item is a mistake, and products of larger ones overflow."""

NAME_LENGTH = 256


class Tensor(msgspec.Struct, frozen=True):
    """One input or output of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= NAME_LENGTH:
            raise ValueError(f"a name has {len(self.name)} characters, wanted 1 to {NAME_LENGTH}")
        if self.datatype not in DTYPES and self.datatype != BYTES:
            raise ValueError(
                f"datatype is {self.datatype!r:.40}, wanted one of {', '.join([*DTYPES, BYTES])}"
            )
        if len(self.shape) > DIMENSIONS:
            raise ValueError(f"shape has {len(self.shape)} dimensions, wanted at most {DIMENSIONS}")
        if any(length < 1 and length != ANY for length in self.shape):
            raise ValueError(f"shape is {_shown(self.shape)}, wanted lengths of 1 and more, or -1 for any")
        if math.prod(map(abs, self.shape)) > ELEMENTS:
            raise ValueError(f"shape is {_shown(self.shape)}, which is more than {ELEMENTS} elements")

    def zeros(self) -> Any:
        """Return a value that fits: zeros, with every free length 1."""
        shape = tuple(map(abs, self.shape))
        if self.datatype == BYTES:
            return _nested(shape)
        return np.zeros(shape, DTYPES[self.datatype])[()]  # of shape [] a scalar, as rows of a vector are

    def fault_of(self, value: object) -> str:
        """Return in which way a value does not fit, to go on behind its path; empty where it fits."""
        if self.datatype == BYTES:
            return _fault_of_bytes(value, self.shape)
        dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
        if type(shape) is not tuple or not isinstance(dtype, np.dtype):
            return (
                f" is of type {type(value).__name__}, wanted an array of {self.datatype} {_shown(self.shape)}"
            )
        if dtype != _dtype(self.datatype):
            return f" has datatype {datatype_of(dtype)}, wanted {self.datatype}"
        if not fits(shape, self.shape):
            return f" has shape {_shown(shape)}, wanted {_shown(self.shape)}"
        return ""


class Signature(msgspec.Struct, frozen=True):
    """What a model takes and gives."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        for side, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            names = [one.name for one in tensors]
            if not names:
                raise ValueError(f"{side} is empty, wanted at least one tensor")
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{side} has the name {name!r:.80} twice")

    @classmethod
    def of(cls, raw: object) -> Signature:
        """Return what a model declares; raises :class:`ConfigError` with a sentence for what is malformed."""
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, Mapping):
            raise ConfigError(
                f"signature is of type {type(raw).__name__}, wanted a dict with inputs and outputs"
            )
        _require_keys(raw, "signature", cls.__struct_fields__)
        for side in cls.__struct_fields__:
            tensors = raw.get(side)
            if isinstance(tensors, list | tuple):
                for place, one in enumerate(tensors):
                    if isinstance(one, Mapping):
                        _require_keys(one, f"signature.{side}[{place}]", Tensor.__struct_fields__)
        try:
            return msgspec.convert(raw, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ConfigError(_sentence(error)) from None

    @classmethod
    def from_json(cls, data: bytes) -> Signature:
        """Return what :meth:`json` wrote; keys that a later version may have added are passed over.

        Raises :class:`ConfigError` for what is none.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(_sentence(error)) from None

    def json(self) -> bytes:
        """Return it as JSON; raises :class:`ConfigError` where a name has no bytes."""
        try:
            return msgspec.json.encode(self)
        except UnicodeEncodeError:
            raise ConfigError(
                "signature has a name with lone surrogates, which no encoding carries"
            ) from None

    def zeros(self) -> dict[str, Any]:
        """Return an item that fits: zeros, with every free length 1, and b"" for BYTES."""
        return {one.name: one.zeros() for one in self.inputs}

    def check_item(self, item: object) -> None:
        """Raise :class:`BadInput` with the path of the fault for an item that does not fit."""
        _check(item, self.inputs, "item", BadInput)

    def check_output(self, output: object) -> None:
        """Raise :class:`BadOutput` with the path of the fault for an output that does not fit."""
        _check(output, self.outputs, "output", BadOutput)


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether a shape is one of those that ``wanted`` allows."""
    return len(shape) == len(wanted) and all(
        length in (seen, ANY) for seen, length in zip(shape, wanted, strict=True)
    )


def datatype_of(dtype: Any) -> str:
    """Return the protocol's name of an array's dtype, or NumPy's where the protocol has none."""
    return _names().get(dtype, str(dtype)[:40])


@lru_cache(maxsize=1)
def _names() -> dict[Any, str]:
    return {np.dtype(name): datatype for datatype, name in DTYPES.items()}


@lru_cache(maxsize=len(DTYPES))
def _dtype(datatype: str) -> Any:
    return np.dtype(DTYPES[datatype])


def _check(found: object, wanted: Sequence[Tensor], path: str, error: type[ZbatchError]) -> None:
    if not isinstance(found, dict):
        names = ", ".join(repr(one.name) for one in wanted)
        raise error(f"{path} is of type {type(found).__name__}, wanted a dict with {names}")
    for tensor in wanted:
        if tensor.name not in found:
            raise error(f"{path} has no {tensor.name!r}, wanted {tensor.datatype} {_shown(tensor.shape)}")
        fault = tensor.fault_of(found[tensor.name])
        if fault:
            raise error(f"{path}[{tensor.name!r}]{fault}")
    if len(found) > len(wanted):
        known = [one.name for one in wanted]
        other = next(name for name in found if name not in known)
        raise error(f"{path} has {other!r:.80}, wanted only {', '.join(map(repr, known))}")


def _fault_of_bytes(value: object, shape: Sequence[int], path: str = "") -> str:
    if not shape:
        if type(value) is bytes:
            return ""
        return f"{path} is of type {type(value).__name__}, wanted bytes"
    if not isinstance(value, list):
        return f"{path} is of type {type(value).__name__}, wanted a list of BYTES {_shown(shape)}"
    if not fits((len(value),), shape[:1]):
        return f"{path} has {len(value)} elements, wanted {shape[0]}"
    for place, one in enumerate(value):
        fault = _fault_of_bytes(one, shape[1:], f"{path}[{place}]")
        if fault:
            return fault
    return ""


def _nested(shape: Sequence[int]) -> Any:
    if not shape:
        return b""
    return [_nested(shape[1:]) for _ in range(shape[0])]


def _require_keys(raw: Mapping[Any, Any], path: str, keys: Sequence[str]) -> None:
    for key in keys:
        if key not in raw:
            raise ConfigError(f"{path} has no {key!r}, wanted {', '.join(keys)}")
    for key in raw:
        if key not in keys:
            raise ConfigError(f"{path} has {key!r:.80}, wanted only {', '.join(keys)}")


def _sentence(error: Exception) -> str:
    """Return msgspec's sentence with the path in front, in Python's words."""
    text, found, path = str(error).rpartition(" - at `$")
    if not found:
        return f"signature: {error}"
    return f"signature{path.rstrip('`')}: {text}"


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape[: DIMENSIONS + 1]))}]"
