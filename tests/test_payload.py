"""Items come back as what they were, what cannot travel is named by its path, hostile bytes do nothing."""

from __future__ import annotations

import datetime
import math
import pickle
import subprocess
import sys
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbatch import payload
from zbatch.payload import DEPTH, INLINE, Malformed

UTC = datetime.UTC


def travelled(item: object) -> Any:
    """Return an item after its journey."""
    data, buffers = payload.encode(item)
    return payload.decode(data, [bytes(buffer) for buffer in buffers])


def same(one: Any, other: Any) -> bool:
    """Return whether two items agree in type and value, to the last part."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, np.ndarray | np.generic):
        return bool(
            one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        )
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


# --- what travels --------------------------------------------------------------------------------

ITEMS: list[object] = [
    None,
    True,
    0,
    -1,
    2**64 - 1,
    -(2**63),
    2**64,
    -(2**63) - 1,
    10**100,
    1.5,
    math.nan,
    math.inf,
    "grüße",
    "",
    b"\x00\xff",
    [],
    [1, "two", [3.0, None]],
    (),
    (1, ("two", [3])),
    {"a": 1, 2: "b", b"c": None, None: True, 1.5: []},
    {"nd": True, "type": "<f4", "data": b"1234"},
    {b"nd": True, b"type": b"<f4"},
    {"complex": True, "data": "1j"},
    1 + 2j,
    [10**30, {"big": -(10**30), 10**25: "key"}],
    datetime.datetime(2026, 12, 1, 7, 30, 15, 123456),
    datetime.datetime(2026, 12, 1, tzinfo=UTC),
    datetime.datetime(2026, 12, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=45))),
    datetime.date(1, 1, 1),
    datetime.time(23, 59, 59, 999999),
    datetime.timedelta(days=-3, seconds=7, microseconds=9),
    np.float32(1.5),
    np.int64(-7),
    np.bool_(True),
    np.complex128(1 + 2j),
    np.str_("abc"),
    np.bytes_(b"abc"),
    np.datetime64("2026-12-01T07:30"),
    np.timedelta64(5, "ms"),
    np.datetime64("NaT", "s"),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(5, dtype=np.int16),
    np.empty((0, 3)),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["2026-12-01"], dtype="datetime64[D]"),
    np.array([1, 2], dtype=">i4"),
    np.zeros((2, 0), dtype="datetime64[s]"),
    {"image": np.ones((3, 4), np.uint8), "tags": ("a", np.float64(0.5))},
]


@pytest.mark.parametrize("item", [*ITEMS, ["a", 2**64], [b"x" * INLINE, 1], {3: [{"nd": 1}]}], ids=repr)
def test_an_item_has_the_same_bytes_beside_one_that_is_looked_at_part_by_part(item: object) -> None:
    alone, buffers = payload.encode(item)
    beside, others = payload.encode([item, ()])
    assert beside == b"\x92" + alone + payload.encode(())[0]
    assert list(map(bytes, buffers)) == list(map(bytes, others))


@pytest.mark.parametrize("item", ITEMS, ids=repr)
def test_an_item_comes_back_as_what_it_was(item: object) -> None:
    assert same(travelled(item), item)


def test_an_array_that_is_not_contiguous_comes_back_as_it_looked() -> None:
    array = np.arange(24).reshape(4, 6)[::2, ::3]
    assert np.array_equal(travelled(array), array)
    assert np.array_equal(travelled(np.asfortranarray(array)), array)


def test_large_arrays_travel_beside_the_item_uncopied() -> None:
    small, large = np.zeros(INLINE - 1, np.uint8), np.arange(INLINE // 4, dtype=np.float32)
    data, buffers = payload.encode([small, large, large])
    assert len(data) < 2 * INLINE
    assert [np.shares_memory(np.frombuffer(one, np.float32), large) for one in buffers] == [True, True]
    back = payload.decode(data, buffers)
    assert all(map(same, back, [small, large, large]))


def test_a_large_array_without_dimensions_in_memory_order_is_copied_once() -> None:
    array = np.arange(INLINE, dtype=np.uint16).reshape(2, -1).T
    data, buffers = payload.encode(array)
    assert np.array_equal(payload.decode(data, buffers), array)


ARRAYS = {
    "small": np.arange(3),
    "empty": np.empty((0, 3)),
    "of times": np.array(["2026-12-01"], dtype="datetime64[D]"),
    "large": np.zeros(INLINE, np.uint8),
    "in several frames": np.zeros(2 * payload.WHOLE, np.uint8),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_who_gets_an_array_may_write_to_it_whatever_its_size(array: Any) -> None:
    data, buffers = payload.encode(array)
    assert payload.decode(data, [bytes(one) for one in buffers]).flags.writeable
    assert payload.decode(data, [bytearray(one) for one in buffers]).flags.writeable


def test_a_large_array_that_may_be_written_to_lies_in_the_frame_that_came() -> None:
    data, (buffer,) = payload.encode(np.zeros(INLINE, np.uint8))
    frame = bytearray(buffer)
    payload.decode(data, [frame])[0] = 7
    assert frame[0] == 7


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_bytes_that_are_decoded_again_give_read_only_arrays_whatever_their_size(array: Any) -> None:
    data, buffers = payload.encode(array)
    frames = [bytearray(one) for one in buffers]
    assert not payload.decode(data, frames, writable=False).flags.writeable


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
)
KEYS = st.text() | st.integers() | st.binary() | st.none() | st.booleans()
VALUES = st.recursive(
    SCALARS | st.datetimes() | st.dates() | st.times() | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (datetime.datetime(2026, 10, 25, 2, 30, fold=1), b"2026-10-25T02:30:00+fold"),
        (datetime.datetime(2026, 10, 25, 2, 30, tzinfo=UTC, fold=1), b"2026-10-25T02:30:00+00:00+fold"),
        (datetime.time(2, 30, fold=1), b"02:30:00+fold"),
        (datetime.datetime(2026, 10, 25, 2, 30), b"2026-10-25T02:30:00"),
    ],
    ids=str,
)
def test_a_time_stays_the_first_or_the_second_of_its_name(when: Any, text: bytes) -> None:
    data, _ = payload.encode(when)
    assert data.endswith(text)
    assert (payload.decode(data), payload.decode(data).fold) == (when, when.fold)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_whatever_can_be_encoded_comes_back_as_what_it_was(item: object) -> None:
    if "nan" not in repr(item):
        assert same(travelled(item), item)


# --- what does not travel ------------------------------------------------------------------------


class Own:
    """Something of a user's."""


