"""zbatch.local: the same calls and the same rules, inside one process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zbatch
from zbatch.config import Limits
from zbatch.errors import (
    BadOutput,
    BadRequest,
    BatchError,
    Cancelled,
    ClientClosed,
    ConfigError,
    DeadlineExceeded,
    ModelFailed,
    Overloaded,
    UnknownTopic,
)

PATIENCE = 60.0
"""Guards against hanging; measures nothing."""


class Gated:
    """Doubles numbers, a batch at a time, when the gate is open; keeps what it ran."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Semaphore(0)
        self.ran: list[list[Any]] = []
        self.threads = {threading.get_ident()}
        self.closed = threading.Event()

    def predict(self, batch: list[Any]) -> list[Any]:
        self.ran.append(list(batch))
        self.threads.add(threading.get_ident())
        self.began.release()
        assert self.gate.wait(PATIENCE)
        return [item * 2 for item in batch]

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def model() -> Iterator[Gated]:
    model = Gated()
    yield model
    model.gate.set()


def occupy(client: Any, model: Gated) -> Any:
    """Have the model run one item, behind its closed gate."""
    future = client.submit([0])
    assert model.began.acquire(timeout=PATIENCE)
    return future


def double(batch: list[Any]) -> list[Any]:
    return [item * 2 for item in batch]


def test_results_have_the_length_and_the_order_of_the_items() -> None:
    with zbatch.local(double, batch_size=4) as client:
        assert client.predict(range(10)) == [item * 2 for item in range(10)]
        assert client.predict_one("ab") == "abab"
        assert client.predict([]) == []
        assert client.predict((1.5,)) == [3.0]


def test_items_and_outputs_pass_by_reference() -> None:
    thing = object()
    with zbatch.local(lambda batch: batch[:]) as client:
        assert client.predict_one(thing) is thing


def test_map_takes_items_as_outputs_are_taken() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with zbatch.local(double) as client:
        mapped = client.map(source(), window=5)
        assert next(mapped) == 0
        assert len(taken) == 5
        assert list(mapped) == [item * 2 for item in range(1, 100)]


def test_a_bare_value_is_refused_with_a_sentence() -> None:
    with zbatch.local(double) as client, pytest.raises(BadRequest, match="wrap it in a list"):
        client.predict("text")


def test_what_comes_while_the_model_runs_shares_the_next_batch(model: Gated) -> None:
    with zbatch.local(model, batch_size=8) as client:
        first = occupy(client, model)
        others = [client.submit([number]) for number in range(1, 11)]
        model.gate.set()
        assert first.result(PATIENCE) == [0]
        assert [one.result(PATIENCE) for one in others] == [[number * 2] for number in range(1, 11)]
    assert model.ran == [[0], [1, 2, 3, 4, 5, 6, 7, 8], [9, 10]]


