"""Items become bytes and array buffers, and come back as what they were; nothing in them is ever executed.

The form is msgpack with msgpack-numpy's maps for arrays, NumPy scalars and complex numbers, so any
msgpack-numpy speaker understands them.  What it cannot carry has an extension type of our own, below.
Decoding trusts nobody: dtypes come from a list, sizes must fit to the byte, and pickle is never called.

Array data of :data:`INLINE` bytes and more travels as a buffer of its own beside the item, uncopied; in its
place in the map stands an extension :data:`BUFFER` with the number of the buffer.
"""

from __future__ import annotations

import datetime
import importlib
import re
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import msgpack
import msgspec
from msgspec.msgpack import Ext

Buffer = bytes | memoryview

INLINE = 65_536
"""Bytes: below this a copy is cheaper than a frame of its own."""

CHUNK, WHOLE = 512 << 10, 768 << 10
"""Bytes: a buffer larger than WHOLE travels in frames of CHUNK.  A link is given up that brings no whole
frame for 10 s, so this is the slowest that carries anything: 50 kB/s."""

DEPTH = 64
"""Containers within containers: more is a mistake or an attack."""

ON_STACK = 3
"""Tuples within tuples that are read the quick way, which takes 30 kB of the C stack for each; 64 of them
would end the process in a thread of 512 KiB, as macOS has them.  Deeper ones are read on the heap."""

TUPLE, BUFFER, BIG_INT, DATETIME, DATE, TIME, TIMEDELTA, TENSOR, NUMPY_TIME, ESCAPED, BYTES = range(1, 12)
"""Codes of our extension types.  docs/protocol.md has the bytes of each."""

_FORM: dict[str, Any] = {"raw": False, "strict_map_key": False, "timestamp": 3}
"""How msgpack is read; its own timestamps (3), which other speakers may send, are datetimes in UTC."""

_ALLOWED = "?bBhHiIlLqQefdFDSUmM"
_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
_SMALL = _PLAIN - {bytes}
"""What is plain and never so large that it travels beside the item."""
_ND, _TYPE, _KIND, _SHAPE, _DATA = b"nd", b"type", b"kind", b"shape", b"data"
_COMPLEX = b"complex"
_FOLD = b"+fold"
"""Behind a time that is the second of its name, when clocks were set back: ISO 8601 cannot say it."""
_MARKED = frozenset((_ND, _COMPLEX, "nd", "complex"))
_to_msgpack = msgspec.msgpack.Encoder().encode
_from_msgpack = msgspec.msgpack.Decoder().decode
_SCALAR = frozenset(
    (*range(0x80), *range(0xA0, 0xC7), *range(0xCA, 0xD4), *range(0xD9, 0xDC), *range(0xE0, 0x100))
)
"""First bytes of what holds no other value: those need none of the care below."""
_DTYPE = re.compile(r"[<>|=]?[?a-zA-Z]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?", re.ASCII)
"""What ``dtype.str`` says of the dtypes that are carried, such as ``<f4`` or ``<M8[25us]``."""
_TORCH_DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
)


