"""What others are told of a model's types, and what is refused by it before it is queued."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zbatch.declared import declared_by
from zbatch.errors import BadInput
from zbatch.model import Context, wrap
from zbatch.payload import DEPTH
from zbatch.schema import SCHEMA_BYTES, judge_of, schema_of


class Photo(msgspec.Struct):
    size: int
    tags: list[str] = []
    note: str | None = None


class Pixels(msgspec.Struct):
    data: np.ndarray[Any, Any]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")


class Odd(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    data: np.ndarray[Any, Any]


class Order(pydantic.BaseModel):
    size: int = pydantic.Field(ge=0, le=9)
    tags: set[str] = pydantic.Field(default=set(), max_length=1)
    note: Annotated[str, pydantic.StringConstraints(strip_whitespace=True, max_length=1)] | None = None


class Named(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    name: str = pydantic.Field(alias="fullName")


class Choosy(pydantic.BaseModel):
    size: int = pydantic.Field(validation_alias=pydantic.AliasChoices("size", "length"))


class Counted(pydantic.BaseModel):
    size: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def of_a_text(cls, value: Any) -> Any:
        return {"size": len(value)} if isinstance(value, str) else value


class Price(msgspec.Struct):
    size: Decimal
    tags: set[int] = set()


@dataclasses.dataclass
class Answer:
    label: str


def told(item: Any, output: Any = Any) -> Any:
    """Return what a worker tells of a model with these types."""

    def predict(batch: Any) -> Any: ...

    predict.__annotations__ |= {"batch": list[item], "return": list[output]}
    schema = schema_of(declared_by(predict))
    return msgspec.json.decode(schema) if schema else None


# --- what is told --------------------------------------------------------------------------------


def test_item_and_output_are_told_each_as_a_schema_of_its_own() -> None:
    answer = {"title": "Answer", "type": "object", "properties": {"label": {"type": "string"}}}
    assert told(list[int], Answer) == {
        "item": {"type": "array", "items": {"type": "integer"}},
        "output": {"$ref": "#/$defs/Answer", "$defs": {"Answer": answer | {"required": ["label"]}}},
    }


def test_a_model_of_pydantic_is_told_in_its_own_words() -> None:
    schema: dict[str, Any] = {"properties": {"fullName": {"title": "Fullname", "type": "string"}}}
    schema |= {"required": ["fullName"], "title": "Person", "type": "object"}
    assert told(Person, Person) == {"item": schema, "output": schema, "takes": "values"}


def test_what_has_no_form_in_json_is_anything() -> None:
    shown = told(Pixels)["item"]["$defs"]["Pixels"]["properties"]
    assert shown == {"data": {"description": "numpy.ndarray: no form in JSON"}}


def test_what_cannot_be_told_is_left_out() -> None:
    assert told(Odd, int) == {"output": {"type": "integer"}}
    assert told(Odd) is None
    assert told(Any) is None


def test_a_schema_is_among_the_facts_unless_it_is_too_large() -> None:
    def predict(batch: list[int]) -> Any: ...

    assert wrap(predict, {}, Context()).facts().schema == b'{"item":{"type":"integer"}}'
    large = msgspec.defstruct("Large", [(f"a_field_with_number_{at}", int) for at in range(1_000)])
    predict.__annotations__["batch"] = list[large]  # type: ignore[valid-type]
    model = wrap(predict, {}, Context())
    assert len(model.schema) > SCHEMA_BYTES
    assert model.facts().schema == b""


# --- what is refused by it -----------------------------------------------------------------------


NEITHER = "it is not valid under any of the schemas listed in the 'anyOf' keyword"


def fault(schema: Any, item: Any) -> str | None:
    judge = judge_of({"item": schema})
    assert judge is not None
    try:
        judge(item)
    except BadInput as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"size": 1}, None),
        ({"size": 1, "tags": ["a"], "note": None, "more": 1}, None),
        ({"size": "big"}, "$.size: expected int, got str"),
        ({"size": True}, "$.size: expected int, got bool"),
        ({"size": 1, "tags": ["a", None]}, "$.tags[1]: expected str, got null"),
        ({"size": 1, "tags": "a"}, "$.tags: expected list, got str"),
        ({}, '$: "size" is a required property'),
        (7, "$: expected object, got int"),
        ({"size": 1, "note": 5}, f"$.note: {NEITHER}"),
    ],
)
def test_an_item_is_refused_with_the_path_of_the_fault(item: Any, said: str | None) -> None:
    assert fault(told(Photo)["item"], item) == said


@pytest.mark.parametrize(
    ("kind", "item", "said"),
    [
        (dict[str, int], {"1": "x"}, "$.1: expected int, got str"),
        (dict[str, int], {"01": None}, "$.1: expected int, got null"),
        (dict[str, dict[str, int]], {"a": {"7": 0.5}}, "$.a.7: expected int, got float"),
        (dict[str, list[int]], {"01": [1, "x"]}, "$.1[1]: expected int, got str"),
        (list[dict[str, int]], [{}, {"1": {}}], "$[1].1: expected int, got dict"),
    ],
)
def test_a_key_that_looks_like_a_number_is_no_place_in_a_list(kind: Any, item: Any, said: str) -> None:
    assert fault(told(kind)["item"], item) == said


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"size": "7", "tags": ["a", "a"], "note": " a "}, None),
        ({"size": 7.0, "note": None}, None),
        ({}, '$: "size" is a required property'),
        ({"size": [7]}, "$.size: expected int, got list"),
        ({"size": None}, "$.size: expected int, got null"),
        ({"size": 10}, "$.size: it is greater than the maximum of 9"),
        ({"size": 7, "tags": "a"}, "$.tags: expected list, got str"),
        ("7", "$: expected object, got str"),
    ],
)
def test_what_pydantic_would_convert_is_left_to_it_and_what_it_never_would_is_refused(
    item: Any, said: str | None
) -> None:
    judge = judge_of(told(Order))
    assert judge is not None
    if said is None:
        judge(item)
        return
    with pytest.raises(BadInput) as refused:
        judge(item)
    assert str(refused.value) == said


@pytest.mark.parametrize("kind", [Named, Choosy, Counted, list[Counted]])
def test_a_model_of_pydantic_that_takes_more_than_its_schema_says_judges_alone(kind: Any) -> None:
    assert told(kind)["takes"] == "anything"
    assert judge_of(told(kind)) is None


@pytest.mark.parametrize("takes", ["more", None, [], 1])
def test_a_word_that_nobody_knows_leaves_the_judgement_to_the_worker(takes: Any) -> None:
    assert judge_of({"item": {"type": "integer"}, "takes": takes}) is None


def test_several_types_are_all_named() -> None:
    assert fault({"type": ["integer", "null"]}, "x") == "$: expected null or int, got str"


@pytest.mark.parametrize(
    "item", [{"size": np.int64(1)}, {1: 2}, {"size": 1, "tags": [b"raw"]}, {"size": 1, "data": np.zeros(2)}]
)
def test_what_json_does_not_know_is_left_to_the_worker(item: Any) -> None:
    assert fault(told(Photo)["item"], item) is None


def test_the_words_of_a_refusal_do_not_repeat_the_item() -> None:
    long = "secret" * 10_000
    for schema in ({"enum": ["a"]}, {"maxLength": 3}, {"pattern": "^a$"}, {"anyOf": [{"type": "null"}]}):
        said = fault(schema, long)
        assert said is not None
        assert "secret" not in said


@pytest.mark.parametrize("schema", [None, {}, {"output": {}}, [], "item", {"item": None}])
def test_where_nothing_is_told_nobody_judges(schema: Any) -> None:
    assert judge_of(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        "item",
        7,
        [],
        {"$ref": "#/$defs/Nowhere"},
        {"$ref": "file:///etc/hostname"},
        {"$schema": "http://127.0.0.1:9/schema"},
        {"pattern": "(?=look)ahead"},
        {"pattern": "("},
    ],
)
def test_a_schema_that_cannot_be_used_says_nothing(schema: Any) -> None:
    assert judge_of({"item": schema}) is None


def test_what_a_schema_refers_to_is_never_fetched() -> None:
    import http.server

    asked: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        refers = {"$ref": f"http://127.0.0.1:{server.server_port}/schema"}
        assert judge_of({"item": refers}) is None
        assert judge_of({"item": {"properties": {"a": refers}}}) is None
        server.shutdown()
        thread.join()
    assert asked == []


TREE = {"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"c": {"items": {"$ref": "#/$defs/T"}}}}}}


def nested(depth: int) -> Any:
    item: Any = {}
    for _ in range(depth):
        item = {"c": [item]}
    return item


@pytest.mark.parametrize("schema", [TREE, {"type": "integer"}])
def test_an_item_nested_so_deep_that_it_could_not_be_sent_is_refused_by_any_thread(schema: Any) -> None:
    said: list[str | None] = []

    def ask() -> None:
        said.extend(fault(schema, nested(depth)) for depth in (DEPTH // 2, DEPTH, 100_000))

    before = threading.stack_size(256 << 10)
    thread = threading.Thread(target=ask)
    threading.stack_size(before)
    thread.start()
    thread.join()
    fits = None if schema is TREE else "$: expected int, got dict"
    assert said == [fits, "$: nested more than 64 deep", "$: nested more than 64 deep"]


def test_a_pattern_that_others_would_match_for_centuries_is_matched() -> None:
    assert fault({"pattern": "^(a+)+$"}, "a" * 5_000 + "!") == '$: it does not match "^(a+)+$"'


class Leaf(pydantic.BaseModel):
    next: Branch | Leaf | int


class Branch(pydantic.BaseModel):
    next: Branch | Leaf | int
    more: int = 0


class Twig(msgspec.Struct):
    left: Twig | None = None
    right: Twig | int = 0
    others: list[Twig] = []
    named: dict[str, Twig] = {}


def doubled(depth: int) -> dict[str, Any]:
    """Return a schema by which a value is looked at twice, and each time twice again."""
    levels: dict[str, Any] = {str(depth): {"type": "integer"}}
    for at in range(depth):
        both = {"$ref": f"#/$defs/{at + 1}"}
        levels[str(at)] = {"allOf": [both, both]}
    return {"$ref": "#/$defs/0", "$defs": levels}


@pytest.mark.parametrize(
    "schema",
    [
        told(Branch)["item"],
        doubled(50),
        {"anyOf": [{"items": {"$ref": "#"}}, {"properties": {"a": {"$ref": "#"}}}]},
        {"properties": {"a": {"$ref": "#"}}, "allOf": [{"properties": {"a": {"$ref": "#"}}}]},
        {"properties": {"a": {"$ref": "#"}}, "patternProperties": {"^a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#"}}, "if": {"properties": {"a": {"$ref": "#"}}}},
        {"$defs": {"a": {"$ref": "#/$defs/b/$defs/c"}, "b": {"$id": "urn:b"}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": [1]}, "$ref": "#/$defs/a/b"},
        {"$ref": "#/$defs/a~1b~0c"},
    ],
)
def test_a_schema_by_which_a_small_item_could_take_for_ever_is_not_used(schema: Any) -> None:
    assert judge_of({"item": schema}) is None


@pytest.mark.parametrize(
    "schema",
    [
        told(Twig)["item"],
        doubled(5),
        {"$defs": {"a/b~c": {"type": "object"}}, "$ref": "#/$defs/a~1b~0c"},
        {"properties": {"id": {"type": "integer"}}, "anyOf": [True, {"type": ["null", "object"]}]},
    ],
)
def test_a_schema_that_looks_at_each_part_once_is_used_also_where_it_holds_itself(schema: Any) -> None:
    assert judge_of({"item": schema}) is not None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**70) | st.floats() | st.sampled_from(["", "a", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["size", "tags", "note", "label", "fullName", "1"]), inner)
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(
        [
            Photo,
            Person,
            Order,
            Price,
            Answer,
            list[tuple[int, str]],
            dict[str, float],
            int | None,
            list[Photo],
        ]
    ),
    VALUES,
)
@example(Order, {"size": "1"})
@example(Price, {"size": 1.5, "tags": [1, 1]})
@example(dict[str, float], {"size": math.nan})
@example(list[tuple[int, str]], [[math.inf, 1]])
def test_what_is_refused_before_it_is_queued_would_be_refused_by_the_worker(kind: Any, item: Any) -> None:
    def predict(batch: Any) -> Any: ...

    predict.__annotations__["batch"] = list[kind]
    declared = declared_by(predict)
    judge = judge_of(msgspec.json.decode(schema_of(declared)))
    assert judge is not None
    assert declared.item is not None
    try:
        declared.item.convert(item)
    except BadInput:
        return
    judge(item)


def test_arrays_of_rows_are_judged_in_full() -> None:
    schema = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    rows: Sequence[Any] = [[0.5] * 100 for _ in range(100)]
    assert fault(schema, rows) is None
    assert fault(schema, [*rows, [0.5, "x"]]) == "$[100][1]: expected float, got str"