def nested(depth: int) -> object:
    item: list[object] = []
    for _ in range(depth):
        item = [item]
    return item


def endless() -> object:
    item: list[object] = []
    item.append(item)
    return item


class Nowhere(datetime.tzinfo):
    """A time zone that cannot say where it is."""

    def utcoffset(self, when: datetime.datetime | None) -> None:
        return None

    dst = tzname = utcoffset


STRUCTURED = np.zeros(2, dtype=[("a", "<i4"), ("b", "O")])


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (Own(), r"item is a tests\.test_payload\.Own, which cannot be sent; zbatch carries None, bool"),
        ({"a": [1, Own()]}, r"item\['a'\]\[1\] is a tests\.test_payload\.Own"),
        ((1, {2: Own()}), r"item\[1\]\[2\] is a tests\.test_payload\.Own"),
        ({1, 2}, r"item is a builtins\.set"),
        (bytearray(b"x"), r"item is a bytearray; wanted bytes: use bytes\(value\)"),
        ([memoryview(b"x")], r"item\[0\] is a memoryview; wanted bytes"),
        ({(1, 2): 3}, r"item has a key of type tuple; keys are str, bytes, int, float, bool, None"),
        (np.array([Own()]), r"item has dtype object; zbatch carries booleans, numbers"),
        ([STRUCTURED], r"item\[0\] has dtype \[\('a'"),
        (np.zeros(2, "V4"), r"item has dtype \|V4"),
        (np.array([""]), r"item has dtype <U0") if np.array([""]).dtype.itemsize == 0 else (Own(), "Own"),
        (np.void(b"ab"), r"item has dtype \|V2"),
        ("\ud800", r"item is a str with lone surrogates, which no encoding carries"),
        (["\ud800"], r"item\[0\] is a str with lone surrogates"),
        ([1, {"p": ["x", "\ud800"]}], r"item\[1\]\['p'\]\[1\] is a str with lone surrogates"),
        ({"\ud800": 1}, r"a key of item is a str with lone surrogates"),
        (nested(DEPTH), rf"is nested more than {DEPTH} deep, or contains itself"),
        (endless(), rf"is nested more than {DEPTH} deep, or contains itself"),
        (datetime.datetime(2026, 1, 1, tzinfo=Nowhere()), "item is a datetime whose time zone has no offset"),
        (print, r"item is a builtins\.builtin_function_or_method"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_travel_is_named_by_its_path(item: object, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        payload.encode(item)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"p": [Own()]}, r"item 7\['p'\]\[0\] is a tests\.test_payload\.Own, which cannot be sent"),
        ("\ud800", r"item 7 is a str with lone surrogates"),
    ],
    ids=["inside", "itself"],
)
def test_what_cannot_travel_is_named_by_its_place_where_it_is_one_of_several(item: object, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        payload.encode(item, 7)


def test_containers_as_deep_as_allowed_travel() -> None:
    assert same(travelled(nested(DEPTH - 1)), nested(DEPTH - 1))


def in_tuples(item: object, levels: int) -> object:
    for _ in range(levels):
        item = (item, "beside")
    return item


@pytest.mark.parametrize("levels", [1, payload.ON_STACK, payload.ON_STACK + 1, DEPTH])
def test_tuples_within_tuples_travel_with_what_they_hold(levels: int) -> None:
    item = in_tuples(1.5, levels)
    assert same(travelled(item), item)


def test_an_array_deep_within_tuples_travels_beside_the_item() -> None:
    array = np.zeros(INLINE, np.uint8)
    data, buffers = payload.encode((in_tuples(array, DEPTH - 2), array))
    back, beside = payload.decode(data, buffers)
    for _ in range(DEPTH - 2):
        back, _ = back
    assert (same(back, array), same(beside, array)) == (True, True)


DEEP_IN_A_SMALL_THREAD = """
import threading
from zbatch import payload

item = 1
for _ in range(payload.DEPTH):
    item = (item,)
data, buffers = payload.encode(item)
threading.stack_size(512 << 10)
thread = threading.Thread(target=lambda: print(payload.decode(data, buffers) == item))
thread.start()
thread.join()
"""


def test_a_thread_with_a_small_stack_reads_what_is_as_deep_as_allowed() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DEEP_IN_A_SMALL_THREAD],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


