from __future__ import annotations

from typing import Any

import pytest

from tests.core.queueing import ids, make_held, push, take
from zbatch.core.backlog import CLOSED, QUANTUM, RUNNING, SLACK, WAITING, Backlog, Held, Room, Span, runs


def inside(backlog: Backlog) -> int:
    """Return how many entries the backlog's containers have, of any kind."""
    seen: set[int] = set()

    def entries(one: Any) -> int:
        if id(one) in seen or isinstance(one, Held | Span | str | bytes | int | float | None):
            return 0
        seen.add(id(one))
        if isinstance(one, dict):
            return len(one) + sum(map(entries, one.values()))
        if hasattr(one, "__len__"):
            return len(one) + sum(map(entries, one))
        fields = getattr(one, "__slots__", None) or vars(one)
        return sum(entries(getattr(one, name)) for name in fields)

    return entries(backlog)


# --- order --------------------------------------------------------------------------------------


def test_nothing_waits_in_an_empty_backlog() -> None:
    backlog = Backlog()
    assert (backlog.items, backlog.oldest(), backlog.head_key(), backlog.ready("")) == (0, None, None, 0)
    assert take(backlog) == []


def test_items_of_one_principal_leave_in_the_order_they_came() -> None:
    backlog = Backlog()
    for base in (10, 20, 30):
        push(backlog, make_held(base, 2))
    assert ids(take(backlog, 3)) == [(10, 12), (20, 21)]
    assert ids(take(backlog, 3)) == [(21, 22), (30, 32)]
    assert backlog.items == 0


def test_what_is_taken_runs() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 3))
    take(backlog, 2)
    assert list(held.state) == [RUNNING, RUNNING, WAITING]
    assert (held.open, held.waiting, backlog.items) == (3, 1, 1)


def test_a_higher_priority_goes_first_and_a_lower_one_fills_the_batch() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 2, priority=0))
    push(backlog, make_held(20, 2, priority=5))
    push(backlog, make_held(30, 2, priority=-5))
    assert ids(take(backlog, 5)) == [(20, 22), (10, 12), (30, 31)]


def test_principals_take_turns_of_a_quantum() -> None:
    backlog = Backlog(parties=1)
    push(backlog, make_held(1000, 3 * QUANTUM, of=b"greedy"))
    push(backlog, make_held(2000, QUANTUM, of=b"polite"))
    assert ids(take(backlog, QUANTUM)) == [(1000, 1032)]
    assert ids(take(backlog, QUANTUM)) == [(2000, 2032)]
    assert ids(take(backlog, 2 * QUANTUM)) == [(1032, 1096)]


def test_a_batch_has_room_for_the_turns_of_four() -> None:
    backlog = Backlog()
    push(backlog, make_held(1000, 64, of=b"greedy"))
    push(backlog, make_held(2000, 2, of=b"polite"))
    assert ids(take(backlog, 32)) == [(1000, 1008), (2000, 2002), (1008, 1030)]


def test_a_large_batch_has_several_turns() -> None:
    backlog = Backlog()
    push(backlog, make_held(1000, 64, of=b"one"))
    push(backlog, make_held(2000, 64, of=b"two"))
    assert ids(take(backlog, 128)) == [(1000, 1032), (2000, 2032), (1032, 1064), (2032, 2064)]


def test_a_turn_goes_on_in_the_next_batch() -> None:
    backlog = Backlog(quantum=3, parties=1)
    push(backlog, make_held(1000, 64, of=b"one"))
    push(backlog, make_held(2000, 64, of=b"two"))
    assert [ids(take(backlog, 4)) for _ in range(3)] == [
        [(1000, 1003), (2000, 2001)],
        [(2001, 2003), (1003, 1005)],
        [(1005, 1006), (2003, 2006)],
    ]


def test_many_small_groups_weigh_no_more_than_a_large_one() -> None:
    backlog = Backlog()
    for base in range(1000, 1200):
        push(backlog, make_held(base, of=b"many"))
    push(backlog, make_held(2000, 200, of=b"one"))
    taken = take(backlog, 10 * QUANTUM)
    assert sum(span.stop - span.start for span in taken if span.held.principal == b"one") == 5 * QUANTUM


# --- keys ---------------------------------------------------------------------------------------


