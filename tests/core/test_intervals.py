from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zbatch.core import intervals
from zbatch.core.intervals import Range

NUMBERS = st.integers(0, 40)
RANGES = st.lists(st.tuples(NUMBERS, NUMBERS))


def ids(ranges: list[Range]) -> set[int]:
    return {one for start, stop in ranges for one in range(start, stop)}


def is_normal(ranges: list[Range]) -> bool:
    borders = [border for one in ranges for border in one]
    return all(first < second for first, second in pairwise(borders))


def test_neighbours_are_joined() -> None:
    assert intervals.normal([(4, 6), (1, 3), (3, 4)]) == [(1, 6)]


def test_empty_and_reversed_ranges_vanish() -> None:
    assert intervals.normal([(3, 3), (5, 2)]) == []


def test_a_hole_cuts_a_range_in_two() -> None:
    assert intervals.subtract([(0, 10)], [(3, 5)]) == [(0, 3), (5, 10)]


def test_one_hole_reaches_over_several_ranges() -> None:
    assert intervals.subtract([(0, 4), (6, 9), (12, 15)], [(2, 13)]) == [(0, 2), (13, 15)]


def test_what_both_have_is_the_intersection() -> None:
    assert intervals.intersect([(0, 4), (6, 9)], [(2, 7)]) == [(2, 4), (6, 7)]


def test_ids_in_any_order_make_a_set() -> None:
    assert intervals.of([7, 3, 4, 3]) == [(3, 5), (7, 8)]


def test_a_range_counts_its_ids_and_not_its_end() -> None:
    assert intervals.count([(3, 5), (7, 8)]) == 3


@given(RANGES)
def test_normal_keeps_the_ids(ranges: list[Range]) -> None:
    normal = intervals.normal(ranges)
    assert is_normal(normal)
    assert ids(normal) == ids(ranges)
    assert intervals.count(normal) == len(ids(ranges))


@given(RANGES, RANGES)
def test_subtract_is_the_difference_of_sets(whole: list[Range], parts: list[Range]) -> None:
    left = intervals.subtract(intervals.normal(whole), intervals.normal(parts))
    assert is_normal(left)
    assert ids(left) == ids(whole) - ids(parts)


@given(RANGES, RANGES)
def test_intersect_is_the_intersection_of_sets(first: list[Range], second: list[Range]) -> None:
    both = intervals.intersect(intervals.normal(first), intervals.normal(second))
    assert is_normal(both)
    assert ids(both) == ids(first) & ids(second)


@given(st.lists(NUMBERS))
def test_of_has_exactly_the_ids(numbers: list[int]) -> None:
    assert ids(intervals.of(numbers)) == set(numbers)
