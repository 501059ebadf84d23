"""Types that a model declares, across processes: what does not fit, and what others are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.shell import PATIENCE, Zbatch
from zbatch import BadInput, BatchError, ZClient
from zbatch.schema import judge_of

pytestmark = pytest.mark.live

MODEL = """
import msgspec

class Box(msgspec.Struct):
    width: float
    height: float = 1.0

class Area(msgspec.Struct):
    area: float

class Areas:
    version = "7"

    def predict(self, batch: list[Box]) -> list[Area]:
        return [Area(box.width * box.height) for box in batch]

Large = msgspec.defstruct("Large", [(f"a_field_with_number_{at}", int) for at in range(1_000)])

def much(batch: list[Large]) -> list[int]:
    return [1 for _ in batch]
"""


@pytest.fixture
def serve(run: Callable[..., Zbatch], tmp_path: Path) -> Callable[[str], tuple[Zbatch, str]]:
    """Serve one of the models above; give the command and where to ask."""
    (tmp_path / "boxes.py").write_text(MODEL)

    def serve(name: str) -> tuple[Zbatch, str]:
        frontend = f"ipc://{tmp_path}/front"
        served = run("serve", f"{tmp_path}/boxes.py:{name}", "--gpu", "cpu", "--frontend", frontend)
        served.says("model ready")
        return served, frontend

    return serve


def test_a_bad_item_is_refused_alone_and_outputs_arrive_as_plain_data(
    serve: Callable[[str], tuple[Zbatch, str]],
) -> None:
    _, frontend = serve("Areas")
    with ZClient[Any, Any](frontend, timeout=PATIENCE) as client, pytest.raises(BatchError) as caught:
        client.predict([{"width": 2}, {"width": "wide"}, {"width": 2, "height": 3}])
    assert caught.value.results == [{"area": 2.0}, None, {"area": 6.0}]
    (error,) = caught.value.errors.values()
    assert (error.code, error.http_status, str(error)) == (
        "bad_input",
        422,
        "$.width: expected float, got str",
    )


def test_whoever_asks_the_broker_learns_the_types(serve: Callable[[str], tuple[Zbatch, str]]) -> None:
    _, frontend = serve("Areas")
    with ZClient[Any, Any](frontend, timeout=PATIENCE) as client:
        (model,) = client.status()["topics"]["default"]["models"]
    assert (model["name"].rpartition("/")[2], model["version"]) == ("boxes.py:Areas", "7")
    judge = judge_of(model["schema"])
    assert judge is not None
    judge({"width": 2})
    with pytest.raises(BadInput, match=r"\$.width: expected float, got str"):
        judge({"width": "wide"})


def test_types_too_large_to_be_told_are_held_all_the_same(
    serve: Callable[[str], tuple[Zbatch, str]],
) -> None:
    served, frontend = serve("much")
    served.says("schema left out")
    with ZClient[Any, Any](frontend, timeout=PATIENCE) as client, pytest.raises(ValueError, match="missing"):
        client.predict_one({})
