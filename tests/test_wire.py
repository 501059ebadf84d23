from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from zbatch import wire
from zbatch.messages import (
    AnyMessage,
    Batch,
    Beat,
    Bulk,
    Bye,
    Cancel,
    Child,
    Children,
    Denied,
    Done,
    Draining,
    Facts,
    Fault,
    Flow,
    Group,
    Hello,
    Leave,
    Message,
    Order,
    Ordered,
    Part,
    Parts,
    Progress,
    Pulse,
    Ready,
    Recall,
    Refusal,
    Refused,
    Request,
    Result,
    Results,
    Returned,
    Room,
    Skip,
    Span,
    Stage,
    Status,
    StatusAsk,
    Taken,
    Welcome,
    Who,
    Yielded,
)
from zbatch.schema import SCHEMA_BYTES

CONN = b"conn...."
EPOCH = b"epoch..."
INCARNATION = b"incarna."
ORIGIN = b"origin.."
LIFE = b"0123456789abcdef"

HEAD = (CONN, 2, 1)
HEAD_BYTES = b"\xc4\x08conn....\x02\x01"

ROUTE = (Stage("pre", "cut", (("", 0),)), Stage("post", "bert", (("x", 0), ("y", 1))))

GOLDEN: list[tuple[AnyMessage, int, bytes]] = [
    (
        Hello(*HEAD, LIFE, "worker", 1, [(3, 5)], 7, EPOCH, INCARNATION, "box", 42),
        0,
        b"\x01\x9d\xa5HELLO" + HEAD_BYTES + b"\xc4\x100123456789abcdef\xa6worker\x01\x91\x92\x03\x05\x07"
        b"\xc4\x08epoch...\xc4\x08incarna.\xa3box*",
    ),
    (
        Welcome(*HEAD, EPOCH, 1, [(3, 5)], 1024, ["bert"]),
        0,
        b"\x01\x99\xa7WELCOME" + HEAD_BYTES + b"\xc4\x08epoch...\x01\x91\x92\x03\x05\xcd\x04\x00\x91\xa4bert",
    ),
    (Who(*HEAD), 0, b"\x01\x94\xa3WHO" + HEAD_BYTES),
    (
        Beat(*HEAD, [(3, 5)], 7, 9, b"e"),
        0,
        b"\x01\x98\xa4BEAT" + HEAD_BYTES + b"\x91\x92\x03\x05\x07\t\xc4\x01e",
    ),
    (
        Pulse(*HEAD, [(3, 5)], 6, ["bert"]),
        0,
        b"\x01\x97\xa5PULSE" + HEAD_BYTES + b"\x91\x92\x03\x05\x06\x91\xa4bert",
    ),
    (Bye(*HEAD), 0, b"\x01\x94\xa3BYE" + HEAD_BYTES),
    (
        Request(
            *HEAD, [Group(5, "bert", 250, [b"a", b"b"], [0, 2], -1, "k", [1.5, 2.0], True, True, [0, 10])]
        ),
        2,
        b"\x01\x95\xa7REQUEST"
        + HEAD_BYTES
        + b"\x91\x9e\x05\xa4bert\xcc\xfa\x92\xc4\x01a\xc4\x01b\x92\x00\x02"
        b"\xff\xa1k\x92\xcb?\xf8\0\0\0\0\0\0\xcb@\0\0\0\0\0\0\0\xc3\xc3\x92\x00\n\xc0\x00\xc0",
    ),
    (
        Request(*HEAD, [Group(5, "pipe", 250, [b"a"], route=ROUTE)]),
        0,
        b"\x01\x95\xa7REQUEST"
        + HEAD_BYTES
        + b"\x91\x9e\x05\xa4pipe\xcc\xfa\x91\xc4\x01a\xc0\x00\xa0\xc0\xc2\xc2\xc0"
        b"\x92\x93\xa3pre\xa3cut\x91\x92\xa0\x00\x93\xa4post\xa4bert\x92\x92\xa1x\x00\x92\xa1y\x01\x00\xc0",
    ),
    (
        Request(*HEAD, [Group(5, "bert", 250, [b"a"], whole=True, patience_ms=300)]),
        0,
        b"\x01\x95\xa7REQUEST"
        + HEAD_BYTES
        + b"\x91\x9e\x05\xa4bert\xcc\xfa\x91\xc4\x01a\xc0\x00\xa0\xc0\xc3\xc2\xc0\xc0\xcd\x01,\xc0",
    ),
    (
        Request(*HEAD, [Group(5, "bert", 250, [b"a", b"b"], names=["r1", ""])]),
        0,
        b"\x01\x95\xa7REQUEST"
        + HEAD_BYTES
        + b"\x91\x9e\x05\xa4bert\xcc\xfa\x92\xc4\x01a\xc4\x01b\xc0\x00\xa0\xc0\xc2\xc2\xc0\xc0\x00"
        b"\x92\xa2r1\xa0",
    ),
    (
        Parts(*HEAD, [Flow(5, 7, [b"a", b"b"], [0, 2], True)]),
        2,
        b"\x01\x95\xa5PARTS" + HEAD_BYTES + b"\x91\x96\x05\x07\x92\xc4\x01a\xc4\x01b\x92\x00\x02\xc3\xc0",
    ),
    (
        Taken(*HEAD, [(5, 300)]),
        0,
        b"\x01\x95\xa5TAKEN" + HEAD_BYTES + b"\x91\x92\x05\xcd\x01,",
    ),
    (
        Result(*HEAD, [Results(5, [b"a", b"b"], [0, 2])]),
        2,
        b"\x01\x95\xa6RESULT" + HEAD_BYTES + b"\x91\x93\x05\x92\xc4\x01a\xc4\x01b\x92\x00\x02",
    ),
    (
        Refused(*HEAD, [Refusal([(5, 7)], Fault("overloaded", "full", 100))]),
        0,
        b"\x01\x95\xa7REFUSED" + HEAD_BYTES + b"\x91\x92\x91\x92\x05\x07\x95\xaaoverloaded\xa4fulld\xa0\xa0",
    ),
    (Cancel(*HEAD, [(5, 7)], True), 0, b"\x01\x96\xa6CANCEL" + HEAD_BYTES + b"\x91\x92\x05\x07\xc3"),
    (
        Denied(*HEAD, Fault("forbidden", "no")),
        0,
        b"\x01\x95\xa6DENIED" + HEAD_BYTES + b"\x95\xa9forbidden\xa2no\x00\xa0\xa0",
    ),
    (
        Order(*HEAD, "topic", "bert", True),
        0,
        b"\x01\x97\xa5ORDER" + HEAD_BYTES + b"\xa5topic\xa4bert\xc3",
    ),
    (Ordered(*HEAD, "done"), 0, b"\x01\x96\xa7ORDERED" + HEAD_BYTES + b"\xa4done\xc0"),
    (Leave(*HEAD), 0, b"\x01\x94\xa5LEAVE" + HEAD_BYTES),
    (Bulk(*HEAD, 5), 0, b"\x01\x95\xa4BULK" + HEAD_BYTES + b"\x05"),
    (StatusAsk(*HEAD), 0, b"\x01\x94\xa7STATUS?" + HEAD_BYTES),
    (Status(*HEAD, b"{}"), 0, b"\x01\x95\xa6STATUS" + HEAD_BYTES + b"\xc4\x02{}"),
    (
        Ready(*HEAD, "bert", 2, 32, 4096.0, 10.0, 60_000, False, Facts("n", "1", b"{}", "cuda:0", b"[]")),
        0,
        b"\x01\x9c\xa5READY"
        + HEAD_BYTES
        + b"\xa4bert\x02 \xcb@\xb0\0\0\0\0\0\0\xcb@$\0\0\0\0\0\0\xcd\xea`\xc2"
        b"\x95\xa1n\xa11\xc4\x02{}\xa6cuda:0\xc4\x02[]",
    ),
    (
        Batch(
            *HEAD,
            EPOCH,
            9,
            1,
            [Span(ORIGIN, 5, 250, [b"a", b"b"], [0, 2], [0, 10], None, True, ["r1"])],
            "k",
            True,
        ),
        2,
        b"\x01\x9a\xa5BATCH" + HEAD_BYTES + b"\xc4\x08epoch...\t\x01\x91\x99\xc4\x08origin..\x05\xcc\xfa"
        b"\x92\xc4\x01a\xc4\x01b\x92\x00\x02\x92\x00\n\xc0\xc3\x91\xa2r1\xa1k\xc3",
    ),
    (
        Batch(
            *HEAD,
            EPOCH,
            9,
            1,
            [Span(ORIGIN, 5, 250, [b""], parts=[Part("x", [b"a"]), Part("y", [b"b"], [2])])],
        ),
        2,
        b"\x01\x9a\xa5BATCH" + HEAD_BYTES + b"\xc4\x08epoch...\t\x01\x91\x99\xc4\x08origin..\x05\xcc\xfa"
        b"\x91\xc4\x00\xc0\xc0\x92\x93\xa1x\x91\xc4\x01a\xc0\x93\xa1y\x91\xc4\x01b\x91\x02\xc2\xc0\xa0\xc2",
    ),
    (
        Progress(*HEAD, EPOCH, 9, 250),
        0,
        b"\x01\x97\xa8PROGRESS" + HEAD_BYTES + b"\xc4\x08epoch...\t\xcc\xfa",
    ),
    (
        Done(
            *HEAD,
            EPOCH,
            9,
            1,
            INCARNATION,
            [b"a", b""],
            [2, 0],
            [(1, Fault("model_failed", "no", 0, "ValueError", "tb"))],
            1.5,
        ),
        2,
        b"\x01\x9c\xa4DONE" + HEAD_BYTES + b"\xc4\x08epoch...\t\x01\xc4\x08incarna.\x92\xc4\x01a\xc4\x00"
        b"\x92\x02\x00\x91\x92\x01\x95\xacmodel_failed\xa2no\x00\xaaValueError\xa2tb\xcb?\xf8\0\0\0\0\0\0",
    ),
    (
        Yielded(
            *HEAD, EPOCH, 9, 1, INCARNATION, [Flow(1, 7, [b"a"], [1], False, Fault("model_failed", "no"))]
        ),
        1,
        b"\x01\x99\xa5YIELD" + HEAD_BYTES + b"\xc4\x08epoch...\t\x01\xc4\x08incarna."
        b"\x91\x96\x01\x07\x91\xc4\x01a\x91\x01\xc2\x95\xacmodel_failed\xa2no\x00\xa0\xa0",
    ),
    (
        Room(*HEAD, EPOCH, 9, [(1, 300)]),
        0,
        b"\x01\x97\xa4ROOM" + HEAD_BYTES + b"\xc4\x08epoch...\t\x91\x92\x01\xcd\x01,",
    ),
    (Recall(*HEAD, EPOCH, 9), 0, b"\x01\x96\xa6RECALL" + HEAD_BYTES + b"\xc4\x08epoch...\t"),
    (
        Skip(*HEAD, EPOCH, 9, [(0, 1)]),
        0,
        b"\x01\x97\xa4SKIP" + HEAD_BYTES + b"\xc4\x08epoch...\t\x91\x92\x00\x01",
    ),
    (Returned(*HEAD, EPOCH, [9, 10]), 0, b"\x01\x96\xa8RETURNED" + HEAD_BYTES + b"\xc4\x08epoch...\x92\t\n"),
    (Draining(*HEAD), 0, b"\x01\x94\xa5DRAIN" + HEAD_BYTES),
    (
        Children(
            *HEAD,
            "bert",
            [Child(INCARNATION, False, EPOCH, 9, 8, -9, "killed", 1, "cuda:0", "dead", [(ORIGIN, 4)])],
        ),
        0,
        b"\x01\x96\xa8CHILDREN"
        + HEAD_BYTES
        + b"\xa4bert\x91\x9b\xc4\x08incarna.\xc2\xc4\x08epoch...\t\x08\xf7"
        b"\xa6killed\x01\xa6cuda:0\xa4dead\x91\x92\xc4\x08origin..\x04",
    ),
]


