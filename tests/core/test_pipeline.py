"""What a route may be, and how far the items of a flow have come: plain structures, no broker."""

from __future__ import annotations

import pytest

from tests.core.piping import JOINED, LINE, stage
from zbatch.core.pipeline import Flow, Met, Reader, plan_of, problem
from zbatch.messages import MAX_FRAMES, Fault, Route

BIG = 1 << 20


def flow(route: Route, count: int = 4, base: int = 10) -> Flow:
    return Flow(
        plan_of(route),
        "ada",
        "pipe",
        base,
        count,
        deadline=30.0,
        arrived=0.0,
        later=None,
        priority=0,
        key="",
        costs=None,
        again=False,
        names=None,
    )


@pytest.mark.parametrize(
    ("route", "fault"),
    [
        (LINE, None),
        (JOINED, None),
        ((stage("a", ("", 1)),), "stage 'a' reads what does not come before it"),
        (
            (stage("a"), stage("b", ("", 3)), stage("c", ("", 2))),
            "stage 'b' reads what does not come before it",
        ),
        ((stage("a"), stage("a", ("", 1))), "two stages have one name"),
        ((stage("a"), stage("b", ("x", 0), ("x", 1))), "stage 'b' has inputs that cannot be told apart"),
        ((stage("a"), stage("b", ("", 0), ("x", 1))), "stage 'b' has inputs that cannot be told apart"),
        ((stage("a"), stage("b"), stage("c", ("", 2))), "nobody reads what stage 'a' makes"),
    ],
)
def test_a_route_has_an_order_and_no_loose_ends(route: Route, fault: str | None) -> None:
    assert problem(route) == fault


def test_what_is_no_route_has_no_plan() -> None:
    with pytest.raises(ValueError, match="two stages have one name"):
        plan_of((stage("a"), stage("a", ("", 1))))


def test_a_plan_knows_who_reads_what() -> None:
    plan = plan_of(JOINED)
    assert plan.readers == [[Reader(0, 0)], [Reader(1, 0), Reader(2, 0)], [Reader(3, 0)], [Reader(3, 1)], []]
    assert [plan.joins(at) for at in range(4)] == [False, False, False, True]


def test_a_stage_with_one_named_input_joins() -> None:
    assert plan_of((stage("a"), stage("b", ("only", 1)))).joins(1)


def test_items_meet_when_the_last_of_their_inputs_is_there() -> None:
    one = flow(JOINED)
    assert one.meet(Reader(3, 0), 0, [b"a0", b"a1", b"a2"], None, [2, 2, 2], BIG) == []
    assert one.meet(Reader(3, 1), 1, [b"b1"], [[b"buf"]], [5], BIG) == [
        Met(1, 2, [("left", [b"a1"], None), ("right", [b"b1"], [[b"buf"]])], 7, None)
    ]
    assert one.meet(Reader(3, 1), 2, [b"b2", b"b3"], None, [2, 2], BIG) == [
        Met(2, 3, [("left", [b"a2"], None), ("right", [b"b2"], None)], 4, None)
    ]


def test_what_meets_and_is_too_large_for_a_message_is_set_apart() -> None:
    one = flow(JOINED)
    one.meet(Reader(3, 0), 0, [b"a0", b"a1"], None, [2, 900], 1_000)
    small, large = one.meet(Reader(3, 1), 0, [b"b0", b"b1"], None, [2, 900], 1_000)
    assert (small.start, small.stop, small.fault) == (0, 1, None)
    text = "its inputs have 1,928 bytes in 0 buffers together, a message may have 1,000 in 16,384"
    assert (large.start, large.stop, large.size, large.fault) == (1, 2, 1_800, Fault("too_large", text))


def test_what_meets_and_has_too_many_buffers_is_set_apart() -> None:
    one = flow(JOINED, 1)
    one.meet(Reader(3, 0), 0, [b"a"], [[b""] * MAX_FRAMES], [2], BIG)
    (met,) = one.meet(Reader(3, 1), 0, [b"b"], [[b""]], [2], BIG)
    assert met.fault is not None
    assert met.fault.text.startswith("its inputs have 132 bytes in 16,385 buffers together")


def test_what_goes_no_further_frees_its_places_and_what_waits_for_it() -> None:
    one = flow(JOINED)
    one.entered[0][:] = b"\1" * 4
    one.entered[1][:] = b"\1" * 4
    one.meet(Reader(3, 0), 1, [b"a1", b"a2"], None, [5, 6], BIG)
    assert [(got.name, items, size) for got, items, size in one.let_go(1, 3)] == [("c", 2, 0), ("d", 2, 11)]
    assert list(one.let_go(1, 3)) == []
    assert one.awaited(3, 0, 4) == [(0, 1), (3, 4)]
