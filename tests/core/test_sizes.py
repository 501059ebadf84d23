"""What fits into one message, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zbatch.core.sizes import HEAD, LEAST, Answer, cannot_travel, messages_of, size_of
from zbatch.messages import MAX_FRAMES, Fault, Results

MOST = 1_000


def fitted(
    outputs: Sequence[bytes],
    buffers: list[Sequence[Any]] | None = None,
    errors: Sequence[tuple[int, Fault]] = (),
    most: int = MOST,
) -> Answer:
    answer = Answer(list(outputs), buffers, list(errors))
    answer.fit(most, size_of)
    return answer


def test_a_request_that_is_one_message_may_travel() -> None:
    assert cannot_travel(MOST - HEAD, [b"a"], None, MOST) is None
    assert cannot_travel(1, [b"a"], [[b"x"] * MAX_FRAMES], 1 << 30) is None


def test_a_request_beyond_what_the_broker_reads_says_both_sizes() -> None:
    assert cannot_travel(MOST - HEAD + 1, [b"a"], None, MOST) == Fault(
        "too_large",
        "the request has 937 bytes in 1 items, a message may have 1,000: "
        "send fewer items at a time, or raise the broker's limits.message_bytes",
    )


def test_a_request_of_more_buffers_than_a_message_has_says_both_numbers() -> None:
    assert cannot_travel(1, [b"a", b"b"], [[b"x"] * MAX_FRAMES, [b"y"]], 1 << 30) == Fault(
        "too_large", "the request has 16,385 buffers, a message may have 16,384: send fewer at a time"
    )


def test_an_answer_that_fits_is_left_alone() -> None:
    outputs: list[Any] = [b"a", b"b"]
    buffers: list[Any] = [(b"x",), ()]
    answer = Answer(outputs, buffers, [])
    answer.fit(1 << 20, size_of)
    assert (answer.outputs, answer.buffers, answer.errors) == ([b"a", b"b"], [(b"x",), ()], [])


def test_an_output_larger_than_a_message_is_a_bad_output_and_its_neighbours_arrive() -> None:
    answer = fitted([b"a", bytes(MOST), b"c"])
    assert answer.outputs == [b"a", b"", b"c"]
    fault = Fault("bad_output", "the output has 1,000 bytes, a message may have 1,000")
    assert answer.errors == [(1, fault)]


def test_the_buffers_of_an_output_count() -> None:
    answer = fitted([b"a", b"b"], [(bytes(2 * LEAST),), ()], most=2 * LEAST)
    assert (answer.outputs, answer.buffers) == ([b"", b"b"], [(), ()])
    assert [place for place, _ in answer.errors] == [0]


def test_outputs_that_are_too_much_together_travel_as_buffers_before_their_own() -> None:
    answer = fitted([b"a" * 400, b"", b"c" * 400], [(), (b"x",), (b"y",)], most=LEAST + 500)
    assert answer.outputs == [b"a" * 400, b"", b"c" * 400]  # the envelope is small enough
    answer = fitted([b"a" * 800, b"b" * 800], most=MOST)
    assert answer.outputs == [b"", b""]
    assert answer.buffers == [(b"a" * 800,), (b"b" * 800,)]
    assert answer.errors == []


def test_what_failed_has_no_buffer_of_its_own() -> None:
    failed = Fault("model_failed", "no")
    answer = fitted([b"", b"b" * 900], errors=[(0, failed)])
    assert answer.buffers == [(), (b"b" * 900,)]
    assert answer.errors == [(0, failed)]


def test_outputs_beyond_the_last_buffer_of_a_message_are_refused_by_name() -> None:
    many = [b"x"] * (MAX_FRAMES // 2)
    answer = fitted([b"a", b"b", b"c", b"d"], [many, many, [b"y"], ()], most=1 << 40)
    assert [place for place, _ in answer.errors] == [2]
    assert answer.errors[0][1].text == (
        "the outputs of one batch have more than 16,384 buffers: a smaller batch size would do"
    )
    assert (answer.outputs[3], answer.buffers) == (b"d", [many, many, (), ()])


def test_errors_that_are_too_long_together_are_shortened() -> None:
    long = Fault("model_failed", "x" * 2_000, 0, "ValueError", "at line 1\n" * 100)
    answer = fitted([b"", b""], errors=[(0, long), (1, long)], most=4_000)
    short = Fault("model_failed", "x" * 1_000, 0, "ValueError")
    assert answer.errors == [(0, short), (1, short)]


def test_what_a_client_is_owed_is_cut_into_messages_that_have_not_too_many_buffers() -> None:
    half = [b"x"] * (MAX_FRAMES // 2)
    spans = [Results(1, [b"a"], [len(half)]), Results(2, [b"b"]), Results(3, [b"c"], [len(half)])]
    last = Results(4, [b"d"], [2])
    cut = list(messages_of([*spans, last], [*half, *half, b"y", b"z"]))
    assert cut == [(spans, half + half), ([last], [b"y", b"z"])]


def test_what_is_one_message_stays_one() -> None:
    spans = [Results(1, [b"a"])]
    assert list(messages_of(spans, [])) == [(spans, [])]
