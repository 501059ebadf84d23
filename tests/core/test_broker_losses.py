"""Workers that die or lose what they were sent: their items run again, and only the guilty end."""

from __future__ import annotations

from typing import Any

from tests.core.driving import EPOCH, Cluster, beats, dies, gives_back
from tests.core.hearing import batch_ids, batches, handed, ids, outcomes
from zbatch.core.ledger import GIVEN_BACK
from zbatch.core.retry import ATTEMPTS
from zbatch.messages import Beat, Bye, Cancel, Child, Children, Pulse, Refusal, Returned

# --- a process that died -------------------------------------------------------------------------


def test_the_batch_that_ran_is_halved_and_what_never_began_goes_back_unharmed() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    first, _ = batches(one.told())
    dies(supervisor, one, begun=first.batch)
    two = cluster.worker("w2")
    assert batch_ids(two.greeted) == [[(0, 2)], [(4, 8)]]
    apart, whole = batches(two.greeted)
    assert (apart.attempt, whole.attempt) == (2, 2)
    told = two.answers(apart) + two.answers(whole)
    assert batch_ids(told) == [[(2, 4)]]
    two.answers(batches(told)[0])
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(8)}


def test_an_item_that_alone_ends_two_processes_is_poison_and_its_neighbour_is_answered() -> None:
    cluster = Cluster()
    supervisor, worker, client = cluster.supervisor(), cluster.worker("w0"), cluster.client()
    client.asks(0, 2)
    (batch,) = batches(worker.told())
    seen: list[list[tuple[int, int]]] = [ids(batch)]
    for life in range(1, 6):
        # Whatever holds item 1 dies.
        if any(start <= 1 < stop for start, stop in ids(batch)):
            dies(supervisor, worker, begun=batch.batch)
            worker = cluster.worker(f"w{life}")
            told = worker.greeted
        else:
            told = worker.answers(batch)
        if not batches(told):
            break
        (batch,) = batches(told)
        seen.append(ids(batch))
    assert seen == [[(0, 2)], [(0, 1)], [(1, 2)], [(1, 2)]]
    assert outcomes(client.told()) == {0: b"yx0", 1: "poison_item"}


def test_batches_run_apart_one_at_a_time_and_others_work_on() -> None:
    cluster = Cluster()
    supervisor, client = cluster.supervisor(), cluster.client()
    one, two = cluster.worker("w1", slots=1), cluster.worker("w2", slots=1)
    client.asks(0, 4)
    (batch,) = batches(one.told())
    dies(supervisor, one, begun=batch.batch)
    assert handed(two) == [[(0, 2)]]
    client.asks(4, 1)
    three = cluster.worker("w3", slots=1)
    assert batch_ids(three.greeted) == [[(4, 5)]]


def test_what_waits_apart_and_has_ended_is_let_go_of_though_no_worker_is_there() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    dies(supervisor, one, begun=batch.batch)
    client.says(Cancel, [(0, 2)])
    assert len(cluster.core.topics.all["bert"].apart) == 1
    client.says(Cancel, [(2, 4)])
    assert not cluster.core.topics.all["bert"].apart


def test_what_waits_apart_is_not_given_back_for_elsewhere_nobody_would_know() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    client.asks(9, 1, priority=-1)
    (batch,) = batches(one.told())
    dies(supervisor, one, begun=batch.batch)
    (refused,) = client.says(Cancel, [(0, 20)], back=True)
    assert refused.refusals == [Refusal([(9, 10)], GIVEN_BACK)]


def test_a_batch_apart_that_never_began_stays_apart() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    dies(supervisor, one, begun=batch.batch)
    two = cluster.worker("w2")
    client.asks(4, 4)
    (apart,) = batches(two.greeted)
    assert ids(apart) == [(0, 2)]
    supervisor.says(Children, "bert", [])
    dies(supervisor, two, begun=0)
    assert batch_ids(cluster.worker("w3").greeted) == [[(0, 2)], [(4, 8)]]


def test_a_batch_that_had_run_and_whose_answer_was_lost_costs_an_attempt_and_no_suspicion() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    dies(supervisor, one, begun=batch.batch, finished=batch.batch)
    two = cluster.worker("w2")
    assert batch_ids(two.greeted) == [[(0, 4)]]
    assert [span.attempts for span in held_spans(cluster)] == [1]


def held_spans(cluster: Cluster) -> list[Any]:
    return [
        span
        for worker in cluster.core.dispatcher.workers.values()
        for handed_out in worker.holds.values()
        for span in handed_out.spans
    ]


def test_a_death_that_speaks_of_another_epoch_makes_nobody_guilty() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    one.told()
    dies(supervisor, one, begun=1, epoch=b"epoch..0")
    assert batch_ids(cluster.worker("w2").greeted) == [[(0, 4)]]
    assert [span.attempts for span in held_spans(cluster)] == [0]


