"""What a generator may yield, and what becomes of it."""

from __future__ import annotations

import copy
import enum
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

import zbatch
from zbatch import payload
from zbatch.errors import BadOutput
from zbatch.messages import Fault
from zbatch.model import Context, wrap
from zbatch.runner import Ran, Runner, Work, current_batch
from zbatch.steps import END, NOTHING, entries_of, is_generator, steps_of, whole_of


class Readers:
    """Reads some items of a batch as streams, and notes what came."""

    def __init__(self, *streamed: int) -> None:
        self.streamed = streamed
        self.parts: dict[int, list[Any]] = {place: [] for place in streamed}
        self.ended: dict[int, str] = {}
        self.left: set[int] = set()
        self.waited: list[list[int]] = []
        self.after = 1_000
        """Parts after which its reader leaves."""

    def is_streamed(self, place: int) -> bool:
        return place in self.streamed

    def is_wanted(self, place: int) -> bool:
        return place not in self.left

    def put(self, parts: list[tuple[int, Any, Sequence[Any]]], ended: list[tuple[int, Fault | None]]) -> None:
        for place, encoded, buffers in parts:
            self.parts[place].append(payload.decode(encoded, buffers))
            if len(self.parts[place]) >= self.after:
                self.left.add(place)
        self.ended.update({place: "end" if fault is None else fault.code for place, fault in ended})

    def wait(self, places: Sequence[int]) -> None:
        self.waited.append(list(places))


def run(predict: Callable[[list[Any]], Any], items: Sequence[Any], readers: Readers | None = None) -> Ran:
    encoded = [payload.encode(item)[0] for item in items]
    runner = Runner(wrap(predict, {}, Context()))
    return runner.run(Work(encoded, None, list(range(len(items))), [1.0] * len(items), sink=readers))


def outputs(ran: Ran) -> list[Any]:
    errors = dict(ran.errors or ())
    return [
        errors[place].code if place in errors else payload.decode(output, ())
        for place, output in enumerate(ran.outputs)
    ]


def count_up(batch: list[int]) -> Iterator[list[Any]]:
    """Yield 0, 1, ... for each item, as many as it says."""
    for step in range(max(batch) + 1):
        yield [step if step < most else END if step == most else NOTHING for most in batch]


async def count_up_async(batch: list[int]) -> AsyncIterator[list[Any]]:
    for step in count_up(batch):
        yield step


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("predict", [count_up, count_up_async])
def test_each_reader_gets_its_own_parts_and_its_own_end(predict: Any) -> None:
    readers = Readers(0, 1, 2)
    run(predict, [2, 0, 3], readers)
    assert readers.parts == {0: [0, 1], 1: [], 2: [0, 1, 2]}
    assert readers.ended == {0: "end", 1: "end", 2: "end"}


@pytest.mark.parametrize("predict", [count_up, count_up_async])
def test_who_does_not_read_gets_the_list_of_all_parts(predict: Any) -> None:
    assert outputs(run(predict, [2, 0, 3])) == [[0, 1], [], [0, 1, 2]]
    readers = Readers(1)
    assert outputs(run(predict, [2, 1], readers))[0] == [0, 1]
    assert readers.parts == {1: [0]}


def test_a_step_may_be_a_dict_of_places() -> None:
    def predict(batch: list[Any]) -> Iterator[dict[int, Any]]:
        yield {1: "b"}
        yield {0: "a", 1: NOTHING}
        yield {}

    assert outputs(run(predict, [7, 8])) == [["a"], ["b"]]


def test_what_is_yielded_for_an_item_that_has_ended_is_ignored() -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        yield [END, 1]
        yield [2, 2]

    readers = Readers(0)
    assert outputs(run(predict, [7, 8], readers))[1] == [1, 2]
    assert readers.parts == {0: []}


def test_the_end_of_the_generator_is_the_end_of_all() -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        yield ["part" for _ in batch]

    readers = Readers(0, 1)
    run(predict, [7, 8], readers)
    assert readers.ended == {0: "end", 1: "end"}


class Colour(enum.Enum):
    RED = "red"


class Word(msgspec.Struct):
    text: str
    colour: Colour


def colours(batch: list[int]) -> Iterator[list[Colour]]:
    yield [Colour.RED for _ in batch]


async def words(batch: list[int]) -> AsyncIterator[list[Word | Exception]]:
    yield [Word("a", Colour.RED) for _ in batch]


def words_by_place(batch: list[int]) -> Iterator[dict[int, Word]]:
    yield {1: Word("b", Colour.RED)}


