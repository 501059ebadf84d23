"""What a benchmark drives by hand works; the rest is run as a whole."""

from __future__ import annotations

from pathlib import Path

from benchmarks.core_cost import BATCH, BATCHES, Cluster, Scale
from benchmarks.tuning import page
from benchmarks.tuning.curves import CURVES
from benchmarks.tuning.points import Point

ROOT = Path(__file__).parents[1]


def test_the_cluster_of_the_core_benchmark_is_kept_busy() -> None:
    cluster = Cluster(Scale("small", waiting=200, workers=2, clients=3))
    for _ in range(3):
        cluster.turn()
    topic = cluster.core.topics.all["default"]
    assert topic.tally.answered == 3 * BATCHES * BATCH
    assert topic.backlog.items == 200


def a_point(series: str, x: float, rate: float) -> Point:
    return Point(series, x, rate, p50_ms=20.0, p99_ms=30.0, batch=2.0, closed={"full": 3, "idle": 1})


def every_curve() -> dict[str, list[Point]]:
    return {
        name: [a_point(load.series, load.x, 100.0) for stand in stands for load in stand.loads]
        for name, stands in CURVES.items()
    }


FACTS = {"date": "2026-01-01", "processor": "a processor", "kind": "1 s a point"}


def test_the_page_on_tuning_has_a_place_and_a_plot_for_every_curve() -> None:
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    filled = page.fill(text, every_curve(), FACTS)
    assert filled.count("2026-01-01, a processor, no GPU, 1 s a point:") == len(CURVES)
    for name in CURVES:
        assert f"(img/tuning-{name}.svg)" in filled


def test_a_curve_that_is_measured_again_takes_the_place_of_the_last_and_of_nothing_else() -> None:
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    measured = every_curve()
    first = page.fill(text, measured, FACTS)
    later = {"workers": [a_point(one.series, one.x, 200.0) for one in measured["workers"]]}
    second = page.fill(first, later, FACTS)
    assert second != first
    assert page.fill(second, {"workers": measured["workers"]}, FACTS) == first


def test_the_smallest_batch_that_reaches_nine_tenths_of_the_best_rate_is_named() -> None:
    rates = {1: 10.0, 2: 50.0, 4: 91.0, 8: 100.0}
    points = [a_point("transformer, twice the batch", size, rate) for size, rate in rates.items()]
    lines = page.SHOWN["batch-size"](points)
    assert (
        lines[-1] == "Here 90% of the best rate is reached with 4, at a p50 of 20 ms; the largest has 20 ms."
    )


def test_a_point_says_why_its_batches_closed() -> None:
    lines = page.SHOWN["max-latency"]([a_point("eager, 20 %", 2.0, 100.0)])
    assert lines[-1] == "| 20 % | eager | 2 ms | 20 ms | 30 ms | 2.0 | 75% | 25% | 0% |"