def test_cancelled_items_of_a_dead_worker_do_not_run_again() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    client.says(Cancel, [(0, 3)])
    dies(supervisor, one, begun=batch.batch)
    assert batch_ids(cluster.worker("w2").greeted) == [[(3, 4)]]


def test_where_a_model_must_not_run_twice_a_death_ends_what_ran() -> None:
    cluster = Cluster()
    supervisor, client = cluster.supervisor(), cluster.client()
    one = cluster.worker("w1", idempotent=False)
    client.asks(0, 8)
    first, _ = batches(one.told())
    dies(supervisor, one, begun=first.batch)
    assert outcomes(client.told()) == dict.fromkeys(range(4), "worker_lost")
    assert batch_ids(cluster.worker("w2", idempotent=False).greeted) == [[(4, 8)]]


def test_a_beat_that_was_said_to_another_life_of_the_broker_loses_nothing() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", idempotent=False), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(one.told())
    assert batches(one.says(Beat, [], 0, 0, b"epoch..0")) == []
    one.answers(batch)
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4)}


def test_what_a_worker_returns_never_ran_though_it_was_taken_to_run() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", idempotent=False), cluster.client()
    client.asks(0, 8)
    first, second = batches(one.told())
    one.answers(first)
    assert batch_ids(gives_back(one, second)) == [[(4, 8)]]
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4)}


def test_where_a_model_must_not_run_twice_a_loss_without_a_word_ends_all_that_was_handed_over() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", idempotent=False), cluster.client()
    client.asks(0, 8)
    one.told()
    cluster.core.unreachable(one.peer, 1.0)
    cluster.turn(5.0)
    assert outcomes(client.told()) == dict.fromkeys(range(8), "worker_lost")
    assert batch_ids(cluster.worker("w2", idempotent=False, now=5.0).greeted) == []


def test_a_batch_that_found_no_connection_goes_elsewhere_at_once() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", idempotent=False), cluster.client()
    cluster.worker("w0", topic="clip")
    client.asks(0, 8)
    for batch in batches(one.told()):
        cluster.core.unreachable(one.peer, 1.0, batch)
    assert batch_ids(cluster.worker("w2", idempotent=False, now=1.0).greeted) == [[(0, 4)], [(4, 8)]]
    cluster.turn(5.0)
    assert outcomes(client.told()) == {}


def test_what_ran_for_this_broker_before_another_ones_batch_ended_the_process_did_run() -> None:
    cluster = Cluster()
    supervisor, one, client = cluster.supervisor(), cluster.worker("w1", idempotent=False), cluster.client()
    client.asks(0, 8)
    first, _ = batches(one.told())
    child = Child(
        one.incarnation, False, b"epoch..2", 5, 4, exit=-9, others=[(b"epoch..3", 9), (EPOCH, first.batch)]
    )
    supervisor.says(Children, "bert", [child])
    assert outcomes(client.told()) == dict.fromkeys(range(4), "worker_lost")
    assert batch_ids(cluster.worker("w2", idempotent=False).greeted) == [[(4, 8)]]


def test_another_word_that_found_no_connection_changes_nothing_about_the_batches() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 4)
    one.told()
    cluster.core.unreachable(one.peer, 1.0, Pulse(one.conn, 9, 9))
    assert batch_ids(cluster.worker("w2", now=1.0).greeted) == []


def test_where_a_model_must_not_run_twice_a_goodbye_gives_back_what_had_not_begun() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1", idempotent=False), cluster.client()
    client.asks(0, 8)
    one.told()
    one.says(Bye)
    assert outcomes(client.told()) == dict.fromkeys(range(4), "worker_lost")
    assert batch_ids(cluster.worker("w2", idempotent=False).greeted) == [[(4, 8)]]


# --- supervisors ---------------------------------------------------------------------------------


def test_a_death_counts_only_from_the_supervisor_that_announced_the_child() -> None:
    cluster = Cluster()
    supervisor, foreign = cluster.supervisor("s1"), cluster.supervisor("s2")
    worker = cluster.worker()
    supervisor.says(Children, "bert", [Child(worker.incarnation, alive=True)])
    dies(foreign, worker)
    assert cluster.core.counters["foreign_child"] == 1
    assert len(cluster.core.topics.all["bert"].roster) == 1
    dies(supervisor, worker)
    assert len(cluster.core.topics.all["bert"].roster) == 0


def test_a_child_that_is_not_listed_any_more_is_forgotten() -> None:
    cluster = Cluster()
    supervisor, worker = cluster.supervisor(), cluster.worker()
    supervisor.says(Children, "bert", [Child(worker.incarnation, alive=True)])
    supervisor.says(Children, "bert", [])
    assert cluster.core.dispatcher.children == {}


