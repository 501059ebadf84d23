"""What becomes of each item of a batch, whatever its model does."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from zbatch import payload
from zbatch.core.pipeline import Joined
from zbatch.errors import BadInput, ModelFailed, Overloaded
from zbatch.messages import Fault
from zbatch.model import Context, wrap
from zbatch.runner import Current, Ran, Runner, Work, current_batch, place_of, progress, request_ids

NOT_AGAIN = "(the model is not idempotent, so nothing was run again and its batch of {} fails as one)"


class Recorder:
    """Runs a function on each batch and remembers what it was given."""

    def __init__(self, predict: Callable[[list[Any]], Any], *, idempotent: bool = True) -> None:
        self._predict = predict
        self.idempotent = idempotent
        self.seen: list[list[Any]] = []

    def predict(self, batch: list[Any]) -> Any:
        self.seen.append(list(batch))
        return self._predict(batch)


def echo(batch: list[Any]) -> list[Any]:
    return batch


def refuses(*guilty: Any) -> Callable[[list[Any]], list[Any]]:
    def predict(batch: list[Any]) -> list[Any]:
        for item in batch:
            if item in guilty:
                raise ValueError(f"{item} is not mine")
        return [f"<{item}>" for item in batch]

    return predict


def joined(**parts: Any) -> Joined:
    return Joined([(name, *payload.encode(part)) for name, part in parts.items()])


def make_runner(model: Any, **more: Any) -> Runner:
    return Runner(wrap(model, {}, Context()), topic="t", **more)


def make_work(items: Sequence[Any]) -> Work:
    encoded = [payload.encode(item) for item in items]
    buffers = [own for _, own in encoded] if any(own for _, own in encoded) else None
    ids = [(b"origin", number) for number in range(len(items))]
    return Work([data for data, _ in encoded], buffers, ids, [10.0 + number for number in range(len(items))])


def run(model: Any, items: Sequence[Any]) -> Ran:
    return make_runner(model).run(make_work(items))


def outputs(ran: Ran) -> list[Any]:
    """Return what the callers will see: an output, or the error's code."""
    failed = dict(ran.errors or ())
    return [
        failed[place].code
        if place in failed
        else payload.decode(data, ran.buffers[place] if ran.buffers is not None else ())
        for place, data in enumerate(ran.outputs)
    ]


def only_fault(ran: Ran) -> Fault:
    assert ran.errors is not None
    [(_, fault)] = ran.errors
    return fault


# --- what goes well ---------------------------------------------------------------------------------


def test_each_item_gets_the_output_in_its_place() -> None:
    ran = run(refuses(), ["a", "b"])
    assert outputs(ran) == ["<a>", "<b>"]
    assert (ran.buffers, ran.errors) == (None, None)
    assert ran.seconds > 0.0


def test_rows_of_an_array_are_outputs() -> None:
    ran = run(lambda batch: np.array([[1.0, 2.0], [3.0, 4.0]]), ["a", "b"])
    assert [row.tolist() for row in outputs(ran)] == [[1.0, 2.0], [3.0, 4.0]]
    assert outputs(run(lambda batch: np.array([1.5, 2.5]), ["a", "b"])) == [1.5, 2.5]


def test_rows_of_a_tensor_are_outputs() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert [row.tolist() for row in outputs(run(lambda batch: rows, ["a", "b"]))] == [[1.0, 2.0], [3.0, 4.0]]
    assert outputs(run(lambda batch: rows.sum(), ["a", "b"])) == ["bad_output", "bad_output"]


def test_large_arrays_travel_beside_the_outputs() -> None:
    large, small = np.arange(20_000.0), np.arange(2.0)
    ran = run(echo, [large, small])
    assert ran.buffers is not None
    assert [len(own) for own in ran.buffers] == [1, 0]
    found = outputs(ran)
    assert np.array_equal(found[0], large)
    assert np.array_equal(found[1], small)


def test_items_may_pass_as_they_are() -> None:
    item = object()
    runner = make_runner(echo, decode=lambda item: item, encode=lambda output: (output, ()))
    ran = runner.run(Work([item], None, [1], [1.0]))
    assert ran[:3] == ([item], None, None)


# --- inputs that are none ---------------------------------------------------------------------------