def test_a_large_request_is_split_and_rejoined(model: Gated) -> None:
    model.gate.set()
    with zbatch.local(model, batch_size=2) as client:
        assert client.predict([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert model.ran == [[1, 2], [3, 4], [5]]


def test_a_window_waits_until_the_batch_is_full(model: Gated) -> None:
    model.gate.set()
    with zbatch.local(model, batch_size=2, max_latency=PATIENCE, batching="window") as client:
        futures = [client.submit([1]), client.submit([2])]
        assert [one.result(PATIENCE) for one in futures] == [[2], [4]]
    assert model.ran == [[1, 2]]


def test_a_window_ends_by_itself() -> None:
    with zbatch.local(double, batch_size=2, max_latency=0.01, batching="window") as client:
        assert client.predict([1]) == [2]


def test_higher_priority_goes_first_and_keys_keep_apart(model: Gated) -> None:
    with zbatch.local(model, batch_size=8) as client:
        occupy(client, model)
        futures = [
            client.submit([1]),
            client.submit([2], key="a"),
            client.submit([3], priority=1),
            client.submit([4], key="a"),
        ]
        model.gate.set()
        assert [one.result(PATIENCE)[0] for one in futures] == [2, 4, 6, 8]
    assert model.ran == [[0], [3, 1], [2, 4]]


def test_costs_bound_a_batch(model: Gated) -> None:
    with zbatch.local(model, batch_size=8, batch_cost=10.0) as client:
        occupy(client, model)
        future = client.submit([1, 2, 3], cost=[6.0, 4.0, 1.0])
        model.gate.set()
        assert future.result(PATIENCE) == [2, 4, 6]
    assert model.ran == [[0], [1, 2], [3]]


def test_a_deadline_holds_while_the_model_runs(model: Gated) -> None:
    with zbatch.local(model) as client:
        running = client.submit([1], timeout=0.05)
        with pytest.raises(DeadlineExceeded, match="while it ran"):
            running.result(PATIENCE)
        with pytest.raises(DeadlineExceeded, match="while it waited"):
            client.predict([2], timeout=0.05)
        model.gate.set()
        assert client.predict([3]) == [6]
    assert [2] not in model.ran


def test_a_cancelled_item_is_never_run(model: Gated) -> None:
    with zbatch.local(model) as client:
        occupy(client, model)
        future, other = client.submit([1]), client.submit([2])
        assert future.cancel()
        assert future.cancelled()
        with pytest.raises(Cancelled):
            future.result()
        model.gate.set()
        assert other.result(PATIENCE) == [4]
        assert not other.cancel()
    assert model.ran == [[0], [2]]


def test_a_wait_that_runs_out_leaves_the_request_alive(model: Gated) -> None:
    with zbatch.local(model) as client:
        future = client.submit([1])
        with pytest.raises(TimeoutError) as raised:
            future.result(0.01)
        assert not isinstance(raised.value, DeadlineExceeded)
        model.gate.set()
        assert future.result(PATIENCE) == [2]


def test_a_bad_item_hurts_only_itself() -> None:
    def halve(batch: list[Any]) -> list[Any]:
        return [KeyError("told to") if item == "fail" else 8 // item for item in batch]

    with zbatch.local(halve) as client:
        with pytest.raises(BatchError) as raised:
            client.predict([2, 0, "fail", 4])
        assert raised.value.results == [4, None, None, 2]
        errors = raised.value.errors
        assert {place: type(error) for place, error in errors.items()} == {1: ModelFailed, 2: ModelFailed}
        assert "ZeroDivisionError" in str(errors[1])
        with pytest.raises(ModelFailed, match="KeyError"):
            client.predict_one("fail")
        found = client.predict([2, 0], return_exceptions=True)
        assert found[0] == 4
        assert isinstance(found[1], ModelFailed)


def test_a_wrong_count_is_a_bad_output() -> None:
    with zbatch.local(lambda batch: batch[1:]) as client, pytest.raises(BadOutput, match="0 outputs"):
        client.predict([1])


def test_beyond_a_bound_the_caller_is_told_at_once(model: Gated) -> None:
    with zbatch.local(model, limits=Limits(topic_items=3)) as client:
        first = occupy(client, model)
        fit = client.submit([1, 2])
        with pytest.raises(Overloaded):
            client.predict([3])
        model.gate.set()
        assert first.result(PATIENCE) + fit.result(PATIENCE) == [0, 2, 4]


def test_another_topic_is_unknown() -> None:
    with zbatch.local(double, topic="mine") as client:
        assert client.predict([1], topic="mine") == [2]
        with pytest.raises(UnknownTopic, match="serves mine"):
            client.predict([1], topic="other")


def test_a_class_is_made_and_run_in_one_thread_of_its_own() -> None:
    made: list[Any] = []

    class Model(Gated):
        example = 1

        def __init__(self, factor: int) -> None:
            super().__init__()
            self.factor = factor
            self.gate.set()
            made.append(self)

    with zbatch.local(Model, args={"factor": 3}) as client:
        assert client.predict([1, 2]) == [2, 4]
    [model] = made
    assert model.factor == 3
    assert model.ran == [[1], [1, 2]]
    assert len(model.threads) == 1
    assert threading.get_ident() not in model.threads
    assert model.closed.is_set()


def test_a_model_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tripler.py").write_text("def predict(batch):\n    return [item * 3 for item in batch]\n")
    with zbatch.local(f"{tmp_path}/tripler.py:predict") as client:
        assert client.predict([1, 2]) == [3, 6]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"model": 5}, "wanted a function"),
        ({"model": object}, "no method predict"),
        ({"model": "nowhere:Model"}, "no module 'nowhere'"),
        ({"model": double, "args": {"a": 1}}, "takes no arguments"),
        ({"model": double, "batch_size": 0}, "batch_size is 0"),
        ({"model": double, "max_latency": -1.0}, "max_latency is -1.0"),
        ({"model": double, "batching": "lazy"}, "batching is 'lazy'"),
    ],
)
def test_what_cannot_be_started_is_told_in_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        zbatch.local(**arguments)


