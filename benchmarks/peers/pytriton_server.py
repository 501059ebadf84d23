"""A model behind PyTriton, as its documentation shows: a function that is bound to a Triton."""

import sys
from typing import Any

import numpy
from pytriton.decorators import batch  # type: ignore[import-not-found,unused-ignore]
from pytriton.model_config import (  # type: ignore[import-not-found,unused-ignore]
    DynamicBatcher,
    ModelConfig,
    Tensor,
)
from pytriton.triton import Triton, TritonConfig  # type: ignore[import-not-found,unused-ignore]

from benchmarks import models
from benchmarks.peers.environments import given_setup


def main(port: int) -> None:
    """Run until told to leave."""
    setup = given_setup()
    model = getattr(models, setup.model)()

    @batch  # type: ignore[untyped-decorator,unused-ignore]
    def run(text: Any) -> dict[str, Any]:
        return {"answer": model.predict(text)}

    config = TritonConfig(
        http_port=port, http_address="127.0.0.1", allow_grpc=False, allow_metrics=False, log_verbose=0
    )
    delay = round(1_000_000 * setup.max_latency)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="Texts",
            infer_func=[run] * setup.workers,
            inputs=[Tensor(name="text", dtype=numpy.bytes_, shape=(1,))],
            outputs=[Tensor(name="answer", dtype=numpy.bytes_, shape=(1,))],
            config=ModelConfig(
                max_batch_size=setup.batch_size,
                batcher=DynamicBatcher(max_queue_delay_microseconds=delay),
            ),
        )
        triton.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