def test_subclasses_of_what_travels_do_not_lose_their_class_in_silence() -> None:
    class Name(str):
        pass

    with pytest.raises(TypeError, match="Name, which cannot be sent"):
        payload.encode(Name("x"))


def test_without_numpy_an_unknown_value_is_refused_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(TypeError, match="Own, which cannot be sent"):
        payload.encode(Own())


# --- other speakers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.float32(1.5),
        1 + 2j,
        {"a": [np.int8(3), "text", b"bytes"]},
        np.array(["ab", "c"]),
    ],
    ids=repr,
)
def test_msgpack_numpy_reads_and_writes_the_same(item: object) -> None:
    data, _ = payload.encode(item)
    theirs = msgpack.unpackb(data, object_hook=msgpack_numpy.decode, strict_map_key=False)
    assert same(theirs, item)
    assert same(payload.decode(msgpack.packb(item, default=msgpack_numpy.encode)), item)


def test_timestamps_of_msgpack_arrive_as_datetimes() -> None:
    when = datetime.datetime(2026, 12, 1, 7, 30, tzinfo=UTC)
    assert payload.decode(msgpack.packb([when], datetime=True)) == [when]


# --- hostile bytes -------------------------------------------------------------------------------


def crafted(**more: Any) -> bytes:
    """Return an array as msgpack-numpy writes it, with parts of it replaced."""
    array = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": bytes(8)}
    array |= {name.encode(): value for name, value in more.items()}
    return bytes(msgpack.packb(array))


def extension(code: int, data: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(code, data)))


def deep(levels: int, data: bytes = b"\x90") -> bytes:
    data = extension(payload.TUPLE, data)
    for _ in range(levels):
        data = extension(payload.TUPLE, b"\x91" + data)
    return data


class Bomb:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (1,)


