"""service_streamer's ThreadedStreamer: the old promises, without the old defects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from zbatch import BatchError, ClientClosed, ModelFailed, ThreadedStreamer, streamer


class Recorder:
    """Doubles each item, and notes how large its batches were."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, batch: list[Any]) -> list[Any]:
        self.sizes.append(len(batch))
        return [2 * item for item in batch]


def double(batch: list[Any]) -> list[Any]:
    return [2 * item for item in batch]


@pytest.fixture
def doubler() -> Iterator[ThreadedStreamer]:
    made = ThreadedStreamer(double, 8)
    yield made
    made.destroy_workers()


@pytest.mark.parametrize(
    ("batch", "outputs"),
    [
        ([1, 2, 3], [2, 4, 6]),
        ((1, 2), [2, 4]),
        ([], []),
        ("ab", ["aa", "bb"]),
        ({"x": 1, "y": 2}, ["xx", "yy"]),
        (range(20), list(range(0, 40, 2))),
    ],
    ids=str,
)
def test_each_element_is_an_item_and_the_answer_a_list(
    doubler: ThreadedStreamer, batch: Any, outputs: Any
) -> None:
    assert doubler.predict(batch) == outputs


def test_rows_of_an_array_are_items_and_come_back_writable(doubler: ThreadedStreamer) -> None:
    first, second = doubler.predict(np.ones((2, 3)))
    first[0] = 5.0
    assert (first.tolist(), second.tolist()) == ([5.0, 2.0, 2.0], [2.0, 2.0, 2.0])


def test_a_generator_is_refused_as_ever(doubler: ThreadedStreamer) -> None:
    with pytest.raises(TypeError, match=r"got generator; use list\(\.\.\.\)"):
        doubler.predict(one for one in [1])  # type: ignore[arg-type]


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="wanted a function of a list, got int"):
        ThreadedStreamer(5, 8)  # type: ignore[arg-type]


def test_a_result_may_be_asked_for_twice_and_done_is_a_bool(doubler: ThreadedStreamer) -> None:
    future = doubler.submit([1])
    assert future.result(30) == future.result(30) == [2]
    assert future.done() is True


def test_callers_share_batches_of_at_most_the_size() -> None:
    recorder = Recorder()
    asked = ThreadedStreamer(recorder, 4)
    threads = [threading.Thread(target=asked.predict, args=([at],)) for at in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asked.destroy_workers()
    assert sum(recorder.sizes) == 50
    assert max(recorder.sizes) <= 4


def test_an_exception_is_told_at_once_and_the_next_call_is_served() -> None:
    def fails(batch: list[Any]) -> list[Any]:
        if "bad" in batch:
            raise ValueError("told to fail")
        return batch

    asked = ThreadedStreamer(fails, 8)
    with pytest.raises(ModelFailed, match="ValueError: told to fail"):
        asked.predict(["bad"])
    with pytest.raises(BatchError) as some:
        asked.predict(["good", "bad"])
    assert some.value.results == ["good", None]
    assert asked.predict(["good"]) == ["good"]
    asked.destroy_workers()


def test_a_call_that_takes_too_long_is_a_timeout() -> None:
    release = threading.Event()

    def waits(batch: list[Any]) -> list[Any]:
        release.wait(60)
        return batch

    asked = ThreadedStreamer(waits, 8, 0.1, 0.2)
    with pytest.raises(TimeoutError):
        asked.predict([1])
    release.set()
    asked.destroy_workers()


def test_the_modules_timeout_may_be_set_as_people_do(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def waits(batch: list[Any]) -> list[Any]:
        release.wait(60)
        return batch

    asked = ThreadedStreamer(waits, 8)
    monkeypatch.setattr(streamer, "WORKER_TIMEOUT", 0.2)
    with pytest.raises(TimeoutError):
        asked.predict([1])
    release.set()
    asked.destroy_workers()


def test_after_destroying_a_call_fails_at_once(doubler: ThreadedStreamer) -> None:
    doubler.destroy_workers()
    with pytest.raises(ClientClosed):
        doubler.predict([1])