def test_items_share_a_batch_only_with_their_key() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, key="short"))
    push(backlog, make_held(20, key="long"))
    push(backlog, make_held(30, key="short", of=b"b"))
    assert (backlog.head_key(), backlog.ready("short"), backlog.ready("long")) == ("short", 2, 1)
    assert ids(take(backlog, key="short")) == [(10, 11), (30, 31)]
    assert (backlog.head_key(), backlog.ready("short"), backlog.ready("long")) == ("long", 0, 1)
    assert ids(take(backlog, key="long")) == [(20, 21)]


def test_the_key_has_no_part_in_the_order() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, of=b"a", key="x"))
    push(backlog, make_held(20, of=b"b", key="y"))
    push(backlog, make_held(30, of=b"a", key="y"))
    push(backlog, make_held(40, of=b"b", key="x"))
    assert ids(take(backlog, 1, "x")) == [(10, 11)]
    assert backlog.head_key() == "y"


def test_the_item_whose_turn_it_is_leads_its_batch() -> None:
    backlog = Backlog(parties=1)
    push(backlog, make_held(1000, QUANTUM, of=b"a", key="x"))
    push(backlog, make_held(2000, QUANTUM, of=b"a", key="y"))
    push(backlog, make_held(3000, QUANTUM, of=b"b", key="y"))
    assert ids(take(backlog, QUANTUM, "x")) == [(1000, 1032)]
    assert backlog.head_key() == "y"
    assert ids(take(backlog, QUANTUM, "y")) == [(3000, 3032)]


def test_a_principal_of_another_key_does_not_hold_up_those_who_fill_a_batch() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, of=b"a", key="x"))
    push(backlog, make_held(20, of=b"b", key="y"))
    push(backlog, make_held(30, of=b"c", key="y", priority=1))
    assert ids(take(backlog, key="y")) == [(30, 31), (20, 21)]


def test_a_key_of_its_own_for_each_item_buys_no_turns() -> None:
    backlog = Backlog(parties=1)
    for base in range(1000, 1100):
        push(backlog, make_held(base, of=b"a", key=str(base)))
    push(backlog, make_held(2000, of=b"b", key="b"))
    keys = []
    while (key := backlog.head_key()) is not None:
        keys.append(key)
        take(backlog, 1, key)
    assert keys.index("b") == 1


# --- what fits ----------------------------------------------------------------------------------


def test_a_batch_has_at_most_so_many_items() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 100))
    assert ids(take(backlog, 40)) == [(10, 50)]
    assert ids(take(backlog, 40)) == [(50, 90)]
    assert ids(take(backlog, 40)) == [(90, 110)]


def test_costs_fill_a_batch_before_its_items_do() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 4, costs=[3.0, 3.0, 3.0, 3.0]))
    assert ids(take(backlog, cost=7.0)) == [(10, 12)]
    assert ids(take(backlog, cost=7.0)) == [(12, 14)]


def test_an_item_that_costs_more_than_a_batch_travels_alone() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 3, costs=[1.0, 99.0, 1.0]))
    assert [ids(take(backlog, cost=7.0)) for _ in range(3)] == [[(10, 11)], [(11, 12)], [(12, 13)]]


def test_items_without_a_cost_are_free() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 1, costs=[7.0]))
    push(backlog, make_held(20, 3))
    assert ids(take(backlog, cost=7.0)) == [(10, 11), (20, 23)]


def test_costs_mean_nothing_to_a_worker_without_such_a_bound() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 3, costs=[9.0, 9.0, 9.0]))
    assert ids(take(backlog)) == [(10, 13)]


def test_bytes_bound_a_batch() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 4, size=400))
    assert ids(take(backlog, size=250)) == [(10, 12)]
    assert ids(take(backlog, size=250)) == [(12, 14)]


def test_an_item_larger_than_a_batch_travels_alone() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 1, size=1000))
    push(backlog, make_held(20, 1, size=10))
    assert ids(take(backlog, size=250)) == [(10, 11)]
    assert ids(take(backlog, size=250)) == [(20, 21)]


def test_what_does_not_fit_closes_the_batch_for_what_would() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 1, size=200))
    push(backlog, make_held(20, 1, size=100))
    push(backlog, make_held(30, 1, size=10))
    assert ids(take(backlog, size=250)) == [(10, 11)]