HOSTILE = {
    "nothing": b"",
    "cut off": b"\x92\x01",
    "goes on": b"\x01\x02",
    "goes on after a list": b"\x91\x01\x02",
    "no utf-8": b"\xa2\xff\xfe",
    "no utf-8 inside": b"\x91\xa2\xff\xfe",
    "never used": b"\xc1",
    "pickled objects": crafted(type="|O", kind=b"O", data=pickle.dumps(Bomb())),
    "pickled objects without a kind": crafted(type="|O", data=pickle.dumps(Bomb())),
    "void": crafted(type="|V4"),
    "structured": crafted(type="<i4,|O"),
    "structured kind": crafted(type=[["a", "<f4"]], kind=b"V"),
    "an array within a dtype": crafted(type="(2,)<f4"),
    "zero size": crafted(type="<U0"),
    "no dtype": crafted(type="grzl"),
    "half a list of dtypes": crafted(type="<,4"),
    "a dtype with brackets": crafted(type="<M8["),
    "a long dtype": crafted(type="<f4" + " " * 64),
    "a dtype as bytes": crafted(type=b"<f4"),
    "too little data": crafted(data=bytes(7)),
    "too much data": crafted(data=bytes(12)),
    "data as text": crafted(data="12345678"),
    "a shape that does not fit": crafted(shape=[3]),
    "a negative shape": crafted(shape=[-1]),
    "a huge shape": crafted(shape=[2**40, 2**40]),
    "a shape that is no list": crafted(shape=2),
    "a shape of floats": crafted(shape=[2.0]),
    "a shape of truths": crafted(shape=[True, True]),
    "too many dimensions": crafted(shape=[1] * 65),
    "no shape": bytes(msgpack.packb({b"nd": True, b"type": "<f4", b"data": bytes(8)})),
    "a scalar of two": bytes(msgpack.packb({b"nd": False, b"type": "<f4", b"data": bytes(8)})),
    "an empty scalar": bytes(msgpack.packb({b"nd": False, b"type": "<f4", b"data": b""})),
    "no number": bytes(msgpack.packb({b"complex": True, b"data": "one"})),
    "unknown extension": extension(99, b""),
    "a timestamp of no length": b"\xc7\x03\xff\x00\x00\x00",
    "negative extension": b"\xc7\x00\xfe",
    "a tuple of nothing": extension(payload.TUPLE, b""),
    "a tuple of a number": extension(payload.TUPLE, b"\x01"),
    "a buffer that is not there": extension(payload.BUFFER, bytes(4)),
    "no datetime": extension(payload.DATETIME, b"tomorrow"),
    "folded nonsense": extension(payload.DATETIME, b"+fold"),
    "a date that is folded": extension(payload.DATE, b"2026-10-25+fold"),
    "no date": extension(payload.DATE, b"\xff"),
    "no time": extension(payload.TIME, b"25:00"),
    "no timedelta": extension(payload.TIMEDELTA, b"123"),
    "a timedelta beyond all": extension(payload.TIMEDELTA, b"\x7f" * 12),
    "no tensor": extension(payload.TENSOR, b"\x91\x01"),
    "a tensor of objects": extension(payload.TENSOR, bytes(msgpack.packb(["object", [1], b"x"]))),
    "no times": extension(payload.NUMPY_TIME, b"\x93\xa1O\x91\x01\xc4\x00"),
    "a dict of a number": extension(payload.ESCAPED, b"\x01"),
    "a dict with a list as key": extension(payload.ESCAPED, bytes(msgpack.packb([[[1], 2]]))),
    "a list as key": b"\x81\x91\x01\x02",
    "lists without end": b"\x91" * 100_000,
    "tuples without end": deep(5_000),
    "a tuple far inside that goes on": deep(payload.ON_STACK, b"\x90\x01"),
    "a tuple far inside that is cut off": deep(payload.ON_STACK, b"\x91"),
    "a tuple far inside of nothing": deep(payload.ON_STACK, b""),
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "a string of four billion": b"\xdb\xff\xff\xff\xff",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_malformed_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Malformed):
        payload.decode(data)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_malformed(data: bytes) -> None:
    try:
        payload.decode(data)
    except Malformed:
        return


def test_buffers_that_the_item_does_not_speak_of_are_refused() -> None:
    with pytest.raises(Malformed, match="1 buffers came, 0 are spoken of"):
        payload.decode(b"\x01", [b"x"])


def test_a_buffer_is_used_once_and_in_order() -> None:
    array = np.zeros(INLINE, np.uint8)
    data, buffers = payload.encode([array, array])
    with pytest.raises(Malformed, match="buffer 1 is spoken of, 1 would be next of 1"):
        payload.decode(data, buffers[:1])
    twice = extension(payload.BUFFER, bytes(4))
    with pytest.raises(Malformed, match="buffer 0 is spoken of, 1 would be next of 2"):
        payload.decode(b"\x92" + twice + twice, buffers)


# --- torch ---------------------------------------------------------------------------------------


