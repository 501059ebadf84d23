"""How calls become groups and messages: alike travel together, and nothing grows without bounds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.asking import (
    EPOCH,
    FIRST,
    LIFE,
    ask,
    call,
    call_of,
    conn,
    connected,
    pulse,
    result,
    started,
    welcome,
)
from zbatch.core.actions import Send
from zbatch.core.calls import Failed, Finished
from zbatch.core.client import BURST, MESSAGE_BYTES, ClientCore
from zbatch.core.grouping import GROUP_BYTES, GROUP_ITEMS
from zbatch.core.session import LARGE
from zbatch.messages import Bulk, Group, Hello, Request, Welcome
from zbatch.pipelines import pipeline


def groups(actions: Any) -> list[Group]:
    """Return the groups in all messages."""
    return [group for one in actions for group in one.message.groups]


def test_it_introduces_itself() -> None:
    _, actions = started()
    assert actions == [Send(FIRST, Hello(conn(1), 1, 0, LIFE, "client", 1, [], 1, host="web-1", pid=12))]


def test_nothing_is_sent_before_a_broker_answers_and_everything_then() -> None:
    core, _ = started()
    assert ask(core, call(b"a")) == []
    assert welcome(core, now=5.0) == [
        Send(FIRST, Request(conn(1), 2, 1, [Group(1, "bert", 25_000, [b"a"])]), [])
    ]


def test_calls_that_agree_travel_as_one_group() -> None:
    core = connected()
    assert ask(core, call(b"a"), call(b"b")) == [
        Send(FIRST, Request(conn(1), 2, 1, [Group(1, "bert", 30_000, [b"a", b"b"])]), [])
    ]


def test_calls_of_one_pipeline_travel_as_one_group_with_its_route() -> None:
    pipe = pipeline("pre", "bert")
    calls = [call(b"a"), call(b"b"), call_of(b"c", b"d")]
    for one in calls:
        one.mark = (pipe, *one.mark[1:])
    assert groups(ask(connected(), *calls)) == [
        Group(1, "pre > bert", 30_000, [b"a", b"b"], route=pipe.route),
        Group(3, "pre > bert", 30_000, [b"c", b"d"], whole=True, route=pipe.route),
    ]


def test_calls_that_differ_in_topic_key_or_priority_are_groups_of_their_own() -> None:
    calls = [call(b"a"), call(b"b", topic="gpt"), call(b"c", key="en"), call(b"d", priority=3)]
    assert groups(ask(connected(), *calls)) == [
        Group(1, "bert", 30_000, [b"a"]),
        Group(2, "gpt", 30_000, [b"b"]),
        Group(3, "bert", 30_000, [b"c"], key="en"),
        Group(4, "bert", 30_000, [b"d"], priority=3),
    ]


def test_items_of_one_group_may_have_deadlines_of_their_own() -> None:
    assert groups(ask(connected(), call(b"a", timeout=3.0), call(b"b", timeout=1.0))) == [
        Group(1, "bert", 1_000, [b"a", b"b"], later_ms=[2_000, 0])
    ]


def test_a_call_of_several_items_is_a_group_that_is_admitted_whole() -> None:
    assert groups(ask(connected(), call_of(b"a", b"b", costs=[1.0, 2.0]))) == [
        Group(1, "bert", 30_000, [b"a", b"b"], costs=[1.0, 2.0], whole=True)
    ]


def test_costs_travel_with_their_items() -> None:
    assert groups(ask(connected(), call(b"a", cost=3.0), call(b"b", cost=4.0))) == [
        Group(1, "bert", 30_000, [b"a", b"b"], costs=[3.0, 4.0])
    ]


def test_buffers_follow_the_envelope_and_are_counted() -> None:
    (sent,) = ask(connected(), call(b"a", buffers=[b"p", b"q"]), call(b"b", buffers=[b"r"]))
    assert sent == Send(
        FIRST, Request(conn(1), 2, 1, [Group(1, "bert", 30_000, [b"a", b"b"], [2, 1])]), [b"p", b"q", b"r"]
    )


def test_the_time_left_is_at_least_a_millisecond() -> None:
    assert groups(ask(connected(), call(b"a", timeout=1.0), now=1.0)) == [Group(1, "bert", 1, [b"a"])]
    late = ask(connected(), call(b"a", timeout=1.0), call(b"b", timeout=2.0), now=1.0)
    assert groups(late) == [Group(1, "bert", 1, [b"a", b"b"], later_ms=[0, 1_000])]


def test_a_call_that_was_cancelled_before_the_turn_ended_is_not_sent() -> None:
    core = connected()
    first, second = call(b"a"), call(b"b")
    core.submit(first)
    assert core.cancel(first, 0.0) == []
    assert groups(ask(core, second)) == [Group(1, "bert", 30_000, [b"b"])]


def test_when_all_calls_of_a_kind_were_cancelled_nothing_is_sent() -> None:
    core = connected()
    only = call(b"a")
    core.submit(only)
    core.cancel(only, 0.0)
    assert core.flush(0.0) == []
    assert core.is_idle


def test_a_call_that_was_cancelled_before_the_broker_answered_is_not_sent() -> None:
    core, _ = started()
    only = call(b"a")
    ask(core, only)
    assert core.cancel(only, 0.0) == []
    assert welcome(core) == []


def test_a_group_is_bounded_by_items() -> None:
    sent = groups(ask(connected(), *(call(b"a") for _ in range(GROUP_ITEMS + 1))))
    assert [len(group.items) for group in sent] == [GROUP_ITEMS, 1]


def test_a_group_is_bounded_by_bytes() -> None:
    sent = groups(ask(connected(), *(call(bytes(GROUP_BYTES // 2)) for _ in range(3))))
    assert [len(group.items) for group in sent] == [2, 1]


def test_buffers_count_to_the_bytes_of_a_group() -> None:
    heavy = memoryview(bytes(GROUP_BYTES // 2 + 8))
    sent = groups(ask(connected(), *(call(b"a", buffers=[heavy]) for _ in range(2))))
    assert [group.buffers for group in sent] == [[1], [1]]


def test_what_the_broker_would_not_read_is_not_sent_and_hurts_no_other_call() -> None:
    core, _ = started()
    core.handle(FIRST, Welcome(conn(1), 1, 1, EPOCH, 1, message_bytes=1_000), [], 0.0)
    large = call(bytes(1_000))
    failed, sent = ask(core, large, call(b"b", key="other"), call_of(b"c", b"d"))
    assert isinstance(failed, Failed)
    assert (failed.calls, failed.fault.code) == ([large], "too_large")
    assert [group.items for group in groups([sent])] == [[b"b"], [b"c", b"d"]]


def test_a_call_of_several_items_that_the_broker_would_not_read_fails_whole() -> None:
    core, _ = started()
    core.handle(FIRST, Welcome(conn(1), 1, 1, EPOCH, 1, message_bytes=1_000), [], 0.0)
    large = call_of(bytes(500), bytes(500))
    (finished,) = ask(core, large)
    assert isinstance(finished, Finished)
    assert [fault.code for fault in (large.faults or {}).values()] == ["too_large", "too_large"]
    assert core.is_idle


def test_a_message_is_closed_when_it_has_grown_large() -> None:
    heavy = bytes(GROUP_BYTES)
    actions = ask(connected(), *(call(heavy) for _ in range(MESSAGE_BYTES // GROUP_BYTES + 1)))
    assert [len(one.message.groups) for one in actions if isinstance(one, Send)] == [4, 1]  # type: ignore[attr-defined]
    assert [one.message.number for one in actions if isinstance(one, Send)] == [2, 3]


def test_it_knows_how_many_groups_wait_and_which_calls() -> None:
    core = connected()
    first, second, third = call(b"a"), call_of(b"b", b"c"), call(b"d")
    ask(core, first, second)
    core.submit(third)
    assert (core.open_groups, core.open_calls()) == (2, [first, second, third])
    assert not core.is_idle


def is_burst_after(core: ClientCore, count: int) -> bool:
    """Submit so many calls more."""
    for _ in range(count):
        core.submit(call())
    return core.is_burst


def test_a_burst_is_a_batch_of_many_models() -> None:
    core = connected()
    assert not is_burst_after(core, 63)
    assert is_burst_after(core, 1)
    core.flush(0.0)
    assert not is_burst_after(core, 0)


def test_a_burst_is_a_quarter_of_what_waits_where_more_waits() -> None:
    core = connected()
    ask(core, *(call() for _ in range(400)))
    assert not is_burst_after(core, 99)
    assert is_burst_after(core, 1)


def test_before_a_broker_answers_nothing_is_a_burst_since_nothing_could_leave() -> None:
    core, _ = started()
    assert not is_burst_after(core, BURST)
    welcome(core, now=0.0)
    assert not is_burst_after(core, BURST - 1)
    assert is_burst_after(core, 1)


def test_calls_are_open_also_where_their_groups_could_not_be_made() -> None:
    core = connected()
    core._measure = lambda items, buffers: 1 // (b"bad" not in items)
    calls = [call(b"good"), call(b"bad", key="other")]
    for one in calls:
        core.submit(one)
    with pytest.raises(ZeroDivisionError):
        core.flush(0.0)
    assert core.open_calls() == calls


def test_what_is_withdrawn_waits_no_longer() -> None:
    core = connected()
    first, *others = [call() for _ in range(4 * BURST + 1)]
    ask(core, first, *others)
    assert not is_burst_after(core, BURST)
    core.cancel(first, 0.0)
    assert is_burst_after(core, 0)


def test_what_has_its_outcome_waits_no_longer() -> None:
    core = connected()
    ask(core, *(call() for _ in range(5 * BURST)))
    assert not is_burst_after(core, BURST)
    result(core, 1, *(b"y" for _ in range(BURST)))
    assert is_burst_after(core, 0)


def test_what_has_ended_is_swept_from_the_index_of_groups() -> None:
    core: ClientCore = connected()
    for number in range(1, 300):
        ask(core, call(b"a"))
        result(core, number, b"y")
    assert len(core._bases) < 70
    assert core.is_idle


# --- large messages ------------------------------------------------------------------------------


def test_a_large_message_is_announced() -> None:
    core = connected()
    large = bytes(LARGE)
    bulk, request = ask(core, call(b"a", buffers=[large]))
    assert bulk == Send(FIRST, Bulk(conn(1), 2, 1, LARGE + 1))
    assert isinstance(request, Send)
    assert request.message.number == 3
    # What travels still is not sent again.
    assert pulse(core, (1, 2), seen=2) == []
    assert len(pulse(core, (1, 2), seen=3)) == 2