def test_a_supervisor_that_leaves_takes_its_children_off_the_list() -> None:
    cluster = Cluster()
    one, two = cluster.supervisor("s1"), cluster.supervisor("s2")
    one.says(Children, "bert", [Child(b"child..1", alive=True)])
    two.says(Children, "bert", [Child(b"child..2", alive=True)])
    one.says(Bye)
    assert list(cluster.core.dispatcher.children) == [b"child..2"]
    assert list(cluster.core.links.by_life) == [two.life]


# --- quiet losses --------------------------------------------------------------------------------


def test_a_worker_that_says_goodbye_gives_everything_back() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    one.told()
    one.says(Bye)
    assert cluster.core.dispatcher.workers == {}
    assert batch_ids(cluster.worker("w2").greeted) == [[(0, 4)], [(4, 8)]]


def test_the_death_of_a_worker_that_has_left_is_no_news() -> None:
    cluster = Cluster()
    supervisor, worker = cluster.supervisor(), cluster.worker()
    worker.says(Bye)
    dies(supervisor, worker)
    assert cluster.core.counters == {"worker_ready": 1}


def test_a_death_is_told_with_what_the_supervisor_saw_of_it() -> None:
    cluster = Cluster()
    supervisor, worker, client = cluster.supervisor(), cluster.worker(), cluster.client()
    client.asks(0, 8)
    cluster.core.events.clear()
    dies(supervisor, worker, begun=1)
    assert cluster.core.events == [
        (
            "worker died",
            {"topic": "bert", "host": "host", "pid": 1, "exit": -9, "reason": "killed", "held": 8},
        )
    ]


def test_a_goodbye_of_a_worker_without_an_offer_means_nothing() -> None:
    cluster = Cluster()
    cluster.stranger_worker().says(Bye)
    assert cluster.core.links.by_life == {}


def test_an_item_under_which_workers_are_lost_without_a_word_ends_after_three() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1)
    for life in range(ATTEMPTS):
        worker = cluster.worker(f"w{life}")
        assert batch_ids(worker.greeted) == [[(0, 1)]]
        worker.says(Bye)
    assert outcomes(client.told()) == {0: "worker_lost"}


def test_returned_batches_run_elsewhere_and_a_second_return_means_nothing() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    _, second = batches(one.told())
    assert batch_ids(gives_back(one, second)) == [[(4, 8)]]
    assert gives_back(one, second) == []


def test_what_is_returned_of_another_epoch_means_nothing() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 4)
    (batch,) = batches(worker.told())
    assert worker.says(Returned, b"epoch..0", [batch.batch]) == []
    worker.answers(batch)
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4)}


def test_a_batch_runs_as_often_as_the_item_in_it_that_ran_most_often() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 1)
    (first,) = batches(worker.told())
    client.asks(1, 1)
    (second,) = batches(gives_back(worker, first))
    assert (ids(second), second.attempt) == ([(0, 1), (1, 2)], 2)
    assert cluster.core.topics.all["bert"].tally.retries == 1


def test_a_batch_that_a_worker_does_not_name_was_lost_on_the_way() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 8)
    first, _ = batches(worker.told())
    told = worker.says(Beat, [(first.batch, first.batch + 1)], 0, first.batch)
    assert batch_ids(told) == [[(4, 8)]]
    assert cluster.core.counters["batch_lost_on_the_way"] == 1


def test_a_batch_that_is_still_travelling_is_not_missed() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 4)
    assert batch_ids(worker.says(Beat)) == [[(0, 4)]]
    assert "batch_lost_on_the_way" not in cluster.core.counters


def test_after_a_new_connection_only_what_the_worker_names_is_still_there() -> None:
    cluster = Cluster()
    old, client = cluster.worker(slots=3), cluster.client()
    client.asks(0, 12)
    assert len(old.told()) == 3
    new = cluster.again(old, epoch=EPOCH, open=[(1, 2)])
    assert batch_ids(new.greeted) == [[(4, 8)], [(8, 12)]]
    assert new.answers(batches(new.greeted)[0]) == []
    assert outcomes(client.told()) == {at: b"yx%d" % at for at in range(4, 8)}


def test_what_a_worker_named_on_its_new_connection_and_then_no_more_is_taken_back() -> None:
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    first, second = batches(one.told())
    again = cluster.again(one, open=[(first.batch, second.batch + 1)], epoch=EPOCH)
    two = cluster.worker("w2")
    beats(again, first, running=first.batch, now=1.0)
    assert handed(two) == [[(4, 8)]]


def test_a_worker_that_names_batches_of_another_epoch_names_none() -> None:
    cluster = Cluster()
    old, client = cluster.worker(), cluster.client()
    client.asks(0, 4)
    old.told()
    new = cluster.again(old, epoch=b"epoch..0", open=[(1, 2)])
    assert batch_ids(new.greeted) == [[(0, 4)]]
