"""The first stage: a photo as it lies in a file becomes the pixels that the model wants.

That is a CPU's work, so it has processes of its own: as many as keep the model's GPU busy, on any host.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from zbatch import BadInput

SIDE = 224
"""Pixels of a side, as the model wants them."""

Pixels = npt.NDArray[np.uint8]


class Decode:
    """Opens photos and scales their middle."""

    def predict(self, batch: Sequence[bytes]) -> list[Pixels | BadInput]:
        """Return the pixels of each photo; what is none fails alone."""
        return [_pixels_or_why_not(file) for file in batch]


def _pixels_or_why_not(file: bytes) -> Pixels | BadInput:
    try:
        return pixels(file)
    except (TypeError, OSError, UnidentifiedImageError):
        return BadInput("wanted a JPEG or another photo")


def pixels(file: bytes) -> Pixels:
    """Return the middle of a photo, scaled."""
    photo = ImageOps.exif_transpose(Image.open(BytesIO(file))).convert("RGB")
    return np.asarray(ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.BICUBIC))
