"""The Open Inference Protocol: what a body asks for, what is answered, and what is refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.oip_model import Judge
from zbatch.errors import (
    BadInput,
    BadOutput,
    BadRequest,
    BatchError,
    Overloaded,
    TooLarge,
    UnknownTopic,
    ZbatchError,
)
from zbatch.gateway import oip
from zbatch.gateway.oip import Ask, Model, Wanted, read, write
from zbatch.signature import Signature

IMAGE = {"name": "image", "datatype": "FP32", "shape": [2]}
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1]}
SCORE = {"name": "score", "datatype": "FP32", "shape": []}
LABEL = {"name": "label", "datatype": "BYTES", "shape": [1]}
HALF = {"name": "half", "datatype": "FP16", "shape": []}
BOTH = Signature.of({"inputs": [IMAGE, TEXT], "outputs": [SCORE, LABEL]})
ONE = Signature.of({"inputs": [IMAGE], "outputs": [SCORE]})
IMAGES = {"name": "image", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]}
TEXTS = {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]}


def ask(signature: Signature = BOTH, rest: bytes = b"", **request: Any) -> Ask:
    """Read a request: two rows of both inputs, unless it says otherwise."""
    inputs = [IMAGES, TEXTS] if signature is BOTH else [IMAGES]
    head = json.dumps({"inputs": inputs} | request).encode()
    return read(signature, head + rest, str(len(head)) if rest else None)


def plain(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: getattr(one, "tolist", lambda one=one: one)() for name, one in item.items()} for item in items
    ]


def refused(*args: Any, kind: type[ZbatchError] = BadRequest, **request: Any) -> str:
    with pytest.raises(kind) as caught:
        ask(*args, **request)
    assert type(caught.value) is kind
    return str(caught.value)


# --- reading ----------------------------------------------------------------------------------------


def test_rows_are_items() -> None:
    found = ask(id="7")
    assert plain(found.items) == [{"image": [1, 2], "text": [b"a"]}, {"image": [3, 4], "text": [b"b"]}]
    assert [item["image"].dtype for item in found.items] == [np.float32, np.float32]
    assert found._replace(items=[]) == Ask([], [Wanted(one, False) for one in BOTH.outputs], "7", 0, None)
    for item in found.items:
        BOTH.check_item(item)


def test_the_order_of_inputs_is_the_clients() -> None:
    assert plain(ask(inputs=[TEXTS, IMAGES]).items) == plain(ask().items)


def test_what_clients_leave_empty_is_as_if_it_were_not_there() -> None:
    inputs = [one | {"parameters": None} for one in (IMAGES, TEXTS)]
    found = ask(inputs=inputs, id=None, parameters=None, outputs=None, model_name="m")
    assert found.outputs == ask(outputs=[]).outputs == ask().outputs
    assert found.id is None


def test_binary_tensors_lie_behind_the_json_in_the_order_of_inputs() -> None:
    text = b"".join(struct.pack("<I", 1) + one for one in (b"a", b"\xff"))
    inputs = [
        TEXTS | {"parameters": {"binary_data_size": len(text)}},
        IMAGES | {"parameters": {"binary_data_size": 16}},
    ]
    for one in inputs:
        del one["data"]
    found = ask(BOTH, text + struct.pack("<4f", 1, 2, 3, 4), inputs=inputs)
    assert plain(found.items) == [{"image": [1, 2], "text": [b"a"]}, {"image": [3, 4], "text": [b"\xff"]}]


def test_one_input_may_be_binary_and_another_json() -> None:
    image = {"name": "image", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}
    assert plain(ask(BOTH, struct.pack("<4f", 1, 2, 3, 4), inputs=[image, TEXTS]).items) == plain(ask().items)


def test_a_body_without_json_is_the_only_input_of_one_item_and_all_outputs_are_binary() -> None:
    found = read(ONE, struct.pack("<2f", 1, 2), "0")
    assert plain(found.items) == [{"image": [1, 2]}]
    assert found.outputs == [Wanted(ONE.outputs[0], True)]


@pytest.mark.parametrize(
    ("given", "ours"), [(0, 0), (1, 999), (2, 998), (998, 2), (999, 1), (1000, 1), (2**62, 1)]
)
def test_priority_is_turned_round(given: int, ours: int) -> None:
    assert ask(parameters={"priority": given}).priority == ours


@pytest.mark.parametrize(("microseconds", "seconds"), [(0, None), (1, 1e-6), (2_500_000, 2.5)])
def test_timeout_is_in_microseconds(microseconds: int, seconds: float | None) -> None:
    assert ask(parameters={"timeout": microseconds}).timeout == seconds


def test_outputs_are_those_that_were_asked_for_in_that_order() -> None:
    score, label = BOTH.outputs
    assert ask(outputs=[{"name": "label"}]).outputs == [Wanted(label, False)]
    both = [{"name": "label"}, {"name": "score", "parameters": {"binary_data": True}}]
    assert ask(outputs=both).outputs == [Wanted(label, False), Wanted(score, True)]


def test_what_an_output_says_of_binary_goes_before_what_the_request_says() -> None:
    everything = {"binary_data_output": True}
    assert [one.binary for one in ask(parameters=everything).outputs] == [True, True]
    both = [{"name": "score"}, {"name": "label", "parameters": {"binary_data": False}}]
    assert [one.binary for one in ask(parameters=everything, outputs=both).outputs] == [True, False]


def test_parameters_that_nobody_knows_are_passed_over() -> None:
    assert ask(parameters={"content_type": "np", "triton_x": 1}).items


# --- what is malformed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"inputs": 7}, "the request.inputs: Expected `array`, got `int`"),
        ({"id": 7}, "the request.id: Expected `str | null`, got `int`"),
        (
            {"inputs": [IMAGES | {"shape": [-1, 2]}]},
            "the request.inputs[0].shape[0]: Expected `int` >= 0",
        ),
        (
            {"inputs": [IMAGES | {"shape": [2**41, 2]}]},
            "the request.inputs[0].shape[0]: Expected `int` <= 1099511627776",
        ),
        (
            {"inputs": [IMAGES | {"shape": [1] * 65}]},
            "the request.inputs[0].shape: Expected `array` of length <= 64",
        ),
        (
            {"inputs": [IMAGES | {"shape": [2.5]}]},
            "the request.inputs[0].shape[0]: Expected `int`, got `float`",
        ),
        ({"parameters": {"priority": -1}}, "the request.parameters.priority: Expected `int` >= 0"),
        ({"parameters": {"timeout": "1s"}}, "the request.parameters.timeout: Expected `int`, got `str`"),
        ({"parameters": {"priority": True}}, "the request.parameters.priority: Expected `int`, got `bool`"),
        (
            {"parameters": {"sequence_id": 7}},
            "parameters.sequence_id: no model here has sequences; send none",
        ),
        ({"outputs": [{"name": "x"}]}, "outputs[0] is 'x', wanted 'score', 'label', each once"),
        (
            {"outputs": [{"name": "score"}, {"name": "score"}]},
            "outputs[1] is 'score', wanted 'score', 'label', each once",
        ),
        (
            {"outputs": [{"name": "score", "parameters": {"classification": 3}}]},
            "outputs[0]: classification is not done here; ask for the scores",
        ),
        (
            {"outputs": [{"name": "score", "parameters": {"shared_memory_region": "r"}}]},
            "outputs[0]: memory is not shared over HTTP here",
        ),
        ({"inputs": [IMAGES, TEXTS, IMAGES]}, "inputs[2] 'image' comes twice"),
        (
            {"inputs": [IMAGES | {"parameters": {"shared_memory_region": "r"}}]},
            "inputs[0] 'image': memory is not shared over HTTP here; send the data",
        ),
        (
            {"inputs": [IMAGES | {"parameters": {"binary_data_size": 16}}]},
            "inputs[0] 'image' has both data and binary_data_size, wanted one of them",
        ),
        (
            {"inputs": [{"name": "image", "datatype": "FP32", "shape": [2, 2]}]},
            "inputs[0] 'image' has neither data nor binary_data_size",
        ),
        (
            {
                "inputs": [
                    {
                        "name": "image",
                        "datatype": "FP32",
                        "shape": [2, 2],
                        "parameters": {"binary_data_size": 16},
                    }
                ]
            },
            "inputs[0] 'image' has binary_data_size 16, but 0 bytes are left behind the JSON, whose length "
            "inference-header-content-length says",
        ),
    ],
)
def test_a_malformed_request_is_told_where(request_: dict[str, Any], said: str) -> None:
    assert refused(**request_) == said


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "inputs lacks 'image', 'text'"),
        ([IMAGES], "inputs lacks 'text'"),
        ([IMAGES | {"name": "img"}], "inputs[0] is 'img', wanted 'image', 'text'"),
        ([IMAGES | {"datatype": "FP64"}], "inputs[0] 'image' has datatype 'FP64', wanted FP32"),
        ([IMAGES | {"shape": [2, 3]}], "inputs[0] 'image' has shape [2, 3], wanted [-1, 2]"),
        ([IMAGES | {"data": [1, 2, 3]}], "inputs[0] 'image'.data has 3 elements, wanted 4: shape [2, 2]"),
        ([IMAGES, TEXTS | {"shape": [1, 1]}], "inputs[1] 'text' has 1 rows, 'image' has 2"),
    ],
)
def test_what_does_not_fit_the_signature_is_told_where_what_and_what_was_wanted(
    inputs: Any, said: str
) -> None:
    assert refused(inputs=inputs, kind=BadInput) == said


def test_more_rows_than_a_client_may_have_open_are_too_many() -> None:
    assert refused(inputs=[IMAGES | {"shape": [16_385, 2]}], kind=TooLarge) == (
        "inputs[0] 'image' has 16385 rows, each an item, wanted at most 16384"
    )


def test_bytes_that_nobody_names_are_refused() -> None:
    assert refused(BOTH, b"abc") == "3 bytes are behind the JSON, of which binary_data_size names 0"


@pytest.mark.parametrize("given", ["", "-1", "1e3", "٣", "99", "9" * 30, " 1"])
def test_a_header_that_is_no_length_of_this_body_is_refused(given: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(ONE, b"{}", given)
    assert str(caught.value) == (
        f"inference-header-content-length is {given[:40]!r}, wanted a number up to the body's 2 bytes"
    )


def test_a_body_without_json_is_refused_where_a_model_takes_two_inputs() -> None:
    with pytest.raises(BadRequest) as caught:
        read(BOTH, b"ab", "0")
    assert str(caught.value) == (
        "inference-header-content-length is 0, so the body is one tensor; the model takes 'image', 'text'"
    )


def test_half_floats_are_not_promised_as_json() -> None:
    half = Signature.of({"inputs": [IMAGE], "outputs": [HALF]})
    assert refused(half) == (
        "output 'half' is FP16, which has no form in JSON; ask for it with binary_data true"
    )
    assert ask(half, outputs=[{"name": "half", "parameters": {"binary_data": True}}]).outputs[0].binary


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"inputs":' + b"[" * 100_000,
        b'{"inputs":[{"name":"image","shape":[2],"datatype":"FP32","data":' + b"[" * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"inputs":[]}',
        b'{"inputs":[{"name":"image","shape":[NaN]}]}',
        b'{"id":"\xff","inputs":[]}',
        b'\xef\xbb\xbf{"inputs":[]}',
    ],
)
def test_what_is_no_request_is_refused_with_a_bounded_sentence(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^the request") as caught:
        read(ONE, body, None)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=200), st.none() | st.integers(0, 220).map(str))
def test_any_body_is_a_request_or_refused(body: bytes, header: str | None) -> None:
    try:
        read(BOTH, body, header)
    except ZbatchError as error:
        assert len(str(error)) < 2_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries(
        {"inputs": st.lists(st.sampled_from([IMAGES, TEXTS]) | json_values, max_size=3)},
        optional={"id": json_values, "parameters": json_values, "outputs": json_values},
    ),
    st.dictionaries(
        st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), json_values, max_size=2
    ),
)
def test_a_request_that_is_nearly_right_is_read_or_refused(request_: Any, change: Any) -> None:
    inputs = [one | change if isinstance(one, dict) else one for one in request_["inputs"]]
    try:
        found = read(BOTH, msgspec.json.encode(request_ | {"inputs": inputs}), None)
    except BadRequest as error:
        assert len(str(error)) < 2_000
    else:
        for item in found.items:
            BOTH.check_item(item)


# --- answering --------------------------------------------------------------------------------------


OUTPUTS = [
    {"score": np.float32(0.5), "label": [b"cat"]},
    {"score": np.array(0.25, np.float32), "label": [b"dog"]},
]


def test_outputs_are_stacked_into_json() -> None:
    found = write(ask(id="7"), BOTH, OUTPUTS, "m", "3")
    assert found.headers == [("content-type", "application/json")]
    assert json.loads(found.body) == {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [2], "data": [0.5, 0.25]},
            {"name": "label", "datatype": "BYTES", "shape": [2, 1], "data": ["cat", "dog"]},
        ],
    }


def test_what_was_not_given_is_not_echoed() -> None:
    assert set(json.loads(write(ask(), BOTH, OUTPUTS, "m", "").body)) == {"model_name", "outputs"}


def test_binary_outputs_lie_behind_the_json() -> None:
    wanted = [{"name": "label", "parameters": {"binary_data": True}}, {"name": "score"}]
    found = write(ask(outputs=wanted), BOTH, OUTPUTS, "m", "3")
    headers = dict(found.headers)
    assert headers["content-type"] == "application/octet-stream"
    length = int(headers["inference-header-content-length"])
    assert json.loads(found.body[:length])["outputs"] == [
        {"name": "label", "datatype": "BYTES", "shape": [2, 1], "parameters": {"binary_data_size": 14}},
        {"name": "score", "datatype": "FP32", "shape": [2], "data": [0.5, 0.25]},
    ]
    assert found.body[length:] == b"\3\0\0\0cat\3\0\0\0dog"


def test_the_only_output_need_not_be_named() -> None:
    for outputs in ([0.5, 0.25], [{"score": 0.5}, {"score": 0.25}], [np.float32(0.5), {"score": 0.25}]):
        (told,) = json.loads(write(ask(ONE), ONE, outputs, "m", "").body)["outputs"]
        assert told == {"name": "score", "datatype": "FP32", "shape": [2], "data": [0.5, 0.25]}


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (0.5, "the output of item 1 is of type float, wanted a dict with 'score', 'label'"),
        ({"score": 0.5}, "the output of item 1 lacks 'label', wanted 'score', 'label'"),
        (
            {"score": 0.5, "label": ["a"], "best": 1},
            "the output of item 1 has 'best', wanted 'score', 'label'",
        ),
        (
            {"score": np.float64(0.5), "label": ["a"]},
            "output 'score' of item 1 has datatype FP64, wanted FP32",
        ),
        ({"score": [0.5], "label": ["a"]}, "output 'score' of item 1 has shape [1], that of item 0 []"),
        ({"score": 0.5, "label": "a"}, "output 'label' of item 1 has shape [], that of item 0 [1]"),
    ],
)
def test_an_output_that_the_model_did_not_declare_is_named(output: Any, said: str) -> None:
    with pytest.raises(BadOutput) as caught:
        write(ask(), BOTH, [OUTPUTS[0], output], "m", "")
    assert str(caught.value) == said


def test_an_output_that_nobody_asked_for_is_not_looked_at() -> None:
    outputs = [{"score": 0.5, "label": 7}]
    assert write(ask(outputs=[{"name": "score"}]), BOTH, outputs, "m", "").body


@given(
    st.lists(
        st.tuples(st.lists(st.floats(width=32), min_size=2, max_size=2), st.binary(max_size=4)), min_size=1
    )
)
def test_what_a_client_sends_as_bytes_it_gets_back_as_bytes(rows: list[tuple[list[float], bytes]]) -> None:
    echo = Signature.of({"inputs": [IMAGE, TEXT], "outputs": [IMAGE, TEXT]})
    image = np.array([one for one, _ in rows], np.float32).tobytes()
    text = b"".join(struct.pack("<I", len(one)) + one for _, one in rows)
    inputs = [
        {
            "parameters": {"binary_data_size": len(image)},
            "name": "image",
            "datatype": "FP32",
            "shape": [len(rows), 2],
        },
        {
            "parameters": {"binary_data_size": len(text)},
            "name": "text",
            "datatype": "BYTES",
            "shape": [len(rows), 1],
        },
    ]
    asked = ask(echo, image + text, inputs=inputs, parameters={"binary_data_output": True})
    found = write(asked, echo, asked.items, "m", "")
    assert found.body.endswith(image + text)
    told = json.loads(found.body[: int(dict(found.headers)["inference-header-content-length"])])
    assert [one["shape"] for one in told["outputs"]] == [[len(rows), 2], [len(rows), 1]]


# --- what else is asked -----------------------------------------------------------------------------


READY = Model("m", ("2",), BOTH, True)
BARE = Model("bare", (), None, False)


def told(body: bytes) -> Any:
    return json.loads(body)


def test_a_topic_of_a_snapshot_is_a_model() -> None:
    signature = json.loads(BOTH.json())
    models = [
        {"name": "m:M", "version": "", "signature": None},
        {"name": "m:M", "version": "", "signature": {"inputs": 7}},
        {"name": "m:M", "version": "2", "signature": signature},
        {"name": "m:N", "version": "2", "signature": None},
    ]
    assert oip.model_of("m", {"workers": 2, "models": models}) == READY
    assert oip.model_of("bare", {"workers": 0}) == BARE
    models.append({"name": "m:M", "version": "3", "signature": json.loads(ONE.json())})
    both = oip.model_of("m", {"workers": 2, "models": models})
    assert (both.versions, both.version, both.signature) == (("2", "3"), "", BOTH)


def test_the_server_says_who_it_is() -> None:
    assert told(oip.server_metadata("1.0")) == {
        "name": "zbatch",
        "version": "1.0",
        "extensions": [
            "binary_tensor_data",
            "schedule_policy",
            "model_repository",
            "model_configuration",
            "statistics",
        ],
    }


def test_a_model_says_whether_it_is_ready() -> None:
    assert told(oip.model_ready(READY)) == {"name": "m", "ready": True}
    assert told(oip.model_ready(BARE)) == {"name": "bare", "ready": False}


def test_metadata_counts_the_rows_and_configuration_does_not() -> None:
    assert told(oip.model_metadata(READY)) == {
        "name": "m",
        "versions": ["2"],
        "platform": "zbatch_python",
        "inputs": [
            {"name": "image", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "text", "datatype": "BYTES", "shape": [-1, 1]},
        ],
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [-1]},
            {"name": "label", "datatype": "BYTES", "shape": [-1, 1]},
        ],
    }
    assert told(oip.model_config(READY)) == {
        "name": "m",
        "platform": "zbatch_python",
        "backend": "zbatch",
        "max_batch_size": 16_384,
        "input": [
            {"name": "image", "data_type": "TYPE_FP32", "dims": [2]},
            {"name": "text", "data_type": "TYPE_STRING", "dims": [1]},
        ],
        "output": [
            {"name": "score", "data_type": "TYPE_FP32", "dims": []},
            {"name": "label", "data_type": "TYPE_STRING", "dims": [1]},
        ],
    }


def test_a_model_without_a_signature_declares_no_tensors() -> None:
    assert told(oip.model_metadata(BARE))["inputs"] == told(oip.model_config(BARE))["output"] == []
    with pytest.raises(
        BadRequest, match=r"^model 'bare' declares no signature, by which tensors become items;"
    ):
        oip.require_signature(BARE)
    assert oip.require_signature(READY) is BOTH


def test_a_version_is_answered_where_it_alone_is_served() -> None:
    oip.require_version(READY, "2")
    with pytest.raises(UnknownTopic, match=r"model 'm' has no version '1'; it has 2"):
        oip.require_version(READY, "1")
    with pytest.raises(UnknownTopic, match=r"model 'bare' has no version '1'; it has none"):
        oip.require_version(BARE, "1")
    with pytest.raises(BadRequest, match=r"model 'm' has versions 1, 2 now, whoever is free; name none"):
        oip.require_version(READY._replace(versions=("1", "2")), "2")


def test_the_index_lists_models_by_version() -> None:
    shown = [
        {"name": "m", "version": "2", "state": "READY", "reason": ""},
        {"name": "bare", "version": "", "state": "UNAVAILABLE", "reason": "it has no workers now"},
    ]
    assert told(oip.repository_index([READY, BARE], b"")) == shown
    assert told(oip.repository_index([READY, BARE], b"{}")) == shown
    assert told(oip.repository_index([READY, BARE], b'{"ready":true}')) == shown[:1]
    for wrong in (b"[", b'{"ready":1}', b"[" * 100_000):
        with pytest.raises(BadRequest, match=r"^the request"):
            oip.repository_index([READY], wrong)


def test_statistics_are_what_the_broker_counted() -> None:
    topic = {
        "answered": 6,
        "batches": 2,
        "errors": {"model_failed": 1, "overloaded": 2},
        "latency_ms": {"p50": 1.0, "mean": 2.0},
        "run_ms": {"p50": 1.0, "mean": 1.5},
    }
    nothing = {"count": 0, "ns": 0}
    (shown,) = told(oip.statistics([(READY, topic)]))["model_stats"]
    assert shown == {
        "name": "m",
        "version": "2",
        "last_inference": 0,
        "inference_count": 6,
        "execution_count": 2,
        "inference_stats": {
            "success": {"count": 6, "ns": 12_000_000},
            "fail": {"count": 3, "ns": 0},
            "queue": nothing,
            "compute_input": nothing,
            "compute_infer": {"count": 2, "ns": 3_000_000},
            "compute_output": nothing,
        },
        "batch_stats": [],
    }
    (idle,) = told(oip.statistics([(BARE, {"run_ms": {"mean": None}})]))["model_stats"]
    assert (idle["version"], idle["inference_stats"]["success"]) == ("", nothing)


def test_loading_is_the_workers_business() -> None:
    assert str(oip.refuse_loading("load", "m")) == (
        "this server does not load models: workers bring them (zbatch worker MODEL --topic m)"
    )
    assert str(oip.refuse_loading("unload", "m")) == (
        "this server does not unload models: workers bring them (zbatch drain topic m)"
    )


def test_errors_have_a_status_that_clients_know() -> None:
    wrong = oip.known_to_clients(BadInput("no"))
    assert (type(wrong), str(wrong)) == (BadRequest, "no")
    several = BatchError({1: TooLarge("second"), 0: BadInput("first")}, [None, None, 7])
    assert str(oip.known_to_clients(several)) == "first"
    busy = Overloaded()
    assert oip.known_to_clients(busy) is busy


def test_many_names_are_not_all_told() -> None:
    many = [{"name": f"x{place}", "datatype": "FP32", "shape": []} for place in range(10)]
    signature = Signature.of({"inputs": many, "outputs": [SCORE]})
    with pytest.raises(BadInput) as caught:
        read(signature, b'{"inputs":[]}', None)
    assert str(caught.value) == ("inputs lacks 'x0', 'x1', 'x2', 'x3', 'x4', 'x5', 'x6', 'x7' and 2 more")


def test_the_example_is_what_its_signature_says() -> None:
    signature = Signature.of(Judge.signature)
    features = {"name": "features", "datatype": "FP32", "shape": [2, 4], "data": [1, 1, 1, 1, 0, 0, 1, 0]}
    names = {"name": "name", "datatype": "BYTES", "shape": [2, 1], "data": ["Ada", "Bob"]}
    asked = ask(signature, inputs=[features, names])
    outputs = Judge().predict(asked.items)
    for output in outputs:
        signature.check_output(output)
    score, verdict = told(write(asked, signature, outputs, "judge", Judge.version).body)["outputs"]
    assert score["data"] == [1.5, -0.25]
    assert verdict["data"] == ["Ada passes", "Bob fails"]
