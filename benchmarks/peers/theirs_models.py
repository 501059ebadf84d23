"""The models as service_streamer wants them: a ManagedModel, which is loaded in the worker's process."""

from __future__ import annotations

from typing import Any

from service_streamer import ManagedModel  # type: ignore[import-not-found,unused-ignore]

from benchmarks import models


class Model(ManagedModel):  # type: ignore[misc,unused-ignore]
    """What all have in common.  A class for each model, since 0.1.2 drops a model's arguments."""

    def init_model(self) -> None:
        self.network = getattr(models, type(self).__name__)()
        print("ready", flush=True)

    def predict(self, batch: list[Any]) -> Any:
        return self.network.predict(batch)


class Noop(Model):
    pass


class Brief(Model):
    pass


class SimulatedGpu(Model):
    pass


class Picture(Model):
    pass


class Transformer(Model):
    pass