def test_what_cannot_be_decoded_never_joins_the_batch() -> None:
    model = Recorder(refuses())
    work = make_work(["a", "b", "c"])
    ran = make_runner(model).run(work._replace(items=[work.items[0], b"\xc1", work.items[2]]))
    assert model.seen == [["a", "c"]]
    assert outputs(ran) == ["<a>", "bad_input", "<c>"]
    assert only_fault(ran).text.startswith("the item cannot be decoded: ")


def test_a_batch_of_which_nothing_can_be_decoded_is_not_run() -> None:
    model = Recorder(echo)
    ran = make_runner(model).run(make_work(["a"])._replace(items=[b""]))
    assert (model.seen, outputs(ran)) == ([], ["bad_input"])


def test_buffers_that_do_not_fit_fail_their_item_alone() -> None:
    large = np.arange(20_000.0)
    work = make_work([large, large, "x"])
    assert work.buffers is not None
    ran = make_runner(echo).run(work._replace(buffers=[work.buffers[0], [], work.buffers[2]]))
    assert outputs(ran)[1:] == ["bad_input", "x"]


def test_whatever_decoding_raises_is_a_bad_input() -> None:
    def decode(item: bytes) -> Any:
        raise MemoryError

    assert only_fault(make_runner(echo, decode=decode).run(make_work(["a"]))) == Fault(
        "bad_input", "the item cannot be decoded: MemoryError"
    )


# --- exceptions -------------------------------------------------------------------------------------


def test_an_exception_fails_the_guilty_item_alone_and_names_its_cause() -> None:
    ran = run(refuses("c"), ["a", "b", "c", "d"])
    assert outputs(ran) == ["<a>", "<b>", "model_failed", "<d>"]
    fault = only_fault(ran)
    assert (fault.kind, fault.text) == ("ValueError", "c is not mine")
    assert fault.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert 'raise ValueError(f"{item} is not mine")' in fault.traceback
    assert "zbatch/runner.py" not in fault.traceback


@pytest.mark.parametrize("count", [1, 2, 3, 8, 31, 32, 33])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_one_guilty_item_costs_few_runs(count: int, where: float) -> None:
    guilty = round(where * (count - 1))
    model = Recorder(refuses(guilty))
    ran = run(model, range(count))
    assert outputs(ran) == ["model_failed" if n == guilty else f"<{n}>" for n in range(count)]
    assert len(model.seen) - 1 <= 2 * math.ceil(math.log2(count)) + 1


def test_several_guilty_items_are_each_found() -> None:
    ran = run(refuses(1, 2, 7), range(8))
    assert [place for place, _ in ran.errors or ()] == [1, 2, 7]
    assert [fault.text for _, fault in ran.errors or ()] == [f"{n} is not mine" for n in (1, 2, 7)]


def test_guilt_is_told_for_the_right_places_where_others_could_not_be_decoded() -> None:
    work = make_work(["a", "b", "c", "d", "e"])
    items = list(work.items)
    items[1] = b""
    ran = make_runner(refuses("d")).run(work._replace(items=items))
    assert outputs(ran) == ["<a>", "bad_input", "<c>", "model_failed", "<e>"]


def test_an_exception_in_the_place_of_an_output_is_that_items_own() -> None:
    model = Recorder(lambda batch: ["x", KeyError("b"), BadInput("c is too long")])
    ran = run(model, ["a", "b", "c"])
    assert len(model.seen) == 1
    assert outputs(ran) == ["x", "model_failed", "bad_input"]
    assert ran.errors == [
        (1, Fault("model_failed", "'b'", 0, "KeyError", "KeyError: 'b'\n")),
        (2, Fault("bad_input", "c is too long")),
    ]


def test_what_the_model_refuses_is_that_items_own() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        for item in batch:
            if item.shape != (2, 3):
                raise BadInput(f"wanted (2, 3), got {item.shape}")
        return [float(item.sum()) for item in batch]

    ran = run(Recorder(predict), [np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 3))])
    assert outputs(ran) == [6.0, "bad_input", 6.0]
    assert ran.errors == [(1, Fault("bad_input", "wanted (2, 3), got (3, 2)"))]


def test_an_exception_as_an_output_is_seen_where_nothing_is_encoded() -> None:
    runner = make_runner(
        lambda batch: [KeyError("a")], decode=lambda item: item, encode=lambda output: (output, ())
    )
    assert only_fault(runner.run(Work(["a"], None, [1], [1.0]))).kind == "KeyError"


