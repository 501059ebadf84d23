"""The OpenAPI document of a gateway: what may be asked, and what each model declares of its items.

It is made from what the broker's snapshot says of the topics; where a model declares nothing, anything is an
item.  Several versions of a model that declare different things are shown as any of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from zbatch.gateway.bodies import MSGPACK, NPY, RAW
from zbatch.gateway.events import EVENTS, LINES

VERSION = "3.1.0"

ERRORS = {
    "400": "The body or the query is wrong.",
    "401": "No API key, or one that nobody holds.",
    "403": "The API key is for other topics.",
    "404": "Nobody has served this topic.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "415": "The body is of a type that is not read.",
    "422": "An item does not fit the types that the model declares.",
    "429": "More is asked than can be done; Retry-After says when to come back.",
    "500": "The model failed on this item.",
    "503": "Nobody can run it now; Retry-After says when to come back.",
    "504": "The deadline passed.",
}

_QUERY = {
    "timeout": ("string", "The longest it may take: 2s, 300ms, or seconds."),
    "priority": ("integer", "Higher goes first."),
    "key": ("string", "Items only share a batch with those of the same key."),
    "wait": ("string", "How long to wait for workers where there are none."),
}

_ERROR = {
    "type": "object",
    "required": ["error", "code", "request_id"],
    "properties": {
        "error": {"type": "string"},
        "code": {"type": "string"},
        "request_id": {"type": "string"},
    },
}

_STREAMS: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in (EVENTS, LINES)}
"""Any topic can be asked for a stream: a model that yields nothing gives its output as the only part."""

_PARTIAL = {
    "type": "object",
    "required": ["error", "code", "request_id", "results", "errors"],
    "properties": {
        **_ERROR["properties"],  # type: ignore[dict-item]
        "results": {"type": "array", "items": {}},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "error", "code", "status"],
                "properties": {
                    "index": {"type": "integer"},
                    "error": {"type": "string"},
                    "code": {"type": "string"},
                    "status": {"type": "integer"},
                },
            },
        },
    },
}


def document(topics: Mapping[str, Mapping[str, Any]], version: str, *, keyed: bool) -> dict[str, Any]:
    """Return the document for these topics, those of a broker's snapshot."""
    schemas: dict[str, Any] = {"Error": _ERROR, "PartialResults": _PARTIAL}
    paths: dict[str, Any] = {}
    for name in sorted(topics):
        declared = [model["schema"] for model in topics[name].get("models", ()) if model.get("schema")]
        item, output = (_any_of(declared, part, name, schemas) for part in ("item", "output"))
        path = f"/predict/{quote(name, safe='')}"
        paths[path] = {"post": _call(name, "predict", "One item", item, output, {})}
        paths[f"{path}/batch"] = {
            "post": _call(name, "predict_batch", "Several items", *_lists(item, output))
        }
    for what in ("live", "ready"):
        paths[f"/health/{what}"] = {"get": _health(what)}
    made: dict[str, Any] = {
        "openapi": VERSION,
        "info": {"title": "zbatch", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if keyed:
        made["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"bearer": []}]
    return made


def _lists(item: Any, output: Any) -> tuple[Any, Any, dict[str, Any]]:
    partial = _answer("Some items failed.", {"$ref": "#/components/schemas/PartialResults"})
    return {"type": "array", "items": item}, {"type": "array", "items": output}, {"207": partial}


def _call(
    topic: str, call: str, what: str, body: Any, output: Any, beside: Mapping[str, Any]
) -> dict[str, Any]:
    others: dict[str, Any] = {MSGPACK: {}, NPY: {}} | ({RAW: {}} if call == "predict" else {})
    told = "The outputs." if beside else "The output, or a stream of its parts."
    answers: dict[str, Any] = {"200": _answer(told, output, others if beside else others | _STREAMS)}
    error = {"$ref": "#/components/schemas/Error"}
    return {
        "tags": [topic],
        "summary": f"{what} for {topic}",
        "operationId": f"{call}_{_word(topic)}",
        "parameters": [
            {"name": name, "in": "query", "required": False, "description": told, "schema": {"type": kind}}
            for name, (kind, told) in _QUERY.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}} | others},
        "responses": {**answers, **beside, **{code: _answer(told, error) for code, told in ERRORS.items()}},
    }


def _health(what: str) -> dict[str, Any]:
    answers = {"200": _answer("Yes.", {"type": "object"})}
    if what == "ready":
        answers["503"] = _answer("Not now.", {"type": "object"})
    return {"tags": ["health"], "operationId": what, "responses": answers}


def _answer(told: str, schema: Any, others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"description": told, "content": {"application/json": {"schema": schema}, **(others or {})}}


def _any_of(declared: Sequence[Mapping[str, Any]], part: str, topic: str, schemas: dict[str, Any]) -> Any:
    """Return what models declare of their items or outputs, with its definitions among the components."""
    found = []
    for schema in declared:
        told = schema.get(part)
        if told is not None and told not in found:
            found.append(told)
    if not found or len(found) < len(declared):
        return {}  # some version takes anything
    placed = [_placed(one, topic, schemas) for one in found]
    return placed[0] if len(placed) == 1 else {"anyOf": placed}


def _placed(schema: Mapping[str, Any], topic: str, schemas: dict[str, Any]) -> Any:
    """Return a schema whose definitions stand among the components, under names of their own."""
    own = schema.get("$defs", {})
    names = {name: _free(_word(name), _word(topic), own[name], schemas) for name in own}
    for name, definition in own.items():
        schemas[names[name]] = _referring(definition, names)
    return _referring({key: value for key, value in schema.items() if key != "$defs"}, names)


def _free(name: str, topic: str, definition: Any, schemas: Mapping[str, Any]) -> str:
    """Return a component's name that nothing else has."""
    for candidate in (name, f"{topic}_{name}"):
        if candidate not in schemas or schemas[candidate] == definition:
            return candidate
    number = 2
    while f"{topic}_{name}_{number}" in schemas:
        number += 1
    return f"{topic}_{name}_{number}"


def _referring(value: Any, names: Mapping[str, str]) -> Any:
    """Return a part of a schema whose references lead to the components."""
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{names.get(one[len(_DEFS) :], one)}"
            if key == "$ref" and isinstance(one, str) and one.startswith(_DEFS)
            else _referring(one, names)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_referring(one, names) for one in value]
    return value


_DEFS = "#/$defs/"


def _word(name: str) -> str:
    """Return a name of letters that a component and a function may have."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