def test_what_loading_raises_is_raised_here() -> None:
    class Broken:
        example = 1

        def predict(self, batch: list[Any]) -> list[Any]:
            raise OSError("no weights")

    before = threading.active_count()
    with pytest.raises(OSError, match="no weights"):
        zbatch.local(Broken)
    assert ends(before)


def test_a_model_sees_the_batch_that_it_runs() -> None:
    seen: list[Any] = []

    def look(batch: list[Any]) -> list[Any]:
        current = zbatch.current_batch()
        assert current is not None
        zbatch.progress()
        seen.append((current.topic, len(current.ids), len(current.deadlines)))
        return batch

    with zbatch.local(look, topic="looked") as client:
        client.predict([1, 2, 3])
    assert seen == [("looked", 3, 3)]
    assert zbatch.current_batch() is None


def test_a_model_in_this_process_learns_the_request_ids_too() -> None:
    def look(batch: list[Any]) -> list[Any]:
        return zbatch.request_ids()

    with zbatch.local(look) as client:
        assert client.predict([1, 2], request_id="r1") == ["r1", "r1"]
        assert client.predict_one(1, request_id="r2") == "r2"
        assert client.predict_one(1) == ""
        assert list(client.map([1, 2], request_id="r3")) == ["r3", "r3"]


def test_a_generator_learns_the_request_id_of_each_item() -> None:
    def look(batch: list[Any]) -> Any:
        yield zbatch.request_ids()
        yield zbatch.request_ids()

    with zbatch.local(look) as client:
        assert list(client.stream(1, request_id="r1")) == ["r1", "r1"]


def test_many_threads_each_get_their_own() -> None:
    with (
        zbatch.local(double) as client,
        concurrent.futures.ThreadPoolExecutor(16) as pool,
    ):
        asked = [pool.submit(client.predict, [number, -number]) for number in range(500)]
        assert [one.result(PATIENCE) for one in asked] == [[n * 2, -n * 2] for n in range(500)]


def test_a_future_is_taken_by_what_takes_futures() -> None:
    with zbatch.local(double) as client:
        futures = [client.submit([number]) for number in range(5)]
        done, _ = concurrent.futures.wait(futures, timeout=PATIENCE)
        assert done == set(futures)
        called: list[Any] = []
        futures[0].add_done_callback(called.append)
        assert called == [futures[0]]

        async def ask() -> list[int]:
            return await asyncio.wrap_future(client.submit([21]))

        assert asyncio.run(ask()) == [42]


def test_status_shows_what_a_broker_would() -> None:
    with zbatch.local(double, topic="shown") as client:
        client.predict([1, 2, 3])
        shown = client.status()
    assert shown["topics"]["shown"]["answered"] == 3
    assert [worker["pid"] for worker in shown["workers"]] == [os.getpid()]


def test_closing_ends_what_is_open_and_what_comes_after(model: Gated) -> None:
    client = zbatch.local(model)
    running = occupy(client, model)
    waiting = client.submit([1])
    closing = threading.Thread(target=client.close)
    closing.start()
    for future in (running, waiting):
        with pytest.raises(ClientClosed):
            future.result(PATIENCE)
    model.gate.set()
    closing.join(PATIENCE)
    assert model.closed.wait(PATIENCE)
    for ask in (lambda: client.predict([1]), client.status):
        with pytest.raises(ClientClosed):
            ask()
    client.close()
    assert model.ran == [[0]]


def ends(before: int) -> bool:
    """Wait until no more threads live than before."""
    for thread in threading.enumerate():
        if thread.name in ("zbatch-model", "zbatch-clock"):
            thread.join(PATIENCE)
    return threading.active_count() <= before