class _Numpy:
    """NumPy, loaded when an array first comes by: a web process that sends text pays nothing for it."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module("numpy"), name)
        setattr(self, name, found)  # found without us from now on
        return found


np = _Numpy()


class Malformed(ValueError):
    """These bytes are no item."""


def encode(item: object, place: int | None = None) -> tuple[bytes, Sequence[Buffer]]:
    """Return an item's bytes and its buffers.

    Raises ``TypeError`` for what cannot be carried, naming the path of the value, which begins with the
    item's ``place`` where it is one of several.
    """
    if _is_plain(item, 0):
        try:
            return _to_msgpack(item), ()
        except (UnicodeEncodeError, OverflowError):
            pass  # a text is told below, by its path; a number has a form of its own
    buffers: list[Buffer] = []
    path = "item" if place is None else f"item {place}"
    encoded = _to_msgpack(_lowered(item, path, 0, buffers))
    return encoded, buffers


def decode(data: bytes, buffers: Sequence[Any] = (), *, writable: bool = True) -> Any:
    """Return the item that :func:`encode` was given.

    Its arrays may be written to, and belong to who asked: small ones are copies, large ones lie in the frames
    that came, which nobody may decode again then.  Without ``writable`` all are read-only, and the same bytes
    may be decoded once more.  Raises :class:`Malformed` for everything else.
    """
    if data and data[0] in _SCALAR and not buffers:
        try:
            return _from_msgpack(data)
        except (ValueError, RecursionError):
            raise Malformed("no item: it is cut off, goes on, or is no UTF-8") from None
    if not data and buffers:
        # All outputs of its batch together were too much for one frame.
        data, buffers = bytes(buffers[0]), buffers[1:]
    reader = _Reader(buffers, writable)
    try:
        item = msgpack.unpackb(data, **_FORM, object_hook=reader.map, ext_hook=reader.extension)
    except Malformed:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        OverflowError,
        RecursionError,
        MemoryError,
        struct.error,
        msgpack.UnpackException,
    ) as error:
        raise Malformed(f"no item: {type(error).__name__}") from None
    if reader.used != len(buffers):
        raise Malformed(f"{len(buffers)} buffers came, {reader.used} are spoken of")
    return item


decode_read_only = partial(decode, writable=False)
"""For batches, which may run again from the same bytes."""


# --- encoding ------------------------------------------------------------------------------------


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether msgpack writes a value as it is; most are so, and are not looked at part by part."""
    kind = type(value)
    if kind in _PLAIN:
        return _is_short(value, kind)
    if depth >= DEPTH:
        return False
    if kind is dict:
        if not _SMALL.issuperset(map(type, value)) or not _MARKED.isdisjoint(value):
            return False
        value = value.values()
    elif kind is not list:
        return False
    return _SMALL.issuperset(map(type, value)) or all(_is_plain(one, depth + 1) for one in value)


def _lowered(value: Any, path: str, depth: int, buffers: list[Buffer]) -> Any:
    """Return a value of which msgpack knows every part."""
    kind = type(value)
    if kind in _PLAIN:
        return _plain(value, path) if _is_short(value, kind) else Ext(BYTES, _beside(value, buffers))
    if depth >= DEPTH:
        raise TypeError(f"{path} is nested more than {DEPTH} deep, or contains itself")
    if kind is list:
        return [_lowered(one, f"{path}[{at}]", depth + 1, buffers) for at, one in enumerate(value)]
    if kind is tuple:
        parts = [_lowered(one, f"{path}[{at}]", depth + 1, buffers) for at, one in enumerate(value)]
        return Ext(TUPLE, _to_msgpack(parts))
    if kind is dict:
        return _lowered_dict(value, path, depth, buffers)
    # What is not loaded in this program made none of its values.
    if "numpy" in sys.modules:
        if kind is np.ndarray:
            return _lowered_array(value, path, buffers)
        if isinstance(value, np.generic):
            return _lowered_scalar(value, path)
    if kind is complex:
        return {_COMPLEX: True, _DATA: repr(value)}
    lowered = _lowered_time(value, path)
    if lowered is not None:
        return lowered
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _lowered_tensor(value, path, buffers, torch)
    if kind is bytearray or kind is memoryview:
        raise TypeError(f"{path} is a {kind.__name__}; wanted bytes: use bytes(value)")
    raise TypeError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent; zbatch carries None, "
        "bool, int, float, complex, str, bytes, list, tuple, dict, dates, times, NumPy scalars, arrays, "
        "tensors"
    )


def _plain(value: Any, path: str) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**64:
        return Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TypeError(f"{path} is a str with lone surrogates, which no encoding carries") from None
    return value


def _lowered_dict(value: dict[Any, Any], path: str, depth: int, buffers: list[Buffer]) -> Any:
    pairs = []
    # A dict that looks like msgpack-numpy's form of an array must come back as the dict that it is.
    plain = _MARKED.isdisjoint(value)
    for key, one in value.items():
        if type(key) not in _PLAIN:
            raise TypeError(
                f"{path} has a key of type {type(key).__name__}; keys are str, bytes, int, float, bool, None"
            )
        lowered = _plain(key, f"a key of {path}")
        plain = plain and type(lowered) is not Ext
        pairs.append([lowered, _lowered(one, f"{path}[{key!r:.40}]", depth + 1, buffers)])
    return dict(pairs) if plain else Ext(ESCAPED, _to_msgpack(pairs))


