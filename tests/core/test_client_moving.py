"""A client with several brokers asks one; it moves on from one that is quiet, leaves or has no workers."""

from __future__ import annotations

from typing import Any

from tests.core.asking import (
    FIRST,
    SECOND,
    ask,
    call,
    call_of,
    conn,
    connected,
    ended,
    hello,
    pulse,
    refuse,
    result,
    sent_again,
    started,
    welcome,
)
from zbatch.core.actions import Send
from zbatch.core.brokers import LONGEST_PATIENCE
from zbatch.core.client import MOVES, ClientCore
from zbatch.core.ledger import GIVEN_BACK_BEGUN
from zbatch.messages import Beat, Bulk, Bye, Cancel, Fault, Group, Hello, Request, Who

LEAVING = Fault("draining", "leaving", 500)
STOPPED = Fault("cancelled", "the client is closed")


def peers(actions: list[Any]) -> list[bytes]:
    return [action.peer for action in actions if isinstance(action, Send)]


def left_with_one_running() -> ClientCore:
    """Return a client that has left its first broker, where 1 still runs; 2 came back."""
    core = connected(brokers=2)
    ask(core, call(b"a"), now=1.0)
    ask(core, call(b"b", key="en"), now=1.0)
    refuse(core, LEAVING, (2, 3), now=1.0)
    return core


# --- a broker that leaves ------------------------------------------------------------------------


def test_a_client_that_waits_for_nothing_asks_elsewhere_when_its_broker_leaves() -> None:
    core = connected(brokers=2)
    assert peers(refuse(core, LEAVING, now=1.0)) == [SECOND]
    welcome(core, peer=SECOND, connection=2)
    assert peers(ask(core, call(b"a"), now=2.0)) == [SECOND]


def test_the_only_broker_is_asked_on_though_it_leaves() -> None:
    core = connected()
    assert refuse(core, LEAVING, now=1.0) == []
    assert peers(ask(core, call(b"a"), now=2.0)) == [FIRST]


# --- a broker that is quiet ----------------------------------------------------------------------


def test_a_broker_that_announces_something_large_and_dies_is_left_all_the_same() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a", timeout=120.0), now=1.0)
    core.handle(FIRST, Bulk(conn(1), 2, 2, 200 << 20), [], 1.0)
    assert SECOND not in {peer for second in range(2, 34) for peer in peers(core.tick(float(second)))}
    assert SECOND in peers(core.tick(34.0))


def test_when_a_broker_goes_quiet_the_next_one_is_asked() -> None:
    core = connected(brokers=2)
    one = call(b"a")
    ask(core, one, now=1.0)
    assert [action.peer for action in core.tick(3.9) if isinstance(action, Send)] == [FIRST]
    moved = core.tick(4.0)
    assert moved[0] == Send(SECOND, hello(2, (1, 2), next=2))
    again = welcome(core, (1, 2), peer=SECOND, connection=2, now=4.1)
    assert sent_again(again) == [Group(1, "bert", 25_900, [b"a"], again=True)]
    assert [action.peer for action in again if isinstance(action, Send)] == [SECOND]


def test_the_first_outcome_counts_whichever_broker_brings_it() -> None:
    core = connected(brokers=2)
    one = call(b"a")
    ask(core, one, now=1.0)
    core.tick(4.0)
    welcome(core, (1, 2), peer=SECOND, connection=2, now=4.1)
    assert ended(result(core, 1, b"y", peer=FIRST, connection=1)) == [(one, b"y")]
    assert ended(result(core, 1, b"y", peer=SECOND, connection=2)) == []


def test_a_broker_that_answers_is_kept() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a"), now=1.0)
    for second in range(2, 12):
        core.tick(float(second))
        assert pulse(core, now=float(second)) == []
    assert core.tick(12.5) == [Send(FIRST, Beat(conn(1), 13, 2, [(1, 2)], 2))]


