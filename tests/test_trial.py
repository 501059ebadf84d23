"""What is found of a model on trial."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from zbatch.nvml import Gpus
from zbatch.trial import GpuMemory, Report, Size, Spec, Trial, sizes_up_to, write

TICK = 1 / 1024
"""Seconds; sums of it are exact."""

GOOD = """
class Model:
    example = 2

    def predict(self, batch):
        return [item * 2 if isinstance(item, int) else item["no such key"] for item in batch]
"""


@pytest.fixture
def tried(tmp_path: Path) -> Callable[..., Report]:
    """Try the model that a text defines, by a clock that goes on a little each time it is looked at."""
    numbers = itertools.count()

    def tried(text: str, *, batch_size: int = 4, item: str | None = None, **args: Any) -> Report:
        # Each a module of its own: what has a name is loaded once.
        path = tmp_path / f"model_{tmp_path.name}_{next(numbers)}.py"
        path.write_text(text)
        ticks = itertools.count()
        spec = Spec(f"{path}:Model", args, batch_size, 10 * TICK, item, "cpu", "", "")
        trial = Trial(spec, lambda report: None, lambda: next(ticks) * TICK)
        trial.run()
        return trial.report

    return tried


def test_batches_are_powers_of_two_and_the_largest() -> None:
    assert [sizes_up_to(most) for most in (1, 2, 3, 8, 12)] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 12]
    ]  # fmt: skip


def test_a_good_model_is_run_in_every_size(tried: Callable[..., Report]) -> None:
    report = tried(GOOD)
    assert report.failed is None
    assert report.sizes == [
        Size(1, 11, 0.9766, 1024.0, None),
        Size(2, 11, 0.9766, 2048.0, None),
        Size(4, 11, 0.9766, 4096.0, None),
    ]
    assert (report.load_s, report.warm_up_s, report.item_from) == (0.001, 0.001, "its example")
    assert report.bad_item == "failed alone: model_failed: KeyError: 'no such key'"
    # What a process gave back meanwhile is not there any more: loading may end with a page less.
    assert min(report.rss_before_bytes, report.rss_loaded_bytes) > 0
    assert report.rss_loaded_bytes <= report.rss_peak_bytes
    assert (report.item_type, report.output_type, report.signature, report.schema) == (None,) * 4
    assert (report.notes, report.doing) == ([], "nothing")


DECLARED = """
import msgspec

class Box(msgspec.Struct):
    width: float

class Model:
    example = Box(2.0)

    def predict(self, batch: list[Box]) -> list[Box]:
        return [Box(box.width * 2) for box in batch]
"""


def test_declared_types_are_told_and_held(tried: Callable[..., Report]) -> None:
    report = tried(DECLARED)
    assert (report.failed, report.notes) == (None, [])
    assert (report.item_type, report.output_type) == ("Box", "Box")
    assert report.schema["item"]["$defs"]["Box"]["required"] == ["width"]
    assert report.bad_item == "failed alone: bad_input: $: object missing required field width"


def test_an_item_may_be_named(tried: Callable[..., Report]) -> None:
    assert tried(DECLARED, item='{"width": 3}').item_from == "--item"
    assert tried(DECLARED, item="wide").failed == (
        "--item is not what its predict declares: $: expected object, got str"
    )


def test_what_is_declared_and_not_returned_is_noted(tried: Callable[..., Report]) -> None:
    report = tried(DECLARED.replace("Box(box.width * 2)", "7"))
    assert report.failed is None
    assert report.notes == ["what it returns is not what its predict declares: $: expected object, got int"]


def test_what_is_not_understood_or_too_large_is_noted(tried: Callable[..., Report]) -> None:
    large = 'msgspec.defstruct("Large", [(f"a_field_with_number_{at}", int, 0) for at in range(1_000)])'
    text = f"Large = {large}\nclass Model:"
    report = tried(DECLARED.replace("class Model:", text).replace("list[Box]:", "list[Large]:"))
    assert "bytes in JSON, too many to be told to a broker" in report.notes[0]
    (note,) = tried(DECLARED.replace("batch: list[Box]", "batch: 'list[Nobody]'")).notes
    assert note == "what predict declares its items to be is ignored: name 'Nobody' is not defined"


SIGNED = """
import numpy as np

