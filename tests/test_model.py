"""How a name becomes a model, and what a newcomer is told when it does not."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from zbatch.errors import BadOutput, ConfigError
from zbatch.messages import Facts
from zbatch.model import Context, LoadedModel, ManagedModel, check_name, load, outputs_of, wrap
from zbatch.signature import Signature, Tensor

HERE = Context()

NUMBER: dict[str, Any] = {"name": "n", "datatype": "INT64", "shape": []}

SHOUT = """
class Shout:
    version = "2"
    def __init__(self, mark="!"):
        self.mark = mark
    def predict(self, batch):
        return [item.upper() + self.mark for item in batch]

def echo(batch):
    return batch

quiet = lambda batch: [item.lower() for item in batch]

class Outer:
    class Inner(Shout):
        pass
"""


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work in an empty folder, and forget what was imported from it."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(name: str, text: str = SHOUT) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def refusal(name: str, args: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(name, args or {}, HERE)
    return str(caught.value)


def refused(model: Any, args: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        wrap(model, args or {}, HERE)
    return str(caught.value)


# --- names that lead somewhere ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["shouting.py:Shout", "shouting:Shout", "./shouting.py:Shout", "shouting:Outer.Inner"],
)
def test_a_name_is_a_file_or_a_module_and_a_name_in_it(name: str) -> None:
    write("shouting.py")
    assert load(name, {}, HERE).predict(["a", "b"]) == ["A!", "B!"]


def test_a_module_may_lie_in_a_package() -> None:
    write("shop/__init__.py", "")
    write("shop/models/loud.py")
    assert load("shop.models.loud:echo", {}, HERE).predict([1]) == [1]


def test_an_absolute_path_works_from_anywhere(tmp_path: Path) -> None:
    write("far/away/shouting.py")
    assert load(f"{tmp_path}/far/away/shouting.py:Shout", {}, HERE).predict(["a"]) == ["A!"]


def test_a_file_can_import_what_lies_beside_it() -> None:
    write("far/sibling.py", "WORD = 'hello'")
    write("far/greeter.py", "import sibling\ndef predict(batch): return [sibling.WORD for _ in batch]")
    assert load("far/greeter.py:predict", {}, HERE).predict([1, 2]) == ["hello", "hello"]


def test_a_file_takes_no_other_modules_place() -> None:
    import queue

    write("queue.py")
    assert load("queue.py:echo", {}, HERE).predict([1]) == [1]
    assert sys.modules["queue"] is queue


def test_a_file_is_run_once_however_often_it_is_named() -> None:
    write("once.py", "runs = []\ndef predict(batch): return runs\nruns.append(1)")
    load("once.py:predict", {}, HERE)
    assert load("once.py:predict", {}, HERE).predict([0]) == [1]


def test_a_dash_in_a_file_name_is_no_harm() -> None:
    write("my-model.py")
    assert load("my-model.py:echo", {}, HERE).predict([1]) == [1]


def test_a_named_lambda_is_a_function_like_others() -> None:
    write("shouting.py")
    assert load("shouting.py:quiet", {}, HERE).predict(["A"]) == ["a"]


def test_arguments_go_to_the_constructor() -> None:
    write("shouting.py")
    assert load("shouting.py:Shout", {"mark": "?"}, HERE).predict(["a"]) == ["A?"]


# --- names that lead nowhere ------------------------------------------------------------------------


def test_a_name_without_a_colon_says_what_is_missing() -> None:
    assert refusal("shouting.py") == (
        "model is 'shouting.py', wanted package.module:Name or path/file.py:Name; "
        "did you forget :Name after shouting.py?"
    )
    assert refusal("shouting") == "model is 'shouting', wanted package.module:Name or path/file.py:Name"


def test_a_lambda_as_a_name_is_told_to_move_into_a_file() -> None:
    assert refusal("lambda batch: batch") == (
        "model is 'lambda batch: batch': a lambda has no name that other processes could load; "
        "put a function predict(batch) into a file and name it, as package.module:Name or path/file.py:Name"
    )


def test_a_typo_in_a_path_names_the_nearest_file(tmp_path: Path) -> None:
    write("shouting.py")
    assert refusal("shoutin.py:Shout") == (
        f"there is no file {tmp_path}/shoutin.py; did you mean shouting.py?"
    )


def test_a_path_like_no_other_lists_what_is_there(tmp_path: Path) -> None:
    for number in range(14):
        write(f"m{number:02}.py")
    shown = ", ".join(f"m{number:02}.py" for number in range(12))
    assert refusal("zzzzzzzz.py:Shout") == (f"there is no file {tmp_path}/zzzzzzzz.py; there is {shown}, ...")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert refusal("nowhere/shouting.py:Shout") == (
        f"there is no folder {tmp_path}/nowhere, so no model nowhere/shouting.py"
    )


def test_an_empty_folder_has_nothing_to_list(tmp_path: Path) -> None:
    assert refusal("shouting.py:Shout") == f"there is no file {tmp_path}/shouting.py"


def test_a_missing_name_is_told_with_what_is_there() -> None:
    write("shouting.py", SHOUT + "\nimport json\nfrom pathlib import Path\n")
    assert refusal("shouting.py:Shoot") == "shouting.py has no 'Shoot'; did you mean Shout?"
    assert refusal("shouting.py:Xyzzy") == ("shouting.py has no 'Xyzzy'; there is Outer, Shout, echo, quiet")
    assert refusal("shouting.py:Outer.Inside") == "shouting.py:Outer has no 'Inside'; there is Inner"


def test_a_module_of_borrowed_names_lists_those() -> None:
    write("borrowed.py", "import json")
    assert refusal("borrowed:Model") == "borrowed has no 'Model'; there is json"


def test_a_missing_module_names_the_nearest_and_where_it_was_sought(tmp_path: Path) -> None:
    write("shouting.py")
    told = f"it must be installed or lie below {tmp_path}, and a file is named by path/file.py:Name"
    assert refusal("shoutin:Shout") == f"there is no module 'shoutin'; did you mean shouting?; {told}"
    write("shop/__init__.py", "")
    write("shop/bert.py")
    assert refusal("shop.berd:Shout") == f"there is no module 'shop.berd'; did you mean shop.bert?; {told}"


def test_a_path_without_py_is_no_module() -> None:
    write("models/bert.py")
    wanted = "wanted package.module:Name or path/file.py:Name"
    assert refusal("models/bert:Shout") == (
        f"model is 'models/bert:Shout', {wanted}; did you mean models/bert.py:Shout?"
    )
    assert refusal("models/berd:Shout") == f"model is 'models/berd:Shout', {wanted}"
    assert refusal(".bert:Shout") == f"model is '.bert:Shout', {wanted}"


def test_a_name_with_a_colon_too_many_is_told_whole() -> None:
    assert refusal("bert.py:Shout:x") == (
        "model is 'bert.py:Shout:x', wanted package.module:Name or path/file.py:Name; "
        "did you mean bert.py:Shout?"
    )


@pytest.mark.parametrize("name", ["lambda batch: batch", "shouting.py", "a/b:Shout", "nowhere.py:Shout"])
def test_a_name_can_be_checked_before_a_process_is_started_for_it(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_name(name)
    assert str(caught.value) == refusal(name)


@pytest.mark.parametrize("name", ["deep.module:Shout", "broken.py:Shout"])
def test_a_check_runs_no_code(name: str) -> None:
    write("broken.py", "1/0")
    check_name(name)


@pytest.mark.parametrize("name", ["mine:Shout", "mine.py:Shout"])
def test_a_missing_import_inside_the_model_is_shown_as_it_is(name: str) -> None:
    write("mine.py", "import not_installed_anywhere")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere") as caught:
        load(name, {}, HERE)
    assert any(str(entry.path).endswith("mine.py") for entry in caught.traceback)


def test_a_file_that_failed_is_tried_anew() -> None:
    write("mine.py", "1/0")
    with pytest.raises(ZeroDivisionError):
        load("mine.py:predict", {}, HERE)
    write("mine.py", "def predict(batch): return batch  # a longer file")
    assert load("mine.py:predict", {}, HERE).predict([1]) == [1]


# --- what is no model -------------------------------------------------------------------------------


class Square:
    def __init__(self, power: int, *, offset: float = 0.0) -> None:
        self.power = power
        self.offset = offset

    def predict(self, batch: list[float]) -> list[float]:
        return [item**self.power + self.offset for item in batch]


def test_arguments_that_do_not_fit_are_named() -> None:
    assert refused(Square) == (
        "the arguments of Square do not fit: missing a required argument: 'power'; "
        "it takes power, offset, given with --arg key=value; got none"
    )
    assert refused(Square, {"power": 2, "ofset": 1}) == (
        "the arguments of Square do not fit: got an unexpected keyword argument 'ofset'; "
        "it takes power, offset, given with --arg key=value; got power, ofset"
    )


def test_an_error_inside_the_constructor_is_shown_as_it_is() -> None:
    class Broken:
        def __init__(self) -> None:
            raise TypeError("int is not a tensor")

        def predict(self, batch: list[Any]) -> list[Any]:
            return batch

    with pytest.raises(TypeError, match="int is not a tensor"):
        wrap(Broken, {}, HERE)


def test_a_function_takes_no_arguments() -> None:
    def echo(batch: list[Any]) -> list[Any]:
        return batch

    told = refused(echo, {"mark": "!"})
    assert told.endswith("echo is no class, so it takes no arguments; got mark")


def test_a_class_without_predict_is_told_what_it_has() -> None:
    class Near:
        def predicts(self, batch: list[Any]) -> list[Any]:
            return batch

    class Far:
        def run(self) -> None: ...

    assert refused(Near).endswith("Near has no method predict(self, batch); did you mean predicts?")
    assert refused(Far).endswith("Far has no method predict(self, batch); it has run")


@pytest.mark.parametrize(("model", "kind"), [(7, "an int"), ([], "a list"), (os, "a module"), (None, "None")])
def test_what_is_no_model_is_told_what_it_is(model: Any, kind: str) -> None:
    assert refused(model) == (
        f"the model is {kind} without predict; "
        "wanted a function predict(batch), or a class or an object with one"
    )


def test_predict_takes_the_batch_and_nothing_else() -> None:
    class Forgetful:
        def predict(batch: list[Any]) -> list[Any]:  # type: ignore[misc]
            return batch

    assert refused(lambda batch, scale: batch).endswith(
        "must take one argument, the batch: missing a required argument: 'scale'"
    )
    assert refused(Forgetful).endswith("must take one argument, the batch: too many positional arguments")


def test_predict_is_a_plain_function() -> None:
    async def later(batch: list[Any]) -> list[Any]:
        return batch

    assert refused(later).endswith("later is async; wanted a plain def that returns the outputs")


def test_what_is_written_in_c_cannot_be_asked_and_is_taken() -> None:
    assert wrap(min, {}, HERE).predict([3, 1]) == 1
    assert wrap(np.negative, {}, HERE).predict([3]) == [-3]


# --- a loaded model ---------------------------------------------------------------------------------


def test_a_model_is_told_where_it_is_before_it_runs() -> None:
    class Placed:
        context: Context

        def setup(self, context: Context) -> None:
            self.context = context

        def predict(self, batch: list[Any]) -> list[Any]:
            return [self.context] * len(batch)

    where = Context(device="cuda:0", index=3, topic="bert", gpu="1")
    assert wrap(Placed, {}, where).predict([0]) == [where]


def test_an_object_that_has_predict_is_a_model() -> None:
    assert wrap(Square(2), {}, HERE).predict([3]) == [9.0]


def test_closing_reaches_the_object() -> None:
    closed: list[str] = []

    class Held:
        def predict(self, batch: list[Any]) -> list[Any]:
            return batch

        def close(self) -> None:
            closed.append("held")

    wrap(Held, {}, HERE).close()
    wrap(Square(2), {}, HERE).close()
    assert closed == ["held"]


def test_without_an_example_nothing_is_warmed_up() -> None:
    def explode(batch: list[Any]) -> list[Any]:
        raise AssertionError

    wrap(explode, {}, HERE).warm_up()


def test_an_example_runs_as_a_batch_of_one_even_if_it_is_none() -> None:
    class Warm:
        example = None
        seen: tuple[list[None], ...] = ()

        def predict(self, batch: list[None]) -> list[None]:
            self.seen += (batch,)
            return batch

    model = Warm()
    wrap(model, {}, HERE).warm_up()
    assert model.seen == ([None],)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([], "predict returned 0 outputs for a batch of 1; wanted one for each item"),
        (["a", "b"], "predict returned 2 outputs for a batch of 1; wanted one for each item"),
        (
            "a",
            "predict returned a str for a batch of 1; "
            "wanted a sequence, such as a list, with one output for each item",
        ),
        (
            7,
            "predict returned an int for a batch of 1; "
            "wanted a sequence, such as a list, with one output for each item",
        ),
    ],
)
def test_warm_up_says_what_came_instead_of_one_output(returned: Any, said: str) -> None:
    class Wrong:
        example = 1

        def predict(self, batch: list[int]) -> Any:
            return returned

    with pytest.raises(BadOutput) as caught:
        wrap(Wrong, {}, HERE, name="m:Wrong").warm_up()
    assert str(caught.value) == f"warm-up with the example of m:Wrong: {said}"


def test_what_the_model_raises_in_warm_up_passes() -> None:
    class Wrong:
        example = 1

        def predict(self, batch: list[int]) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wrap(Wrong, {}, HERE).warm_up()


def facts(**attributes: Any) -> LoadedModel:
    return wrap(type("M", (), {"predict": lambda self, batch: batch} | attributes), {}, HERE, name="m:M")


def test_facts_are_bounded() -> None:
    assert facts().facts() == Facts("m:M")
    assert facts(version=1.5).facts() == Facts("m:M", "1.5", b"")
    assert facts(version="v" * 100).facts().version == "v" * 64
    assert wrap(len, {}, HERE, name="n" * 300).facts().name == "n" * 256


def test_facts_can_always_be_sent() -> None:
    told = wrap(type("M", (), {"predict": len, "version": "\ud800"}), {}, HERE, name="m\udcff:M").facts()
    assert (told.name, told.version) == ("m\\udcff:M", "\\ud800")


def test_a_signature_that_cannot_be_told_is_refused() -> None:
    many = [NUMBER | {"name": "n" * 200 + str(place)} for place in range(80)]
    with pytest.raises(ConfigError, match="the signature of m:M has 19577 bytes, wanted at most 16384"):
        facts(signature={"inputs": many, "outputs": [NUMBER]}).facts()
    with pytest.raises(ConfigError) as caught:
        facts(signature={"inputs": [NUMBER | {"shape": "any"}], "outputs": [NUMBER]})
    assert str(caught.value) == (
        "the signature of m:M is malformed: signature.inputs[0].shape: Expected `array`, got `str`"
    )


def test_a_signature_goes_to_those_who_ask_for_facts() -> None:
    declared = {"inputs": [NUMBER], "outputs": [NUMBER]}
    assert Signature.from_json(facts(signature=declared).facts().signature) == Signature.of(declared)


def test_a_signature_may_be_made_in_setup() -> None:
    def setup(self: Any, context: Context) -> None:
        self.signature = {"inputs": [NUMBER], "outputs": [NUMBER]}

    number = Tensor("n", "INT64", ())
    assert facts(setup=setup).signature == Signature((number,), (number,))


class Measured:
    signature: ClassVar = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [NUMBER],
    }

    def __init__(self) -> None:
        self.saw: list[Any] = []

    def predict(self, batch: list[Any]) -> list[Any]:
        self.saw += batch
        return [{"n": np.int64(item["x"].size)} for item in batch]


def test_without_an_example_warm_up_runs_zeros_of_the_signature() -> None:
    model = Measured()
    wrap(model, {}, HERE).warm_up()
    (item,) = model.saw
    assert (item["x"].dtype, item["x"].tolist()) == (np.float32, [[0.0, 0.0]])


def test_an_example_goes_before_zeros_of_the_signature() -> None:
    model = Measured()
    model.example = {"x": np.ones((1, 2), np.float32)}  # type: ignore[attr-defined]
    wrap(model, {}, HERE).warm_up()
    assert model.saw[0]["x"].tolist() == [[1.0, 1.0]]


def test_warm_up_with_zeros_fails_as_with_an_example() -> None:
    class Wrong(Measured):
        def predict(self, batch: list[Any]) -> list[Any]:
            return []

    with pytest.raises(
        BadOutput, match=r"^warm-up with zeros of the signature of m:Wrong: predict returned 0"
    ):
        wrap(Wrong, {}, HERE, name="m:Wrong").warm_up()


def test_an_exception_in_the_output_s_place_fails_the_warm_up() -> None:
    class Wrong(Measured):
        def predict(self, batch: list[Any]) -> list[Any]:
            return [ZeroDivisionError("no")]

    with pytest.raises(ZeroDivisionError, match="no"):
        wrap(Wrong, {}, HERE).warm_up()


def test_a_model_is_idempotent_unless_it_says_otherwise() -> None:
    assert facts().idempotent
    assert not facts(idempotent=False).idempotent


# --- service_streamer's way -------------------------------------------------------------------------


class Managed(ManagedModel):
    def init_model(self, word: str = "x") -> None:
        self.model = word

    def predict(self, batch: list[Any]) -> list[Any]:
        return [(self.model, self.gpu_id)] * len(batch)


def test_a_managed_model_is_initialised_with_the_arguments() -> None:
    assert wrap(Managed, {}, HERE).predict([0]) == [("x", None)]
    assert wrap(Managed, {"word": "y"}, HERE).predict([0]) == [("y", None)]
    assert "arguments of Managed.init_model do not fit" in refused(Managed, {"wort": "y"})


@pytest.mark.parametrize(("gpu", "seen"), [("0", 0), ("GPU-1f", "GPU-1f")])
def test_a_managed_model_knows_its_gpu(gpu: str, seen: int | str) -> None:
    assert wrap(Managed, {}, Context("cuda:0", gpu=gpu)).predict([0]) == [("x", seen)]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu


def test_a_managed_model_may_have_a_constructor_of_its_own() -> None:
    class Own(Managed):
        def __init__(self) -> None:
            super().__init__()

    assert wrap(Own, {}, Context("cuda:0", gpu="1")).predict([0]) == [("x", None)]


def test_a_managed_model_must_define_both_methods() -> None:
    class NoInit(ManagedModel):
        def predict(self, batch: list[Any]) -> list[Any]:
            return batch

    class NoPredict(ManagedModel):
        def init_model(self) -> None: ...

    assert refused(NoInit).endswith("NoInit is a ManagedModel that does not define init_model()")
    assert refused(NoPredict).endswith("NoPredict is a ManagedModel that does not define predict()")
    for call in (ManagedModel().init_model, lambda: ManagedModel().predict([])):
        with pytest.raises(NotImplementedError, match="ManagedModel must define"):
            call()


def test_gpu_zero_is_a_gpu() -> None:
    ManagedModel(0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    ManagedModel()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


# --- what counts as outputs -------------------------------------------------------------------------


class Column:
    """Like a column of a table: it has keys, but is walked by value."""

    ndim = 1

    def keys(self) -> list[str]:
        return ["a", "b"]

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))


class Table(Column):
    """Like a table: two rows, walked by the names of its two columns."""

    ndim = 2

    def __iter__(self) -> Iterator[int]:
        return iter(("left", "right"))  # type: ignore[arg-type]


class Liar(Column):
    def __iter__(self) -> Iterator[int]:
        return iter((1,))


@pytest.mark.parametrize("results", [[1, 2], (1, 2), deque([1, 2]), np.array([1, 2]), range(1, 3), Column()])
def test_any_sequence_of_the_right_length_is_outputs(results: Any) -> None:
    outputs = outputs_of(results, 2)
    assert type(outputs) is list
    assert outputs == [1, 2]


def test_rows_of_an_array_are_outputs() -> None:
    rows = outputs_of(np.array([[1.0, 2.0], [3.0, 4.0]]), 2)
    assert [type(row) for row in rows] == [np.ndarray, np.ndarray]
    assert [row.tolist() for row in rows] == [[1.0, 2.0], [3.0, 4.0]]
    assert type(outputs_of(np.array([1.5, 2.5]), 2)[0]) is np.float64


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (None, "None (is a return missing?)"),
        ("ab", "a str"),
        (b"ab", "a bytes"),
        (bytearray(2), "a bytearray"),
        ({1: 2, 3: 4}, "a dict"),
        ({1, 2}, "a set"),
        ((item for item in (1, 2)), "a generator"),
        (7, "an int"),
        (np.array(7), "a ndarray without rows"),
        (Table(), "a Table"),
    ],
)
def test_what_has_no_order_or_is_one_output_is_refused(results: Any, said: str) -> None:
    with pytest.raises(BadOutput) as caught:
        outputs_of(results, 2)
    assert str(caught.value) == (
        f"predict returned {said} for a batch of 2; "
        "wanted a sequence, such as a list, with one output for each item"
    )


@pytest.mark.parametrize(("results", "found"), [([1], 1), ((1, 2, 3), 3), (np.zeros((4, 2)), 4), (Liar(), 1)])
def test_another_number_of_outputs_is_refused(results: Any, found: int) -> None:
    with pytest.raises(BadOutput) as caught:
        outputs_of(results, 2)
    assert str(caught.value) == f"predict returned {found} outputs for a batch of 2; wanted one for each item"
