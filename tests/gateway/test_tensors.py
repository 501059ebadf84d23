"""Tensors in JSON and in bytes: what comes back as it was, and what is told to what is none."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbatch.errors import BadInput, BadOutput
from zbatch.gateway.tensors import (
    Column,
    check_shape,
    column,
    read_binary,
    read_json,
    read_raw,
    write_binary,
    write_json,
)
from zbatch.signature import BYTES, DTYPES, Tensor

ARRAYS = sorted(DTYPES)
IN_JSON = [one for one in ARRAYS if one != "FP16"]


def declared(datatype: str, *shape: int) -> Tensor:
    return Tensor("x", datatype, shape)


def raw(data: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(data))


def elements(datatype: str) -> st.SearchStrategy[Any]:
    dtype = np.dtype(DTYPES[datatype])
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind == "f":
        return st.floats(width=dtype.itemsize * 8, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    limits = np.iinfo(dtype)
    return st.integers(int(limits.min), int(limits.max))


@st.composite
def arrays(draw: st.DrawFn, datatypes: list[str] = ARRAYS) -> tuple[str, Any]:
    datatype = draw(st.sampled_from(datatypes))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = math.prod(shape)
    flat = draw(st.lists(elements(datatype), min_size=count, max_size=count))
    return datatype, np.array(flat, DTYPES[datatype]).reshape(shape)


@st.composite
def words(draw: st.DrawFn, kind: st.SearchStrategy[bytes]) -> tuple[list[int], list[bytes]]:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = math.prod(shape)
    return shape, draw(st.lists(kind, min_size=count, max_size=count))


def nested(shape: list[int], flat: list[bytes]) -> Any:
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(shape).tolist()


def same(left: Any, right: Any) -> bool:
    return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())


# --- round trips ------------------------------------------------------------------------------------


@given(arrays())
def test_an_array_comes_back_from_its_bytes(given_: tuple[str, Any]) -> None:
    datatype, array = given_
    tensor = declared(datatype, *array.shape[1:])
    made = column(tensor, list(array))
    assert made.shape == array.shape
    parts, size = write_binary(made)
    joined = b"".join(parts)
    assert len(joined) == size
    assert same(read_binary(tensor, array.shape, memoryview(joined), "x"), array)


@given(arrays(IN_JSON))
def test_an_array_comes_back_from_json_flat_and_nested(given_: tuple[str, Any]) -> None:
    datatype, array = given_
    tensor = declared(datatype, *array.shape[1:])
    flat = write_json(column(tensor, list(array)))
    assert same(read_json(tensor, array.shape, raw(flat), "x"), array)
    assert same(read_json(tensor, array.shape, raw(array.tolist()), "x"), array)


@given(words(st.binary(max_size=5)))
def test_bytes_come_back_from_their_bytes(given_: tuple[list[int], list[bytes]]) -> None:
    shape, flat = given_
    tensor = declared(BYTES, *shape[1:])
    made = column(tensor, nested(shape, flat))
    assert made.shape == tuple(shape)
    parts, size = write_binary(made)
    joined = b"".join(parts)
    assert len(joined) == size
    assert read_binary(tensor, shape, memoryview(joined), "x") == nested(shape, flat)


@given(words(st.text(max_size=3).filter(str.isprintable).map(str.encode)))
def test_bytes_come_back_from_json_as_texts(given_: tuple[list[int], list[bytes]]) -> None:
    shape, flat = given_
    tensor = declared(BYTES, *shape[1:])
    texts = write_json(column(tensor, nested(shape, flat)))
    assert read_json(tensor, shape, raw(texts), "x") == nested(shape, flat)
    stacked: Any = np.array(texts, object).reshape(shape).tolist()
    assert read_json(tensor, shape, raw(stacked), "x") == nested(shape, flat)


def test_an_array_that_came_as_bytes_is_a_view_of_them() -> None:
    body = np.arange(6, dtype=np.float32).tobytes()
    found = read_binary(declared("FP32", 3), (2, 3), memoryview(body), "x")
    assert not found.flags.owndata
    assert not found.flags.writeable


def test_whole_numbers_may_be_written_with_a_point() -> None:
    found = read_json(declared("INT8", 2), (2, 2), raw([[1.0, -2], [3e1, 4]]), "x")
    assert (found.dtype, found.tolist()) == (np.int8, [[1, -2], [30, 4]])
    assert read_json(declared("UINT64"), (1,), raw([1e19]), "x").tolist() == [10**19]


def test_white_space_before_a_nested_list_is_no_harm() -> None:
    found = read_json(declared("INT8", 2), (1, 2), msgspec.Raw(b" \n[ \t [1, 2]]"), "x")
    assert found.tolist() == [[1, 2]]


# --- what is told -----------------------------------------------------------------------------------


def fault(call: Any, *args: Any) -> str:
    with pytest.raises(BadInput) as caught:
        call(*args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([], "x has shape [], wanted [-1, 3, -1]"),
        ([2, 3], "x has shape [2, 3], wanted [-1, 3, -1]"),
        ([2, 4, 1], "x has shape [2, 4, 1], wanted [-1, 3, -1]"),
        ([0, 3, 1], "x has shape [0, 3, 1], wanted lengths of 1 and more"),
        ([1, 3, 0], "x has shape [1, 3, 0], wanted lengths of 1 and more"),
        ([1, 3, -5], "x has shape [1, 3, -5], wanted lengths of 1 and more"),
        ([-1, 3, 1], "x has shape [-1, 3, 1], wanted lengths of 1 and more"),
    ],
)
def test_a_shape_that_is_not_declared_is_told_both(shape: list[int], said: str) -> None:
    assert fault(check_shape, shape, declared("FP32", 3, -1), "x") == said


def test_a_shape_that_is_declared_passes() -> None:
    check_shape([7, 3, 9], declared("FP32", 3, -1), "x")


def test_what_is_told_of_a_monstrous_shape_is_bounded() -> None:
    assert len(fault(check_shape, [2**40] * 64, declared("FP32", 3), "x")) < 500


@pytest.mark.parametrize(
    ("tensor", "shape", "body", "said"),
    [
        (declared("FP32", 2), (1, 2), bytes(7), "x has 7 bytes, wanted 8: FP32 of shape [1, 2]"),
        (
            declared("FP64", -1),
            (2**40, 2**40),
            bytes(8),
            "x has 8 bytes, wanted 9671406556917033397649408: FP64 of shape [1099511627776, 1099511627776]",
        ),
        (declared("BOOL"), (2,), b"\x01\x02", "x has bytes that are neither 0 nor 1, wanted BOOL"),
        (
            declared(BYTES),
            (2**40,),
            bytes(8),
            "x has 8 bytes, wanted 1099511627776 elements of BYTES, at least 4 bytes each",
        ),
        (declared(BYTES), (1,), b"\2\0\0\0a", "x is cut off: element 0 ends at byte 6 of 5"),
        (declared(BYTES), (2,), b"\3\0\0\0abc\0", "x is cut off: element 1 ends at byte 11 of 8"),
        (declared(BYTES), (1,), b"\xff\xff\xff\xffa", "x is cut off: element 0 ends at byte 4294967299 of 5"),
        (declared(BYTES), (1,), b"\1\0\0\0ab", "x has 6 bytes, but its 1 elements of BYTES end at 5"),
    ],
)
def test_bytes_that_are_not_the_tensor_are_refused(
    tensor: Tensor, shape: tuple[int, ...], body: bytes, said: str
) -> None:
    assert fault(read_binary, tensor, shape, memoryview(body), "x") == said


@pytest.mark.parametrize(
    ("tensor", "shape", "data", "said"),
    [
        (declared("FP16"), (1,), b"[1]", "x is FP16, which has no form in JSON; send it as binary data"),
        (declared("FP32"), (2,), b"[1]", "x.data has 1 elements, wanted 2: shape [2]"),
        (declared("FP32", 2), (2, 2), b"[1,2,3]", "x.data has 3 elements, wanted 4: shape [2, 2]"),
        (declared("FP32", 2), (2, 2), b"[[1,2],[3]]", "x.data has 1 elements, wanted 2: shape [2, 2]"),
        (declared("FP32", 2), (2, 2), b"[[1,2]]", "x.data has 1 elements, wanted 2: shape [2, 2]"),
        (
            declared("FP32", 2),
            (2, 2),
            b"[[1,2],3]",
            "x.data[1]: Expected `array`, got `int`",
        ),
        (declared("FP32", 2), (1, 2), b"[[[1,2]]]", "x.data[0][0]: Expected `float`, got `array`"),
        (declared("FP32"), (1,), b"1", "x.data: Expected `array`, got `int`"),
        (declared("FP32"), (1,), b'["1"]', "x.data[0]: Expected `float`, got `str`"),
        (declared("FP32"), (1,), b"[null]", "x.data[0]: Expected `float`, got `null`"),
        (declared("FP32"), (1,), b"[NaN]", "x.data: JSON is malformed: invalid character (byte 1)"),
        (declared("FP32"), (1,), b"[1e39]", "x.data has a number beyond those of FP32"),
        (declared("FP64"), (1,), b"[1e999]", "x.data[0]: Number out of range"),
        (declared("INT8"), (1,), b"[128]", "x.data[0]: Expected `int` <= 127"),
        (declared("UINT32"), (1,), b"[-1]", "x.data[0]: Expected `int` >= 0"),
        (declared("INT64"), (1,), b"[9223372036854775808]", "x.data has a number beyond those of INT64"),
        (declared("UINT64"), (1,), b"[-1]", "x.data[0]: Expected `int` >= 0"),
        (declared("UINT64"), (1,), b"[18446744073709551616]", "x.data has a number beyond those of UINT64"),
        (declared("INT64"), (2,), b"[1.0, 1.5]", "x.data[1]: Expected `int`, got `float`"),
        (declared("INT64"), (1,), b"[1e30]", "x.data has a number beyond those of INT64"),
        (declared("INT8", 2), (1, 2), b"[[1.0, 1e3]]", "x.data[0][1]: Expected `int` <= 127"),
        (declared("INT8"), (1,), b"[true]", "x.data[0]: Expected `int`, got `bool`"),
        (declared("BOOL"), (1,), b"[1]", "x.data[0]: Expected `bool`, got `int`"),
        (declared(BYTES), (1,), b"[1]", "x.data[0]: Expected `str`, got `int`"),
        (declared(BYTES), (1,), b'["\xff"]', "x.data: Invalid UTF-8 encoded string"),
    ],
)
def test_json_that_is_not_the_tensor_is_told_where(
    tensor: Tensor, shape: tuple[int, ...], data: bytes, said: str
) -> None:
    assert fault(read_json, tensor, shape, msgspec.Raw(data), "x") == said


@given(
    st.sampled_from([*IN_JSON, BYTES]),
    st.binary(max_size=20)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=6
    ).map(msgspec.json.encode),
)
def test_any_json_is_a_tensor_or_refused(datatype: str, data: bytes) -> None:
    try:
        found = read_json(declared(datatype, 2), (2, 2), msgspec.Raw(data), "x")
    except BadInput:
        return
    assert np.array(found).shape == (2, 2)


@given(st.sampled_from([*ARRAYS, BYTES]), st.binary(max_size=20))
def test_any_bytes_are_a_tensor_or_refused(datatype: str, data: bytes) -> None:
    try:
        found = read_binary(declared(datatype, -1), (1, 2), memoryview(data), "x")
    except BadInput:
        return
    assert np.array(found).shape == (1, 2)


# --- a body that is nothing but one tensor --------------------------------------------------------


def test_bytes_alone_are_one_item_whose_free_length_they_say() -> None:
    body = memoryview(np.arange(6, dtype=np.int16).tobytes())
    assert read_raw(declared("INT16", 2, -1), body, "x").tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert read_raw(declared("INT16", 6), body, "x").tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(("shape", "found"), [((), [b"ab"]), ((1,), [[b"ab"]]), ((-1, 1), [[[b"ab"]]])])
def test_bytes_alone_are_one_element_of_bytes(shape: tuple[int, ...], found: Any) -> None:
    assert read_raw(declared(BYTES, *shape), memoryview(b"ab"), "x") == found


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (declared(BYTES, 2), "x is BYTES [2]; a body without a header is one element"),
        (
            declared("FP32", -1, -1),
            "x has shape [-1, -1]; a body without a header leaves one length free",
        ),
        (declared("FP32", 3, -1), "x has 8 bytes, wanted a multiple of 12: FP32 of shape [3, -1]"),
        (declared("FP32", 3), "x has 8 bytes, wanted 12: FP32 of shape [1, 3]"),
    ],
)
def test_bytes_alone_that_are_no_item_are_refused(tensor: Tensor, said: str) -> None:
    assert fault(read_raw, tensor, memoryview(bytes(8)), "x") == said


def test_nothing_at_all_is_no_item() -> None:
    assert fault(read_raw, declared("INT8", -1), memoryview(b""), "x") == (
        "x has 0 bytes, wanted a multiple of 1: INT8 of shape [-1]"
    )


# --- outputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "value", "found"),
    [
        ("FP32", [0.5, 2], [0.5, 2.0]),
        ("FP32", (1, 2), [1.0, 2.0]),
        ("UINT8", [7, 255], [7, 255]),
        ("BOOL", [True, False], [True, False]),
        ("INT64", np.array([[1, 0], [2, 0]])[:, 0], [1, 2]),
    ],
)
def test_what_is_like_an_array_becomes_one(datatype: str, value: Any, found: Any) -> None:
    made = column(declared(datatype, 2), [value])
    assert (made.shape, write_json(made)) == ((1, 2), found)
    assert made.rows[0].flags.c_contiguous


def test_numbers_are_arrays_of_no_dimensions() -> None:
    for values in ([1.5, 2.5], [np.float64(1.5), np.float64(2.5)], list(np.array([1.5, 2.5]))):
        made = column(declared("FP64"), values)
        assert (made.shape, b"".join(write_binary(made)[0])) == ((2,), struct.pack("<2d", 1.5, 2.5))


def test_tensors_of_torch_are_arrays() -> None:
    torch = pytest.importorskip("torch")
    made = column(declared("FP32", 2), [torch.ones(2)])
    assert write_json(made) == [1.0, 1.0]
    assert output_fault(declared("FP32", 2), torch.ones(2, dtype=torch.bfloat16)).startswith(
        "output 'x' of item 0 is no FP32: "
    )


@pytest.mark.parametrize(
    ("shape", "value", "elements"),
    [
        ((), b"a", [b"a"]),
        ((), "é", ["é".encode()]),
        ((), "\ud800", [b"?"]),
        ((2,), ["a", b"b"], [b"a", b"b"]),
        ((2, 1), (["a"], ["b"]), [b"a", b"b"]),
        ((2,), np.array([b"a", b"bc"]), [b"a", b"bc"]),
        ((2,), np.array(["a", "bc"]), [b"a", b"bc"]),
    ],
)
def test_texts_and_arrays_of_texts_are_bytes(
    shape: tuple[int, ...], value: Any, elements: list[bytes]
) -> None:
    assert column(declared(BYTES, *shape), [value]) == Column(
        declared(BYTES, *shape), (1, *shape), [elements]
    )


def output_fault(tensor: Tensor, *values: Any) -> str:
    with pytest.raises(BadOutput) as caught:
        column(tensor, values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "values", "said"),
    [
        (declared("FP32", 2), [np.ones(2)], "of item 0 has datatype FP64, wanted FP32"),
        (declared("FP32", 2), [np.ones(3, "f4")], "of item 0 has shape [3], wanted [2]"),
        (
            declared("FP32", -1),
            [np.ones(2, "f4"), np.ones(3, "f4")],
            "of item 1 has shape [3], that of item 0 [2]",
        ),
        (declared("FP32"), [None], "of item 0 has datatype object, wanted FP32"),
        (declared("FP32"), [{"x": 1}], "of item 0 has datatype object, wanted FP32"),
        (declared("FP32"), [10**400], "of item 0 is no FP32: "),
        (declared("FP32"), [1e39], "of item 0 is no FP32: "),
        (declared("UINT8"), [256], "of item 0 is no UINT8: "),
        (declared("INT64"), [1.5], "of item 0 is no INT64: "),
        (declared("FP32", 2, 2), [[[1, 2], [3]]], "of item 0 is no FP32: "),
        (declared(BYTES), [7], "of item 0 holds a int, wanted bytes or str"),
        (declared(BYTES, 2), [[b"a", [b"b"]]], "of item 0 holds a list, wanted bytes or str"),
        (declared(BYTES, 2), [[[b"a"], b"b"]], "of item 0 is nested unevenly, or has no elements"),
        (declared(BYTES, -1), [[]], "of item 0 is nested unevenly, or has no elements"),
        (declared(BYTES, 2), [[b"a"]], "of item 0 has shape [1], wanted [2]"),
    ],
)
def test_an_output_that_is_not_declared_is_named(tensor: Tensor, values: list[Any], said: str) -> None:
    assert output_fault(tensor, *values).startswith(f"output 'x' {said}")


def test_an_endless_list_comes_to_an_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert output_fault(declared(BYTES), endless) == "output 'x' of item 0 holds a list, wanted bytes or str"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (column(declared("FP32"), [float("nan")]), "output 'x' has NaN or infinity, which JSON lacks"),
        (column(declared("FP64"), [float("-inf")]), "output 'x' has NaN or infinity, which JSON lacks"),
        (column(declared(BYTES), [b"\xff"]), "output 'x' has bytes that are no UTF-8"),
    ],
)
def test_what_json_cannot_say_is_told_to_go_as_bytes(made: Column, said: str) -> None:
    with pytest.raises(BadOutput) as caught:
        write_json(made)
    assert str(caught.value) == f"{said}; ask for binary data"
    assert b"".join(write_binary(made)[0])
