"""Bodies of requests and answers."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbatch.errors import BadRequest, TooLarge
from zbatch.gateway import bodies
from zbatch.gateway.answers import JSON, NotAcceptable, UnsupportedMedia
from zbatch.gateway.bodies import MSGPACK, NPY, RAW, TEXT, form_of, read_item, read_items, write


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


# --- what a body is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        ("", JSON),
        ("application/json", JSON),
        ("application/x-www-form-urlencoded", JSON),
        ("Application/JSON; charset=UTF-8", JSON),
        ("application/problem+json", JSON),
        ("application/x-msgpack", MSGPACK),
        ("application/vnd.msgpack", MSGPACK),
        ("application/octet-stream", RAW),
        ("image/jpeg", RAW),
        ("audio/wav", RAW),
        ("application/x-npy", NPY),
        ("text/plain", TEXT),
        ('text/plain; charset="utf-8"', TEXT),
    ],
)
def test_a_content_type_says_in_which_form_the_body_is(content_type: str, form: str) -> None:
    assert form_of(content_type) == form


@pytest.mark.parametrize(
    "content_type",
    [
        "application/xml",
        "text/html",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin-1",
        "x",
    ],
)
def test_any_other_type_is_415_and_the_error_names_those_that_are_read(content_type: str) -> None:
    with pytest.raises(UnsupportedMedia, match="wanted"):
        form_of(content_type)


# --- items ---------------------------------------------------------------------------------------


def test_each_form_gives_the_item_that_it_holds() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)

    assert read_item(JSON, b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert read_item(RAW, b"\xff\xd8") == b"\xff\xd8"
    assert read_item(TEXT, "straße".encode()) == "straße"
    np.testing.assert_array_equal(read_item(NPY, npy(array)), array)
    packed = msgpack.packb({"x": array}, default=msgpack_numpy.encode)
    np.testing.assert_array_equal(read_item(MSGPACK, packed)["x"], array)


def test_an_array_in_columns_is_read_as_such() -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3))

    np.testing.assert_array_equal(read_item(NPY, npy(array)), array)


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (JSON, b""),
        (JSON, b"{x"),
        (JSON, b"NaN"),
        (JSON, b'{"a": Infinity}'),
        (JSON, b'"\xff"'),
        (JSON, b"[" * 100_000),
        (JSON, b"1 2"),
        (MSGPACK, b"\xc1"),
        (MSGPACK, b""),
        (MSGPACK, b"\x91" * 100_000),
        (TEXT, b"\xff"),
        (NPY, b""),
        (NPY, b"\x93NUMPY\x01\x00\xff\xff"),
        (NPY, b"\x93NUMPY\x01\x00\x10\x00__import__('os')"),
        (NPY, npy(np.arange(3))[:-1]),
        (NPY, npy(np.arange(3)) + b"x"),
    ],
)
def test_what_holds_no_item_is_a_bad_request_with_a_sentence(form: str, body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^the (body|\.npy) ") as refused:
        read_item(form, body)
    assert len(str(refused.value)) < 400


def test_an_npy_of_objects_is_refused_unopened() -> None:
    with pytest.raises(BadRequest, match="dtype object"):
        read_item(NPY, npy(np.array([{}], dtype=object)))


def headed(descr: str, shape: str, data: bytes) -> bytes:
    """Return an .npy whose header says whatever it likes."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


@pytest.mark.parametrize("shape", ["(-1,)", "(9999999999999999999,)", "(3, 1 << 62)", "'a'", "{}"])
def test_a_shape_that_the_bytes_do_not_fill_is_refused(shape: str) -> None:
    with pytest.raises(BadRequest):
        read_item(NPY, headed("<f8", shape, bytes(24)))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (f"(0, {10**25})", 0),
        (f"(0, {2**63 - 1}, {2**63 - 1})", 0),
        ("(" + "1," * 65 + ")", 8),
        (f"(0x{'f' * 6_000},)", 8),
        (f"({'9' * 3_000}, {'9' * 3_000})", 8),
        ("(" + f"{2**63 - 1}," * 64 + ")", 8),
        ("(True,)", 8),
    ],
    ids=["beyond a size", "sizes", "dimensions", "hexadecimal", "a long product", "many", "a boolean"],
)
def test_a_shape_that_no_array_has_is_refused_in_a_short_sentence(shape: str, size: int) -> None:
    with pytest.raises(BadRequest, match=r"^the \.npy ") as refused:
        read_item(NPY, headed("<f8", shape, bytes(size)))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("descr", ["<U1", ">U1"])
def test_characters_that_unicode_does_not_have_are_refused(descr: str) -> None:
    with pytest.raises(BadRequest, match="characters"):
        read_item(NPY, headed(descr, "(1,)", b"\x7f\xff\xff\x7f"))
    np.testing.assert_array_equal(read_item(NPY, npy(np.array(["é"], descr))), np.array(["é"]))


@given(st.binary(max_size=200), st.sampled_from([JSON, MSGPACK, NPY, TEXT]))
def test_anything_at_all_is_an_item_or_a_bad_request(body: bytes, form: str) -> None:
    for prefix in (b"", b"\x93NUMPY\x01\x00"):
        with contextlib.suppress(BadRequest):
            read_item(form, prefix + body)


# --- several items -------------------------------------------------------------------------------


