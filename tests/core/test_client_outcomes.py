"""How calls end: each with its own results or one error, once."""

from __future__ import annotations

from typing import Any

from tests.core.asking import (
    EPOCH,
    FIRST,
    LIFE,
    ask,
    call,
    call_of,
    conn,
    connected,
    ended,
    pulse,
    refuse,
    result,
    started,
    welcome,
)
from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.calls import Action, Answered, Failed, Finished, Shown
from zbatch.core.client import WORD, ClientCore
from zbatch.messages import (
    Beat,
    Bye,
    Cancel,
    Denied,
    Fault,
    Refusal,
    Refused,
    Request,
    Status,
    StatusAsk,
    Welcome,
    Who,
)

FAULT = Fault("model_failed", "no")


def offered(actions: list[Any]) -> list[tuple[int, bool]]:
    """Return which groups are sent, and whether they were sent before."""
    return [
        (group.base, group.again)
        for one in actions
        if isinstance(one, Send) and isinstance(one.message, Request)
        for group in one.message.groups
    ]


# --- results -------------------------------------------------------------------------------------


def test_outputs_find_their_calls() -> None:
    core = connected()
    first, second, third = call(b"a"), call(b"b"), call(b"c")
    ask(core, first, second, third)
    assert result(core, 2, b"yb") == [Answered([second], [b"yb"], None)]
    assert ended(result(core, 1, b"ya")) == [(first, b"ya")]
    assert ended(result(core, 3, b"yc")) == [(third, b"yc")]
    assert core.is_idle


def test_buffers_are_given_to_the_outputs_that_they_belong_to() -> None:
    core = connected()
    first, second = call(b"a"), call(b"b")
    ask(core, first, second)
    assert result(core, 1, b"ya", b"yb", buffers=[2, 1], frames=[b"p", b"q", b"r"]) == [
        Answered([first, second], [b"ya", b"yb"], [[b"p", b"q"], [b"r"]])
    ]


def test_a_call_of_several_is_finished_when_all_its_items_are() -> None:
    core = connected()
    both = call_of(b"a", b"b", b"c")
    ask(core, both)
    assert result(core, 3, b"yc", buffers=[1], frames=[b"p"]) == []
    assert result(core, 1, b"ya", b"yb") == [Finished(both)]
    assert both.outputs == [(b"ya", ()), (b"yb", ()), (b"yc", [b"p"])]
    assert core.is_idle


def test_an_outcome_that_comes_twice_counts_once() -> None:
    core = connected()
    one, both = call(b"a"), call_of(b"b", b"c")
    ask(core, one, both)
    assert ended(result(core, 1, b"ya")) == [(one, b"ya")]
    assert ended(result(core, 1, b"other")) == []
    result(core, 2, b"yb")
    assert ended(result(core, 2, b"other", b"yc")) == [both]
    assert both.outputs == [(b"yb", ()), (b"yc", ())]


def test_outputs_that_nobody_asked_for_change_nothing() -> None:
    core = connected()
    one = call(b"a")
    ask(core, one)
    assert result(core, 0, b"y") == []
    assert result(core, 7, b"y") == []
    assert ended(result(core, 1, b"ya", b"more")) == [(one, b"ya")]


def test_a_result_of_another_connection_is_not_taken() -> None:
    core = connected()
    ask(core, call(b"a"))
    assert result(core, 1, b"y", connection=9) == []


# --- errors --------------------------------------------------------------------------------------


def test_a_refusal_ends_the_calls_that_it_names() -> None:
    core = connected()
    first, second, third = call(b"a"), call(b"b"), call(b"c")
    ask(core, first, second, third)
    assert refuse(core, FAULT, (1, 2), (3, 9)) == [Failed([first], FAULT), Failed([third], FAULT)]
    assert ended(result(core, 2, b"yb")) == [(second, b"yb")]
    assert core.is_idle


def test_a_refusal_may_reach_over_several_groups() -> None:
    core = connected()
    calls = [call(b"a"), call(b"b", key="en"), call(b"c", key="de")]
    ask(core, *calls)
    result(core, 2, b"yb")
    assert ended(refuse(core, FAULT, (0, 99))) == [(calls[0], "model_failed"), (calls[2], "model_failed")]


def test_a_refusal_of_what_has_ended_changes_nothing() -> None:
    core = connected()
    ask(core, call(b"a"))
    result(core, 1, b"y")
    assert refuse(core, FAULT, (1, 2)) == []
    ask(core, call(b"b"), call(b"c"))
    result(core, 2, b"y")
    assert refuse(core, FAULT, (2, 3)) == []