def test_a_cause_is_told_with_its_own_cause() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        try:
            return [{}[item] for item in batch]
        except KeyError as error:
            raise RuntimeError("no such word") from error

    traceback = only_fault(run(predict, ["a"])).traceback
    assert "KeyError: 'a'" in traceback
    assert "The above exception was the direct cause" in traceback
    assert traceback.endswith("RuntimeError: no such word\n")


def test_another_error_of_zbatch_in_a_model_is_the_models_failure() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        raise Overloaded("the next model is busy")

    fault = only_fault(run(predict, ["a"]))
    assert (fault.code, fault.kind, fault.text) == ("model_failed", "Overloaded", "the next model is busy")


def test_a_failure_passed_on_from_another_model_keeps_its_kind() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        raise ModelFailed("no such word", kind="KeyError")

    fault = only_fault(run(predict, ["a"]))
    assert (fault.code, fault.kind, fault.text) == ("model_failed", "KeyError", "no such word")


class Panic(BaseException):
    """As libraries written in Rust raise."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic("index out of bounds"), GeneratorExit()])
def test_what_is_no_exception_is_the_models_failure_too(error: BaseException) -> None:
    def predict(batch: list[Any]) -> list[Any]:
        raise error

    assert only_fault(run(predict, ["a"])).kind == type(error).__name__


def test_ctrl_c_is_the_operators() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(predict, ["a", "b"])
    assert current_batch() is None


def test_an_exception_that_cannot_be_shown_is_told_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def predict(batch: list[Any]) -> list[Any]:
        raise Mute

    fault = only_fault(run(predict, ["a"]))
    assert (fault.kind, fault.text) == ("Mute", "its text could not be made: RuntimeError")


def test_an_error_with_a_text_that_cannot_be_sent_fails_its_item_alone() -> None:
    def predict(batch: list[str]) -> list[Any]:
        if "b" in batch:
            raise ValueError("bad \ud800")
        return [ValueError("worse \udfff") if item == "c" else item for item in batch]

    ran = run(predict, ["a", "b", "c", "d"])
    assert outputs(ran) == ["a", "model_failed", "model_failed", "d"]
    assert [fault.text for _, fault in ran.errors or ()] == ["bad \\ud800", "worse \\udfff"]
    assert msgspec.msgpack.encode(ran.errors)


@pytest.mark.parametrize("second", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [RuntimeError, Overloaded, BadInput])
def test_an_exception_whose_text_would_end_the_process_is_the_models_failure(
    kind: type[Exception], second: type[BaseException]
) -> None:
    class Deadly(kind):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise second

    def predict(batch: list[Any]) -> list[Any]:
        raise Deadly

    assert only_fault(run(predict, ["a"])).text == f"its text could not be made: {second.__name__}"


def test_a_traceback_that_cannot_be_made_is_told_all_the_same() -> None:
    class Error(Exception):
        @property
        def __suppress_context__(self) -> bool:  # type: ignore[override]
            raise RuntimeError

    def predict(batch: list[Any]) -> list[Any]:
        raise Error("wicked")

    fault = only_fault(run(predict, ["a"]))
    assert (fault.text, fault.traceback) == ("wicked", "its traceback could not be made: RuntimeError")


# --- telling of it ----------------------------------------------------------------------------------


def told_of(
    predict: Callable[[list[Any]], Any], items: Sequence[Any], **more: Any
) -> list[tuple[str, str, list[int]]]:
    told: list[tuple[str, str, list[int]]] = []
    model = Recorder(predict, **more)
    runner = make_runner(
        model,
        on_failed=lambda error, at: told.append((type(error).__name__, place_of(error), list(at))),
    )
    runner.run(make_work(items))
    return told


def line_of(text: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.strip() == text]
    return f"{__file__}:{number}"


def test_a_failure_is_told_with_the_line_of_the_models_author() -> None:
    def predict(batch: list[str]) -> list[Any]:
        return [json.loads(item) for item in batch]

    line = line_of("return [json.loads(item) for item in batch]")
    assert told_of(predict, ["1", "x", "2", "y"]) == [
        ("JSONDecodeError", line, [1]),
        ("JSONDecodeError", line, [3]),
    ]


def test_a_failure_of_a_library_that_is_the_model_is_told_with_its_line() -> None:
    told: list[str] = []
    make_runner(json.loads, on_failed=lambda error, _: told.append(place_of(error))).run(make_work(["x"]))
    (place,) = told
    assert place.startswith(json.__file__)


def test_a_failure_of_all_is_told_once() -> None:
    line = line_of('raise ValueError(f"{item} is not mine")')
    assert told_of(refuses("a"), ["a", "b"], idempotent=False) == [("ValueError", line, [0, 1])]


def test_what_is_no_output_is_told_without_a_line() -> None:
    assert told_of(lambda batch: [KeyError("a"), {1}, "c"], ["a", "b", "c"]) == [
        ("KeyError", "", [0]),
        ("TypeError", "", [1]),
    ]
    assert told_of(lambda batch: [], ["a"]) == [("BadOutput", "", [0])]


def test_what_is_the_callers_fault_is_not_told() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        raise BadInput("too long")

    assert told_of(predict, ["a"]) == []


# --- runs again -------------------------------------------------------------------------------------


def test_what_a_failed_run_changed_is_whole_in_the_next() -> None:
    def predict(batch: list[dict[str, Any]]) -> list[str]:
        texts = [item.pop("text") for item in batch]
        batch.clear()
        if "bad" in texts and len(texts) > 1:
            raise ValueError
        return texts

    items = [{"text": "a"}, {"text": "bad"}, {"text": "c"}]
    assert outputs(run(predict, items)) == ["a", "bad", "c"]


def test_a_model_cannot_change_an_array_in_place_so_the_next_run_has_it_whole() -> None:
    seen = []

    def predict(batch: list[Any]) -> list[Any]:
        seen.append([item[0] for item in batch])
        for item in batch:
            item[0] += 1.0
        return batch

    work = make_work([np.zeros(3), np.zeros(50_000)])
    assert work.buffers is not None
    frames = [[bytearray(one) for one in own] for own in work.buffers]
    ran = make_runner(Recorder(predict)).run(work._replace(buffers=frames))
    assert ran.errors is not None
    assert ["read-only" in fault.text for _, fault in ran.errors] == [True, True]
    assert seen == [[0.0, 0.0], [0.0], [0.0]]


def test_what_cannot_be_decoded_again_fails_alone() -> None:
    left = [3]

    def decode(item: bytes) -> Any:
        if not left[0]:
            raise MemoryError("no room")
        left[0] -= 1
        return payload.decode(item)

    # Two for the batch, one for the first half; nothing is left for the second.
    ran = make_runner(refuses("b"), decode=decode).run(make_work(["a", "b"]))
    assert outputs(ran) == ["<a>", "model_failed"]
    assert only_fault(ran).text == "no room"


def test_each_run_on_the_way_to_the_guilty_renews_the_lease() -> None:
    renewed: list[int] = []
    runner = make_runner(refuses(0), on_progress=lambda: renewed.append(1))
    runner.run(make_work(range(4)))
    assert len(renewed) == 4


def test_a_model_that_is_not_idempotent_is_never_run_again() -> None:
    model = Recorder(refuses("c"), idempotent=False)
    ran = run(model, ["a", "b", "c", "d"])
    assert len(model.seen) == 1
    assert outputs(ran) == ["model_failed"] * 4
    assert {fault.text for _, fault in ran.errors or ()} == {"c is not mine " + NOT_AGAIN.format(4)}
    assert only_fault(run(model, ["c"])).text == "c is not mine"


def test_a_wrong_count_of_a_model_that_is_not_idempotent_fails_all() -> None:
    ran = run(Recorder(lambda batch: batch[1:], idempotent=False), ["a", "b"])
    assert ran.errors is not None
    fault = Fault(
        "bad_output",
        "predict returned 1 outputs for a batch of 2; wanted one for each item " + NOT_AGAIN.format(2),
    )
    assert ran.errors == [(0, fault), (1, fault)]


# --- outputs that are none --------------------------------------------------------------------------


def test_no_output_of_a_run_of_a_wrong_count_is_used() -> None:
    def predict(batch: list[str]) -> list[str]:
        run_of = len(batch)
        return [f"{item} of {run_of}" for item in batch if item != "c"]

    model = Recorder(predict)
    ran = run(model, ["a", "b", "c", "d"])
    assert outputs(ran) == ["a of 2", "b of 2", "bad_output", "d of 1"]
    assert only_fault(ran) == Fault(
        "bad_output",
        "predict returned 0 outputs for a batch of 1; wanted one for each item "
        "(before it was halved: predict returned 3 outputs for a batch of 4)",
    )


def test_a_wrong_count_of_one_half_says_nothing_of_the_other() -> None:
    def predict(batch: list[str]) -> list[str]:
        if "a" in batch and len(batch) > 2:
            raise ValueError
        return [item for item in batch if item not in "bd"]

    ran = run(predict, ["a", "b", "c", "d"])
    assert outputs(ran) == ["a", "bad_output", "c", "bad_output"]
    assert {fault.text.partition("halved: ")[2] for _, fault in ran.errors or ()} == {
        "predict returned 1 outputs for a batch of 2)"
    }
    runner = make_runner(lambda batch: batch[1:])
    runner.run(make_work(["a", "b"]))
    assert "halved" not in only_fault(runner.run(make_work(["a"]))).text


@pytest.mark.parametrize("returned", [None, "ab", b"ab", {"a": 1, "b": 2}, iter([1, 2]), 7])
def test_what_is_no_sequence_of_outputs_fails_each_item(returned: Any) -> None:
    ran = run(lambda batch: returned, ["a", "b"])
    assert outputs(ran) == ["bad_output", "bad_output"]


def test_a_generator_expression_is_no_sequence_of_outputs() -> None:
    assert only_fault(run(lambda batch: (item for item in batch), ["a"])).text == (
        "predict returned a generator for a batch of 1; "
        "wanted a sequence, such as a list, with one output for each item"
    )


def test_an_output_that_cannot_be_sent_fails_alone_and_its_path_is_named() -> None:
    model = Recorder(lambda batch: ["x", {"scores": [1, {2, 3}]}, np.array([object()])])
    ran = run(model, ["a", "b", "c"])
    assert len(model.seen) == 1
    assert outputs(ran) == ["x", "bad_output", "bad_output"]
    texts = [fault.text for _, fault in ran.errors or ()]
    assert texts[0].startswith("the output cannot be sent: output['scores'][1] is a builtins.set")
    assert texts[1].startswith("the output cannot be sent: output has dtype object")


def test_whatever_encoding_raises_is_a_bad_output() -> None:
    def encode(output: Any) -> tuple[bytes, tuple[()]]:
        raise RuntimeError("device lost")

    ran = make_runner(echo, encode=encode).run(make_work(["a"]))
    assert only_fault(ran) == Fault("bad_output", "the output cannot be sent: RuntimeError: device lost")


def test_buffers_stay_with_their_outputs_where_others_failed() -> None:
    large = np.arange(20_000.0)
    ran = run(lambda batch: [KeyError("a"), large], ["a", "b"])
    assert ran.buffers is not None
    assert [len(own) for own in ran.buffers] == [0, 1]
    assert outputs(ran)[0] == "model_failed"
    assert np.array_equal(outputs(ran)[1], large)


# --- asking inside predict --------------------------------------------------------------------------


def test_the_batch_can_be_asked_about_inside_predict_alone() -> None:
    asked: list[Current | None] = []

    def predict(batch: list[Any]) -> list[Any]:
        asked.append(current_batch())
        return batch

    run(predict, ["a", "b"])
    assert asked == [Current("t", [(b"origin", 0), (b"origin", 1)], [10.0, 11.0])]
    assert current_batch() is None


def test_each_run_of_a_halved_batch_is_asked_about_its_own_items() -> None:
    asked: list[Any] = []

    def predict(batch: list[str]) -> list[str]:
        current = current_batch()
        assert current is not None
        asked.append((current.ids, current.deadlines))
        return refuses("c")(batch)

    run(predict, ["a", "b", "c"])
    assert asked[-3:] == [
        ([(b"origin", 1), (b"origin", 2)], [11.0, 12.0]),
        ([(b"origin", 1)], [11.0]),
        ([(b"origin", 2)], [12.0]),
    ]


def test_a_model_learns_the_request_id_of_each_item() -> None:
    asked: list[list[str]] = []

    def predict(batch: list[str]) -> list[str]:
        asked.append(request_ids())
        return refuses("c")(batch)

    work = make_work(["a", "b", "c"])._replace(names=["r1", "", "r3"])
    make_runner(predict).run(work)
    assert asked == [["r1", "", "r3"], ["r1"], ["", "r3"], [""], ["r3"]]
    assert request_ids() == []


def test_items_without_request_ids_have_empty_ones() -> None:
    asked: list[list[str]] = []

    def predict(batch: list[str]) -> list[str]:
        asked.append(request_ids())
        return batch

    run(predict, ["a", "b"])
    assert asked == [["", ""]]


def test_threads_of_the_model_are_answered_too() -> None:
    asked: list[Current | None] = []
    renewed: list[str] = []

    def look() -> None:
        asked.append(current_batch())
        progress()

    def predict(batch: list[Any]) -> list[Any]:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return batch

    make_runner(predict, on_progress=lambda: renewed.append("x")).run(make_work(["a"]))
    assert asked == [Current("t", [(b"origin", 0)], [10.0])]
    assert renewed == ["x"]


def test_two_models_in_one_process_are_each_told_of_their_own() -> None:
    asked: dict[str, Any] = {}

    def inner(batch: list[Any]) -> list[Any]:
        asked["inner"] = current_batch()
        # A thread that belongs to neither cannot be told whose it is.
        thread = threading.Thread(target=lambda: asked.update(stranger=current_batch()))
        thread.start()
        thread.join()
        return batch

    def outer(batch: list[Any]) -> list[Any]:
        thread = threading.Thread(
            target=lambda: Runner(wrap(inner, {}, Context())).run(make_work(["b", "c"]))
        )
        thread.start()
        thread.join()
        asked["outer"] = current_batch()
        return batch

    run(outer, ["a"])
    assert len(asked["inner"].ids) == 2
    assert len(asked["outer"].ids) == 1
    assert asked["stranger"] is None


def test_progress_means_nothing_outside_of_predict_or_without_a_lease() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        progress()
        return batch

    progress()
    assert run(predict, ["a"]).errors is None


# --- what several stages made --------------------------------------------------------------------


def make_joined(*items: Any) -> Work:
    ids = [(b"origin", number) for number in range(len(items))]
    return Work(items, [()] * len(items), ids, [10.0] * len(items), joined=True)


def test_an_item_of_several_parts_is_a_dict() -> None:
    model = Recorder(lambda batch: [one["x"] for one in batch])
    picture = np.zeros(100_000, np.uint8)
    ran = make_runner(model).run(make_joined(joined(x="a", y=picture), joined(x="b", y=picture)))
    assert [payload.decode(one) for one in ran.outputs] == ["a", "b"]
    assert [sorted(one) for one in model.seen[0]] == [["x", "y"], ["x", "y"]]
    assert model.seen[0][1]["y"].shape == (100_000,)


def test_a_part_that_cannot_be_decoded_fails_its_item_alone() -> None:
    broken = Joined([("x", b"\xc1", ())])
    ran = make_runner(Recorder(lambda batch: [one["x"] for one in batch])).run(
        make_joined(joined(x="a"), broken)
    )
    assert payload.decode(ran.outputs[0]) == "a"
    assert [(place, fault.code) for place, fault in ran.errors or ()] == [(1, "bad_input")]


def test_items_of_several_parts_are_decoded_anew_when_their_batch_is_halved() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        if any(one.pop("x") == "bad" for one in batch):
            raise ValueError("no")
        return [one["y"] for one in batch]

    work = make_joined(joined(x="a", y=1), joined(x="bad", y=2))
    ran = make_runner(predict).run(work)
    assert payload.decode(ran.outputs[0]) == 1
    assert [(place, fault.code) for place, fault in ran.errors or ()] == [(1, "model_failed")]


def test_what_a_model_declares_of_its_items_holds_for_the_dict_of_the_parts() -> None:
    class Declares:
        def predict(self, batch: list[dict[str, int]]) -> list[int]:
            return [sum(one.values()) for one in batch]

    ran = make_runner(Declares()).run(make_joined(joined(x=1, y=2), joined(x=1, y="no number")))
    assert payload.decode(ran.outputs[0]) == 3
    assert [(place, fault.code) for place, fault in ran.errors or ()] == [(1, "bad_input")]
