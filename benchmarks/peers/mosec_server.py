"""A model behind mosec, as its documentation shows: a Worker class, a Server, its own options."""

from __future__ import annotations

import json
from typing import Any

from mosec import Server, Worker  # type: ignore[import-not-found,unused-ignore]

from benchmarks import models
from benchmarks.peers.environments import given_setup

SETUP = given_setup()


class Texts(Worker):  # type: ignore[misc,unused-ignore]
    """JSON in, the same JSON out."""

    def __init__(self) -> None:
        super().__init__()
        self.model = getattr(models, SETUP.model)()
        print("ready", flush=True)

    def forward(self, data: list[Any]) -> list[Any]:
        return list(self.model.predict(data))


class Pictures(Texts):
    """Raw bytes in, raw bytes out."""

    resp_mime_type = "application/octet-stream"

    def deserialize(self, data: bytes) -> Any:
        import numpy

        return numpy.frombuffer(data, numpy.float32).reshape(models.IMAGE)

    def serialize(self, data: Any) -> bytes:
        return bytes(data.tobytes())


class Tokens(Texts):
    """JSON in, a list of numbers out."""

    def deserialize(self, data: bytes) -> Any:
        return json.loads(data)["tokens"]

    def serialize(self, data: Any) -> bytes:
        return json.dumps(data.tolist()).encode()


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        {"text": Texts, "picture": Pictures, "tokens": Tokens}[SETUP.item],
        num=SETUP.workers,
        max_batch_size=SETUP.batch_size,
        max_wait_time=round(1000 * SETUP.max_latency),
    )
    server.run()
