"""A model with a signature: clients of the Open Inference Protocol may ask it.

It takes a name and four features, and gives a score and a verdict for them.  An item is a dict with one entry
for each input, without the dimension that counts items; an output is one with an entry for each output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Judge:
    """Weighs features.  Without an ``example``, zeros of the signature's shapes are its warm-up."""

    version = "1"

    signature = {  # noqa: RUF012  nobody changes it
        "inputs": [
            {"name": "features", "datatype": "FP32", "shape": [4]},
            {"name": "name", "datatype": "BYTES", "shape": [1]},
        ],
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [1]},
            {"name": "verdict", "datatype": "BYTES", "shape": [1]},
        ],
    }

    def __init__(self) -> None:
        self.weights = np.array([[0.5], [0.25], [-0.25], [1.0]], np.float32)

    def predict(self, batch: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return one output per item, in the same order."""
        scores = np.stack([item["features"] for item in batch]) @ self.weights
        return [
            {"score": score, "verdict": [item["name"][0] + (b" passes" if score[0] > 0 else b" fails")]}
            for item, score in zip(batch, scores, strict=True)
        ]