class Signed:
    """Its output is as long as its stream."""

    signature: ClassVar = {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": []}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }

    def predict(self, batch: list[Any]) -> Iterator[Any]:
        yield np.arange(len(batch), dtype="f4")  # rows of an array are entries, too
        yield [1.5] * len(batch)


@pytest.mark.parametrize(
    ("predict", "first", "second"),
    [
        (colours, ["red"], ["red"]),
        (words, [{"text": "a", "colour": "red"}], [{"text": "a", "colour": "red"}]),
        (words_by_place, [], [{"text": "b", "colour": "red"}]),
        (Signed, [0.0, 1.5], [1.0, 1.5]),
    ],
)
def test_parts_of_a_declared_type_leave_as_plain_data_to_who_reads_and_who_does_not(
    predict: Any, first: Any, second: Any
) -> None:
    items = [0, 1]
    readers = Readers(0, 1)
    run(predict, items, readers)
    whole = outputs(run(predict, items))
    assert ([readers.parts[0], readers.parts[1]], whole) == ([first, second], [first, second])


def test_a_part_may_be_none() -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        yield [None]

    assert outputs(run(predict, [7])) == [[None]]


# --- failures ------------------------------------------------------------------------------------


def test_an_exception_in_its_place_fails_that_item_alone() -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        yield [1, 1, 1]
        yield [ValueError("no"), ValueError("no"), 2]

    readers = Readers(0, 2)
    assert outputs(run(predict, [7, 8, 9], readers))[1] == "model_failed"
    assert readers.parts == {0: [1], 2: [1, 2]}
    assert readers.ended == {0: "model_failed", 2: "end"}


def test_what_raises_fails_all_that_have_not_ended() -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        yield [1, END, 1, END]
        raise ValueError("no")

    readers = Readers(0, 1)
    assert outputs(run(predict, [7, 8, 9, 10], readers))[2:] == ["model_failed", []]
    assert readers.ended == {0: "model_failed", 1: "end"}


def test_what_raises_before_anything_came_is_halved_until_the_guilty_stand_alone() -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        if 8 in batch:
            raise ValueError("no")
        yield [item * 2 for item in batch]

    readers = Readers(0, 1)
    assert outputs(run(predict, [7, 8, 9], readers))[1:] == ["model_failed", [18]]
    assert readers.parts == {0: [14], 1: []}
    assert readers.ended == {0: "end"}


def test_a_part_that_cannot_be_sent_fails_that_item() -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        yield [object(), 1]
        yield [1, 2]

    readers = Readers(0, 1)
    run(predict, [7, 8], readers)
    assert readers.parts == {0: [], 1: [1, 2]}
    assert readers.ended == {0: "bad_output", 1: "end"}


@pytest.mark.parametrize("step", [None, "ab", b"ab", 7, [1], [1, 2, 3], {2: 1}, {"a": 1}, {True: 1}])
def test_a_step_that_is_none_fails_the_batch(step: Any) -> None:
    def predict(batch: list[Any]) -> Iterator[Any]:
        yield step

    assert outputs(run(predict, [7, 8])) != [[], []]
    with pytest.raises(BadOutput):
        list(entries_of(step, 2))


def test_an_interrupt_passes() -> None:
    def predict(batch: list[Any]) -> Iterator[Any]:
        yield [1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(predict, [7])


# --- readers -------------------------------------------------------------------------------------


def test_a_generator_that_nobody_reads_any_more_is_closed() -> None:
    closed: list[int] = []

    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        try:
            for step in range(100):
                yield [step for _ in batch]
        finally:
            closed.append(step)

    readers = Readers(0, 1)
    readers.after = 3
    run(predict, [7, 8], readers)
    assert closed == [2]


def test_a_model_is_told_who_has_left() -> None:
    told: list[list[bool]] = []

    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        for step in range(3):
            current = current_batch()
            assert current is not None
            told.append([current.wanted(place) for place in range(2)])
            yield [step for _ in batch]

    readers = Readers(0)
    readers.after = 1
    assert outputs(run(predict, [7, 8], readers))[1] == [0, 1, 2]
    assert told == [[True, True], [False, True], [False, True]]
    assert readers.parts == {0: [0]}


def test_between_steps_it_waits_for_those_whom_it_still_works_for() -> None:
    readers = Readers(0, 1)
    run(count_up, [1, 2], readers)
    assert readers.waited == [[0, 1], [1]]


# --- small things --------------------------------------------------------------------------------


def test_an_async_generator_that_is_closed_ends_in_order() -> None:
    closed: list[str] = []

    async def predict() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("closed")

    steps = steps_of(predict())
    assert next(steps) == 1
    steps.close()  # type: ignore[attr-defined]
    assert closed == ["closed"]


def test_an_expression_is_no_model_that_yields_steps() -> None:
    assert is_generator(count_up([1]))
    assert is_generator(count_up_async([1]))
    assert not is_generator(one for one in [1])
    assert not is_generator([1])


def test_a_model_is_warmed_up_with_all_of_its_steps() -> None:
    class Model:
        example = 2
        steps = 0

        def predict(self, batch: list[int]) -> Iterator[list[Any]]:
            for step in count_up(batch):
                Model.steps += 1
                yield step

    wrap(Model, {}, Context()).warm_up()
    assert Model.steps == 3


def test_a_warm_up_that_fails_says_so() -> None:
    class Model:
        example = 2

        def predict(self, batch: list[int]) -> Iterator[list[Any]]:
            yield [ValueError("no")]

    with pytest.raises(ValueError, match="no"):
        wrap(Model, {}, Context()).warm_up()


def test_all_that_is_yielded_is_one_output_an_item() -> None:
    assert whole_of(count_up([2, 0]), 2) == [[0, 1], []]
    assert whole_of(iter_of([1, 2], [END, END], [3, 3]), 2) == [[1], [2]]


def iter_of(*steps: Any) -> Any:
    yield from steps


def test_words_are_themselves_wherever_they_come_from() -> None:
    assert (repr(END), repr(NOTHING)) == ("zbatch.END", "zbatch.NOTHING")
    for word in (END, NOTHING):
        assert pickle.loads(pickle.dumps(word)) is word
        assert copy.deepcopy(word) is word
    assert (zbatch.END, zbatch.NOTHING) == (END, NOTHING)