def test_items_or_costs_fill_a_batch() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 3, costs=[2.0, 2.0, 2.0]))
    push(backlog, make_held(20, 1, key="other"))
    assert [backlog.fills("", Room(items)) for items in (3, 4)] == [True, False]
    assert [backlog.fills("", Room(4, cost)) for cost in (6.0, 6.5)] == [True, False]
    assert [backlog.fills("other", Room(items, 1.0)) for items in (1, 2)] == [True, False]


def test_costs_are_counted_while_their_items_wait() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 4, costs=[1.0, 2.0, 4.0, 8.0]))
    backlog.close(held, 2, 3)
    assert [backlog.fills("", Room(9, cost)) for cost in (11.0, 11.5)] == [True, False]
    (span,) = take(backlog, 1)
    assert [backlog.fills("", Room(9, cost)) for cost in (10.0, 10.5)] == [True, False]
    backlog.put_back(span)
    assert [backlog.fills("", Room(9, cost)) for cost in (11.0, 11.5)] == [True, False]
    take(backlog)
    assert not backlog.fills("", Room(9, 0.5))


def test_spans_of_one_group_with_one_past_are_one_span() -> None:
    backlog = Backlog(parties=1)
    held = push(backlog, make_held(10, 64))
    push(backlog, make_held(2000, of=b"b"))
    backlog.close(held, 3, 4)
    assert ids(take(backlog, 64)) == [(10, 13), (14, 43), (2000, 2001), (43, 74)]
    backlog = Backlog(parties=1)
    push(backlog, make_held(10, 64))
    assert ids(take(backlog, 64)) == [(10, 74)]


def test_spans_of_one_group_with_different_pasts_stay_apart() -> None:
    backlog = Backlog()
    held = make_held(10, 3)
    backlog.push(Span(held, 0, 1, attempts=1))
    backlog.push(Span(held, 1, 2, alone=1))
    backlog.push(Span(held, 2, 3))
    taken = take(backlog)
    assert ids(taken) == [(10, 11), (11, 12), (12, 13)]
    assert [(span.attempts, span.alone) for span in taken] == [(1, 0), (0, 1), (0, 0)]


# --- putting back -------------------------------------------------------------------------------


def test_what_is_put_back_goes_first() -> None:
    backlog = Backlog(parties=1)
    push(backlog, make_held(10, 2))
    push(backlog, make_held(20, 2, of=b"b"))
    push(backlog, make_held(30, 2, of=b"b"))
    first, second = take(backlog, 4)
    backlog.put_back(second)
    backlog.put_back(first)
    assert backlog.items == 6
    assert ids(take(backlog)) == [(10, 12), (20, 22), (30, 32)]


def test_what_is_put_back_keeps_its_past() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 2))
    (span,) = take(backlog)
    span.attempts, span.alone, span.runs = 2, 1, 3
    backlog.put_back(span)
    (again,) = take(backlog, 1)
    assert (again.attempts, again.alone, again.runs) == (2, 1, 3)


def test_a_span_in_other_hands_does_not_change_when_it_is_put_back_and_taken() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 4))
    (span,) = take(backlog)
    backlog.put_back(span)
    take(backlog, 3)
    assert ids([span]) == [(10, 14)]


def test_only_what_still_runs_is_put_back() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 5))
    (span,) = take(backlog)
    backlog.close(held, 0, 1)
    backlog.close(held, 2, 3)
    backlog.put_back(span)
    assert (backlog.items, held.waiting, held.open) == (3, 3, 3)
    assert ids(take(backlog)) == [(11, 12), (13, 15)]


def test_what_has_ended_is_not_put_back() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 2))
    (span,) = take(backlog)
    backlog.close(held, 0, 2)
    backlog.put_back(span)
    assert (backlog.items, inside(backlog)) == (0, 0)


def test_putting_back_does_not_pass_a_higher_priority() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 2))
    (span,) = take(backlog)
    push(backlog, make_held(20, 2, priority=1))
    backlog.put_back(span)
    assert ids(take(backlog)) == [(20, 22), (10, 12)]


# --- the oldest ---------------------------------------------------------------------------------


