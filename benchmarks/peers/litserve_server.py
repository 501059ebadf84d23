"""A model behind LitServe, as its documentation shows: a LitAPI class, a LitServer."""

import json
import sys
from typing import Annotated, Any

import litserve  # type: ignore[import-not-found,unused-ignore]
from fastapi import Body, Request, Response  # type: ignore[import-not-found,unused-ignore]

from benchmarks import models
from benchmarks.peers.environments import given_setup

SETUP = given_setup()


class Texts(litserve.LitAPI):  # type: ignore[misc,unused-ignore]
    """JSON in, the same JSON out."""

    def setup(self, device: str) -> None:
        self.model = getattr(models, SETUP.model)()

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, batch: list[Any]) -> list[Any]:
        return list(self.model.predict(batch))

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output


class Pictures(Texts):
    """Raw bytes in, raw bytes out."""

    def decode_request(self, request: Annotated[bytes, Body()]) -> Any:
        import numpy

        return numpy.frombuffer(request, numpy.float32).reshape(models.IMAGE)

    def encode_response(self, output: Any) -> Any:
        return Response(output.tobytes(), media_type="application/octet-stream")


class Tokens(Texts):
    """JSON in, a list of numbers out."""

    def decode_request(self, request: Request) -> Any:
        # LitServe has read the JSON by then.
        return request["tokens"]

    def encode_response(self, output: Any) -> Any:
        return Response(json.dumps(output.tolist()), media_type="application/json")


if __name__ == "__main__":
    chosen = {"text": Texts, "picture": Pictures, "tokens": Tokens}[SETUP.item]
    server = litserve.LitServer(
        chosen(max_batch_size=SETUP.batch_size, batch_timeout=SETUP.max_latency),
        accelerator="cpu",
        workers_per_device=SETUP.workers,
        timeout=30,
    )
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
