"""When a supervisor starts and ends model processes, and what it tells of them: each death counts once."""

from __future__ import annotations

from itertools import count

from zbatch.config import Timing
from zbatch.core.actions import Send
from zbatch.core.supervisor import Brake, Lease, Restarts, SupervisorCore
from zbatch.messages import Bye, Child, Children, Hello, Pulse, Welcome, Who

LIFE = b"supervisor life!"
FIRST, SECOND = b"\0", b"\1"
ALIVE = Child(b"child..1", alive=True, restarts=0, gpu="0", state="ready")
DEAD = Child(b"child..1", alive=False, epoch=b"epoch..1", begun=7, finished=6, exit=-9, reason="killed")
OTHER = Child(b"child..2", alive=True, restarts=1, gpu="0", state="loading")


def conn(number: int) -> bytes:
    return number.to_bytes(8)


def supervisor(brokers: int = 1) -> SupervisorCore:
    """Return a supervisor whose connections are numbered from 1, introduced at 0.0."""
    numbers = count(1)
    core = SupervisorCore(
        brokers, LIFE, lambda size: next(numbers).to_bytes(size), Timing(), "bert", host="gpu-box", pid=12
    )
    core.start(0.0)
    return core


def welcome(core: SupervisorCore, peer: bytes = FIRST, connection: int = 1, now: float = 0.0) -> list[Send]:
    return core.handle(peer, Welcome(conn(connection), 1, 1, b"epoch..1", 1), [], now)


def acknowledge(core: SupervisorCore, number: int, peer: bytes = FIRST, connection: int = 1) -> None:
    """Let a broker say that it has received the messages up to a number."""
    assert core.handle(peer, Pulse(conn(connection), 9, number), [], 0.0) == []


def listed(actions: list[Send]) -> list[list[Child]]:
    return [action.message.children for action in actions if isinstance(action.message, Children)]


def test_it_introduces_itself_to_each_broker() -> None:
    numbers = count(1)
    core = SupervisorCore(
        2, LIFE, lambda size: next(numbers).to_bytes(size), Timing(), "bert", host="h" * 70, pid=12
    )
    assert core.start(0.0) == [
        Send(FIRST, Hello(conn(1), 1, 0, LIFE, "supervisor", 1, host="h" * 64, pid=12)),
        Send(SECOND, Hello(conn(2), 1, 0, LIFE, "supervisor", 1, host="h" * 64, pid=12)),
    ]


def test_a_broker_that_does_not_answer_is_greeted_again_each_beat() -> None:
    core = supervisor()
    assert core.wakeup() == 1.0
    assert core.tick(0.9) == []
    assert core.tick(1.0) == [
        Send(FIRST, Hello(conn(1), 1, 0, LIFE, "supervisor", 1, host="gpu-box", pid=12))
    ]
    assert core.wakeup() == 2.0


def test_a_welcome_is_answered_with_the_list_of_children() -> None:
    core = supervisor()
    assert core.changed(ALIVE, 0.0) == []
    assert welcome(core) == [Send(FIRST, Children(conn(1), 2, 1, "bert", [ALIVE]))]


def test_its_beat_is_the_list_of_children() -> None:
    core = supervisor()
    core.changed(ALIVE, 0.0)
    welcome(core)
    assert core.tick(1.0) == [Send(FIRST, Children(conn(1), 3, 1, "bert", [ALIVE]))]


def test_a_change_is_told_at_once_and_moves_the_next_beat() -> None:
    core = supervisor()
    welcome(core)
    assert core.changed(ALIVE, 0.5) == [Send(FIRST, Children(conn(1), 3, 1, "bert", [ALIVE]))]
    assert core.wakeup() == 1.5


def test_a_child_is_listed_once_as_it_is_now() -> None:
    core = supervisor()
    welcome(core)
    core.changed(ALIVE, 0.0)
    core.changed(OTHER, 0.0)
    assert listed(core.changed(DEAD, 0.0)) == [[DEAD, OTHER]]


def test_a_dead_child_is_listed_until_the_first_telling_is_acknowledged() -> None:
    core = supervisor()
    welcome(core)
    core.changed(ALIVE, 0.0)
    core.changed(DEAD, 0.0)  # message 4
    core.tick(2.0)  # message 5
    acknowledge(core, 3)
    assert listed(core.tick(3.0)) == [[DEAD]]
    acknowledge(core, 4)
    assert listed(core.tick(4.0)) == [[]]


def test_a_broker_that_is_lost_for_good_keeps_no_death_on_the_list() -> None:
    core = supervisor(brokers=2)
    welcome(core, FIRST, 1)
    welcome(core, SECOND, 2)
    core.changed(DEAD, 1.0)
    acknowledge(core, 3, FIRST, 1)
    assert listed(core.tick(11.9)) == [[DEAD], [DEAD]]
    assert listed(core.tick(12.0)) == []
    assert listed(core.tick(13.0)) == [[], []]


def test_a_living_child_stays_listed_whatever_is_acknowledged() -> None:
    core = supervisor()
    welcome(core)
    core.changed(ALIVE, 0.0)
    acknowledge(core, 3)
    assert listed(core.tick(1.0)) == [[ALIVE]]


