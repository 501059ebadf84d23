"""A photo's bytes in, its labels out: a stage on the CPU, a model on the GPU, a stage after it.

It is the service that MOSEC's users know, ``append_worker`` for each stage, in two steps:

* :class:`InOne` has all of it in the model's process; with ``--num 2`` one decodes while the other computes.
* :class:`Open` and :class:`Tell` are topics before and after that of the model, each with processes of its
  own, on any host; a pipeline of the three is asked like a topic (``mosec_style.toml``).

Either way it is one call over HTTP, and a file that is no photo fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from zbatch import BadInput, Context

Photo = npt.NDArray[np.uint8]
Labels = list[tuple[str, float]]
Told = dict[str, Any]

SIDE = 224
"""Pixels of a side, as the model wants them."""


def opened(file: bytes) -> Photo | BadInput:
    """Return the middle of a photo, scaled, or what is wrong with it: the first stage."""
    try:
        photo = ImageOps.exif_transpose(Image.open(BytesIO(file))).convert("RGB")
    except (OSError, SyntaxError, TypeError, ValueError, Image.DecompressionBombError):
        return BadInput("wanted a JPEG or another photo")  # in an output's place: that item's own error
    return np.asarray(ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.BICUBIC))


def told(labels: Labels) -> Told:
    """Return what the caller reads: the last stage."""
    (best, share), *others = labels
    return {"label": best, "share": round(share, 4), "or": [label for label, _ in others]}


class InOne:
    """All three stages in the process of the model."""

    def setup(self, context: Context) -> None:
        """Load the weights."""
        from examples.image_model import ImageClassifier  # the others need no torch

        self.model = ImageClassifier()
        self.model.setup(context)

    def predict(self, batch: Sequence[bytes]) -> list[Told | BadInput]:
        """Return what is on each photo."""
        photos = [opened(file) for file in batch]
        good = [photo for photo in photos if not isinstance(photo, BadInput)]
        labels = iter(self.model.predict(good) if good else [])
        return [photo if isinstance(photo, BadInput) else told(next(labels)) for photo in photos]


class Open:
    """The first stage as a topic."""

    def predict(self, batch: Sequence[bytes]) -> list[Photo | BadInput]:
        """Return the pixels of each photo."""
        return [opened(file) for file in batch]


class Tell:
    """The last stage as a topic."""

    def predict(self, batch: Sequence[Labels]) -> list[Told]:
        """Return what the caller reads of each photo."""
        return [told(labels) for labels in batch]