def test_a_call_of_several_keeps_the_errors_of_its_items() -> None:
    core = connected()
    both = call_of(b"a", b"b")
    ask(core, both)
    refuse(core, FAULT, (1, 2))
    refuse(core, Fault("cancelled", "again"), (1, 2))
    assert refuse(core, FAULT, (2, 3)) == [Finished(both)]
    assert both.faults == {0: FAULT, 1: FAULT}


def test_no_room_is_an_outcome_for_what_is_sent_for_the_first_time() -> None:
    core = connected()
    one = call(b"a")
    ask(core, one)
    assert ended(refuse(core, Fault("overloaded", "full", 500), (1, 2))) == [(one, "overloaded")]


def test_no_room_is_no_outcome_for_what_is_sent_again() -> None:
    core = connected()
    one = call(b"a")
    ask(core, one)
    welcome(core, (1, 2), now=1.0)
    assert refuse(core, Fault("overloaded", "full", 500), (1, 2), now=1.0) == []
    assert offered(core.tick(1.4)) == []
    assert offered(core.tick(1.5)) == [(1, True)]


def test_what_a_leaving_broker_hands_back_is_offered_again() -> None:
    core = connected()
    one = call(b"a")
    ask(core, one)
    assert refuse(core, Fault("draining", "leaving"), (1, 2)) == []
    assert core.wakeup() == 0.05
    assert offered(core.tick(0.05)) == [(1, False)]


def test_each_time_that_there_is_no_room_the_next_offer_waits_longer() -> None:
    core = connected()
    ask(core, call(b"a"))
    offers = []
    now = 1.0
    pulse(core, (1, 2), now=now)
    for _ in range(30):
        refuse(core, Fault("overloaded", "full", 10), (1, 2), now=now)
        following = core.wakeup()
        assert following is not None
        now = following
        if offered(core.tick(now)):
            offers.append(now)
    assert [round(at, 2) for at in offers[:4]] == [1.1, 1.3, 1.55, 1.85]
    assert offers[-1] - offers[-2] <= 1.0


def test_what_waits_to_be_offered_again_is_not_sent_because_it_is_missing() -> None:
    core = connected()
    ask(core, call(b"a"))
    pulse(core, (1, 2), now=1.0)
    refuse(core, Fault("overloaded", "full", 900), (1, 2), now=1.0)
    assert pulse(core, (1, 2), now=1.5) == []
    assert offered(core.tick(1.9)) == [(1, True)]


def test_what_waits_to_be_offered_again_may_end_meanwhile() -> None:
    core = connected()
    one = call(b"a")
    ask(core, one)
    refuse(core, Fault("draining", "leaving"), (1, 2))
    core.cancel(one, 0.0)
    assert core.tick(0.05) == []


def test_nothing_is_offered_again_to_a_broker_that_is_not_there() -> None:
    core = connected()
    ask(core, call(b"a"))
    refuse(core, Fault("draining", "leaving"), (1, 2))
    core.handle(FIRST, Who(conn(1), 0, 0), [], 0.0)
    assert offered(core.tick(0.05)) == []


# --- deadlines -----------------------------------------------------------------------------------


def test_at_its_deadline_a_call_gives_the_broker_a_moment_to_say_why() -> None:
    core = connected()
    one = call(b"a", timeout=1.0)
    ask(core, one, now=0.5)
    core.handle(FIRST, Status(conn(1), 2, 2, b"{}"), [], 0.6)
    assert ended(core.tick(1.004)) == []
    assert ended(core.tick(1.0 + WORD)) == []
    actions = core.tick(1.0 + WORD + 0.004)
    assert [one for one in actions if isinstance(one, Failed)] == [
        Failed([one], Fault("deadline_exceeded", "no outcome within 0.554 s"))
    ]
    assert core.is_idle


def test_the_brokers_word_within_that_moment_is_the_outcome() -> None:
    core = connected()
    one = call(b"a", timeout=1.0)
    ask(core, one)
    core.tick(1.004)
    assert ended(refuse(core, Fault("no_workers", "none"), (1, 2), now=1.01)) == [(one, "no_workers")]
    assert ended(core.tick(2.0)) == []


def test_where_no_broker_answered_the_error_says_so_at_once() -> None:
    core, _ = started(where="tcp://here:1")
    one = call(b"a", timeout=1.0)
    ask(core, one)
    (failed,) = [action for action in core.tick(1.004) if isinstance(action, Failed)]
    assert failed == Failed(
        [one],
        Fault(
            "broker_unreachable",
            "no broker at tcp://here:1 answered within 1.004 s; "
            "is one running there, and reachable, or does it ask for a key?",
        ),
    )