def test_a_client_that_is_collected_ends_its_threads(model: Gated) -> None:
    before = threading.active_count()
    client = zbatch.local(model)
    future = occupy(client, model)
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    model.gate.set()
    assert future.result(PATIENCE) == [0]
    assert model.closed.wait(PATIENCE)
    del future
    assert ends(before)


def test_a_forked_child_is_told_that_the_model_is_the_parents(model: Gated) -> None:
    with zbatch.local(model) as client:
        running = occupy(client, model)
        child = os.fork()
        if child == 0:
            told = 0
            for ask in (lambda: client.predict([1]), lambda: running.result(PATIENCE)):
                try:
                    ask()
                except ClientClosed:
                    told += 1
            os._exit(0 if told == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        model.gate.set()
        assert running.result(PATIENCE) == [0]


@pytest.mark.parametrize(
    "code",
    [
        "client.predict([1])",
        "client.submit([1])",
        "client.submit([1], priority=1); client.close()",
        "threading.Thread(target=client.predict, args=([2],), daemon=True).start()",
    ],
)
def test_the_interpreter_ends_whatever_is_open(code: str) -> None:
    program = f"""
import threading, zbatch
def predict(batch):
    if batch == [2]:
        threading.Event().wait()
    return batch
client = zbatch.local(predict)
{code}
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=False)
    assert ended.returncode == 0


# --- streams -------------------------------------------------------------------------------------


def count_up(batch: list[int]) -> Iterator[list[Any]]:
    """Yield 0, 1, ... for each item, as many as it says."""
    for step in range(max(batch) + 1):
        yield [step if step < most else zbatch.END if step == most else zbatch.NOTHING for most in batch]


def test_parts_come_by_reference_as_they_are_yielded() -> None:
    parts = [object(), object()]

    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        for part in parts:
            yield [part]

    with zbatch.local(predict) as client:
        assert list(client.stream("x")) == parts


@pytest.mark.parametrize("parts", [0, 2])
def test_a_model_that_raises_ends_its_stream_in_that_error(parts: int) -> None:
    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        for part in range(parts):
            yield [part]
        raise RuntimeError("broken")

    with zbatch.local(predict) as client:
        stream = client.stream("x")
        assert [next(stream) for _ in range(parts)] == list(range(parts))
        with pytest.raises(ModelFailed, match="broken"):
            next(stream)


def test_several_streams_and_whole_results_share_the_model() -> None:
    with zbatch.local(count_up) as client:
        whole = client.submit([2, 0])
        streams = [client.stream(most) for most in range(4)]
        assert [list(stream) for stream in streams] == [list(range(most)) for most in range(4)]
        assert whole.result() == [[0, 1], []]


def test_a_model_that_yields_nothing_streams_its_output(model: Gated) -> None:
    with zbatch.local(model) as client:
        model.gate.set()
        assert list(client.stream(4)) == [8]


def test_a_model_waits_for_a_reader_and_stops_when_it_leaves() -> None:
    steps: list[int] = []
    closed = threading.Event()

    def predict(batch: list[Any]) -> Iterator[list[Any]]:
        try:
            for step in range(10**9):
                steps.append(step)
                yield [step]
        finally:
            closed.set()

    with zbatch.local(predict) as client:
        stream = client.stream("x")
        assert [next(stream) for _ in range(10_000)] == list(range(10_000))
        # What nobody has read is bounded.
        assert len(steps) < 20_000
        del stream
        assert closed.wait(PATIENCE)


def test_a_stream_ends_in_an_error_when_its_client_is_closed() -> None:
    client = zbatch.local(count_up)
    stream = client.stream(10**9)
    next(stream)
    client.close()
    with pytest.raises(ClientClosed):
        list(stream)
    with pytest.raises(ClientClosed):
        client.stream(1)


def test_what_a_stream_cannot_be_asked_for_is_refused() -> None:
    with zbatch.local(count_up) as client:
        with pytest.raises(BadRequest, match="timeout"):
            client.stream(1, timeout=0)
        with pytest.raises(UnknownTopic):
            list(client.stream(1, topic="other"))
        with pytest.raises(DeadlineExceeded), client.stream(10**6, timeout=0.000_001) as stream:
            list(stream)
