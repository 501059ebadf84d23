"""The OpenAPI document of a gateway."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import pytest

from zbatch.errors import ConfigError
from zbatch.gateway import pages
from zbatch.gateway.answers import NoSuchPath
from zbatch.gateway.openapi import document

WHOLE = {"type": "integer"}
NAMED = {"$ref": "#/$defs/Item", "$defs": {"Item": {"type": "object", "properties": {"n": WHOLE}}}}
TREE = {
    "$ref": "#/$defs/Tree",
    "$defs": {
        "Tree": {
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
        }
    },
}


def made(*, keyed: bool = False, **topics: list[Any]) -> dict[str, Any]:
    told = {name: {"models": [{"schema": schema} for schema in schemas]} for name, schemas in topics.items()}
    return document(told, "1.2.3", keyed=keyed)


def body(told: dict[str, Any], path: str) -> Any:
    return told["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def answer(told: dict[str, Any], path: str, status: str = "200") -> Any:
    return told["paths"][path]["post"]["responses"][status]["content"]["application/json"]["schema"]


def test_each_topic_has_a_call_for_one_item_and_one_for_several() -> None:
    told = made(bert=[])

    assert list(told["paths"]) == ["/predict/bert", "/predict/bert/batch", "/health/live", "/health/ready"]
    assert (told["openapi"], told["info"]["version"]) == ("3.1.0", "1.2.3")


def test_one_item_may_be_answered_by_a_stream_and_several_may_not() -> None:
    told = made(bert=[])
    one, several = (
        told["paths"][path]["post"]["responses"]["200"]["content"]
        for path in ("/predict/bert", "/predict/bert/batch")
    )

    # A generator of clients takes the first.
    assert next(iter(one)) == "application/json"
    assert one["text/event-stream"] == one["application/x-ndjson"] == {"schema": {"type": "string"}}
    assert not {"text/event-stream", "application/x-ndjson"} & {*several}


def test_a_topic_is_written_as_its_path_is() -> None:
    told = document({"a/b c": {}}, "1", keyed=False)

    assert "/predict/a%2Fb%20c" in told["paths"]
    assert told["paths"]["/predict/a%2Fb%20c"]["post"]["operationId"] == "predict_a_b_c"


def test_where_nothing_is_declared_anything_is_an_item() -> None:
    assert body(made(bert=[None]), "/predict/bert") == {}


def test_what_a_model_declares_is_its_body_and_its_answer() -> None:
    told = made(count=[{"item": WHOLE, "output": {"type": "string"}}])

    assert body(told, "/predict/count") == WHOLE
    assert answer(told, "/predict/count") == {"type": "string"}
    assert body(told, "/predict/count/batch") == {"type": "array", "items": WHOLE}
    assert answer(told, "/predict/count/batch")["items"] == {"type": "string"}


def test_definitions_stand_among_the_components_and_are_referred_to_there() -> None:
    told = made(tree=[{"item": TREE}])

    assert body(told, "/predict/tree") == {"$ref": "#/components/schemas/Tree"}
    kids = told["components"]["schemas"]["Tree"]["properties"]["kids"]
    assert kids["items"] == {"$ref": "#/components/schemas/Tree"}


def test_two_models_may_give_one_name_to_different_things() -> None:
    other = {"$ref": "#/$defs/Item", "$defs": {"Item": {"type": "string"}}}
    third = {"$ref": "#/$defs/Item", "$defs": {"Item": {"type": "null"}}}

    told = made(a=[{"item": NAMED}], b=[{"item": NAMED}], c=[{"item": other, "output": third}])

    assert body(told, "/predict/a") == body(told, "/predict/b") == {"$ref": "#/components/schemas/Item"}
    assert body(told, "/predict/c") == {"$ref": "#/components/schemas/c_Item"}
    assert answer(told, "/predict/c") == {"$ref": "#/components/schemas/c_Item_2"}


def test_versions_that_declare_different_things_take_any_of_them() -> None:
    assert body(made(a=[{"item": WHOLE}, {"item": {"type": "null"}}]), "/predict/a") == {
        "anyOf": [WHOLE, {"type": "null"}]
    }
    assert body(made(a=[{"item": WHOLE}, {"output": WHOLE}]), "/predict/a") == {}
    assert body(made(a=[{"item": WHOLE}, {"item": WHOLE}]), "/predict/a") in (WHOLE, {})


def test_with_api_keys_the_document_says_how_one_is_sent() -> None:
    assert made(keyed=True)["security"] == [{"bearer": []}]
    assert "security" not in made()


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    told = made(a=[{"item": NAMED, "output": TREE}], b=[{"item": TREE}, {"item": NAMED}])

    text = str(told)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in told["components"]["schemas"]
    for schema in told["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    loaded = re.findall(rb'(?:src|href)="([^"]*)"', pages.PAGE.data)

    assert [name for name in loaded if name != b"data:,"] == [
        b"docs/swagger-ui.css",
        b"docs/swagger-ui-bundle.js",
    ]
    for name in pages.FILES:
        assert len(pages.file(name).data) > 50_000


def test_a_file_that_is_not_of_the_page_is_404() -> None:
    with pytest.raises(NoSuchPath, match="wanted one of"):
        pages.file("../server.py")


def test_without_the_library_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LIBRARY", "not_installed")
    pages.file.cache_clear()
    with pytest.raises(ConfigError, match=r"install zbatch\[http\]"):
        pages.file(pages.FILES[0])