class Model:
    signature = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [3]}],
    }

    def predict(self, batch):
        return [RETURNED for item in batch]
"""


@pytest.mark.parametrize("returned", ['{"y": item["x"] + 1}', 'item["x"]'])
def test_a_signature_gives_an_item_and_holds_the_outputs(tried: Callable[..., Report], returned: str) -> None:
    report = tried(SIGNED.replace("RETURNED", returned))
    assert report.failed is None
    assert report.item_from == "zeros of its signature"
    assert report.signature["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [3]}]


@pytest.mark.parametrize(
    ("tensor", "returned"),
    [
        ('"FP32", "shape": [3]', "[1.5, 2.5, 3]"),
        ('"INT8", "shape": []', "-7"),
        ('"UINT8", "shape": []', "7"),
        ('"BYTES", "shape": []', "'text'"),
        ('"BYTES", "shape": [-1]', "['text', b'bytes']"),
    ],
)
def test_python_values_count_as_tensors_as_they_do_over_http(
    tried: Callable[..., Report], tensor: str, returned: str
) -> None:
    text = SIGNED.replace('"y", "datatype": "FP32", "shape": [3]', f'"y", "datatype": {tensor}')
    assert tried(text.replace("RETURNED", returned)).failed is None


def test_of_steps_the_whole_is_held_to_the_signature(tried: Callable[..., Report]) -> None:
    text = SIGNED.replace("return [RETURNED", "yield [1.5").replace('"shape": [3]}],\n    }', '"shape": Y}]}')
    assert tried(text.replace("Y", "[-1]")).failed is None
    assert tried(text.replace("Y", "[]")).failed == (
        "what it returns is not of its signature: output['y'] has shape [1], wanted []"
    )


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("[1.5, [2]]", "output['y'] is of type list, wanted an array of FP32 [3]"),
        ('{"y": [1.5, "a"]}', "output['y'] is of type list, wanted an array of FP32 [3]"),
        ('{"y": item["x"][:2]}', "output['y'] has shape [2], wanted [3]"),
        ("{'z': 1}", "output has no 'y', wanted FP32 [3]"),
    ],
)
def test_outputs_that_are_not_of_the_signature_fail_the_model(
    tried: Callable[..., Report], returned: str, said: str
) -> None:
    report = tried(SIGNED.replace("RETURNED", returned))
    assert report.failed == f"what it returns is not of its signature: {said}"


def test_a_tensor_counts_as_an_array_and_several_outputs_want_their_names(
    tried: Callable[..., Report],
) -> None:
    pytest.importorskip("torch")
    text = SIGNED.replace("RETURNED", '{"y": torch.zeros(3)}').replace("import numpy", "import torch, numpy")
    assert tried(text).failed is None
    two = text.replace('"outputs": [', '"outputs": [{"name": "z", "datatype": "FP32", "shape": []},')
    assert tried(two.replace('{"y": torch.zeros(3)}', "1")).failed == (
        "what it returns is not of its signature: output is of type int, wanted a dict with 'z', 'y'"
    )


def shortest(body: str, example: str = "1") -> str:
    return f"class Model:\n    example = {example}\n    def predict(self, batch): {body}\n"


WARM_UP = "the model cannot be warmed up: "
NOT_DECLARED = "not what its predict declares: $: expected object, got int"
SET = "cannot be sent: {} is a builtins.set, which cannot be sent"
SHORT = "a batch of 2: predict returned 1 outputs for a batch of 2; wanted one for each item"
ZERO = "the model fails at a batch of 2: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "the model cannot be loaded: ZeroDivisionError: division by zero"),
        (GOOD.replace("= 2", "= 'x'"), f"{WARM_UP}TypeError: string indices"),
        (GOOD.replace("= 2", "= {1}"), f"{WARM_UP}TypeError: 'set' object"),
        (DECLARED.replace("Box(2.0)", "5"), NOT_DECLARED),
        (shortest("return batch", "{1}"), f"its example {SET.format('item')}"),
        (shortest("return [{1}]"), f"an output of a batch of 1 {SET.format('output')}"),
        (shortest("return batch[:1]"), SHORT),
        (shortest("1 / (len(batch) - 2); return batch"), ZERO),
        (
            shortest("return [ValueError('no') if len(batch) > 2 else 1] * len(batch)"),
            "the model fails at a batch of 4: ValueError: no",
        ),
    ],
)
def test_what_a_model_fails_at_is_told(tried: Callable[..., Report], text: str, said: str) -> None:
    report = tried(text)
    assert said in str(report.failed)
    assert not report.misused


def test_a_failure_of_the_model_comes_with_its_traceback(tried: Callable[..., Report]) -> None:
    report = tried(shortest("raise KeyError('here')"))
    assert report.traceback.splitlines()[-1:] == ["KeyError: 'here'"]


MOODY = """
class Model:
    example = 1
    idempotent = IDEMPOTENT
    broken = False
    runs = 0

    def predict(self, batch):
        self.runs += 1
        bad = any(isinstance(item, dict) for item in batch)
        self.broken = self.broken or BREAKS
        if RAISES:
            raise ValueError("no more")
        return batch
