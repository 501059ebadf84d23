"""What was lost on the way is sent again, to a broker that lives; what still travels is not."""

from __future__ import annotations

from tests.core.asking import (
    FIRST,
    LATER_EPOCH,
    ask,
    call,
    call_of,
    conn,
    connected,
    hello,
    pulse,
    result,
    sent_again,
    started,
    welcome,
)
from zbatch.core.actions import Send
from zbatch.core.client import RANGES
from zbatch.messages import Beat, Group, Pulse, Request, StatusAsk, Who

# --- beats ---------------------------------------------------------------------------------------


def test_while_something_is_open_it_beats_once_a_second() -> None:
    core = connected()
    ask(core, call(b"a"), now=5.0)
    assert core.wakeup() == 6.0
    assert core.tick(6.0) == [Send(FIRST, Beat(conn(1), 3, 1, [(1, 2)], 2))]
    assert core.wakeup() == 7.0


def test_after_the_last_outcome_one_more_beat_says_that_nothing_is_open() -> None:
    core = connected()
    ask(core, call(b"a"))
    result(core, 1, b"y")
    assert core.tick(1.0) == [Send(FIRST, Beat(conn(1), 3, 3, [], 2))]
    assert core.wakeup() is None
    assert core.tick(9.0) == []


def test_a_beat_names_exactly_the_ids_that_are_open() -> None:
    core = connected()
    ask(core, call(b"a"), call(b"b"), call(b"c"), call_of(b"d", b"e", b"f"))
    result(core, 2, b"y")
    result(core, 5, b"y")
    (beat,) = core.tick(1.0)
    assert beat == Send(FIRST, Beat(conn(1), 3, 3, [(1, 2), (3, 5), (6, 7)], 7))


def test_of_what_was_not_sent_yet_a_beat_says_nothing() -> None:
    core = connected()
    ask(core, call(b"a"))
    core.handle(FIRST, Who(conn(1), 0, 0), [], 0.5)
    ask(core, call(b"b"), now=0.6)
    assert core.tick(1.5) == [Send(FIRST, hello(2, (1, 2), next=2))]


def test_a_beat_names_no_more_ranges_than_a_message_may_carry() -> None:
    core = connected()
    count = 2 * RANGES + 10
    ask(core, *(call(b"a") for _ in range(count)))
    for base in range(2, count, 2):
        result(core, base, b"y")
    (beat,) = core.tick(1.0)
    assert isinstance(beat, Send)
    assert isinstance(beat.message, Beat)
    assert len(beat.message.open) == RANGES
    assert beat.message.next == beat.message.open[-1][1]


# --- what is missing -----------------------------------------------------------------------------


def test_what_the_broker_misses_is_sent_again_with_the_time_that_is_left() -> None:
    core = connected()
    ask(core, call(b"a"), call(b"b"), call(b"c"))
    assert pulse(core, (2, 4), now=10.0) == [
        Send(FIRST, Request(conn(1), 3, 2, [Group(2, "bert", 20_000, [b"b", b"c"], again=True)]), [])
    ]


def test_a_part_that_is_sent_again_keeps_its_costs_buffers_and_deadlines() -> None:
    core = connected()
    calls = [call(b"%d" % at, timeout=30.0 + at, cost=float(at), buffers=[b"p%d" % at]) for at in range(3)]
    ask(core, *calls)
    (again,) = pulse(core, (2, 4), now=10.0)
    assert again == Send(
        FIRST,
        Request(
            *(conn(1), 3, 2),
            [
                Group(
                    2, "bert", 21_000, [b"1", b"2"], [1, 1], costs=[1.0, 2.0], again=True, later_ms=[0, 1_000]
                )
            ],
        ),
        [b"p1", b"p2"],
    )


def test_what_still_travels_is_not_sent_again() -> None:
    core = connected()
    ask(core, call(b"a"))  # message 2
    assert pulse(core, (1, 2), seen=1) == []
    assert len(sent_again(pulse(core, (1, 2), seen=2))) == 1