def test_where_none_answers_each_is_tried_in_turn() -> None:
    core, _ = started(brokers=2)
    ask(core, call(b"a", timeout=60.0))
    tried = [
        action.peer
        for second in range(1, 10)
        for action in core.tick(float(second))
        if isinstance(action, Send) and isinstance(action.message, Hello) and action.message.number == 1
    ]
    assert tried == [FIRST, FIRST, SECOND, SECOND, SECOND, FIRST, FIRST, FIRST, SECOND]


def test_the_word_of_a_broker_that_was_left_changes_nothing_else() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a"), now=1.0)
    core.tick(4.0)
    assert core.handle(FIRST, Who(conn(1), 0, 0), [], 4.1) == []
    assert welcome(core, (1, 2), peer=FIRST, connection=3, now=4.2) == []


def test_nobody_is_left_while_nothing_waits() -> None:
    core = connected(brokers=2)
    assert core.tick(99.0) == []


def test_a_broker_that_was_quiet_is_told_that_nothing_is_wanted_of_it() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a"), now=1.0)
    core.tick(3.9)
    assert core.tick(4.0) == [
        Send(SECOND, hello(2, (1, 2), next=2)),
        Send(FIRST, Beat(conn(1), 4, 1, [], 2)),
    ]


# --- a broker that leaves ------------------------------------------------------------------------


def test_a_broker_that_hands_back_is_left_and_the_next_gets_it_as_for_the_first_time() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a"), now=1.0)
    assert refuse(core, LEAVING, (1, 2), now=1.0) == [Send(SECOND, hello(2, next=2))]
    assert welcome(core, peer=SECOND, connection=2, now=1.1) == []
    assert core.tick(1.49) == []
    assert core.tick(1.5) == [Send(SECOND, Request(conn(2), 2, 1, [Group(1, "bert", 28_500, [b"a"])]), [])]


def test_a_call_of_several_that_comes_back_whole_may_be_admitted_whole() -> None:
    core = connected(brokers=2)
    ask(core, call_of(b"a", b"b"), now=1.0)
    refuse(core, LEAVING, (1, 3), now=1.0)
    welcome(core, peer=SECOND, connection=2, now=1.1)
    assert sent_again(core.tick(1.5)) == [Group(1, "bert", 28_500, [b"a", b"b"], whole=True)]


def test_what_comes_back_from_a_later_stage_is_sent_as_what_may_have_run() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a"), now=1.0)
    refuse(core, GIVEN_BACK_BEGUN, (1, 2), now=1.2)
    welcome(core, peer=SECOND, connection=2, now=1.3)
    assert sent_again(core.tick(2.1)) == []
    assert sent_again(pulse(core, (1, 2), now=2.2)) == [Group(1, "bert", 27_800, [b"a"], again=True)]


def test_of_a_call_that_comes_back_in_part_the_part_is_sent_again() -> None:
    core = connected(brokers=2)
    ask(core, call_of(b"a", b"b"), now=1.0)
    refuse(core, LEAVING, (2, 3), now=1.0)
    welcome(core, peer=SECOND, connection=2, now=1.1)
    assert sent_again(core.tick(1.5)) == []
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.6)
    assert sent_again(pulse(core, (1, 3), peer=SECOND, connection=2, now=2.0)) == [
        Group(1, "bert", 28_000, [b"a", b"b"], again=True)
    ]


def test_where_there_is_no_other_broker_one_that_hands_back_is_asked_again() -> None:
    core = connected()
    ask(core, call(b"a"), now=1.0)
    assert refuse(core, LEAVING, (1, 2), now=1.0) == []
    assert sent_again(core.tick(1.5)) == [Group(1, "bert", 28_500, [b"a"])]


def test_what_runs_at_a_broker_that_was_left_may_end_there() -> None:
    core = left_with_one_running()
    assert welcome(core, peer=SECOND, connection=2, now=1.1) == []
    core.tick(1.5)
    assert Send(FIRST, Beat(conn(1), 4, 3, [(1, 2)], 3)) in core.tick(2.2)
    assert len(ended(result(core, 1, b"y", now=2.3))) == 1


