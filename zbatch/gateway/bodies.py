"""Bodies of HTTP requests and answers: JSON, msgpack, raw bytes, text and .npy, by Content-Type and Accept.

What a body says becomes items, and outputs become a body; names, types and shapes that a model declares are
checked elsewhere.  Nothing here reads from a connection.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import msgspec

from zbatch import payload
from zbatch.errors import BadRequest, TooLarge
from zbatch.gateway.answers import JSON, NotAcceptable, UnsupportedMedia

MSGPACK = "application/msgpack"
RAW = "application/octet-stream"
NPY = "application/x-npy"
TEXT = "text/plain; charset=utf-8"

NPY_HEADER = 10_000
"""Bytes of an .npy header: it holds a dtype and a shape."""

DIMENSIONS = 64
"""Dimensions of an array, as NumPy bounds them."""

MOST_ITEMS = 16_384
"""Items of one request: as many as a broker holds for a client by default.  A body that says millions, which
few bytes can, would otherwise cost gigabytes before the broker refuses it."""

MOST_EMPTY = 1 << 20
"""The lengths of an array without elements, multiplied but for the zeros: it has no bytes, so nothing else
bounds the empty lists that it is in JSON."""

_TYPES = {
    "": JSON,
    "application/json": JSON,
    # What curl -d says where nobody says otherwise.
    "application/x-www-form-urlencoded": JSON,
    "application/msgpack": MSGPACK,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
    "application/octet-stream": RAW,
    "application/x-npy": NPY,
    "application/npy": NPY,
    "text/plain": TEXT,
}
_RAW_FAMILIES = ("image/", "audio/", "video/")
_ANY = ("", "*/*", "application/*")

WANTED = f"application/json, {MSGPACK}, {NPY}, {RAW} (or image/*, audio/*, video/*), text/plain"


# --- coming in ------------------------------------------------------------------------------------


def form_of(content_type: str) -> str:
    """Return in which form a body is.

    Raises :class:`UnsupportedMedia` for a type that is not read here.
    """
    found = _TYPES.get(content_type)
    if found is not None:
        return found
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    found = _TYPES.get(kind)
    if found is None and kind.startswith(_RAW_FAMILIES):
        found = RAW
    elif found is None and kind.startswith("application/") and kind.endswith("+json"):
        found = JSON
    if found is None:
        raise UnsupportedMedia(f"content-type is {content_type[:100]!r}, wanted one of {WANTED}")
    charset = parameters.strip().lower()
    if found in (JSON, TEXT) and charset.startswith("charset=") and charset[8:].strip('"') not in _UTF8:
        raise UnsupportedMedia(f"content-type is {content_type[:100]!r}, wanted utf-8")
    return found


_UTF8 = ("utf-8", "utf8", "us-ascii")


def read_item(form: str, body: bytes) -> Any:
    """Return the one item that a body holds; raises :class:`BadRequest` for what is none."""
    return _READERS[form](body)


def read_items(form: str, body: bytes) -> Sequence[Any]:
    """Return the items that a body holds: those of a list, or the rows of an array.

    Raises :class:`TooLarge` where they are more than one request may have.
    """
    if form in (RAW, TEXT):
        raise UnsupportedMedia(f"a batch is a list or an array; {form} is one item, ask /predict/TOPIC")
    if form == MSGPACK:
        _check_count(_announced(body))
    items = _READERS[form](body)
    if form == NPY:
        if not items.ndim:
            raise BadRequest("the array has no dimension; the rows of its first one are the items")
    elif not isinstance(items, list):
        raise BadRequest(f"the body holds one {_named(items)}, wanted a list of items")
    _check_count(len(items))
    return list(items)


def _announced(body: bytes) -> int:
    """Return how many items a list in msgpack says it has, where they may be many."""
    return int.from_bytes(body[1:5], "big") if body[:1] == _ARRAY_32 else 0


def _check_count(count: int) -> None:
    if count > MOST_ITEMS:
        raise TooLarge(f"the body has {count} items, wanted at most {MOST_ITEMS}; send fewer at a time")


_ARRAY_32 = b"\xdd"
"""How msgpack begins a list of 65,536 items and more."""


def _read_json(body: bytes) -> Any:
    if not body:
        raise BadRequest('the body is empty, wanted JSON: an item, such as "some text"')
    try:
        return _decode_json(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no JSON: {str(error) or 'it is nested too deeply'}") from None


def _read_msgpack(body: bytes) -> Any:
    try:
        return payload.decode(body)
    except payload.Malformed as error:
        raise BadRequest(f"the body is no msgpack that is read here: {error}") from None


def _read_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is no UTF-8: {error.reason} at byte {error.start}") from None


def _read_npy(body: bytes) -> Any:
    import numpy as np  # noqa: PLC0415  a gateway of texts needs none
    from numpy.lib import format as npy  # noqa: PLC0415

    stream = io.BytesIO(body)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, in_columns, dtype = read(stream, max_header_size=NPY_HEADER)
    except Exception as error:  # it parses a Python literal, and fails in many ways
        why = (str(error) or "it is cut off").splitlines()[0][:200]
        raise BadRequest(f"the body is no .npy: {why}") from None
    if dtype.hasobject or dtype.names or dtype.subdtype or not dtype.itemsize:
        raise BadRequest(f"the .npy holds dtype {str(dtype)[:100]}; wanted numbers, booleans, dates or texts")
    # Also True is a length to NumPy's reader, and a number so long that Python will not write it.
    if len(shape) > DIMENSIONS or any(
        type(size) is not int or not 0 <= size <= sys.maxsize for size in shape
    ):
        raise BadRequest("the .npy has a shape that no array has")
    count = math.prod(shape)
    came = len(body) - stream.tell()
    if count * dtype.itemsize != came:
        wanted = f"{str(shape)[:100]} of {dtype}, {str(count * dtype.itemsize)[:40]} bytes"
        raise BadRequest(f"the .npy says {wanted}; {came} came")
    if dtype.kind == "U":
        points = np.frombuffer(body, np.dtype("u4").newbyteorder(dtype.byteorder), offset=stream.tell())
        if points.size and points.max() > sys.maxunicode:
            raise BadRequest("the .npy holds characters that Unicode does not have")
    flat = np.frombuffer(body, dtype, count, stream.tell())
    try:
        return flat.reshape(shape, order="F" if in_columns else "C")
    except (ValueError, OverflowError):  # empty, with lengths that are too much for it together
        raise BadRequest("the .npy has a shape that no array has") from None


_decode_json = msgspec.json.Decoder().decode

_READERS: Mapping[str, Callable[[bytes], Any]] = {
    JSON: _read_json,
    MSGPACK: _read_msgpack,
    RAW: lambda body: body,
    NPY: _read_npy,
    TEXT: _read_text,
}


# --- going out ------------------------------------------------------------------------------------


class Body(NamedTuple):
    """A body and its type."""

    kind: str
    data: bytes


def write(accept: str, output: Any) -> Body:
    """Return an output as a body in a form that is accepted; the client's first choice that it fits into.

    Where anything is accepted: bytes as they are, everything else as JSON.  Raises :class:`NotAcceptable`.
    """
    if accept in _ANY or accept == JSON:
        return Body(RAW, bytes(output)) if type(output) is bytes and accept != JSON else _as_json(output)
    refused = ""
    for kind in wanted(accept):
        try:
            return _written(kind, output)
        except NotAcceptable as error:
            refused = refused or str(error)
    raise NotAcceptable(refused or f"accept is {accept[:200]!r}, wanted one of {WANTED}")


def _written(kind: str, output: Any) -> Body:
    if kind in _ANY:
        return write("", output)
    form = _TYPES.get(kind)
    if form == JSON:
        return _as_json(output)
    if form == MSGPACK:
        return Body(MSGPACK, _pack(output))
    if form == NPY:
        return Body(NPY, _as_npy(output))
    if form == TEXT or kind == "text/*":
        if isinstance(output, str):
            return Body(TEXT, output.encode())
        raise NotAcceptable(f"the output is a {_named(output)}, no text")
    if form == RAW or kind.startswith(_RAW_FAMILIES):
        if isinstance(output, bytes):
            return Body(RAW if form == RAW or "*" in kind else kind, output)
        raise NotAcceptable(f"the output is a {_named(output)}, no bytes")
    raise NotAcceptable(f"accept is {kind[:100]!r}, wanted one of {WANTED}")


def is_written(kind: str) -> bool:
    """Return whether some output can be written as this type."""
    return kind in _ANY or kind in _TYPES or kind == "text/*" or kind.startswith(_RAW_FAMILIES)


def wanted(accept: str) -> list[str]:
    """Return the types of an Accept header, best first; those with q=0 are left out."""
    found = []
    for place, one in enumerate(accept.split(",")[:32]):
        kind, *parameters = one.split(";")
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        if weight > 0:
            found.append((-weight, place, kind.strip().lower()))
    return [kind for *_, kind in sorted(found)]


def _as_json(output: Any) -> Body:
    try:
        return Body(JSON, _encode_json(output))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotAcceptable(f"the output cannot be written as JSON: {error}; accept {MSGPACK}") from None


def plain(value: Any) -> Any:
    """Return arrays as lists and their scalars as numbers, for JSON; a NaN in it becomes null."""
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        shape = getattr(value, "shape", ())
        if 0 in shape and math.prod(length or 1 for length in shape) > MOST_EMPTY:
            raise TypeError(f"it holds an array of shape {tuple(shape)}, with too many empty lists")
        return tolist()
    raise TypeError(f"it holds a {_named(value)}")


_encode_json = msgspec.json.Encoder(enc_hook=plain).encode


def _pack(output: Any) -> bytes:
    encoded, buffers = payload.encode(output)
    if not buffers:
        return encoded
    # Large arrays lie beside the item; over HTTP they lie in it, as msgpack-numpy has them.
    import msgpack_numpy  # noqa: PLC0415

    packed: bytes = msgpack.packb(output, default=msgpack_numpy.encode)
    return packed


def _as_npy(output: Any) -> bytes:
    import numpy as np  # noqa: PLC0415
    from numpy.lib import format as npy  # noqa: PLC0415

    try:
        array = np.asarray(output)
    except ValueError:
        raise NotAcceptable("the output is no array: its rows differ in length") from None
    if array.dtype.hasobject:
        raise NotAcceptable(f"the output is a {_named(output)}, no array")
    stream = io.BytesIO()
    npy.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def _named(value: Any) -> str:
    kind = type(value).__name__
    return {"NoneType": "null", "dict": "object", "ndarray": "array"}.get(kind, kind)
