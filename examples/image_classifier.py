"""A web server that says what is on a photo.

It opens and scales what was uploaded, in its own process, and asks for the labels of the pixels.  So the
model's process only computes, and this one needs no torch.
"""

from __future__ import annotations

from typing import IO

import numpy as np
import numpy.typing as npt
from flask import Flask, Response, jsonify, request
from PIL import Image, ImageOps, UnidentifiedImageError

from zbatch import ZbatchError, ZClient

SIDE = 224
"""Pixels of a side, as the model wants them."""

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 10_000_000
client = ZClient[npt.NDArray[np.uint8], list[tuple[str, float]]]("tcp://127.0.0.1:7000", topic="images")


def pixels(file: IO[bytes]) -> npt.NDArray[np.uint8]:
    """Return the middle of a photo, scaled."""
    photo = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    return np.asarray(ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.BICUBIC))


@app.post("/classify")
def classify() -> Response:
    """Answer with the likeliest labels of each photo."""
    photos = [pixels(photo.stream) for photo in request.files.getlist("image")]
    return jsonify(client.predict(photos))


@app.errorhandler(UnidentifiedImageError)
def no_photo(error: UnidentifiedImageError) -> tuple[Response, int]:
    """Say that this is none."""
    return jsonify(error="wanted a JPEG or another photo"), 400


@app.errorhandler(ZbatchError)
def refuse(error: ZbatchError) -> tuple[Response, int]:
    """Say what went wrong."""
    return jsonify(error=str(error)), error.http_status


if __name__ == "__main__":
    app.run(port=5006)