def name_of(case: tuple[AnyMessage, int, bytes]) -> str:
    return type(case[0]).__name__


def body(*fields: Any) -> bytes:
    """Return an envelope of some fields, well-formed msgpack and perhaps no message."""
    return b"\x01" + msgspec.msgpack.encode(list(fields))


def group(**changes: Any) -> Request:
    """Return a request of one group of two items."""
    fields: dict[str, Any] = {"base": 5, "topic": "bert", "deadline_ms": 250, "items": [b"a", b"b"]}
    return Request(*HEAD, [Group(**(fields | changes))])


def why(envelope: bytes | memoryview, buffers: int = 0) -> str:
    """Return the text of the refusal to read this."""
    with pytest.raises(wire.Malformed) as refusal:
        wire.decode(envelope, buffers)
    return str(refusal.value)


# --- the bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_a_message_has_these_bytes(case: tuple[AnyMessage, int, bytes]) -> None:
    message, _, envelope = case
    assert wire.encode(message) == envelope


@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_these_bytes_are_the_message(case: tuple[AnyMessage, int, bytes]) -> None:
    message, buffers, envelope = case
    assert wire.decode(envelope, buffers) == message
    assert wire.decode(memoryview(envelope), buffers) == message


def test_every_message_has_golden_bytes() -> None:
    assert {type(message) for message, _, _ in GOLDEN} == set(get_args(AnyMessage))


