from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zbatch.metrics import LONGEST, SHORTEST, Histogram, Rate


def recorded(*seconds: float) -> Histogram:
    histogram = Histogram()
    for one in seconds:
        histogram.record(one)
    return histogram


# --- histograms ---------------------------------------------------------------------------------


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


def test_a_quantile_is_the_upper_border_of_its_bucket() -> None:
    histogram = recorded(1.0)
    assert histogram.quantile(0.5) == 1.25
    assert histogram.quantile(1.0) == 1.25


def test_there_are_four_buckets_to_an_octave() -> None:
    histogram = recorded(1.0, 1.2, 1.25, 1.5, 1.75, 1.9, 2.0)
    assert list(histogram.buckets.values()) == [2, 1, 1, 2, 1]


def test_the_share_says_which_event_a_quantile_is_of() -> None:
    histogram = recorded(1.0, 2.0, 4.0, 8.0)
    assert [histogram.quantile(share) for share in (0.25, 0.5, 0.75, 0.76)] == [1.25, 2.5, 5.0, 10.0]


def test_many_events_are_recorded_at_once() -> None:
    histogram = Histogram()
    histogram.record(1.0, times=99)
    histogram.record(8.0)
    assert (histogram.count, histogram.total) == (100, 107.0)
    assert (histogram.quantile(0.99), histogram.quantile(1.0)) == (1.25, 10.0)


def test_what_took_no_time_counts_as_the_shortest() -> None:
    assert recorded(0.0).quantile(0.5) == 1.25 * SHORTEST
    assert recorded(0.0).buckets == recorded(SHORTEST).buckets


def test_what_took_for_ever_counts_as_the_longest() -> None:
    assert recorded(1e9).quantile(0.5) == 1.25 * LONGEST


@given(st.lists(st.floats(2e-6, 1e4), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_at_most_a_quarter_too_high(times: list[float], share: float) -> None:
    border = recorded(*times).quantile(share)
    exact = next(one for at, one in enumerate(sorted(times), start=1) if at >= share * len(times))
    assert border is not None
    assert exact < border <= exact * 1.25


# --- rates --------------------------------------------------------------------------------------


def test_nothing_happens_at_no_rate() -> None:
    assert Rate().per_second(5.0) == 0.0


def test_a_second_counts_once_it_is_over() -> None:
    rate = Rate()
    rate.add(30, now=100.0)
    assert rate.per_second(100.9) == 0.0
    assert rate.per_second(101.0) == 30.0


def test_a_young_rate_is_measured_since_its_first_event() -> None:
    rate = Rate()
    rate.add(30, now=100.0)
    rate.add(10, now=101.5)
    assert rate.per_second(102.0) == 20.0


def test_an_old_rate_is_measured_over_ten_seconds() -> None:
    rate = Rate()
    for second in range(100, 120):
        rate.add(second, now=float(second))
    assert rate.per_second(120.0) == sum(range(110, 120)) / 10


def test_what_was_long_ago_is_forgotten() -> None:
    rate = Rate()
    for second in range(1_000):
        rate.add(1, now=float(second))
    assert len(rate._counts) == 11
    assert rate.per_second(2_000.0) == 0.0


# --- what others read -----------------------------------------------------------------------------


def test_what_took_less_than_a_power_of_two_is_counted_below_it() -> None:
    histogram = recorded(0.1, 0.24, 0.25, 0.3, 0.49, 0.5, 3.0)
    assert histogram.below([-3, -2, -1, 0, 1, 2]) == [1, 2, 5, 6, 6, 7]
    assert Histogram().below([0]) == [0]


def test_a_copy_stays_as_it_was() -> None:
    histogram = recorded(1.0)
    same = histogram.copy()
    histogram.record(2.0)
    assert (same.count, same.total, histogram.count) == (1, 1.0, 2)


def test_two_histograms_are_added_up() -> None:
    both = recorded(1.0, 2.0)
    both.add(recorded(2.0, 4.0))
    assert (both.buckets, both.total) == (recorded(1.0, 2.0, 2.0, 4.0).buckets, 9.0)
