"""What is made of a trial: the suggestion, and how it looks."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from zbatch.check import render, size, suggested
from zbatch.trial import Report, Size


def sizes(**per_second: float) -> list[Size]:
    return [Size(int(items[1:]), 10, 1.5, figure, None) for items, figure in per_second.items()]


@pytest.mark.parametrize(
    ("measured", "best"),
    [
        (sizes(_1=100.0), 1),
        (sizes(_1=100.0, _2=190.0, _4=360.0, _8=399.0, _16=400.0), 4),
        (sizes(_1=100.0, _2=190.0, _4=359.0, _8=399.0, _16=400.0), 8),
        (sizes(_1=100.0, _2=90.0), 1),
        (sizes(_1=100.0, _2=200.0), 2),
        ([], None),
    ],
)
def test_the_smallest_batch_that_reaches_nine_tenths_of_the_best_is_suggested(
    measured: list[Size], best: int | None
) -> None:
    assert suggested(measured) == best


def shown(report: Report) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=120).print(render(report))
    return [line.rstrip() for line in page.getvalue().splitlines()]


SUGGESTED = "suggested: --batch-size 2, the smallest that reaches 90% of the best items/s"


def test_a_trial_is_shown_in_full() -> None:
    report = Report(
        "m.py:Model",
        "cuda:0",
        load_s=3.21,
        warm_up_s=0.25,
        item_from="its example",
        item_type="Box",
        output_type="float",
        signature={
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [3]}],
            "outputs": [{"name": "y", "datatype": "INT64", "shape": []}],
        },
        rss_before_bytes=50 << 20,
        rss_loaded_bytes=2 << 30,
        rss_peak_bytes=3 << 30,
        gpu_bytes=1 << 30,
        sizes=[Size(1, 480, 2.083, 480.0, 512 << 10), Size(2, 400, 2.5, 800.0, 1 << 20)],
        bad_item="failed alone: bad_input: $: expected object, got str",
        notes=["close() raises OSError: \x1b[31mbusy"],
        suggested_batch_size=2,
    )
    assert shown(report) == [
        "model      m.py:Model on cuda:0",
        "loaded     in 3.2s, warmed up in 250ms",
        "memory     50.0 MiB before, 2.0 GiB loaded, 3.0 GiB at the most; on the GPU 1.0 GiB",
        "items      Box, tried with its example",
        "outputs    float",
        "signature  x FP32 [3] -> y INT64 []",
        "bad item   failed alone: bad_input: $: expected object, got str",
        "batch  runs    time  items/s  GPU memory",
        "    1   480  2.08ms    480.0     512 KiB",
        "    2   400   2.5ms    800.0     1.0 MiB",
        f"{SUGGESTED}; a larger one was not tried",
        "note: close() raises OSError: ?[31mbusy",
    ]


def test_a_trial_that_ended_early_is_shown_as_far_as_it_came() -> None:
    assert shown(Report("m.py:Model", "cpu", rss_before_bytes=1 << 20)) == [
        "model      m.py:Model on cpu",
        "loaded     in -, warmed up in -",
        "memory     1.0 MiB before, - loaded, - at the most",
        "items      of no declared type, tried with -",
        "outputs    of no declared type",
        "signature  none",
        "bad item   not tried",
    ]


def test_of_a_model_that_yields_steps_the_time_until_the_first_is_shown() -> None:
    measured = [Size(1, 9, 20.0, 50.0, None, 1.5), Size(2, 9, 25.0, 80.0, None, 2.0)]
    report = Report("m:M", "cpu", sizes=measured)
    assert shown(report)[-3:] == [
        "batch  runs  time  items/s  first step",
        "    1     9  20ms     50.0       1.5ms",
        "    2     9  25ms     80.0         2ms",
    ]


def test_a_failure_comes_without_a_suggestion_and_a_best_in_the_middle_without_a_doubt() -> None:
    report = Report("m:M", "cpu", sizes=sizes(_1=100.0, _2=101.0), suggested_batch_size=1)
    assert shown(report)[-1] == "suggested: --batch-size 1, the smallest that reaches 90% of the best items/s"
    report.failed = "at something"
    assert shown(report)[-1].split() == ["2", "10", "1.5ms", "101.0"]


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (0, "-"), (2048, "2 KiB"), (3 << 20, "3.0 MiB"), (5 << 29, "2.5 GiB")]
)
def test_bytes_are_told_in_a_unit_that_people_would_use(count: int | None, text: str) -> None:
    assert size(count) == text