def test_without_names_of_brokers_the_error_names_none() -> None:
    core, _ = started(where="")
    ask(core, call(b"a", timeout=1.0))
    (failed,) = [action for action in core.tick(1.004) if isinstance(action, Failed)]
    assert failed.fault.text.startswith("no broker answered within 1.004 s")


def test_calls_of_one_group_end_each_at_its_own_deadline() -> None:
    core, _ = started()
    short, answered, long = call(b"a", timeout=1.0), call(b"b", timeout=2.0), call(b"c", timeout=3.0)
    ask(core, short, answered, long)
    assert ended(core.tick(1.004)) == [(short, "broker_unreachable")]
    core.cancel(answered, 1.5)
    assert ended(core.tick(2.996)) == []
    assert ended(core.tick(3.004)) == [(long, "broker_unreachable")]
    assert core.is_idle


def test_deadlines_of_their_own_have_the_moment_of_grace_too() -> None:
    core = connected()
    short, long = call(b"a", timeout=1.0), call(b"b", timeout=3.0)
    ask(core, short, long)
    assert ended(core.tick(1.004)) == []
    assert ended(core.tick(1.0 + WORD + 0.004)) == [(short, "deadline_exceeded")]


def test_a_call_of_several_ends_with_what_has_come_and_errors_for_the_rest() -> None:
    core, _ = started()
    both = call_of(b"a", b"b", timeout=1.0)
    ask(core, both)
    welcome(core)
    result(core, 1, b"ya", now=0.5)
    core.tick(1.004)
    assert ended(core.tick(1.06)) == [both]
    assert both.outputs[0] == (b"ya", ())
    assert both.faults is not None
    assert [(place, fault.code) for place, fault in both.faults.items()] == [(1, "deadline_exceeded")]


# --- cancelling and closing ----------------------------------------------------------------------


def test_a_cancelled_call_is_told_to_the_broker_and_has_no_outcome() -> None:
    core = connected()
    first, second = call(b"a"), call(b"b")
    ask(core, first, second)
    assert core.cancel(second, 0.0) == [Send(FIRST, Cancel(conn(1), 3, 1, [(2, 3)]))]
    assert ended(result(core, 1, b"ya", b"yb")) == [(first, b"ya")]
    assert core.is_idle


def test_a_cancelled_call_of_several_takes_all_its_items_with_it() -> None:
    core = connected()
    both = call_of(b"a", b"b")
    ask(core, both)
    assert core.cancel(both, 0.0) == [Send(FIRST, Cancel(conn(1), 3, 1, [(1, 3)]))]
    assert core.is_idle


def test_cancelling_what_has_ended_while_others_of_its_group_wait_says_nothing() -> None:
    core = connected()
    first, second = call(b"a"), call(b"b")
    ask(core, first, second)
    result(core, 1, b"x")
    assert core.cancel(first, 0.0) == []
    assert core.open_calls() == [second]


def test_cancelling_what_has_ended_says_nothing() -> None:
    core = connected()
    one = call(b"a")
    ask(core, one)
    result(core, 1, b"y")
    assert core.cancel(one, 0.0) == []


def test_a_stopped_client_says_goodbye_and_ends_every_call() -> None:
    core = connected()
    sent, waiting = call(b"a"), call(b"b")
    ask(core, sent)
    core.submit(waiting)
    closed = Fault("client_closed", "closed")
    assert core.stop(closed) == [Failed([sent, waiting], closed), Send(FIRST, Bye(conn(1), 3, 1))]
    assert core.is_idle


def test_a_client_that_nobody_knows_and_nobody_waits_for_stops_without_a_word() -> None:
    core, _ = started()
    assert core.stop(Fault("client_closed", "closed")) == []


# --- status --------------------------------------------------------------------------------------


def test_a_status_is_asked_for_once_the_broker_answers() -> None:
    core, _ = started()
    assert core.ask_status(0.0) == []
    assert not core.is_idle
    assert core.wakeup() == 1.0
    assert welcome(core) == [Send(FIRST, StatusAsk(conn(1), 2, 1))]
    assert core.handle(FIRST, Status(conn(1), 2, 2, b"{}"), [], 0.0) == [Shown(b"{}")]
    assert core.is_idle


def test_a_status_is_asked_for_at_once_where_the_broker_is_there() -> None:
    core = connected()
    assert core.ask_status(0.0) == [Send(FIRST, StatusAsk(conn(1), 2, 1))]


