"""The models of the loads; each says by its answer which item it was asked for.

Nothing but the standard library is imported before a model needs it: the baseline's environment and the
load generators import this file too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

IMAGE = (3, 224, 224)
"""The shape of the array load: 588 KiB of float32, one picture."""

OUTPUTS = 1000
"""What a picture's classifier gives back: float32, 4 kB."""

VOCABULARY, LENGTH, CLASSES = 8000, 32, 8
"""The transformer's tokens: how many there are, how many make an item, what comes out."""


class Noop:
    """Answers with the items themselves."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        return batch


class SimulatedGpu:
    """Takes 20 ms and 0.2 ms an item, and no CPU: what a GPU looks like from outside."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        time.sleep(gpu_seconds(len(batch)))
        return batch


class TwoInOne:
    """One simulated GPU that does the work of two, one after the other."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        time.sleep(2 * gpu_seconds(len(batch)))
        return batch


class Brief:
    """Takes 5 ms, whatever the batch, and no CPU: what a lone call of a small model is."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        time.sleep(0.005)
        return batch


class Picture:
    """Takes a picture, computes nothing, answers with a vector that begins with the picture's first value."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        return [first_value(picture) for picture in batch]


class RawPicture:
    """The same, of bytes and to bytes, as HTTP brings them."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        import numpy

        pictures = [numpy.frombuffer(one, numpy.float32).reshape(IMAGE) for one in batch]
        return [first_value(picture).tobytes() for picture in pictures]


class Transformer:
    """Four encoder layers of 256 over 32 tokens, on one thread of the CPU."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(7)
        self.torch = torch
        self.network = network().eval()

    @property
    def example(self) -> list[int]:
        return [0] * LENGTH

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        with self.torch.inference_mode():
            return self.network(self.torch.tensor(batch)).numpy()  # type: ignore[no-any-return]


def gpu_seconds(items: float) -> float:
    """Return how long the simulated GPU takes for a batch."""
    return 0.020 + 0.0002 * items


def first_value(picture: Any) -> Any:
    """Return a vector of 1000 float32 that says which picture it belongs to."""
    import numpy

    vector = numpy.zeros(OUTPUTS, numpy.float32)
    vector[0] = picture[0, 0, 0]
    return vector


def network() -> Any:
    """Return the transformer's network, with weights from torch's seed."""
    import torch
    from torch import nn

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, 256)
            self.positions = nn.Parameter(torch.randn(LENGTH, 256) * 0.02)
            layers = [
                nn.TransformerEncoderLayer(
                    256, 4, dim_feedforward=1024, dropout=0.0, activation="gelu", batch_first=True
                )
                for _ in range(4)
            ]
            self.layers = nn.ModuleList(layers)
            self.head = nn.Linear(256, CLASSES)

        def forward(self, tokens: Any) -> Any:
            hidden = self.tokens(tokens) + self.positions
            for layer in self.layers:
                hidden = layer(hidden)
            return self.head(hidden.mean(dim=1))

    return Network()
