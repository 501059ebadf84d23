"""What the demo prints: answers, batch sizes and the comparison, as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

BAR = 40
"""Characters of the longest bar."""


def print_answers(
    questions: Iterable[str],
    asked: Sequence[npt.NDArray[np.float32]],
    sentences: Sequence[str],
    vectors: npt.NDArray[np.float32],
) -> None:
    """Print the two sentences that are nearest to each question."""
    for question, vector in zip(questions, asked, strict=True):
        likeness = vectors @ vector
        print(f"    {question}")
        for index in np.argsort(-likeness)[:2]:
            print(f"        {likeness[index]:.2f}  {sentences[index]}")


def print_batches(sizes: Sequence[int], batch_size: int) -> None:
    """Print how many batches, and how many of all sentences, were in batches of which size."""
    lows = [1] + [low for low in (2, 4, 8, 16, 24, batch_size) if low <= batch_size]
    bounds = [*lows, batch_size + 1]
    counts = [sum(low <= size < high for size in sizes) for low, high in pairwise(bounds)]
    most = max([*counts, 1])
    for low, high, count in zip(bounds, bounds[1:], counts, strict=False):
        label = f"{low}" if high == low + 1 else f"{low}-{high - 1}"
        print(f"    {label:>6}  {count:5d} batches  {'#' * round(BAR * count / most)}".rstrip())
    print(
        f"    {sum(sizes)} sentences in {len(sizes)} batches: {sum(sizes) / max(1, len(sizes)):.1f} per batch"
    )


def print_comparison(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print throughput and latency of each way."""
    print(f"    {'':44} sentences/s   p50 ms   p99 ms")
    for title, row in rows.items():
        p50, p99 = np.percentile(row["waits"], [50, 99])
        print(f"    {title:44} {rate(row):11.1f} {p50:8.1f} {p99:8.1f}")


def rate(row: Mapping[str, Any]) -> float:
    """Return answers per second."""
    return float(len(row["waits"]) / row["seconds"])