def test_trailing_fields_may_be_left_out() -> None:
    assert wire.decode(body("BEAT", *HEAD)) == Beat(*HEAD)


def test_fields_of_a_newer_minor_change_are_ignored() -> None:
    assert wire.decode(body("WHO", *HEAD, "news", [1])) == Who(*HEAD)


# --- malformed envelopes ------------------------------------------------------------------------


def test_an_empty_envelope_is_refused() -> None:
    assert why(b"") == "the envelope is empty"
    assert why(memoryview(b"")) == "the envelope is empty"


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(wire.Foreign) as refusal:
        wire.decode(b"\x02whatever")
    assert refusal.value.version == 2
    assert str(refusal.value) == "protocol version 2 was sent, version 1 is spoken here"


def test_an_http_request_is_another_version() -> None:
    with pytest.raises(wire.Foreign):
        wire.decode(b"GET / HTTP/1.1\r\n")


WHO_BYTES = wire.encode(Who(*HEAD))

HOSTILE: dict[str, tuple[bytes, str]] = {
    "the version byte alone": (b"\x01", "Input data was truncated"),
    "a truncated message": (WHO_BYTES[:-1], "Input data was truncated"),
    "trailing bytes": (
        WHO_BYTES + b"\0",
        "MessagePack data is malformed: trailing characters (byte 17)",
    ),
    "an opcode that does not exist": (
        b"\x01\xc1",
        "MessagePack data is malformed: invalid opcode (byte 0)",
    ),
    "nesting 10,000 deep": (
        body("WHO", *HEAD)[:1] + b"\x95\xa3WHO" + HEAD_BYTES + b"\x91" * 10_000 + b"\0",
        "maximum recursion depth exceeded while deserializing an object",
    ),
    "an array that claims 4 G elements": (b"\x01\xdd\xff\xff\xff\xff", "Input data was truncated"),
    "bytes that claim 4 GiB": (
        b"\x01\x95\xa6STATUS" + HEAD_BYTES + b"\xc6\xff\xff\xff\xff",
        "Input data was truncated",
    ),
    "invalid UTF-8": (b"\x01\x94\xa3W\xff\xfe" + HEAD_BYTES, "Invalid UTF-8 encoded string"),
    "a map with duplicate keys": (b"\x01\x82\xa1a\x01\xa1a\x02", "Expected `array`, got `object`"),
    "a map with int keys": (b"\x01\x81\x01\x02", "Expected `array`, got `object`"),
    "a map with list keys": (b"\x01\x81\x90\x02", "Expected `array`, got `object`"),
    "a number": (b"\x01\x05", "Expected `array`, got `int`"),
    "a number as its tag": (body(5, *HEAD), "Expected `str`, got `int` - at `$[0]`"),
    "an unknown tag": (body("NOPE", *HEAD), "Invalid value - at `$[0]`"),
    "an unknown role": (body("HELLO", *HEAD, LIFE, "king", 1), "Invalid enum value - at `$[5]`"),
    "a head without a connection": (body("WHO"), "Expected `array` of at least length 4, got 1"),
    "a connection that is too short": (
        body("WHO", b"conn", 2, 1),
        "Expected `bytes` of length >= 8 - at `$[1]`",
    ),
    "a negative number": (body("WHO", CONN, -1, 1), "Expected `int` >= 0 - at `$[2]`"),
    "a number beyond 2**53": (
        body("WHO", CONN, 2**64 - 1, 1),
        "Expected `int` <= 9007199254740992 - at `$[2]`",
    ),
    "a life that is too short": (
        body("HELLO", *HEAD, b"life", "client", 1),
        "Expected `bytes` of length >= 16 - at `$[4]`",
    ),
    "text for bytes": (body("STATUS", *HEAD, "{}"), "Expected `bytes`, got `str` - at `$[4]`"),
    "too many ranges": (
        body("CANCEL", *HEAD, [[0, 1]] * 4_097),
        "Expected `array` of length <= 4096 - at `$[4]`",
    ),
    "a cost that is no number": (
        wire.encode(group(costs=[1.0, float("nan")])),
        "Expected `float` >= 0.0 - at `$[4][0][7][1]`",
    ),
    "a run without end": (
        wire.encode(Done(*HEAD, EPOCH, 9, 1, INCARNATION, [], run_ms=float("inf"))),
        "Expected `float` <= 1000000000000.0 - at `$[11]`",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_message_is_refused_with_what_was_wanted_and_where(name: str) -> None:
    envelope, reason = HOSTILE[name]
    assert why(envelope) == f"no message of version 1: {reason}"


def test_a_refusal_repeats_nothing_of_what_was_sent() -> None:
    for tag in ("x" * 10_000_000, "it's 'quoted'", "'", "line\nbreak"):
        assert why(body(tag, *HEAD)) == "no message of version 1: Invalid value - at `$[0]`"


# --- buffers ------------------------------------------------------------------------------------


def test_buffers_are_counted_over_all_groups_of_a_request() -> None:
    request = Request(
        *HEAD,
        [
            Group(1, "bert", 250, [b"a", b"b"], [2, 1]),
            Group(3, "bert", 250, [b"c"]),
            Group(4, "bert", 250, [b"d"], [3]),
        ],
    )
    assert wire.decode(wire.encode(request), 6) == request


def test_buffers_are_counted_over_all_parts_of_streams() -> None:
    flows = [Flow(1, 0, [b"a", b"b"], [2, 1]), Flow(3, 0, [b"c"]), Flow(4, 0, [b"d"], [3])]
    for message in (Parts(*HEAD, flows), Yielded(*HEAD, EPOCH, 9, 1, INCARNATION, flows)):
        assert wire.decode(wire.encode(message), 6) == message
        assert why(wire.encode(message), 5) == "the envelope speaks of 6 buffers, 5 came with it"


def test_parts_that_no_number_can_count_are_refused() -> None:
    assert why(wire.encode(Parts(*HEAD, [Flow(1, 2**53, [b"a"])]))) == "parts beyond 2**53"


def test_parts_of_many_streams_have_too_many_buffers_together() -> None:
    flows = [Flow(at, 0, [b"a"], [16_384]) for at in range(2)]
    text = "32768 buffers, at most 16384 travel in one message"
    assert why(wire.encode(Parts(*HEAD, flows))) == text


def test_a_stream_of_several_items_is_refused() -> None:
    assert why(wire.encode(group(patience_ms=300))) == "one stream for 2 items"


def test_items_without_buffers_need_not_say_so() -> None:
    for message in (
        Result(*HEAD, [Results(5, [b"a", b"b"])]),
        Batch(*HEAD, EPOCH, 9, 1, [Span(ORIGIN, 5, 250, [b"a", b"b"])]),
        Done(*HEAD, EPOCH, 9, 1, INCARNATION, [b"a", b"b"]),
    ):
        assert wire.decode(wire.encode(message)) == message


@pytest.mark.parametrize(
    "nonsense",
    [
        {"slots": 0},
        {"slots": -1},
        {"slots": 2**63},
        {"batch_size": 0},
        {"batch_size": 2**40},
        {"max_latency_ms": float("nan")},
        {"max_latency_ms": -1.0},
        {"lease_ms": -5},
        {"topic": ""},
        {"topic": "t" * 200},
    ],
    ids=str,
)
def test_offers_of_nonsense_are_refused(nonsense: dict[str, Any]) -> None:
    offer = Ready(*HEAD, "bert", 2, 8, None, 1.0, 0, True, Facts())
    assert wire.decode(wire.encode(offer)) == offer
    with pytest.raises(wire.Malformed):
        wire.decode(wire.encode(structs.replace(offer, **nonsense)))


def test_facts_of_a_worker_from_before_there_were_schemas_are_read() -> None:
    facts = b"\x94\xa1n\xa11\xc4\x02{}\xa6cuda:0"
    offer = wire.encode(Ready(*HEAD, "bert", 2, 8, None, 1.0, 0, True, Facts("n", "1", b"{}", "cuda:0")))
    assert wire.decode(offer[: -len(facts) - 2] + facts) == wire.decode(offer)


def test_a_schema_is_bounded() -> None:
    offer = Ready(*HEAD, "bert", 2, 8, None, 1.0, 0, True, Facts(schema=b"s" * SCHEMA_BYTES))
    assert wire.decode(wire.encode(offer)) == offer
    with pytest.raises(wire.Malformed):
        wire.decode(wire.encode(structs.replace(offer, facts=Facts(schema=b"s" * (SCHEMA_BYTES + 1)))))


def test_a_missing_buffer_is_refused() -> None:
    assert why(wire.encode(group(buffers=[1, 1])), 1) == "the envelope speaks of 2 buffers, 1 came with it"


def test_a_surplus_buffer_is_refused() -> None:
    assert why(wire.encode(group()), 1) == "the envelope speaks of 0 buffers, 1 came with it"


def test_a_message_without_items_has_no_buffers() -> None:
    assert why(wire.encode(Who(*HEAD)), 1) == "the envelope speaks of 0 buffers, 1 came with it"


def test_buffers_are_counted_for_each_item() -> None:
    assert why(wire.encode(group(buffers=[2])), 2) == "1 buffer counts for 2 items"


def test_more_buffers_than_a_message_may_have_are_refused() -> None:
    reason = "9007199254740993 buffers, at most 16384 travel in one message"
    assert why(wire.encode(group(buffers=[2**53, 1])), 1) == reason


def test_every_item_has_a_cost_or_none_has() -> None:
    assert why(wire.encode(group(costs=[1.0]))) == "1 costs for 2 items"


def test_every_item_of_a_group_has_a_deadline_or_none_has() -> None:
    assert why(wire.encode(group(later_ms=[0]))) == "1 deadlines for 2 items"


def test_every_item_of_a_span_has_a_deadline_or_none_has() -> None:
    batch = Batch(*HEAD, EPOCH, 9, 1, [Span(ORIGIN, 5, 250, [b"a", b"b"], None, [0])])
    assert why(wire.encode(batch)) == "1 deadlines for 2 items"


def test_a_request_id_is_for_one_item_or_for_all_of_them() -> None:
    assert wire.decode(wire.encode(group(names=["all"]))) == group(names=["all"])
    assert why(wire.encode(group(names=[]))) == "0 request ids for 2 items"
    assert why(wire.encode(group(names=["a", "b", "c"]))) == "3 request ids for 2 items"
    batch = Batch(*HEAD, EPOCH, 9, 1, [Span(ORIGIN, 5, 250, [b"a", b"b", b"c"], names=["r1", "r2"])])
    assert why(wire.encode(batch)) == "2 request ids for 3 items"


def test_a_request_id_has_a_bounded_length() -> None:
    assert wire.decode(wire.encode(group(names=["ö" * 128, ""]))) == group(names=["ö" * 128, ""])
    assert "Expected `str` of length <= 128" in why(wire.encode(group(names=["x" * 129])))


def test_every_part_of_a_joined_span_has_something_for_each_item() -> None:
    batch = Batch(*HEAD, EPOCH, 9, 1, [Span(ORIGIN, 5, 250, [b"", b""], parts=[Part("x", [b"a"])])])
    assert why(wire.encode(batch)) == "1 parts for 2 items"


def test_a_route_has_a_bounded_number_of_stages() -> None:
    stages = tuple(Stage(f"s{at}", "bert", (("", at),)) for at in range(33))
    assert "Expected `array` of length <= 32" in why(wire.encode(group(route=stages)))
    assert "Expected `array` of length >= 1" in why(wire.encode(group(route=())))


def test_ids_stay_exact_in_languages_whose_numbers_are_doubles() -> None:
    assert wire.decode(wire.encode(group(base=2**53 - 2))) == group(base=2**53 - 2)
    assert why(wire.encode(group(base=2**53 - 1))) == "ids beyond 2**53"


def test_an_error_beyond_the_batch_is_refused() -> None:
    done = Done(*HEAD, EPOCH, 9, 1, INCARNATION, [b"a"], None, [(1, Fault("model_failed", "no"))])
    assert why(wire.encode(done)) == "an error names a position beyond the batch"


# --- whatever is sent ---------------------------------------------------------------------------


def is_refused_or_read(envelope: bytes, buffers: int = 0) -> None:
    try:
        message = wire.decode(envelope, buffers)
    except wire.Malformed:
        return
    assert isinstance(message, Message)


@given(st.binary(), st.integers(0, 3))
@example(b"", 0)
def test_any_bytes_are_read_or_refused(data: bytes, buffers: int) -> None:
    is_refused_or_read(data, buffers)
    is_refused_or_read(b"\x01" + data, buffers)


@given(st.sampled_from(GOLDEN), st.data())
def test_a_damaged_message_is_read_or_refused(
    case: tuple[AnyMessage, int, bytes], data: st.DataObject
) -> None:
    envelope = bytearray(case[2])
    for _ in range(data.draw(st.integers(1, 3))):
        envelope[data.draw(st.integers(0, len(envelope) - 1))] = data.draw(st.integers(0, 255))
    is_refused_or_read(bytes(envelope[: data.draw(st.integers(0, len(envelope)))]), case[1])
    is_refused_or_read(bytes(envelope), case[1])


FIELDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(
    st.sampled_from([message.__struct_config__.tag for message, _, _ in GOLDEN]),
    st.lists(FIELDS, max_size=12),
)
def test_a_known_tag_with_any_fields_is_read_or_refused(tag: str, fields: list[Any]) -> None:
    is_refused_or_read(body(tag, *HEAD, *fields))