def test_a_broker_that_was_left_is_forgotten_once_nothing_of_ours_is_there() -> None:
    core = left_with_one_running()
    welcome(core, peer=SECOND, connection=2, now=1.1)
    result(core, 1, b"y", now=1.2)
    assert FIRST in peers(core.tick(2.2))
    assert FIRST not in peers(core.tick(3.3))


def test_what_a_broker_that_was_left_misses_is_sent_to_the_one_that_is_asked() -> None:
    core = left_with_one_running()
    welcome(core, peer=SECOND, connection=2, now=1.1)
    again = pulse(core, (1, 2), now=2.0)
    assert peers(again) == [SECOND]
    assert sent_again(again) == [Group(1, "bert", 28_000, [b"a"], again=True)]


def test_what_a_broker_that_was_left_misses_waits_until_another_is_there() -> None:
    core = left_with_one_running()
    assert pulse(core, (1, 2), now=1.1) == []


def test_a_broker_that_was_left_and_does_not_know_us_has_nothing_of_ours() -> None:
    core = left_with_one_running()
    welcome(core, peer=SECOND, connection=2, now=1.1)
    assert core.handle(FIRST, Who(conn(1), 0, 0), [], 1.2) == []
    assert Send(SECOND, Beat(conn(2), 3, 1, [(1, 2), (2, 3)], 3)) not in core.tick(1.3)
    assert sent_again(pulse(core, (1, 2), peer=SECOND, connection=2, now=2.0)) == [
        Group(1, "bert", 28_000, [b"a"], again=True)
    ]


def test_a_broker_that_was_left_and_goes_quiet_is_told_that_nothing_is_wanted_of_it() -> None:
    core = left_with_one_running()
    welcome(core, peer=SECOND, connection=2, now=1.1)
    core.tick(3.0)
    pulse(core, peer=SECOND, connection=2, now=3.5)
    last = core.tick(4.1)
    assert [one for one in last if isinstance(one, Send) and one.peer == FIRST] == [
        Send(FIRST, Beat(conn(1), 5, 3, [], 3))
    ]
    assert sent_again(pulse(core, (1, 2), peer=SECOND, connection=2, now=4.2)) == [
        Group(1, "bert", 25_800, [b"a"], again=True)
    ]


def test_a_cancel_goes_to_the_broker_that_has_the_item() -> None:
    core = connected(brokers=2)
    one = call(b"a")
    ask(core, one, now=1.0)
    ask(core, call(b"b", key="en"), now=1.0)
    refuse(core, LEAVING, (2, 3), now=1.0)
    assert core.cancel(one, 1.1) == [Send(FIRST, Cancel(conn(1), 4, 3, [(1, 2)]))]


def test_a_client_that_stops_says_goodbye_to_each_that_knows_it() -> None:
    core = left_with_one_running()
    welcome(core, peer=SECOND, connection=2, now=1.1)
    goodbyes = [one for one in core.stop(STOPPED) if isinstance(one, Send)]
    assert goodbyes == [Send(SECOND, Bye(conn(2), 2, 1)), Send(FIRST, Bye(conn(1), 4, 3))]


def test_a_broker_that_was_left_and_is_asked_again_knows_us_still() -> None:
    core = left_with_one_running()
    welcome(core, peer=SECOND, connection=2, now=1.1)
    core.tick(1.5)
    assert refuse(core, LEAVING, (2, 3), peer=SECOND, connection=2, now=1.6) == []
    assert sent_again(core.tick(2.1)) == [Group(2, "bert", 27_900, [b"b"], key="en")]
    assert len(ended(result(core, 1, b"y", now=2.2))) == 1


# --- a broker without workers --------------------------------------------------------------------


def test_what_no_worker_serves_is_asked_back_after_a_while() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a"), call(b"b"), now=1.0)
    ask(core, call(b"c", topic="gpt"), now=1.0)
    assert pulse(core, unserved=["bert"], now=2.0) == []
    assert pulse(core, unserved=["bert"], now=4.9) == []
    assert pulse(core, unserved=["bert"], now=5.0) == [
        Send(FIRST, Cancel(conn(1), 4, 2, [(1, 3)], back=True))
    ]
    assert refuse(core, LEAVING, (1, 3), now=5.1) == [Send(SECOND, hello(2, next=4))]


