"""What a Streamer's model processes do beside running the model."""

from __future__ import annotations

import functools
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from zbatch.model import Context, ManagedModel, wrap
from zbatch.runner import Runner, Work
from zbatch.spawned import Given, Spawned, is_too_short, keep_lease

PATIENCE = 20.0


class Once(ManagedModel):
    """Says of itself what a worker asks."""

    idempotent = False
    version = "7"
    example = "an item"
    closed = 0

    def init_model(self) -> None:
        self.signature = object()

    def close(self) -> None:
        Once.closed += 1

    def predict(self, batch: list[Any]) -> list[Any]:
        return batch


def test_what_a_managed_model_says_of_itself_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "model"
    Given(Once, 8, 0.1, 1, []).write(path)
    model = wrap(Spawned, {"path": str(path)}, Context())
    assert (model.idempotent, model.example) == (False, "an item")
    assert (model.facts().version, model.facts().signature) == ("7", b"")
    model.close()
    assert Once.closed == 1


def test_where_a_model_is_to_be_found_is_seen_however_deep_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")
    exec("def predict(more, batch): return batch", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(TypeError, match="where no other process can import it from"):
        Given(functools.partial(main.predict, 1), 8, 0.1, 1, []).write(tmp_path / "model")


def test_a_batch_is_given_more_time_until_its_lease_reaches_its_deadline() -> None:
    assert is_too_short([100.0, 7200.0], now=7184.0)
    assert not is_too_short([100.0, 7200.0], now=7185.0)


def test_a_long_batch_is_renewed_from_outside_of_its_function() -> None:
    renewed, over = threading.Event(), threading.Event()

    def waits(batch: list[Any]) -> list[bool]:
        return [renewed.wait(PATIENCE)]

    keeper = threading.Thread(target=keep_lease, args=(over, 0.001))
    keeper.start()
    runner = Runner(
        wrap(waits, {}, Context()),
        decode=lambda item: item,
        encode=lambda output: (output, ()),
        on_progress=renewed.set,
    )
    ran = runner.run(Work(["item"], None, [1], [time.monotonic() + 3600]))
    over.set()
    keeper.join()
    assert ran.outputs == [True]
