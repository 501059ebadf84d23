"""A model behind Ray Serve, as its documentation shows: a deployment whose method is ``serve.batch``."""

import json
import os
import signal
import sys
from typing import Any

import ray  # type: ignore[import-not-found,unused-ignore]
from ray import serve  # type: ignore[import-not-found,unused-ignore]
from starlette.requests import Request  # type: ignore[import-not-found,unused-ignore]
from starlette.responses import Response  # type: ignore[import-not-found,unused-ignore]

from benchmarks import models
from benchmarks.loads import Setup
from benchmarks.peers.environments import given_setup


class Answering:
    """Reads a request, waits for its batch, and answers in the form in which it was asked."""

    def __init__(self, setup: Setup) -> None:
        self.item = setup.item
        self.model = getattr(models, setup.model)()
        self.run.set_max_batch_size(setup.batch_size)
        self.run.set_batch_wait_timeout_s(setup.max_latency)

    @serve.batch  # type: ignore[untyped-decorator,unused-ignore]
    async def run(self, batch: list[Any]) -> list[Any]:
        return list(self.model.predict(batch))

    async def __call__(self, request: Request) -> Response:
        if self.item == "picture":
            import numpy

            picture = numpy.frombuffer(await request.body(), numpy.float32).reshape(models.IMAGE)
            return Response((await self.run(picture)).tobytes(), media_type="application/octet-stream")
        asked = await request.json()
        if self.item == "tokens":
            answer = (await self.run(asked["tokens"])).tolist()
        else:
            answer = await self.run(asked)
        return Response(json.dumps(answer), media_type="application/json")


def main(port: int) -> None:
    """Run until told to leave."""
    setup = given_setup()
    # As many processes as there are workers, however few cores there are.
    ray.init(num_cpus=setup.workers + 4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deployment = serve.deployment(
        num_replicas=setup.workers,
        max_ongoing_requests=setup.batch_size * 4,
        ray_actor_options={"num_cpus": 1},
    )(Answering)
    serve.run(deployment.bind(setup), route_prefix="/")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main(int(sys.argv[1]))
