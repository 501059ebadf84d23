"""The first stage: a photo as it lies in a file becomes the pixels that the model wants.

That is a CPU's work, so it has processes of its own: as many as keep the model's GPU busy, on any host.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

SIDE = 224
"""Pixels of a side, as the model wants them."""

Pixels = npt.NDArray[np.uint8]


class Decode:
    """Opens photos and scales their middle."""

    def predict(self, batch: Sequence[bytes]) -> list[Pixels | Exception]:
        """Return the pixels of each photo; what is none fails alone."""
        return [_pixels_or_why_not(file) for file in batch]


def _pixels_or_why_not(file: bytes) -> Pixels | Exception:
    try:
        return pixels(file)
    except (TypeError, OSError, UnidentifiedImageError):
        return ValueError("wanted a JPEG or another photo")


def pixels(file: bytes) -> Pixels:
    """Return the middle of a photo, scaled."""
    photo = ImageOps.exif_transpose(Image.open(BytesIO(file))).convert("RGB")
    return np.asarray(ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.BICUBIC))