def test_the_oldest_is_the_first_that_still_waits() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 1, arrived=1.0))
    second = push(backlog, make_held(20, 1, arrived=2.0))
    push(backlog, make_held(30, 1, arrived=3.0))
    assert backlog.oldest() == 1.0
    take(backlog, 1)
    assert backlog.oldest() == 2.0
    backlog.close(second, 0, 1)
    assert backlog.oldest() == 3.0


def test_what_is_put_back_has_waited_since_it_arrived() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 1, arrived=1.0))
    push(backlog, make_held(20, 1, arrived=2.0))
    (span,) = take(backlog, 1)
    assert backlog.oldest() == 2.0
    backlog.put_back(span)
    assert backlog.oldest() == 1.0


def test_what_was_put_back_and_left_is_not_the_oldest() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 1, arrived=1.0))
    push(backlog, make_held(20, 1, arrived=2.0))
    (span,) = take(backlog, 1)
    backlog.put_back(span)
    take(backlog, 1)
    assert backlog.oldest() == 2.0


def test_what_is_put_back_does_not_hide_an_older_one() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 1, arrived=1.0))
    push(backlog, make_held(20, 1, arrived=2.0, priority=1))
    (span,) = take(backlog, 1)
    backlog.put_back(span)
    assert backlog.oldest() == 1.0


# --- closing ------------------------------------------------------------------------------------


def test_what_is_closed_while_it_waits_is_not_taken() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 5))
    assert backlog.close(held, 1, 3) == 2
    assert (backlog.items, held.open, held.waiting) == (3, 3, 3)
    assert ids(take(backlog)) == [(10, 11), (13, 15)]


def test_what_is_closed_while_it_runs_was_not_waiting() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 5))
    take(backlog, 3)
    assert backlog.close(held, 0, 2) == 2
    assert (backlog.items, held.open, held.waiting) == (2, 3, 2)


def test_one_of_several_groups_of_a_key_is_closed() -> None:
    backlog = Backlog()
    first = push(backlog, make_held(10, 2, priority=1))
    push(backlog, make_held(20, 2))
    assert (backlog.close(first, 0, 2), backlog.ready("")) == (2, 2)
    assert ids(take(backlog)) == [(20, 22)]


def test_what_is_closed_twice_is_counted_once() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 3))
    assert [backlog.close(held, 0, 2), backlog.close(held, 0, 3), backlog.close(held, 0, 3)] == [2, 1, 0]


def test_waiting_and_running_items_are_closed_in_one_go() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 400))
    take(backlog, 100)
    assert backlog.close(held, 0, 400) == 400
    assert (bytes(held.state), held.open, held.waiting, backlog.items) == (b"\2" * 400, 0, 0, 0)


def test_a_group_lets_go_of_its_items_once_all_have_ended() -> None:
    backlog = Backlog()
    held = push(backlog, make_held(10, 2))
    held.buffers = [[b"buffer"], []]
    backlog.close(held, 0, 1)
    assert held.buffers == [[b"buffer"], []]
    backlog.close(held, 1, 2)
    assert (len(held.items), held.buffers is None) == (0, True)


def test_closing_the_head_leaves_the_turn_to_the_next() -> None:
    backlog = Backlog()
    first = push(backlog, make_held(10, 1, key="x"))
    push(backlog, make_held(20, 1, key="y"))
    backlog.close(first, 0, 1)
    assert backlog.head_key() == "y"


# --- nothing is kept ----------------------------------------------------------------------------

MANY = 100_000


@pytest.mark.parametrize("way", ["taken", "closed", "put back and closed"])
def test_what_has_left_leaves_nothing_behind(way: str) -> None:
    backlog = Backlog()
    for base in range(MANY):
        held = push(backlog, make_held(base, of=b"%d" % (base % 7), key=str(base % 3)))
        match way:
            case "taken":
                take(backlog, key=held.key)
            case "closed":
                backlog.close(held, 0, 1)
            case _:
                (span,) = take(backlog, key=held.key)
                backlog.put_back(span)
                backlog.close(held, 0, 1)
    assert (backlog.items, inside(backlog)) == (0, 0)


