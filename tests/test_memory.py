"""Where memory is short a batch runs in parts, and how many items fit is learned and carefully raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.test_runner import Recorder, make_runner, make_work, outputs
from zbatch.memory import GOOD_RUNS, PATIENCE, Room, is_short
from zbatch.runner import Runner


def fits(most: int, error: Callable[[], BaseException] = MemoryError) -> Callable[[list[Any]], list[Any]]:
    """Return a model whose memory holds so many items."""

    def predict(batch: list[Any]) -> list[Any]:
        if len(batch) > most:
            raise error()
        return [2 * item for item in batch]

    return predict


def sizes(model: Recorder) -> list[int]:
    return [len(batch) for batch in model.seen]


def ask(runner: Runner, count: int) -> list[Any]:
    return outputs(runner.run(make_work(range(count))))


def test_all_are_answered_though_the_whole_batch_does_not_fit() -> None:
    model = Recorder(fits(8))
    assert ask(make_runner(model), 32) == [2 * item for item in range(32)]
    assert sizes(model) == [32, 16, 8, 8, 8, 8]


def test_the_next_batch_is_run_in_parts_from_the_start() -> None:
    model = Recorder(fits(8))
    runner = make_runner(model)
    ask(runner, 32)
    model.seen.clear()
    assert ask(runner, 20) == [2 * item for item in range(20)]
    assert sizes(model) == [8, 8, 4]


def test_after_good_runs_a_little_more_is_tried_and_a_failure_makes_the_next_try_later() -> None:
    model = Recorder(fits(8))
    runner = make_runner(model)
    ask(runner, 16)
    for _ in range(6 * GOOD_RUNS):
        ask(runner, 8 + 1)
    tried = [at for at, size in enumerate(sizes(model)) if size == 9]
    assert len(tried) == 2
    assert tried[1] - tried[0] > 1.5 * (tried[0] - sizes(model).index(8))


def test_once_memory_is_there_again_whole_batches_run_again() -> None:
    most = [8]

    def predict(batch: list[Any]) -> list[Any]:
        return fits(most[0])(batch)

    model = Recorder(predict)
    runner = make_runner(model)
    ask(runner, 32)
    most[0] = 32
    for _ in range(20 * GOOD_RUNS):
        assert ask(runner, 32) == [2 * item for item in range(32)]
    assert sizes(model)[-1] == 32


def test_an_item_that_does_not_fit_alone_fails_alone() -> None:
    def predict(batch: list[int]) -> list[int]:
        if 3 in batch:
            raise MemoryError("no room for 3")
        return batch

    ran = make_runner(Recorder(predict)).run(make_work(range(8)))
    assert outputs(ran) == [0, 1, 2, "model_failed", 4, 5, 6, 7]
    ((_, fault),) = ran.errors or []
    assert (fault.kind, fault.text) == ("MemoryError", "no room for 3")


def test_what_must_not_run_twice_fails_as_one_and_the_next_batch_runs_in_parts() -> None:
    model = Recorder(fits(8), idempotent=False)
    runner = make_runner(model)
    assert ask(runner, 16) == ["model_failed"] * 16
    assert ask(runner, 16) == [2 * item for item in range(16)]
    assert sizes(model) == [16, 8, 8]


def test_an_operator_hears_of_it() -> None:
    heard: list[tuple[int, int]] = []
    runner = make_runner(Recorder(fits(8)), on_short=lambda items, limit: heard.append((items, limit)))
    ask(runner, 32)
    assert heard == [(32, 16), (16, 8)]


def test_each_part_may_take_as_long_as_a_batch() -> None:
    progressed: list[None] = []
    runner = make_runner(Recorder(fits(8)), on_progress=lambda: progressed.append(None))
    ask(runner, 16)
    progressed.clear()
    ask(runner, 24)
    assert len(progressed) == 2


def test_a_wrong_output_count_teaches_nothing_about_memory() -> None:
    model = Recorder(lambda batch: batch if len(batch) == 1 else batch[1:])
    runner = make_runner(model)
    ask(runner, 4)
    model.seen.clear()
    ask(runner, 4)
    assert sizes(model)[0] == 4


def test_tries_never_become_rarer_than_a_bound() -> None:
    room = Room()
    room.failed(2)
    runs = []
    for _ in range(12):
        before = 0
        while room.limit == 1:
            room.ran(1)
            before += 1
        runs.append(before)
        room.failed(2)
    assert runs[:3] == [GOOD_RUNS, 2 * GOOD_RUNS, 4 * GOOD_RUNS]
    assert runs[-1] == PATIENCE * GOOD_RUNS


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), True),
        (OSError("not enough memory"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("out of memory"), False),
        (KeyError("x"), False),
    ],
)
def test_what_says_that_memory_is_short(error: BaseException, short: bool) -> None:
    assert is_short(error) is short


def test_an_exception_without_a_text_says_nothing() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    assert not is_short(Mute())


def test_torch_says_it_by_a_class_of_its_own() -> None:
    torch = pytest.importorskip("torch")
    model = Recorder(fits(8, lambda: torch.OutOfMemoryError("tried to allocate 2.00 GiB")))
    assert ask(make_runner(model), 32) == [2 * item for item in range(32)]