"""


def moody(raises: str, *, breaks: str = "False", idempotent: bool = True) -> str:
    return MOODY.replace("RAISES", raises).replace("BREAKS", breaks).replace("IDEMPOTENT", str(idempotent))


def test_a_model_that_fails_in_one_run_of_many_fails(tried: Callable[..., Report]) -> None:
    report = tried(moody("self.runs == 3"))
    assert report.failed == "run 1 of a batch of 1, item 0: model_failed: ValueError: no more"
    assert "no more" in report.traceback
    assert tried(moody("self.runs == 5")).failed == (
        "run 1 of a batch of 2 failed as a whole; in parts it went through"
    )


def test_a_batch_for_which_memory_is_short_is_the_largest(tried: Callable[..., Report]) -> None:
    short = "if len(batch) > 2: raise MemoryError('no more')"
    report = tried(shortest("\n        " + short + "\n        return batch"))
    assert report.failed is None
    assert [one.items for one in report.sizes] == [1, 2]
    assert report.notes == ["a batch of 4 does not fit into memory: MemoryError: no more"]
    assert tried(shortest("raise MemoryError")).failed == "the model cannot be warmed up: MemoryError: "


def test_neighbours_that_a_bad_item_hurts_fail_the_model(tried: Callable[..., Report]) -> None:
    report = tried(moody("self.broken", breaks="bad"))
    assert report.failed == "a bad item hurts its neighbours: model_failed: ValueError: no more"


def test_a_model_that_is_broken_by_a_bad_item_fails(tried: Callable[..., Report]) -> None:
    report = tried(moody("bad or self.broken", breaks="bad and len(batch) == 1"), batch_size=2)
    assert report.failed == "after a bad item a good one fails: model_failed: ValueError: no more"


def test_a_model_that_runs_nothing_twice_loses_a_batch_to_a_bad_item(tried: Callable[..., Report]) -> None:
    report = tried(moody("bad", idempotent=False))
    assert report.failed is None
    assert report.bad_item == "its batch failed with it: the model is not idempotent"


def test_a_model_may_take_anything(tried: Callable[..., Report]) -> None:
    assert tried(moody("False")).bad_item == "taken for a good one: the model does not tell"
    assert tried(moody("bad"), batch_size=1).bad_item == "not tried: there is one item in a batch"


def test_a_model_that_declares_that_it_takes_all_that_is_strange_is_given_it(
    tried: Callable[..., Report],
) -> None:
    text = shortest("return batch").replace("batch)", "batch: 'list[TYPE]')")
    anything = "None | dict[str, str] | list | str | int"
    assert tried(text.replace("TYPE", anything)).bad_item == "taken for a good one: the model does not tell"
    assert "got null" in str(tried(text.replace("TYPE", "dict[str, str] | int")).bad_item)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Other: ...", "has no 'Model'"),
        ("class Model:\n def predict(self, batch): return batch", "it has no example and no signature"),
    ],
)
def test_what_could_not_be_tried_is_no_failure_of_the_model(
    tried: Callable[..., Report], text: str, said: str
) -> None:
    report = tried(text)
    assert report.misused
    assert said in str(report.failed)


def test_a_model_that_cannot_be_closed_is_noted(tried: Callable[..., Report]) -> None:
    closes = GOOD + "\n    def close(self):\n        raise OSError('busy')\n"
    report = tried(closes)
    assert (report.failed, report.notes) == (None, ["close() raises OSError: busy"])


class Filling:
    """NVIDIA's library on a host whose GPU fills up, or says nothing."""

    class NVMLError(Exception):
        pass

    def __init__(self, *used: int | None) -> None:
        self._used = iter(used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        used = next(self._used)
        if used is None:
            raise self.NVMLError
        return SimpleNamespace(used=used, total=100)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        raise self.NVMLError


@pytest.mark.parametrize(
    ("used", "held"), [((10, 30, 40), [20, 30]), ((10, 5, 10), [0, 0]), ((None, 5, 5), [None, None])]
)
def test_without_torch_a_gpu_is_said_to_hold_what_it_filled_with(
    used: tuple[int | None, ...], held: list[int | None]
) -> None:
    memory = GpuMemory(Gpus(["0"], lambda: Filling(*used)))
    memory.forget()
    assert [memory.held(), memory.peak()] == held


def test_on_a_host_without_a_gpu_nothing_is_held_there() -> None:
    assert GpuMemory(Gpus([])).held() is None


def test_ctrl_c_ends_the_trial(tried: Callable[..., Report]) -> None:
    with pytest.raises(KeyboardInterrupt):
        tried("raise KeyboardInterrupt")


def test_a_report_is_read_as_it_was_written(tmp_path: Path, tried: Callable[..., Report]) -> None:
    report = tried(SIGNED.replace("RETURNED", 'item["x"]'))
    write(report, tmp_path / "report.json")
    assert msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report) == report
    assert [one.name for one in tmp_path.glob("report*")] == ["report.json"]