def test_a_death_told_on_an_old_connection_is_told_again_on_the_new_one() -> None:
    core = supervisor()
    welcome(core)
    core.changed(DEAD, 0.0)
    greeting = core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    assert greeting == [Send(FIRST, Hello(conn(2), 1, 0, LIFE, "supervisor", 1, host="gpu-box", pid=12))]
    assert listed(welcome(core, connection=2)) == [[DEAD]]  # message 2 of the new connection
    acknowledge(core, 1, connection=2)
    assert listed(core.tick(3.0)) == [[DEAD]]
    acknowledge(core, 2, connection=2)
    assert listed(core.tick(4.0)) == [[]]


def test_what_an_old_connection_left_in_the_pipe_acknowledges_nothing() -> None:
    core = supervisor()
    welcome(core)
    core.changed(DEAD, 0.0)
    core.handle(FIRST, Who(conn(1), 0, 0), [], 1.0)
    welcome(core, connection=2)
    acknowledge(core, 9, connection=1)
    assert listed(core.tick(3.0)) == [[DEAD]]


def test_a_death_is_listed_until_every_broker_that_is_there_has_heard_of_it() -> None:
    core = supervisor(brokers=2)
    welcome(core, FIRST, 1)
    welcome(core, SECOND, 2)
    core.changed(DEAD, 0.0)
    acknowledge(core, 3, FIRST, 1)
    assert listed(core.tick(1.0)) == [[DEAD], [DEAD]]
    acknowledge(core, 3, SECOND, 2)
    assert listed(core.tick(2.0)) == [[], []]


def test_a_broker_that_is_not_there_keeps_no_death_on_the_list() -> None:
    core = supervisor(brokers=2)
    welcome(core, FIRST, 1)
    core.changed(DEAD, 0.0)
    acknowledge(core, 3, FIRST, 1)
    assert listed(core.tick(1.0)) == [[]]


def test_it_says_goodbye_to_brokers_that_know_it() -> None:
    core = supervisor(brokers=2)
    welcome(core, FIRST, 1)
    assert core.stop() == [Send(FIRST, Bye(conn(1), 3, 1))]


def test_a_lease_is_over_when_more_time_has_passed_than_was_noted() -> None:
    lease = Lease()
    assert not lease.is_over(until=10.0, now=10.0)
    assert lease.is_over(until=10.0, now=10.1)
    assert not lease.is_over(until=20.0, now=10.1)


def test_our_own_pause_is_no_time_in_which_a_batch_ran() -> None:
    lease = Lease()
    assert not lease.is_over(until=10.0, now=9.0)
    lease.slept(until=10.0, lag=4.9)
    lease.slept(until=10.0, lag=1.0)
    assert not lease.is_over(until=10.0, now=15.9)
    assert lease.is_over(until=10.0, now=16.0)


def test_a_lease_that_began_unseen_before_our_pause_is_moved_too() -> None:
    lease = Lease()
    lease.slept(until=10.0, lag=5.0)
    assert not lease.is_over(until=10.0, now=15.0)


def test_a_lease_that_begins_after_our_pause_is_not_moved() -> None:
    lease = Lease()
    lease.slept(until=10.0, lag=5.0)
    assert lease.is_over(until=11.0, now=11.1)


def test_a_child_that_dies_is_started_at_once_and_from_the_fifth_death_later_and_later() -> None:
    brake = Brake()
    pauses = [brake.died(finished=False) for _ in range(12)]
    assert pauses == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_finished_batch_lets_the_brake_go() -> None:
    brake = Brake()
    pauses = [brake.died(finished=finished) for finished in (False,) * 5 + (True,) + (False,) * 4]
    assert pauses == [0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.5]


def test_a_brake_never_overflows() -> None:
    assert Brake(deaths=5_000).died(finished=False) == 30.0


def deaths(
    restarts: Restarts, times: int, *, loaded: bool = True, finished: bool = False, apart: bool = False
) -> list[float]:
    return [restarts.died(loaded=loaded, finished=finished, apart=apart) for _ in range(times)]


def test_a_model_that_fails_to_load_three_times_in_a_row_is_given_up() -> None:
    restarts = Restarts()
    assert deaths(restarts, 2, loaded=False) == [0.5, 1.0]
    assert deaths(restarts, 1, loaded=True) == [0.0]
    assert deaths(restarts, 2, loaded=False) == [0.5, 1.0]
    assert (restarts.count, restarts.given_up) == (5, False)
    assert deaths(restarts, 1, loaded=False) == [2.0]
    assert (restarts.count, restarts.given_up) == (6, True)


def test_what_is_no_model_is_given_up_at_once_unless_it_was_one_before() -> None:
    restarts = Restarts()
    assert restarts.died(loaded=False, finished=False, apart=False, refused=True) == 0.0
    assert (restarts.failed_loads, restarts.given_up) == (1, True)

    changed = Restarts()
    deaths(changed, 1, loaded=True, finished=True)
    assert changed.died(loaded=False, finished=False, apart=False, refused=True) == 0.5
    assert not changed.given_up


def test_a_poison_item_that_is_being_found_brakes_nothing() -> None:
    restarts = Restarts()
    assert deaths(restarts, 20, apart=True) == [0.0] * 20
    assert deaths(restarts, 5) == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert deaths(restarts, 1, finished=True) == [0.0]
