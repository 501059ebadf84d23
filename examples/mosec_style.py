"""A photo's bytes in, its labels out: a stage on the CPU, a model on the GPU, a stage after it.

It is the service that MOSEC's users know, ``append_worker`` for each stage, in two steps:

* :class:`InOne` has all of it in the model's process; with ``--num 2`` one decodes while the other computes.
* :class:`Photos` has the stages before and after the model, in as many processes as the CPU needs, on any
  host; the model is a topic of its own, which it asks (``mosec_style.toml``).

Either way it is one call over HTTP, and a file that is no photo fails alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from zbatch import BadInput, Context, ZClient, current_batch

Photo = npt.NDArray[np.uint8]
Labels = list[tuple[str, float]]
Told = dict[str, Any]

SIDE = 224
"""Pixels of a side, as the model wants them."""

SOON = 0.001
"""Seconds for what has no time left: it ends as what it is, a deadline that has passed."""


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
        from examples.image_model import ImageClassifier  # the other class needs no torch

        self.model = ImageClassifier()
        self.model.setup(context)

    def predict(self, batch: Sequence[bytes]) -> list[Told | BadInput]:
        """Return what is on each photo."""
        photos = [opened(file) for file in batch]
        good = [photo for photo in photos if not isinstance(photo, BadInput)]
        labels = iter(self.model.predict(good) if good else [])
        return [photo if isinstance(photo, BadInput) else told(next(labels)) for photo in photos]


class Photos:
    """The stages before and after the model, which is asked as a topic."""

    def __init__(self, broker: str = "tcp://127.0.0.1:7000", topic: str = "images") -> None:
        self.broker, self.topic = broker, topic

    def setup(self, context: Context) -> None:
        """Make a client: one for the process."""
        self.images = ZClient[Photo, Labels](self.broker, topic=self.topic)

    def predict(self, batch: Sequence[bytes]) -> list[Told | BaseException]:
        """Return what is on each photo; all are on their way before the first is waited for."""
        asked = [self._ask(opened(file), until) for file, until in zip(batch, deadlines(batch), strict=True)]
        return [
            one if isinstance(one, BadInput) else one.exception() or told(one.result()[0]) for one in asked
        ]

    def _ask(self, photo: Photo | BadInput, until: float) -> Any:
        if isinstance(photo, BadInput):
            return photo
        return self.images.submit([photo], timeout=max(until - time.monotonic(), SOON))

    def close(self) -> None:
        """Say goodbye to the broker."""
        self.images.close()


def deadlines(batch: Sequence[bytes]) -> Sequence[float]:
    """Return until when each item is wanted: who asks again for it may wait that long and no longer."""
    current = current_batch()
    return [time.monotonic() + 30.0] * len(batch) if current is None else current.deadlines
