"""Parts on their way: numbered, bounded, never twice and never with a gap."""

from __future__ import annotations

from zbatch.core.sizes import HEAD, size_of
from zbatch.core.stream import KEPT, MESSAGE_BYTES, PART_BYTES, WINDOW, Outflow, cut, messages_of, weight_of
from zbatch.messages import MAX_FRAMES, Fault, Flow

NO = Fault("model_failed", "no")


def put(outflow: Outflow, payload: bytes, weight: int = HEAD) -> None:
    outflow.put((payload, ()), weight)


def test_what_was_yielded_leaves_with_its_number_and_its_end() -> None:
    outflow = Outflow(3)
    put(outflow, b"a")
    put(outflow, b"b")
    assert outflow.flow([]) == Flow(3, 0, [b"a", b"b"])
    assert outflow.flow([]) is None
    put(outflow, b"c")
    outflow.end()
    assert outflow.flow([]) == Flow(3, 2, [b"c"], None, True)
    assert outflow.flow([]) is None


def test_an_error_ends_a_stream_behind_what_came_before_it() -> None:
    outflow = Outflow(0)
    put(outflow, b"a")
    outflow.end(NO)
    outflow.end()
    put(outflow, b"b")
    assert outflow.flow([]) == Flow(0, 0, [b"a"], None, False, NO)


def test_no_more_is_on_its_way_than_a_window_and_one_part() -> None:
    outflow = Outflow(0)
    for _ in range(3):
        put(outflow, b"x", WINDOW - 1)
    assert outflow.flow([]) == Flow(0, 0, [b"x", b"x"])
    assert outflow.is_full
    assert outflow.flow([]) is None
    outflow.taken = WINDOW - 1
    assert outflow.flow([]) == Flow(0, 2, [b"x"])


def test_a_reader_that_is_too_far_behind_gets_what_was_kept_and_then_an_error() -> None:
    outflow = Outflow(0)
    put(outflow, b"a", WINDOW)
    outflow.flow([])
    put(outflow, b"b", KEPT)
    put(outflow, b"c", 1)
    assert not outflow.is_open
    assert outflow.flow([]) is None
    outflow.taken = WINDOW
    flow = outflow.flow([])
    assert flow is not None
    assert (flow.parts, flow.ended) == ([b"b"], False)
    assert flow.fault is not None
    assert flow.fault.code == "reader_too_slow"


def test_all_that_is_kept_leaves_when_the_batch_has_ended() -> None:
    outflow = Outflow(0)
    for payload in (b"a", b"b", b"c"):
        put(outflow, payload, WINDOW)
    outflow.end()
    assert outflow.flow([]) == Flow(0, 0, [b"a"])
    assert outflow.flow([], everything=True) == Flow(0, 1, [b"b", b"c"], None, True)


def test_a_part_beyond_its_bound_ends_its_stream() -> None:
    outflow = Outflow(0)
    put(outflow, b"a", PART_BYTES + 1)
    flow = outflow.flow([])
    assert flow is not None
    assert flow.fault is not None
    assert (flow.parts, flow.fault.code) == ([], "bad_output")


def test_of_a_stream_that_nobody_reads_nothing_is_sent() -> None:
    outflow = Outflow(0)
    put(outflow, b"a")
    outflow.stop()
    put(outflow, b"b")
    outflow.end()
    assert outflow.flow([]) is None
    assert not outflow.is_open


def test_parts_have_no_more_buffers_at_a_time_than_a_message() -> None:
    many = Outflow(0)
    for _ in range(2):
        many.put((b"x", [b"b"] * MAX_FRAMES), HEAD)
    frames: list[bytes] = []
    assert many.flow(frames) == Flow(0, 0, [b"x"], [MAX_FRAMES])
    assert len(frames) == MAX_FRAMES


def test_parts_of_several_streams_share_a_message_while_they_fit() -> None:
    large = b"x" * (MESSAGE_BYTES // 2)
    first, second, third = Flow(0, 0, [large]), Flow(1, 0, [b"y"], [1]), Flow(2, 0, [large])
    pieces = [(first, ()), (second, (b"buffer",)), (third, ())]
    assert list(messages_of(pieces, size_of)) == [([first, second], [b"buffer"]), ([third], [])]
    assert list(messages_of([], size_of)) == []


def test_many_buffers_do_not_share_a_message() -> None:
    most = tuple(b"" for _ in range(MAX_FRAMES))
    first, second = Flow(0, 0, [b"x"], [MAX_FRAMES]), Flow(1, 0, [b"y"], [1])

    def nothing(*_: object) -> int:
        return 0

    messages = list(messages_of([(first, most), (second, (b"b",))], nothing))
    assert [flows for flows, _ in messages] == [[first], [second]]


def test_each_part_gets_its_own_buffers_back() -> None:
    assert cut(Flow(0, 0, [b"a", b"b", b"c"], [1, 0, 2]), [b"1", b"2", b"3"]) == [
        (b"a", [b"1"]),
        (b"b", []),
        (b"c", [b"2", b"3"]),
    ]
    assert cut(Flow(0, 0, [b"a"]), []) == [(b"a", ())]


def test_a_part_weighs_the_same_at_both_ends() -> None:
    assert weight_of((b"abc", ()), size_of) == weight_of((b"abc", []), size_of) == HEAD + 3
    assert weight_of((b"abc", [b"x" * 5_000]), size_of) == HEAD + 5_003
