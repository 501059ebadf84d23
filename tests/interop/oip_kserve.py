"""Every call of kserve's REST client in version 2 of the protocol; runs in an environment of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

MODEL = "judge"


def request(*, binary: bool, outputs: list[Any] | None = None, **parameters: Any) -> Any:
    """Return one of two items."""
    features, names = InferInput("features", [2, 4], "FP32"), InferInput("name", [2, 1], "BYTES")
    features.set_data_from_numpy(np.array([[1, 1, 1, 1], [0, 0, 1, 0]], np.float32), binary_data=binary)
    names.set_data_from_numpy(np.array([["Ada"], ["Bob"]], object), binary_data=binary)
    return InferRequest(
        MODEL, [features, names], request_id="7", parameters=parameters, request_outputs=outputs
    )


def check(response: Any) -> None:
    """Compare all that came back."""
    assert (response.model_name, response.id) == (MODEL, "7")
    shown = {one.name: one.as_numpy().tolist() for one in response.outputs}
    assert shown == {"score": [[1.5], [-0.25]], "verdict": [["Ada passes"], ["Bob fails"]]}, shown


async def main(url: str) -> None:
    """Call everything."""
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, MODEL)
    assert not await client.is_model_ready(url, "nobody")
    print("live and ready")
    for binary in (True, False):
        for wanted in (False, True):
            sent = request(binary=binary, binary_data_output=wanted)
            told: dict[str, str] = {}
            check(await client.infer(url, sent, model_name=MODEL, response_headers=told))
            assert ("inference-header-content-length" in told) == wanted, told
    outputs = [RequestedOutput("verdict", {"binary_data": True}), RequestedOutput("score")]
    check(await client.infer(url, request(binary=True, outputs=outputs), model_name=MODEL))
    print("inference, binary and JSON")
    many = [client.infer(url, request(binary=True), model_name=MODEL) for _ in range(20)]
    for response in await asyncio.gather(*many):
        check(response)
    print("many at once")
    wrong = request(binary=True)
    wrong.inputs[0].shape = [4, 2]
    for sent, name, said in ((wrong, MODEL, "has shape [4, 2]"), (request(binary=True), "nobody", "nobody")):
        try:
            await client.infer(url, sent, model_name=name)
        except httpx.HTTPStatusError as error:
            assert said in str(error), error
        else:
            raise AssertionError("it was not refused")
    print("refused with a sentence")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