def test_a_batch_is_a_list_or_the_rows_of_an_array() -> None:
    assert read_items(JSON, b'[1, "b", [2]]') == [1, "b", [2]]
    assert read_items(JSON, b"[]") == []
    assert read_items(MSGPACK, msgpack.packb([1, 2])) == [1, 2]
    rows = read_items(NPY, npy(np.arange(6).reshape(2, 3)))
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("form", "body"), [(JSON, b'{"a": 1}'), (JSON, b"null"), (MSGPACK, b"\x01"), (NPY, npy(np.float32(1)))]
)
def test_one_item_is_no_batch(form: str, body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"list of items|rows"):
        read_items(form, body)


def test_a_batch_has_as_many_items_as_a_client_may_have_open() -> None:
    assert len(read_items(JSON, json.dumps([0] * bodies.MOST_ITEMS).encode())) == bodies.MOST_ITEMS
    for form, body in (
        (JSON, json.dumps([0] * (bodies.MOST_ITEMS + 1)).encode()),
        (MSGPACK, msgpack.packb([0] * (bodies.MOST_ITEMS + 1))),
        (NPY, npy(np.zeros((bodies.MOST_ITEMS + 1, 1), np.uint8))),
    ):
        with pytest.raises(TooLarge, match="has 16385 items, wanted at most 16384"):
            read_items(form, body)


def test_few_bytes_that_say_a_billion_items_cost_nothing() -> None:
    # A row without elements has no bytes, so an array of 128 bytes may say any number of them.
    rows = npy(np.zeros((1, 0), np.uint8)).replace(b"(1, 0)", b"(1000000000, 0)").replace(b" " * 9, b"", 1)
    for form, body in ((NPY, rows), (MSGPACK, b"\xdd" + struct.pack(">I", 1_000_000_000))):
        with pytest.raises(TooLarge, match="has 1000000000 items"):
            read_items(form, body)


@pytest.mark.parametrize("form", [RAW, TEXT])
def test_raw_bodies_are_one_item_each(form: str) -> None:
    with pytest.raises(UnsupportedMedia, match="one item"):
        read_items(form, b"x")


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["", "*/*", "application/*", JSON, "text/html, application/json;q=0.1"])
def test_an_output_is_json_where_nothing_else_is_asked_for(accept: str) -> None:
    assert write(accept, {"a": [1, None]}) == (JSON, b'{"a":[1,null]}')


def test_bytes_are_sent_as_they_are_where_anything_is_accepted() -> None:
    assert write("*/*", b"\x00\x01") == (RAW, b"\x00\x01")
    assert write("image/png", b"\x00") == ("image/png", b"\x00")
    assert write("image/*", b"\x00") == (RAW, b"\x00")
    assert write(JSON, b"\x00\x01") == (JSON, b'"AAE="')


def test_arrays_become_lists_in_json() -> None:
    output = {"v": np.arange(3, dtype="f4"), "s": np.int64(7)}
    assert json.loads(write(JSON, output).data) == {"v": [0.0, 1.0, 2.0], "s": 7}


def test_an_array_without_elements_is_no_endless_list_in_json() -> None:
    assert write(JSON, np.zeros((2, 0), np.uint8)).data == b"[[],[]]"
    with pytest.raises(NotAcceptable, match=r"shape \(1000000000, 0\)"):
        write(JSON, {"mask": np.zeros((1_000_000_000, 0), np.uint8)})


def test_json_has_no_nan_so_it_becomes_null() -> None:
    assert write(JSON, np.array([1.0, np.nan])).data == b"[1.0,null]"


@pytest.mark.parametrize("size", [3, 100_000])
def test_msgpack_carries_arrays_of_any_size_in_the_body(size: int) -> None:
    array = np.arange(size, dtype="f8")

    kind, data = write("application/x-msgpack", {"v": array})

    assert kind == MSGPACK
    np.testing.assert_array_equal(read_item(MSGPACK, data)["v"], array)


def test_npy_carries_an_array_and_what_becomes_one() -> None:
    assert np.load(io.BytesIO(write(NPY, [[1, 2], [3, 4]]).data)).tolist() == [[1, 2], [3, 4]]


def test_the_first_form_that_fits_is_taken_in_the_clients_order() -> None:
    accept = "application/x-npy;q=0.5, text/plain;q=0.9, application/json;q=0.1"

    assert write(accept, "hi") == (TEXT, b"hi")
    assert write(accept, np.arange(2)).kind == NPY
    assert write(accept, {"a": 1}).kind == JSON


@pytest.mark.parametrize(
    ("accept", "output"),
    [
        ("text/html", 1),
        ("application/json;q=0", 1),
        ("application/json;q=x", 1),
        (RAW, "text"),
        ("text/plain", 1),
        (NPY, {"a": 1}),
        (NPY, [[1], [1, 2]]),
        (JSON, {"a": 1j}),
    ],
)
def test_an_output_that_fits_into_no_accepted_form_is_406(accept: str, output: Any) -> None:
    with pytest.raises(NotAcceptable):
        write(accept, output)


@given(st.text(max_size=60))
def test_any_accept_header_is_answered_or_406(accept: str) -> None:
    with contextlib.suppress(NotAcceptable):
        write(accept, {"a": 1})


def test_the_names_of_forms_that_an_error_lists_are_read() -> None:
    for name in bodies.WANTED.replace("(or image/*, audio/*, video/*)", "").split(","):
        assert form_of(name.strip())
