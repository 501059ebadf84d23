"""Ask two models of one broker, side by side: a sentence goes to one topic, a photo to the other."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from examples.image_classifier import pixels
from zbatch import ZStreamer

SENTENCE = (
    "EVQLVESGG[MASK]LVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
)


def photo(name: str) -> Path:
    """Return one of the photos that scikit-learn brings along: ``china.jpg``, ``flower.jpg``."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed: `make examples-venv` installs it")
    return Path(found.origin).parent / "datasets" / "images" / name


def main() -> None:
    """Print both answers."""
    broker = "127.0.0.1:7000"
    infilling, images = ZStreamer(broker, topic="infilling"), ZStreamer(broker, topic="images")
    with photo("flower.jpg").open("rb") as file:
        asked: list[Any] = [infilling.submit([SENTENCE]), images.submit([pixels(file)])]
    for future in asked:
        print(future.result())


if __name__ == "__main__":
    main()