@pytest.mark.parametrize("way", ["taken", "closed"])
def test_what_leaves_past_one_that_stays_leaves_little_behind(way: str) -> None:
    backlog = Backlog()
    push(backlog, make_held(MANY, of=b"a", key="stays"))
    push(backlog, make_held(MANY, of=b"b", key=""))
    most = 0
    for base in range(MANY // 4):
        held = push(backlog, make_held(base, of=b"a"))
        if way == "taken":
            take(backlog, 1)
        else:
            backlog.close(held, 0, 1)
        if base % 1000 == 0:
            most = max(most, inside(backlog))
    assert most < 4 * (SLACK + 2 * 3)


def test_a_deep_backlog_shrinks_as_it_is_cancelled() -> None:
    backlog = Backlog()
    helds = [push(backlog, make_held(base)) for base in range(10_000)]
    for held in helds[5:]:
        backlog.close(held, 0, 1)
    assert inside(backlog) < 3 * (SLACK + 2 * 5) + 10
    assert ids(take(backlog)) == [(base, base + 1) for base in range(5)]


def test_a_backlog_that_is_put_back_again_and_again_does_not_grow() -> None:
    backlog = Backlog()
    push(backlog, make_held(10, 4))
    for _ in range(10_000):
        for span in take(backlog, 2):
            backlog.put_back(span)
    assert inside(backlog) < 3 * (SLACK + 2 * 4) + 10
    assert ids(take(backlog)) == [(10, 14)]


# --- groups -------------------------------------------------------------------------------------


def test_a_group_is_due_as_a_whole_where_its_items_share_a_deadline() -> None:
    held = make_held(10, 3, deadline=5.0)
    assert (held.due(4.999), held.due(5.0)) == ([], [(0, 3)])
    assert held.next_due(5.0) is None


def test_each_item_is_due_at_its_own_deadline() -> None:
    held = make_held(10, 3, deadline=5.0, later=[2.0, 0.0, 1.0])
    assert held.due(4.999) == []
    assert held.due(5.0) == [(1, 2)]
    assert held.due(6.0) == [(1, 2), (2, 3)]


def test_the_next_item_due_is_the_soonest_that_is_open() -> None:
    held = make_held(10, 3, deadline=5.0, later=[2.0, 0.0, 1.0])
    assert held.next_due(5.0) == 6.0
    held.state[2] = CLOSED
    assert held.next_due(5.0) == 7.0
    assert held.next_due(7.0) is None


def test_runs_are_the_ranges_in_a_state() -> None:
    held = make_held(10, 6)
    held.state[:] = bytes([WAITING, RUNNING, RUNNING, CLOSED, RUNNING, WAITING])
    assert runs(held, RUNNING) == [(1, 3), (4, 5)]
    assert runs(held, RUNNING, 2, 6) == [(2, 3), (4, 5)]
    assert runs(held, RUNNING, 1, 3) == [(1, 3)]
    assert runs(held, CLOSED, 0, 3) == []
    assert runs(held, RUNNING, 2, 2) == []


def test_what_costs_too_much_by_itself_travels_alone() -> None:
    backlog = Backlog()
    push(backlog, make_held(0, 1, costs=[5.0]))
    push(backlog, make_held(1, 1))
    assert ids(take(backlog, cost=4.0)) == [(0, 1)]
    assert ids(take(backlog, cost=4.0)) == [(1, 2)]


# --- how many are ahead --------------------------------------------------------------------------


def test_ahead_of_a_new_item_are_its_own_and_as_many_of_each_other_principal() -> None:
    backlog = Backlog()
    push(backlog, make_held(0, 100, of=b"greedy"))
    push(backlog, make_held(200, 3, of=b"polite"))
    assert backlog.ahead(0, b"greedy") == 103
    assert backlog.ahead(0, b"polite") == 8
    assert backlog.ahead(0, b"new") == 3
    take(backlog, 50)
    assert backlog.ahead(0, b"greedy") == 53


def test_what_matters_more_is_all_ahead_and_what_matters_less_is_not() -> None:
    backlog = Backlog()
    push(backlog, make_held(0, 10, of=b"a", priority=5))
    push(backlog, make_held(20, 10, of=b"a", priority=0))
    assert (backlog.ahead(9, b"a"), backlog.ahead(5, b"b"), backlog.ahead(0, b"a")) == (0, 2, 20)
    assert backlog.ahead(-1, b"a") == 20