def test_a_status_that_does_not_come_is_asked_for_again_each_beat() -> None:
    core = connected()
    core.ask_status(0.0)
    assert core.tick(0.9) == []
    beat, again = core.tick(1.0)
    assert beat == Send(FIRST, Beat(conn(1), 3, 1, [], 1))
    assert again == Send(FIRST, StatusAsk(conn(1), 4, 1))
    assert core.handle(FIRST, Status(conn(1), 2, 2, b"{}"), [], 1.1) == [Shown(b"{}")]
    assert core.tick(2.0) == []


def test_a_status_is_asked_for_once_although_nothing_was_said_for_long() -> None:
    core = connected()
    assert core.ask_status(50.0) == [Send(FIRST, StatusAsk(conn(1), 2, 1))]
    assert core.tick(50.0) == [Send(FIRST, Beat(conn(1), 3, 1, [], 1))]
    assert core.wakeup() == 51.0


def test_a_status_that_nobody_waits_for_is_not_asked_for_again() -> None:
    core = connected()
    core.ask_status(0.0)
    core.forget_status()
    assert core.is_idle
    assert core.tick(1.0) == []
    assert core.handle(FIRST, Status(conn(1), 2, 2, b"late"), [], 1.1) == []


def test_a_second_answer_is_not_taken_for_that_to_the_next_question() -> None:
    core = connected()
    core.ask_status(0.0)
    core.tick(1.0)
    core.handle(FIRST, Status(conn(1), 2, 2, b"first"), [], 1.1)
    assert core.handle(FIRST, Status(conn(1), 3, 4, b"again"), [], 1.2) == []
    assert core.ask_status(1.3) == [Send(FIRST, StatusAsk(conn(1), 5, 3))]
    assert core.handle(FIRST, Status(conn(1), 4, 4, b"again"), [], 1.4) == []
    assert core.handle(FIRST, Status(conn(1), 5, 5, b"next"), [], 1.5) == [Shown(b"next")]


def test_a_message_that_a_client_does_not_expect_changes_nothing() -> None:
    core = connected()
    unexpected: Any = Bye(conn(1), 2, 0)
    assert core.handle(FIRST, unexpected, [], 0.0) == []


# --- who is not let in ---------------------------------------------------------------------------


DENIED = Fault("forbidden", "a worker's key")


def test_who_is_not_let_in_need_not_wait_for_a_deadline() -> None:
    core, _ = started()
    one, two = call(b"a"), call(b"b")
    ask(core, one)
    core.submit(two)
    assert core.handle(FIRST, Denied(conn(1), 0, 0, DENIED), [], 0.1) == [Failed([one, two], DENIED)]
    assert core.is_idle
    assert core.tick(40.0) == []


def test_who_is_not_let_in_and_asks_for_nothing_hears_nothing() -> None:
    core, _ = started()
    assert core.handle(FIRST, Denied(conn(1), 0, 0, DENIED), [], 0.1) == []


def test_what_another_broker_denies_changes_nothing() -> None:
    core, _ = started(brokers=2)
    ask(core, call(b"a"))
    core.tick(3.0)
    assert core.handle(FIRST, Denied(conn(1), 0, 0, DENIED), [], 3.1) == []


def test_a_broker_that_speaks_another_version_is_an_error_that_says_so() -> None:
    core, _ = started()
    one = call(b"a")
    ask(core, one)
    assert core.foreign(FIRST, "protocol version 2 was sent, version 1 is spoken here") == [
        Failed([one], Fault("protocol_mismatch", "protocol version 2 was sent, version 1 is spoken here"))
    ]


# --- asking again --------------------------------------------------------------------------------


def patient() -> ClientCore:
    """Return a client that asks again where there is no room; its dice always show 64."""
    core = ClientCore(1, LIFE, lambda size: b"\0" * (size - 1) + b"\x40", Timing(), retry=True)
    core.start(0.0)
    core.handle(FIRST, Welcome(b"\0" * 7 + b"\x40", 1, 1, EPOCH, 1), [], 0.0)
    return core


def refused(core: ClientCore, retry_after_ms: int, now: float) -> list[Action]:
    fault = Fault("overloaded", "full", retry_after_ms)
    return core.handle(FIRST, Refused(b"\0" * 7 + b"\x40", 3, 9, [Refusal([(1, 2)], fault)]), [], now)


def test_a_patient_client_asks_again_a_little_later_than_it_was_told() -> None:
    core = patient()
    ask(core, call(b"a"))
    assert refused(core, 8_000, 0.0) == []
    assert offered(core.tick(8.9)) == []
    assert offered(core.tick(9.0)) == [(1, False)]


def test_a_patient_client_does_not_wait_for_what_comes_after_its_deadline() -> None:
    core = patient()
    one = call(b"a", timeout=9.0)
    ask(core, one)
    assert ended(refused(core, 8_000, 0.0)) == [(one, "overloaded")]
