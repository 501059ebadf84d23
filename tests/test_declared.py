"""What annotations of ``predict`` declare, and what becomes of items and outputs then."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pydantic
import pytest
import typing_extensions

from tests.test_runner import make_work, outputs
from zbatch import payload
from zbatch.declared import Declared, declared_by, plain
from zbatch.errors import BadInput, ConfigError
from zbatch.model import Context, wrap
from zbatch.runner import Ran, Runner

T = TypeVar("T")


class Photo(msgspec.Struct):
    size: int
    name: str = "?"


class Tags(TypedDict):
    tags: list[str]
    weight: NotRequired[float]


@dataclasses.dataclass
class Album:
    photos: list[Photo]


class Pixels(msgspec.Struct):
    data: np.ndarray[Any, Any]
    scale: float = 1.0


class Person(pydantic.BaseModel):
    name: str
    age: Annotated[int, pydantic.Field(ge=0)]


class Renamed(msgspec.Struct, tag="photo", tag_field="kind", rename="camel"):
    the_size: int


class Row(msgspec.Struct, array_like=True, tag=True):
    left: int
    right: Any = None


class Bare(msgspec.Struct, array_like=True):
    left: int


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Team:
    people: list[Person]


class Crew(typing_extensions.TypedDict):
    captain: Person


class Tree(TypedDict):
    children: list[Tree]


def of_item(annotation: Any) -> Declared:
    """Return what a predict declares whose batch is a list of these."""

    def predict(batch: Any) -> Any: ...

    predict.__annotations__["batch"] = list[annotation]
    return declared_by(predict)


def converted(annotation: Any, value: Any) -> Any:
    item = of_item(annotation).item
    assert item is not None
    return item.convert(value)


def fault_of(annotation: Any, value: Any) -> str:
    with pytest.raises(BadInput) as caught:
        converted(annotation, value)
    return str(caught.value)


# --- what is found -------------------------------------------------------------------------------


def test_functions_methods_and_objects_that_can_be_called_declare_by_their_annotations() -> None:
    def predict(batch: Sequence[Photo]) -> list[str]: ...  # type: ignore[empty-body]

    class Model:
        def predict(self, batch: Sequence[Photo]) -> list[str]: ...  # type: ignore[empty-body]

        def __call__(self, batch: Sequence[Photo]) -> list[str]: ...  # type: ignore[empty-body]

    for one in (predict, Model().predict, Model()):
        declared = declared_by(one)
        assert (str(declared.item), str(declared.output), declared.ignored) == ("Photo", "str", ())


@pytest.mark.parametrize(
    ("steps", "output"),
    [
        (Iterator[list[Photo]], list[Photo]),
        (Iterator[Sequence[Photo | Exception]], list[Photo]),
        (Iterable[list[Photo]], list[Photo]),
        (Generator[dict[int, Photo | ValueError], None, None], list[Photo]),
        (AsyncIterator[list[Photo]], list[Photo]),
        (AsyncGenerator[Mapping[int, Photo], None], list[Photo]),
        ("Iterator[list[Photo]]", list[Photo]),
        (Iterator[list[Any]], None),
        (Iterator[list], None),  # type: ignore[type-arg]
        (Iterator, None),
        (Iterator[dict], None),  # type: ignore[type-arg]
        (Iterator[Photo], None),
    ],
)
def test_of_what_is_yielded_in_steps_an_output_is_the_list_of_its_parts(steps: Any, output: Any) -> None:
    def predict(batch: Any) -> Any: ...

    predict.__annotations__["return"] = steps
    found = declared_by(predict).output
    assert (None if found is None else found.annotation) == output


@pytest.mark.parametrize(
    "batch",
    [
        list[Photo],
        Sequence[Photo],
        Iterable[Photo],
        tuple[Photo, ...],
        "list[Photo]",
        list["Photo"],
        Annotated[list[Photo], "as many as fit"],
    ],
)
def test_a_batch_may_be_annotated_as_any_sequence(batch: Any) -> None:
    def predict(batch: Any) -> Any: ...

    predict.__annotations__["batch"] = batch
    item = declared_by(predict).item
    assert item is not None
    assert item.annotation is Photo


@pytest.mark.parametrize(
    "annotation",
    [
        *(Any, T, object, np.ndarray, npt.NDArray[np.float32], np.float32, "torch.Tensor"),
        *(Iterator[Photo], list, "Photo", tuple[Photo, str], Exception),
    ],
)
def test_what_says_nothing_of_an_item_declares_nothing(annotation: Any) -> None:
    def predict(batch: Any) -> Any: ...

    element = annotation in (Any, T, object, np.ndarray, np.float32, Exception)
    predict.__annotations__ |= {"batch": list[annotation] if element else annotation}
    declared = declared_by(predict)
    assert (declared.item, declared.output) == (None, None)


def test_models_without_annotations_are_run_as_they_were() -> None:
    nothing = declared_by(lambda batch: batch)
    assert nothing == Declared()
    assert nothing.reading(payload.decode) is payload.decode
    assert nothing.writing(payload.encode) is payload.encode


@pytest.mark.parametrize("predict", [dict.get, len, max])
def test_what_is_written_in_c_declares_nothing(predict: Callable[..., Any]) -> None:
    assert declared_by(predict) == Declared()


def test_a_function_without_parameters_declares_no_item() -> None:
    assert declared_by(lambda: 0).item is None


def test_what_cannot_be_named_is_ignored_and_the_rest_counts() -> None:
    def predict(batch: list[Missing]) -> list[Photo]: ...  # type: ignore[empty-body,name-defined]  # noqa: F821

    declared = declared_by(predict)
    assert declared.item is None
    assert declared.output is not None
    assert declared.ignored == (
        "what predict declares its items to be is ignored: name 'Missing' is not defined",
    )


def test_a_union_that_cannot_be_told_apart_is_ignored() -> None:
    class Other(msgspec.Struct):
        size: int

    (why,) = of_item(Photo | Other).ignored
    assert "If a type union contains multiple Struct types" in why


def test_an_exception_in_an_outputs_place_is_no_part_of_its_type() -> None:
    def predict(batch: list[Any]) -> list[Photo | ValueError]: ...  # type: ignore[empty-body]

    assert str(declared_by(predict).output) == "Photo"


def test_types_are_named_as_they_were_written() -> None:
    assert str(of_item(dict[str, int]).item) == "dict[str, int]"
    assert str(of_item(list[Any]).item) == "list[Any]"


# --- items ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "found"),
    [
        (Photo, {"size": 1}, Photo(1)),
        (Photo, Photo(1), Photo(1)),
        (Tags, {"tags": ["a"]}, {"tags": ["a"]}),
        (Album, {"photos": [{"size": 1, "name": "x"}]}, Album([Photo(1, "x")])),
        (list[tuple[int, str]], [[1, "a"]], [(1, "a")]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Photo | None, None, None),
        (bytes, b"raw", b"raw"),
        (datetime.date, "2026-12-02", datetime.date(2026, 12, 2)),
        (Person, {"name": "Ada", "age": 36}, Person(name="Ada", age=36)),
        (list[Person], [{"name": "Ada", "age": 36}], [Person(name="Ada", age=36)]),
        (Team, {"people": [{"name": "Ada", "age": 36}]}, Team([Person(name="Ada", age=36)])),
        (float, np.float32(0.5), 0.5),
        (list[float], np.array([0.5, 1.0]), [0.5, 1.0]),
        (Photo, {"size": np.int64(3), "name": "x"}, Photo(3, "x")),
        (tuple[int, ...], (np.int64(3),), (3,)),
    ],
)
def test_an_item_becomes_what_it_was_declared_to_be(annotation: Any, value: Any, found: Any) -> None:
    assert converted(annotation, value) == found
    assert type(converted(annotation, value)) is type(found)


FRACTION = "$.captain.age: input should be a valid integer, got a number with a fractional part"


@pytest.mark.parametrize(
    ("annotation", "value", "fault"),
    [
        (Photo, {"size": "big"}, "$.size: expected int, got str"),
        (Photo, {}, "$: object missing required field size"),
        (Photo, 5, "$: expected object, got int"),
        (Album, {"photos": [{"size": 1}, {"size": None}]}, "$.photos[1].size: expected int, got null"),
        (Tags, {"tags": ["a", 7]}, "$.tags[1]: expected str, got int"),
        (str, 7, "$: expected str, got int"),
        (dict[str, int], {7: 7}, "key in $: expected str, got int"),
        (list[dict[int, int]], [{"x": 7}], "key in $[0]: expected int, got str"),
        (list[float], np.array(["a"]), "$: expected array, got numpy.ndarray"),
        (Pixels, {"data": [1, 2]}, "$.data: expected ndarray, got list"),
        (Person, {"name": "Ada", "age": -1}, "$.age: input should be greater than or equal to 0"),
        (Person, {}, "$.name: field required (and 1 more)"),
        (list[Person], [{"name": "A", "age": -1}], "$[0].age: input should be greater than or equal to 0"),
        (Crew, {"captain": {"name": "A", "age": 0.5}}, FRACTION),
    ],
)
def test_an_item_that_does_not_fit_is_refused_with_the_path_of_the_fault(
    annotation: Any, value: Any, fault: str
) -> None:
    assert fault_of(annotation, value) == fault


def test_an_array_inside_of_a_type_is_handed_on_as_it_is() -> None:
    data = np.zeros(3, np.float32)
    pixels = converted(Pixels, {"data": data, "scale": np.float32(0.5)})
    assert pixels.data is data
    assert pixels.scale == 0.5


def test_an_array_may_come_where_a_tensor_is_declared_and_the_other_way_round() -> None:
    torch: Any = pytest.importorskip("torch")
    tensors: Any = dict[str, torch.Tensor]
    found = converted(tensors, {"x": np.arange(3)})
    assert torch.equal(found["x"], torch.arange(3))
    pixels = converted(Pixels, {"data": torch.arange(3)})
    assert pixels.data.tolist() == [0, 1, 2]


class Even(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise SystemExit(1)
        if self.number == 5:
            raise KeyboardInterrupt
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


def test_what_a_type_checks_for_itself_counts_and_ends_no_process() -> None:
    assert converted(Even, {"number": 2}) == Even(2)
    assert fault_of(Even, {"number": 3}) == "$: 3 is odd"
    assert fault_of(Even, {"number": 13}) == "$: 1"
    with pytest.raises(KeyboardInterrupt):
        converted(Even, {"number": 5})


class Wild(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def is_known(cls, number: int) -> int:
        return {1: 1}[number]


def test_what_a_model_of_pydantic_raises_itself_is_a_bad_input() -> None:
    assert fault_of(Wild, {"number": 2}) == "2"


def test_a_type_may_hold_itself() -> None:
    assert converted(Tree, {"children": [{"children": []}]}) == {"children": [{"children": []}]}


# --- outputs -------------------------------------------------------------------------------------

DAY = datetime.date(2026, 12, 2)
NAME = uuid.UUID(int=1)


@pytest.mark.parametrize(
    ("output", "sent"),
    [
        (Photo(1), {"size": 1, "name": "?"}),
        (Renamed(1), {"kind": "photo", "theSize": 1}),
        (Row(1, Photo(2)), ["Row", 1, {"size": 2, "name": "?"}]),
        (Bare(1), [1]),
        (Album([Photo(1)]), {"photos": [{"size": 1, "name": "?"}]}),
        (Person(name="Ada", age=36), {"name": "Ada", "age": 36}),
        ([(Photo(1), 2)], [({"size": 1, "name": "?"}, 2)]),
        (Row(1, {"a": Colour.RED, "b": NAME}), ["Row", 1, {"a": "red", "b": str(NAME)}]),
        (Row(1, [Decimal("1.5"), {1}]), ["Row", 1, ["1.5", [1]]]),
        ({"a": DAY, "b": b"raw", "c": None}, {"a": DAY, "b": b"raw", "c": None}),
    ],
)
def test_outputs_become_plain_data(output: Any, sent: Any) -> None:
    assert plain(output) == sent
    assert payload.decode(*payload.encode(plain(output))) == sent


def test_what_has_no_plain_form_stays() -> None:
    data = np.zeros(2)
    assert plain({"a": data})["a"] is data
    assert plain(Album) is Album
    assert plain({"a": {1}}) == {"a": {1}}


# --- in a worker ---------------------------------------------------------------------------------


def run(predict: Any, items: Sequence[Any]) -> Ran:
    return Runner(wrap(predict, {}, Context())).run(make_work(items))


def test_a_model_sees_items_of_its_type_and_a_bad_one_hurts_only_itself() -> None:
    seen: list[Any] = []

    def predict(batch: Sequence[Photo]) -> list[Photo]:
        seen.extend(batch)
        return [Photo(photo.size + 1) for photo in batch]

    ran = run(predict, [{"size": 1}, {"size": "big"}, {"size": 3}])
    assert seen == [Photo(1), Photo(3)]
    assert outputs(ran) == [{"size": 2, "name": "?"}, "bad_input", {"size": 4, "name": "?"}]
    assert ran.errors is not None
    assert [(place, fault.text) for place, fault in ran.errors] == [(1, "$.size: expected int, got str")]


@pytest.mark.parametrize("annotation", [Any, list[Photo], list[Any], list[dict[str, Photo] | ValueError]])
def test_outputs_of_such_types_are_sent_whether_they_were_declared_or_not(annotation: Any) -> None:
    def predict(batch: list[Any]) -> Any:
        return [{"it": Photo(item)} for item in batch]

    predict.__annotations__["return"] = annotation
    assert outputs(run(predict, [1])) == [{"it": {"size": 1, "name": "?"}}]


def test_an_output_that_cannot_be_sent_is_told_by_its_path_in_what_was_made_of_it() -> None:
    def predict(batch: list[Any]) -> list[Any]:
        return [Row(1, object()) for _ in batch]

    ran = run(predict, [1])
    assert ran.errors is not None
    assert "output[2] is a builtins.object" in ran.errors[0][1].text


def test_declared_outputs_that_need_nothing_are_encoded_as_ever() -> None:
    for annotation in (str, list[float], dict[str, Any], float | None, tuple[int, ...], list, bytes):

        def predict(batch: Any) -> Any: ...

        predict.__annotations__["return"] = list[annotation]  # type: ignore[valid-type]
        assert declared_by(predict).writing(payload.encode) is payload.encode


class Shows:
    def __init__(self, example: Any) -> None:
        self.example = example

    def predict(self, batch: list[Photo]) -> list[int]:
        return [10 // photo.size for photo in batch]


def test_the_example_is_made_into_the_declared_type_for_the_warm_up() -> None:
    wrap(Shows, {"example": {"size": 2}}, Context()).warm_up()
    wrap(Shows, {"example": Photo(1)}, Context()).warm_up()
    with pytest.raises(ZeroDivisionError):
        wrap(Shows, {"example": {"size": 0}}, Context()).warm_up()


def test_an_example_of_another_type_is_told_before_the_worker_is_ready() -> None:
    with pytest.raises(ConfigError) as caught:
        wrap(Shows, {"example": {"size": "big"}}, Context(), name="m:Shows").warm_up()
    assert str(caught.value) == (
        "the example of m:Shows: not what its predict declares: $.size: expected int, got str"
    )
