"""A model's declared tensors: what is malformed, what fits, and what a misfit is told."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbatch import payload
from zbatch.errors import BadInput, BadOutput, ConfigError
from zbatch.signature import BYTES, DTYPES, Signature, Tensor, datatype_of

IMAGE = {"name": "image", "datatype": "FP32", "shape": [3, -1]}
WORDS = {"name": "words", "datatype": "BYTES", "shape": [2, -1]}
LABEL = {"name": "label", "datatype": "INT64", "shape": []}
RAW = {"inputs": [IMAGE, WORDS], "outputs": [LABEL]}

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
shapes = st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=4).map(tuple)
tensors = st.builds(Tensor, names, st.sampled_from([*DTYPES, BYTES]), shapes)
sides = st.lists(tensors, min_size=1, max_size=3, unique_by=lambda one: one.name).map(tuple)
signatures = st.builds(Signature, sides, sides)


def image(**changes: Any) -> dict[str, Any]:
    return {"inputs": [IMAGE | changes], "outputs": [LABEL]}


def test_a_signature_is_read_as_users_write_it() -> None:
    signature = Signature.of(RAW)
    assert signature == Signature(
        (Tensor("image", "FP32", (3, -1)), Tensor("words", "BYTES", (2, -1))),
        (Tensor("label", "INT64", ()),),
    )
    assert Signature.of(signature) is signature


def test_a_signature_is_written_as_users_write_it() -> None:
    assert msgspec.json.decode(Signature.of(RAW).json()) == RAW


@given(signatures)
def test_a_signature_comes_back_from_json_as_it_was(signature: Signature) -> None:
    assert Signature.from_json(signature.json()) == signature


def test_what_a_later_version_adds_to_the_json_is_passed_over() -> None:
    later = {"inputs": [IMAGE | {"unit": "m"}, WORDS], "outputs": [LABEL], "states": []}
    assert Signature.from_json(msgspec.json.encode(later)) == Signature.of(RAW)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (["str"], "signature is of type list, wanted a dict with inputs and outputs"),
        ({"inputs": [IMAGE]}, "signature has no 'outputs', wanted inputs, outputs"),
        (RAW | {"input": []}, "signature has 'input', wanted only inputs, outputs"),
        (RAW | {"inputs": []}, "signature: inputs is empty, wanted at least one tensor"),
        (RAW | {"outputs": []}, "signature: outputs is empty, wanted at least one tensor"),
        (RAW | {"inputs": "image"}, "signature.inputs: Expected `array`, got `str`"),
        (RAW | {"inputs": ["image"]}, "signature.inputs[0]: Expected `object`, got `str`"),
        (RAW | {"inputs": [IMAGE, LABEL, IMAGE]}, "signature: inputs has the name 'image' twice"),
        (
            RAW | {"inputs": [WORDS, {"name": "x", "shape": []}]},
            "signature.inputs[1] has no 'datatype', wanted name, datatype, shape",
        ),
        (
            RAW | {"outputs": [LABEL | {"dims": [1]}]},
            "signature.outputs[0] has 'dims', wanted only name, datatype, shape",
        ),
        (image(name=7), "signature.inputs[0].name: Expected `str`, got `int`"),
        (image(name=""), "signature.inputs[0]: a name has 0 characters, wanted 1 to 256"),
        (image(name="n" * 257), "signature.inputs[0]: a name has 257 characters, wanted 1 to 256"),
        (
            image(datatype="float32"),
            "signature.inputs[0]: datatype is 'float32', wanted one of BOOL, UINT8, UINT16, UINT32, UINT64, "
            "INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES",
        ),
        (image(shape=3), "signature.inputs[0].shape: Expected `array`, got `int`"),
        (image(shape=[3, None]), "signature.inputs[0].shape[1]: Expected `int`, got `null`"),
        (
            image(shape=[3, 0]),
            "signature.inputs[0]: shape is [3, 0], wanted lengths of 1 and more, or -1 for any",
        ),
        (image(shape=[1] * 32), "signature.inputs[0]: shape has 32 dimensions, wanted at most 31"),
        (
            image(shape=[2**31, 2**31]),
            "signature.inputs[0]: shape is [2147483648, 2147483648], which is more than 1099511627776 "
            "elements",
        ),
    ],
)
def test_a_malformed_signature_is_told_where_and_what_was_wanted(raw: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Signature.of(raw)
    assert str(caught.value) == said


def test_a_name_that_has_no_bytes_cannot_be_written() -> None:
    with pytest.raises(ConfigError, match="signature has a name with lone surrogates"):
        Signature.of(image(name="\ud800")).json()


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(msgspec.json.encode))
def test_anything_else_is_no_json_of_a_signature(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^signature"):
        Signature.from_json(data)


def test_json_that_is_nested_deep_is_no_signature() -> None:
    with pytest.raises(ConfigError, match=r"^signature"):
        Signature.from_json(b'{"inputs":' + b"[" * 100_000)


# --- items -----------------------------------------------------------------------------------------


@given(signatures)
def test_zeros_fit_and_arrive_as_they_were_sent(signature: Signature) -> None:
    zeros = signature.zeros()
    signature.check_item(zeros)
    signature.check_item(payload.decode(*payload.encode(zeros)))


def test_zeros_have_every_free_length_one() -> None:
    zeros = Signature.of(RAW).zeros()
    assert zeros["words"] == [[b""], [b""]]
    assert (zeros["image"].dtype, zeros["image"].shape, zeros["image"].any()) == (np.float32, (3, 1), False)


def test_bytes_of_one_element_are_bytes() -> None:
    signature = Signature((Tensor("text", "BYTES", ()),), (Tensor("label", "INT64", ()),))
    assert signature.zeros() == {"text": b""}


def good(**changes: Any) -> dict[str, Any]:
    return {"image": np.ones((3, 5), np.float32), "words": [[b"a"], [b"b"]]} | changes


def test_a_scalar_of_numpy_is_an_array_of_no_dimensions() -> None:
    signature = Signature.of(RAW)
    signature.check_output({"label": np.int64(7)})
    signature.check_output({"label": np.array(7)})


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (7, "item is of type int, wanted a dict with 'image', 'words'"),
        ({"words": []}, "item has no 'image', wanted FP32 [3, -1]"),
        (good(mask=1), "item has 'mask', wanted only 'image', 'words'"),
        (good(image=[1.0]), "item['image'] is of type list, wanted an array of FP32 [3, -1]"),
        (good(image=np.ones((3, 5))), "item['image'] has datatype FP64, wanted FP32"),
        (good(image=np.ones((3, 5), ">f4")), "item['image'] has datatype >f4, wanted FP32"),
        (good(image=np.ones((3, 5), "U1")), "item['image'] has datatype <U1, wanted FP32"),
        (good(image=np.ones((2, 5), "f4")), "item['image'] has shape [2, 5], wanted [3, -1]"),
        (good(image=np.ones(3, "f4")), "item['image'] has shape [3], wanted [3, -1]"),
        (good(words=b"a"), "item['words'] is of type bytes, wanted a list of BYTES [2, -1]"),
        (good(words=[[b"a"]]), "item['words'] has 1 elements, wanted 2"),
        (good(words=[[b"a"], b"b"]), "item['words'][1] is of type bytes, wanted a list of BYTES [-1]"),
        (good(words=[[b"a"], [b"b", "c"]]), "item['words'][1][1] is of type str, wanted bytes"),
    ],
)
def test_an_item_that_does_not_fit_is_told_where_what_and_what_was_wanted(item: Any, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        Signature.of(RAW).check_item(item)
    assert str(caught.value) == said


def test_an_item_that_fits_passes() -> None:
    Signature.of(RAW).check_item(good())


def test_an_output_that_does_not_fit_is_the_models_fault() -> None:
    with pytest.raises(BadOutput) as caught:
        Signature.of(RAW).check_output({"label": np.float32(1)})
    assert str(caught.value) == "output['label'] has datatype FP32, wanted INT64"


def test_a_tensor_of_torch_is_no_array() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(
        BadInput, match=r"item\['image'\] is of type Tensor, wanted an array of FP32 \[3, -1\]"
    ):
        Signature.of(RAW).check_item(good(image=torch.ones(3, 5)))


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_has_its_dtype(datatype: str) -> None:
    assert datatype_of(np.dtype(DTYPES[datatype])) == datatype