STEPS = """
from zbatch import END

class Model:
    example = 2

    def predict(self, batch):
        for at in range(3):
            yield [TOLD for most in batch]
"""

ASYNC_STEPS = STEPS.replace("def predict", "async def predict")


def steps(told: str, text: str = STEPS) -> str:
    return text.replace("TOLD", told)


@pytest.mark.parametrize("text", [STEPS, ASYNC_STEPS])
def test_a_model_that_yields_steps_is_timed_until_the_first_and_until_the_end(
    tried: Callable[..., Report], text: str
) -> None:
    report = tried(steps("at if at < most else END", text))
    assert report.failed is None
    assert report.sizes == [
        Size(items, 6, 1.9531, items * 512.0, None, first_ms=0.9766) for items in (1, 2, 4)
    ]
    assert report.bad_item is not None
    assert report.bad_item.startswith("failed alone: model_failed: TypeError")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("at] * (len(batch) * 2 - 2) + [at", "a batch of 2: predict yielded a step of 4 entries; wanted"),
        ("1 // (2 - len(batch))", "the model fails at a batch of 2: ZeroDivisionError"),
        ("ValueError('no') if len(batch) > 1 else 1", "the model fails at a batch of 2: ValueError: no"),
        ("{1} if len(batch) > 1 else 1", f"an output of a batch of 2 {SET.format('output[0]')}"),
    ],
)
def test_steps_that_are_wrong_in_a_batch_fail_the_model(
    tried: Callable[..., Report], told: str, said: str
) -> None:
    assert str(tried(steps(told)).failed).startswith(said)


def test_all_that_is_yielded_for_an_item_is_held_to_what_is_declared(tried: Callable[..., Report]) -> None:
    text = "from collections.abc import Iterator\n" + steps("at")
    declared = text.replace("(self, batch)", "(self, batch: list[int]) -> Iterator[list[KIND]]")
    report = tried(declared.replace("KIND", "int"))
    assert (report.failed, report.output_type, report.notes) == (None, "list[int]", [])
    (note,) = tried(declared.replace("KIND", "str")).notes
    assert note == "what it returns is not what its predict declares: $[0]: expected str, got int"