def test_where_a_worker_comes_in_time_nothing_is_asked_back() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a"), now=1.0)
    pulse(core, unserved=["bert"], now=2.0)
    pulse(core, now=4.0)
    assert pulse(core, unserved=["bert"], now=5.0) == []


def test_without_another_broker_nothing_is_asked_back() -> None:
    core = connected()
    ask(core, call(b"a"), now=1.0)
    for second in range(2, 12):
        assert pulse(core, unserved=["bert"], now=float(second)) == []


def going_round(core: ClientCore, topics: dict[bytes, list[str]], seconds: range) -> list[int]:
    """Let both brokers beat and give back what is asked back; return when anything was."""
    asked, connection = [], 1
    now_asked = FIRST
    for second in seconds:
        now = float(second)
        actions = pulse(core, peer=now_asked, connection=connection, unserved=topics[now_asked], now=now)
        if any(isinstance(one, Send) and isinstance(one.message, Cancel) for one in actions):
            asked.append(second)
            refuse(core, LEAVING, (1, 2), peer=now_asked, connection=connection, now=now)
            now_asked = SECOND if now_asked == FIRST else FIRST
            connection += 1
            welcome(core, peer=now_asked, connection=connection, now=now)
        core.tick(now + 0.9)
    return asked


def test_where_no_broker_has_workers_each_is_borne_twice_as_long_a_few_times() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a", timeout=900.0), now=0.0)
    asked = going_round(core, {FIRST: ["bert"], SECOND: ["bert"]}, range(1, 800))
    assert asked == [4, 10, 22, 37, 52, 52 + LONGEST_PATIENCE]
    assert len(asked) == MOVES


def test_once_a_topic_is_served_its_next_lack_of_workers_is_not_borne_for_long() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a", timeout=900.0), now=0.0)
    assert going_round(core, {FIRST: ["bert"], SECOND: []}, range(1, 50)) == [4]
    pulse(core, peer=SECOND, connection=2, unserved=["bert"], now=50.0)
    assert pulse(core, peer=SECOND, connection=2, unserved=["bert"], now=53.0) != []


def test_where_no_broker_that_answers_has_workers_the_error_says_that() -> None:
    core = connected(brokers=2)
    one = call(b"a", timeout=5.0)
    ask(core, one, now=0.0)
    assert going_round(core, {FIRST: ["bert"], SECOND: ["bert"]}, range(1, 5)) == [4]
    core.handle(SECOND, Who(conn(2), 0, 0), [], 4.5)
    assert ended(core.tick(5.1)) == [(one, "no_workers")]


def test_what_is_not_given_back_is_asked_back_again_soon() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a", timeout=900.0), now=0.0)
    asked = [second for second in range(1, 12) if pulse(core, unserved=["bert"], now=float(second))]
    assert asked == [4, 7, 10]


def test_a_topic_that_nobody_serves_does_not_make_the_others_wait_longer() -> None:
    core = connected(brokers=2)
    ask(core, call(b"a", timeout=900.0, topic="gpt"), now=0.0)
    assert going_round(core, {FIRST: ["gpt"], SECOND: ["gpt"]}, range(1, 39)) == [4, 10, 22, 37]
    ask(core, call(b"b", timeout=900.0), now=39.0)
    pulse(core, connection=5, unserved=["bert", "gpt"], now=40.0)
    assert pulse(core, connection=5, unserved=["bert", "gpt"], now=43.0) == [
        Send(FIRST, Cancel(conn(5), 5, 2, [(2, 3)], back=True))
    ]


def test_a_broker_that_was_left_gives_back_at_once_what_has_no_worker_there() -> None:
    core = left_with_one_running()
    welcome(core, peer=SECOND, connection=2, now=1.1)
    assert pulse(core, unserved=["bert"], now=2.0) == [
        Send(FIRST, Cancel(conn(1), 4, 2, [(1, 2)], back=True))
    ]