def test_what_has_ended_is_not_sent_again() -> None:
    core = connected()
    ask(core, call(b"a"), call(b"b"))
    result(core, 1, b"y", b"y")
    assert pulse(core, (1, 3), (7, 9)) == []


def test_a_call_of_several_that_is_sent_again_need_not_be_admitted_whole() -> None:
    core = connected()
    ask(core, call_of(b"a", b"b"))
    assert sent_again(pulse(core, (1, 3))) == [Group(1, "bert", 30_000, [b"a", b"b"], again=True)]


def test_what_is_due_first_is_sent_first() -> None:
    core = connected()
    ask(core, call(b"a", timeout=9.0), call(b"b", timeout=3.0, key="en"))
    assert [group.base for group in sent_again(pulse(core, (1, 3)))] == [2, 1]


def test_a_pulse_ends_the_beats_where_nothing_is_open() -> None:
    core = connected()
    ask(core, call(b"a"))
    result(core, 1, b"y")
    pulse(core)
    assert core.wakeup() is None


# --- a broker that does not know us --------------------------------------------------------------


def test_who_is_answered_with_what_is_open() -> None:
    core = connected()
    ask(core, call(b"a"))
    assert core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0) == [Send(FIRST, hello(2, (1, 2), next=2))]


def test_after_a_restart_only_what_the_broker_misses_is_sent_again() -> None:
    core = connected()
    ask(core, call(b"a"), call(b"b", key="en"))
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    actions = welcome(core, (2, 3), connection=2, epoch=LATER_EPOCH, now=1.0)
    assert sent_again(actions) == [Group(2, "bert", 29_000, [b"b"], key="en", again=True)]


def test_what_the_broker_says_it_did_not_take_is_sent_as_for_the_first_time() -> None:
    core = connected()
    ask(core, call(b"a"))  # message 2
    ask(core, call(b"b"))  # message 3
    greeting = core.handle(FIRST, Who(conn(1), 0, 2), [], 1.0)
    assert greeting == [Send(FIRST, hello(2, (1, 2), next=2))]
    actions = welcome(core, (1, 2), connection=2, epoch=LATER_EPOCH, now=1.0)
    assert sent_again(actions) == [
        Group(1, "bert", 29_000, [b"a"], again=True),
        Group(2, "bert", 29_000, [b"b"]),
    ]


def test_a_second_sending_that_was_not_taken_does_not_undo_the_first() -> None:
    core = connected()
    ask(core, call(b"a"))
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    welcome(core, (1, 2), connection=2, now=1.0)
    core.handle(FIRST, Who(conn(2), 0, 1), [], 2.0)
    actions = welcome(core, (1, 2), connection=3, now=2.0)
    assert sent_again(actions) == [Group(1, "bert", 28_000, [b"a"], again=True)]


def test_what_came_meanwhile_follows_the_welcome() -> None:
    core = connected()
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    core.submit(call(b"a"))
    core.ask_status(1.0)
    request, status = welcome(core, connection=2, now=1.0)
    assert sent_again([request]) == [Group(1, "bert", 29_000, [b"a"])]
    assert status == Send(FIRST, StatusAsk(conn(2), 3, 1))


def test_an_outcome_over_an_old_connection_is_not_taken() -> None:
    core = connected()
    ask(core, call(b"a"))
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    assert result(core, 1, b"y", connection=1) == []


def test_a_broker_that_does_not_answer_is_greeted_again_each_beat_while_something_waits() -> None:
    core, _ = started()
    ask(core, call(b"a"))
    assert core.tick(1.0) == [Send(FIRST, hello(1, next=1))]
    assert core.tick(1.5) == []


def test_a_pulse_that_names_nothing_asks_for_nothing() -> None:
    core = connected()
    ask(core, call(b"a"))
    assert core.handle(FIRST, Pulse(conn(1), 2, 2, [], 2), [], 1.0) == []
