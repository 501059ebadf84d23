"""Every call of open-inference-openapi, blocking and on an event loop; runs in an environment of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from open_inference.openapi.client import AsyncOpenInferenceClient, OpenInferenceClient
from open_inference.openapi.core.api_error import ApiError
from open_inference.openapi.errors import BadRequestError, NotFoundError
from open_inference.openapi.types import InferenceRequest, RequestInput, RequestOutput, TensorData

MODEL = "judge"


def request(**changes: Any) -> InferenceRequest:
    """Return one of two items: one tensor nested, one flat."""
    features = {"__root__": [{"__root__": [1, 1, 1, 1]}, {"__root__": [0, 0, 1, 0]}]}
    inputs = [
        RequestInput(name="features", shape=[2, 4], datatype="FP32", data=TensorData.parse_obj(features)),
        RequestInput(name="name", shape=[2, 1], datatype="BYTES", data=TensorData(__root__=["Ada", "Bob"])),
    ]
    return InferenceRequest(**({"id": "7", "inputs": inputs} | changes))


def check(response: Any) -> None:
    """Compare all that came back."""
    assert (response.model_name, response.model_version, response.id) == (MODEL, "1", "7")
    shown = {one.name: (one.datatype, one.shape, one.data.__root__) for one in response.outputs}
    assert shown == {
        "score": ("FP32", [2, 1], [1.5, -0.25]),
        "verdict": ("BYTES", [2, 1], ["Ada passes", "Bob fails"]),
    }, shown


def blocking(url: str) -> None:
    """Call everything."""
    client = OpenInferenceClient(base_url=url)
    client.check_server_liveness()
    client.check_server_readiness()
    client.check_model_readiness(MODEL)
    client.check_model_version_readiness(MODEL, "1")
    print("live and ready")
    assert client.read_server_metadata().name == "zbatch"
    for shown in (client.read_model_metadata(MODEL), client.read_model_version_metadata(MODEL, "1")):
        assert (shown.name, shown.versions, shown.platform) == (MODEL, ["1"], "zbatch_python")
        assert [(one.name, one.datatype, one.shape) for one in shown.outputs] == [
            ("score", "FP32", [-1, 1]),
            ("verdict", "BYTES", [-1, 1]),
        ]
    print("metadata")
    check(client.model_infer(MODEL, request=request()))
    check(client.model_version_infer(MODEL, "1", request=request()))
    (only,) = client.model_infer(MODEL, request=request(outputs=[RequestOutput(name="verdict")])).outputs
    assert only.name == "verdict"
    print("inference")
    for call, kind in (
        (lambda: client.check_model_readiness("nobody"), NotFoundError),
        (lambda: client.model_infer("nobody", request=request()), ApiError),
        (lambda: client.model_infer(MODEL, request=request(inputs=[])), BadRequestError),
    ):
        try:
            call()
        except kind as error:
            assert error.body["error"], error.body
        else:
            raise AssertionError("it was not refused")
    print("refused with a sentence")


async def on_a_loop(url: str) -> None:
    """Ask many at once."""
    client = AsyncOpenInferenceClient(base_url=url)
    await client.check_model_readiness(MODEL)
    for response in await asyncio.gather(*(client.model_infer(MODEL, request=request()) for _ in range(20))):
        check(response)
    print("on an event loop")


if __name__ == "__main__":
    blocking(sys.argv[1])
    asyncio.run(on_a_loop(sys.argv[1]))