def _lowered_array(value: Any, path: str, buffers: list[Buffer]) -> Any:
    dtype = value.dtype
    _require_dtype(dtype, path)
    if dtype.char in "mM":
        raw = np.ascontiguousarray(value).tobytes()
        return Ext(NUMPY_TIME, _to_msgpack([dtype.str, list(value.shape), raw]))
    # ascontiguousarray makes a 0-d array 1-d; the shape that is sent is the true one.
    data: Any = np.ascontiguousarray(value)
    if value.nbytes >= INLINE:
        data = Ext(BUFFER, _beside(data.view(np.uint8).reshape(-1), buffers))
    else:
        data = data.tobytes()
    return {_ND: True, _TYPE: dtype.str, _KIND: b"", _SHAPE: list(value.shape), _DATA: data}


def _is_short(value: Any, kind: type[Any]) -> bool:
    return kind is not bytes or len(value) < INLINE


def _beside(raw: Any, buffers: list[Buffer]) -> bytes:
    """Put bytes among the buffers, uncopied, in several frames where they are many; return where they are."""
    view = memoryview(raw)
    place = len(buffers).to_bytes(4, "big")
    if view.nbytes <= WHOLE:
        buffers.append(view)
        return place
    parts = [view[at : at + CHUNK] for at in range(0, view.nbytes, CHUNK)]
    buffers += parts
    return place + len(parts).to_bytes(4, "big")


def _lowered_scalar(value: Any, path: str) -> Any:
    _require_dtype(value.dtype, path)
    if value.dtype.char in "mM":
        return Ext(NUMPY_TIME, _to_msgpack([value.dtype.str, None, value.tobytes()]))
    return {_ND: False, _TYPE: value.dtype.str, _DATA: value.tobytes()}


def _lowered_time(value: Any, path: str) -> Any:
    kind = type(value)
    if kind is datetime.datetime:
        if value.tzinfo is not None and value.utcoffset() is None:
            raise TypeError(f"{path} is a datetime whose time zone has no offset")
        return Ext(DATETIME, value.isoformat().encode() + _FOLD * value.fold)
    if kind is datetime.date:
        return Ext(DATE, value.isoformat().encode())
    if kind is datetime.time:
        return Ext(TIME, value.isoformat().encode() + _FOLD * value.fold)
    if kind is datetime.timedelta:
        return Ext(TIMEDELTA, struct.pack(">iii", value.days, value.seconds, value.microseconds))
    return None


def _lowered_tensor(value: Any, path: str, buffers: list[Buffer], torch: Any) -> Any:
    name = str(value.dtype).removeprefix("torch.")
    if name not in _TORCH_DTYPES or value.layout != torch.strided:
        raise TypeError(
            f"{path} is a {value.layout} tensor of {name}; wanted a dense one of {', '.join(_TORCH_DTYPES)}"
        )
    if value.is_meta:
        raise TypeError(f"{path} is a tensor on the device meta, which has no data")
    # A conjugate or a negative may be a view that says so of data that are as they were.
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
    if raw.nbytes >= INLINE:
        data: Any = Ext(BUFFER, _beside(raw, buffers))
    else:
        data = raw.tobytes()
    return Ext(TENSOR, _to_msgpack([name, list(value.shape), data]))


def _require_dtype(dtype: Any, path: str) -> None:
    if dtype.char not in _ALLOWED or not dtype.itemsize or dtype.names or dtype.subdtype:
        raise TypeError(
            f"{path} has dtype {dtype}; zbatch carries booleans, numbers, fixed strings, dates and times: "
            "make it one of these with .astype(...), or a list with .tolist()"
        )


# --- decoding ------------------------------------------------------------------------------------