def test_a_tensor_for_one_without_torch_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    tensor = extension(payload.TENSOR, bytes(msgpack.packb(["float32", [1], bytes(4)])))
    with pytest.raises(Malformed, match="it is a torch tensor, and torch is not installed here"):
        payload.decode(tensor)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "complex64"])
def test_tensors_come_back_as_what_they_were(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, dtype))
    back = travelled(tensor)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)


def test_large_tensors_travel_beside_the_item_and_empty_ones_travel_too() -> None:
    torch = pytest.importorskip("torch")
    large, empty = torch.arange(INLINE), torch.empty((0, 3), dtype=torch.bfloat16)
    data, buffers = payload.encode({"large": large, "empty": empty, "view": large[::2]})
    assert [len(buffer) for buffer in buffers] == [8 * INLINE, 4 * INLINE]
    back = payload.decode(data, buffers)
    assert torch.equal(back["large"], large)
    assert torch.equal(back["view"], large[::2])
    assert (back["empty"].shape, back["empty"].dtype) == (empty.shape, empty.dtype)


def test_a_tensor_that_is_a_view_of_its_conjugate_or_negative_travels_as_it_looks() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for view in (tensor.conj(), tensor.conj().imag, tensor.expand(INLINE, 2).conj()):
        assert torch.equal(travelled(view), view)


def test_a_tensor_without_data_is_refused_by_its_path() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"item\['a'\] is a tensor on the device meta, which has no data"):
        payload.encode({"a": torch.zeros(3, device="meta")})


def test_a_tensor_that_arrives_may_be_changed() -> None:
    torch = pytest.importorskip("torch")
    back = travelled(torch.zeros(3, requires_grad=True))
    back += 1
    assert back.tolist() == [1.0, 1.0, 1.0]


def test_a_sparse_tensor_is_refused_by_its_path() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(
        TypeError, match=r"item\['a'\] is a torch.sparse_coo tensor of float32; wanted a dense one"
    ):
        payload.encode({"a": torch.zeros(3).to_sparse()})


@pytest.mark.parametrize(
    ("name", "shape", "raw"),
    [("float32", [2], bytes(4)), ("float32", [1], "text"), ("float32", [3], bytes(5)), ("save", [1], b"x")],
)
def test_a_crafted_tensor_is_malformed(name: str, shape: list[int], raw: object) -> None:
    pytest.importorskip("torch")
    with pytest.raises(Malformed):
        payload.decode(extension(payload.TENSOR, bytes(msgpack.packb([name, shape, raw]))))


# --- large buffers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "frames"),
    [
        (payload.WHOLE, [payload.WHOLE]),
        (payload.WHOLE + 1, [payload.CHUNK, payload.WHOLE + 1 - payload.CHUNK]),
        (3 * payload.CHUNK, [payload.CHUNK] * 3),
    ],
)
def test_a_large_buffer_travels_in_several_frames_uncopied(size: int, frames: list[int]) -> None:
    array = np.arange(size, dtype=np.uint8)
    data, buffers = payload.encode([array, "x", array])
    assert [memoryview(one).nbytes for one in buffers] == 2 * frames
    assert np.shares_memory(np.frombuffer(buffers[0], np.uint8), array)
    first, _, second = payload.decode(data, [bytes(one) for one in buffers])
    assert np.array_equal(first, array)
    assert np.array_equal(second, array)


def test_large_bytes_travel_beside_the_item() -> None:
    image = bytes(range(256)) * 1_024
    for item in (image, {"image": image, "name": "a"}, [image[:100], image]):
        data, buffers = payload.encode(item)
        assert (len(data) < 500, len(buffers)) == (True, 1)
        assert payload.decode(data, buffers) == item


def test_an_output_that_travels_as_a_buffer_itself_is_read_from_there() -> None:
    item = {"text": "a" * 100, "image": bytes(INLINE)}
    data, buffers = payload.encode(item)
    assert payload.decode(b"", [data, *buffers]) == item
    assert payload.decode(b"", [b"\x07"]) == 7


@pytest.mark.parametrize(
    "where",
    [
        b"",
        b"\0",
        bytes(5),
        b"\0\0\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\3",
        b"\0\0\0\1\0\0\0\1",
        bytes(4) + b"\xff" * 4,
    ],
    ids=bytes.hex,
)
def test_frames_that_are_not_there_are_refused(where: bytes) -> None:
    for code in (payload.BUFFER, payload.BYTES):
        with pytest.raises(payload.Malformed):
            payload.decode(extension(code, where), [b"a", b"b"])
