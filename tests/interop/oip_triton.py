"""Every call of tritonclient's, blocking, in greenlets and on an event loop; runs in its own environment.

What went well is printed, one line each; the test compares the lines.  The model is that of
``examples/oip_model.py``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

FEATURES = np.array([[1, 1, 1, 1], [0, 0, 1, 0]], np.float32)
NAMES = np.array([["Ada"], ["Bob"]], object)
SCORES, VERDICTS = [[1.5], [-0.25]], [[b"Ada passes"], [b"Bob fails"]]
MODEL = "judge"


def inputs(kind: Any, *, binary: bool, times: int = 1) -> list[Any]:
    """Return the tensors of two items, or of so many times as many."""
    rows = 2 * times
    features, names = (
        kind.InferInput("features", [rows, 4], "FP32"),
        kind.InferInput("name", [rows, 1], "BYTES"),
    )
    features.set_data_from_numpy(np.tile(FEATURES, (times, 1)), binary_data=binary)
    names.set_data_from_numpy(np.tile(NAMES, (times, 1)), binary_data=binary)
    return [features, names]


def outputs(kind: Any, *, binary: bool) -> list[Any]:
    """Ask for both, in the other order."""
    return [kind.InferRequestedOutput(name, binary_data=binary) for name in ("verdict", "score")]


def check(result: Any, times: int = 1) -> None:
    """Compare all that came back."""
    assert result.as_numpy("score").tolist() == SCORES * times
    verdicts = result.as_numpy("verdict")
    told = [[one.encode() if isinstance(one, str) else one for one in row] for row in verdicts]
    assert told == VERDICTS * times


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, str]:
    """Return the status and the message of a call that must fail."""
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        return str(error.status()), str(error.message())
    raise AssertionError("it was not refused")


def blocking(url: str) -> None:
    """Call everything that concerns models and no shared memory."""
    with triton.InferenceServerClient(url, concurrency=4) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(MODEL)
        assert client.is_model_ready(MODEL, "1")
        assert not client.is_model_ready("nobody")
        print("live and ready")
        metadata = client.get_server_metadata()
        assert metadata["name"] == "zbatch"
        assert "binary_tensor_data" in metadata["extensions"]
        for version in ("", "1"):
            shown = client.get_model_metadata(MODEL, version)
            assert (shown["name"], shown["versions"], shown["platform"]) == (MODEL, ["1"], "zbatch_python")
            assert shown["inputs"][0] == {"name": "features", "datatype": "FP32", "shape": [-1, 4]}
            assert client.get_model_config(MODEL, version)["input"][0]["dims"] == [4]
        print("metadata and configuration")
        (entry,) = client.get_model_repository_index()
        assert (entry["name"], entry["version"], entry["state"]) == (MODEL, "1", "READY")
        status, message = refused(client.load_model, MODEL)
        assert (status, "workers bring them" in message) == ("400", True), message
        status, _ = refused(client.unload_model, MODEL)
        assert status == "400"
        print("index, and no loading")
        for binary in (True, False):
            sent = inputs(triton, binary=binary)
            check(client.infer(MODEL, sent))
            check(client.infer(MODEL, sent, model_version="1", outputs=outputs(triton, binary=binary)))
            named = client.infer(MODEL, sent, request_id="seven", priority=1, timeout=20_000_000)
            assert named.get_response()["id"] == "seven"
        print("binary and JSON")
        for name in ("gzip", "deflate"):
            both = {"request_compression_algorithm": name, "response_compression_algorithm": name}
            for binary in (True, False):
                for times in (1, 100):
                    sent = inputs(triton, binary=binary, times=times)
                    wanted = outputs(triton, binary=binary)
                    check(client.infer(MODEL, sent, outputs=wanted, **both), times)
        print("compressed")
        sent = inputs(triton, binary=True)
        waiting = [client.async_infer(MODEL, sent, request_id=str(number)) for number in range(20)]
        for number, one in enumerate(waiting):
            result = one.get_result(timeout=60)
            assert result.get_response()["id"] == str(number)
            check(result)
        print("many at once")
        shown = client.get_inference_statistics(MODEL)["model_stats"][0]
        assert shown["inference_count"] >= 2 * len(waiting), shown
        assert client.get_inference_statistics()["model_stats"]
        print("statistics")
        refuses(client)
        print("refused with a sentence")


def refuses(client: Any) -> None:
    """Ask for what cannot be."""
    sent = inputs(triton, binary=True)
    status, message = refused(client.infer, "nobody", sent)
    assert (status, "nobody" in message) == ("404", True), message
    status, message = refused(client.infer, MODEL, sent, model_version="9")
    assert (status, "no version '9'" in message) == ("404", True), message
    status, message = refused(client.infer, MODEL, sent[:1])
    assert (status, "inputs lacks 'name'" in message) == ("400", True), message
    wrong = triton.InferInput("features", [2, 3], "FP32")
    wrong.set_data_from_numpy(np.ones((2, 3), np.float32))
    status, message = refused(client.infer, MODEL, [wrong, sent[1]])
    assert (status, "has shape [2, 3], wanted [-1, 4]" in message) == ("400", True), message
    best = [triton.InferRequestedOutput("score", class_count=2)]
    status, message = refused(client.infer, MODEL, sent, outputs=best)
    assert (status, "classification" in message) == ("400", True), message
    status, message = refused(client.infer, MODEL, sent, sequence_id=7, sequence_start=True)
    assert (status, "sequence" in message) == ("400", True), message


async def on_a_loop(url: str) -> None:
    """Do the same on an event loop, many at once."""
    async with aio.InferenceServerClient(url) as client:
        assert await client.is_server_ready()
        assert await client.is_model_ready(MODEL)
        assert (await client.get_model_metadata(MODEL))["name"] == MODEL
        for binary in (True, False):
            sent = inputs(aio, binary=binary)
            calls = [client.infer(MODEL, sent, outputs=outputs(aio, binary=binary)) for _ in range(20)]
            for result in await asyncio.gather(*calls):
                check(result)
        for name in ("gzip", "deflate"):
            both = {"request_compression_algorithm": name, "response_compression_algorithm": name}
            check(await client.infer(MODEL, inputs(aio, binary=True, times=100), **both), 100)
        try:
            await client.infer("nobody", sent)
        except InferenceServerException as error:
            assert error.status() == "404"
        else:
            raise AssertionError("it was not refused")
    print("on an event loop")


if __name__ == "__main__":
    blocking(sys.argv[1])
    asyncio.run(on_a_loop(sys.argv[1]))