class _Reader:
    """Reads one item; each buffer is used once, in order."""

    def __init__(self, buffers: Sequence[Any], writable: bool) -> None:
        self._buffers = buffers
        self._writable = writable
        self._depth = 0
        self.used = 0

    def map(self, found: dict[Any, Any]) -> Any:
        if _ND in found:
            if found[_ND] is True:
                if found.get(_KIND, b"") != b"":
                    raise Malformed("an array of another kind than numbers")
                return self._array(found[_TYPE], found[_SHAPE], found[_DATA])
            return self._array(found[_TYPE], None, found[_DATA])
        if _COMPLEX in found:
            return complex(found[_DATA])
        return found

    def extension(self, code: int, data: bytes) -> Any:
        match code:
            case 1:
                return tuple(self._nested(data))
            case 2:
                return self._buffer(data)
            case 3:
                return int.from_bytes(data, "big", signed=True)
            case 4:
                return _from_iso(datetime.datetime, data)
            case 5:
                return datetime.date.fromisoformat(data.decode())
            case 6:
                return _from_iso(datetime.time, data)
            case 7:
                days, seconds, microseconds = struct.unpack(">iii", data)
                return datetime.timedelta(days, seconds, microseconds)
            case 8:
                name, shape, raw = self._nested(data)
                return self._tensor(name, shape, raw)
            case 9:
                name, shape, raw = self._nested(data)
                return self._array(name, shape, raw)
            case 10:
                return dict(self._nested(data))
            case 11:
                return bytes(self._buffer(data))
            case _:
                raise Malformed(f"extension type {code} is unknown")

    def _nested(self, data: bytes) -> Any:
        if self._depth == DEPTH:
            raise Malformed(f"nested more than {DEPTH} deep")
        self._depth += 1
        if self._depth > ON_STACK:
            value = self._unpacked_on_heap(data)
        else:
            value = msgpack.unpackb(data, **_FORM, object_hook=self.map, ext_hook=self.extension)
        self._depth -= 1
        return value

    def _unpacked_on_heap(self, data: bytes) -> Any:
        # Made for each part: one that were kept would tie this reader, and the frames, into a cycle.
        unpacker = msgpack.Unpacker(
            **_FORM,
            object_hook=self.map,
            ext_hook=self.extension,
            max_buffer_size=0,
            read_size=len(data) or 1,  # left out, it would be a MiB
        )
        unpacker.feed(data)
        value = unpacker.unpack()
        if unpacker.read_bytes(1):
            raise Malformed("a part goes on after its end")
        return value

    def _buffer(self, where: bytes) -> memoryview:
        number = int.from_bytes(where[:4], "big")
        count = int.from_bytes(where[4:], "big") if len(where) == 8 else 1
        is_next = number == self.used and 0 < count <= len(self._buffers) - number
        if not is_next or len(where) not in (4, 8):
            raise Malformed(
                f"buffer {number} is spoken of, {self.used} would be next of {len(self._buffers)}"
            )
        self.used += count
        if count == 1:
            return memoryview(self._buffers[number])
        return memoryview(bytearray().join(self._buffers[number : number + count]))

    def _array(self, name: Any, shape: Any, raw: Any) -> Any:
        if type(name) is not str or len(name) > 32 or not isinstance(raw, bytes | memoryview):
            raise Malformed("an array's dtype is a short string and its data bytes")
        dtype = _dtype(name)
        flat = np.frombuffer(raw, dtype) if len(raw) else np.empty(0, dtype)
        if shape is None:
            if flat.shape != (1,):
                raise Malformed("a scalar of another size than its dtype")
            return flat[0]
        array = flat.reshape(_shape(shape, flat.size))
        if not self._writable:
            array.flags.writeable = False
        elif not array.flags.writeable:
            return array.copy()
        return array

    def _tensor(self, name: Any, shape: Any, raw: Any) -> Any:
        if name not in _TORCH_DTYPES or not isinstance(raw, bytes | memoryview):
            raise Malformed("a tensor of a dtype that is not carried")
        # The sender had it; a tensor is of no use without.
        try:
            torch: Any = sys.modules.get("torch") or importlib.import_module("torch")
        except ImportError:
            raise Malformed("it is a torch tensor, and torch is not installed here") from None
        dtype = getattr(torch, name)
        sizes = _shape(shape, len(raw) // dtype.itemsize)
        if not len(raw):
            return torch.empty(sizes, dtype=dtype)
        # A tensor cannot be read-only, so it gets memory of its own.
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(sizes)


def _from_iso(kind: Any, data: bytes) -> Any:
    when = kind.fromisoformat(data.removesuffix(_FOLD).decode())
    return when.replace(fold=1) if data.endswith(_FOLD) else when


@lru_cache(maxsize=64)
def _dtype(name: str) -> Any:
    # NumPy reads a small language here, with commas and brackets, and stumbles over some of its sentences.
    if not _DTYPE.fullmatch(name):
        raise Malformed("a dtype that is not carried")
    dtype = np.dtype(name)
    if dtype.char not in _ALLOWED or not dtype.itemsize or dtype.names or dtype.subdtype:
        raise Malformed("a dtype that is not carried")
    return dtype


def _shape(shape: Any, size: int) -> tuple[int, ...]:
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(one) is int and one >= 0 for one in shape)
    ):
        raise Malformed("a shape is a list of sizes")
    product = 1
    for one in shape:
        product *= one
    if product != size:
        raise Malformed(f"an array of {size} elements has a shape of {product}")
    return tuple(shape)
