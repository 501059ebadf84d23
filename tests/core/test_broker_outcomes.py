"""How items end: answers that count and answers that do not, cancelling, deadlines."""

from __future__ import annotations

from typing import Any

from tests.core.driving import EPOCH, Cluster, gives_back, group
from tests.core.hearing import batch_ids, batches, outcomes
from zbatch.core.ledger import GIVEN_BACK
from zbatch.messages import Batch, Bye, Cancel, Done, Fault, Refusal, Refused, Request, Result

FAILED = Fault("model_failed", "no")


def texts(messages: list[Any]) -> list[str]:
    return [
        one.fault.text for message in messages if isinstance(message, Refused) for one in message.refusals
    ]


def running(items: int = 2, **asked: Any) -> tuple[Cluster, Any, Any, Batch]:
    """Return a cluster whose only worker runs the only batch."""
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, items, **asked)
    (batch,) = batches(worker.told())
    return cluster, worker, client, batch


# --- answers -------------------------------------------------------------------------------------


def test_an_item_that_failed_fails_alone() -> None:
    _, worker, client, batch = running(3)
    worker.answers(batch, b"y0", b"", b"y2", errors=[(1, FAILED)])
    assert outcomes(client.told()) == {0: b"y0", 1: "model_failed", 2: b"y2"}


def test_an_answer_counts_once() -> None:
    cluster, worker, client, batch = running()
    worker.answers(batch)
    client.told()
    worker.answers(batch)
    assert client.told() == []
    assert cluster.core.counters["answer_without_a_question"] == 1


def test_an_answer_with_a_wrong_number_of_outputs_is_none() -> None:
    _, worker, client, batch = running(2)
    worker.answers(batch, b"y0")
    assert client.told() == []
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0", 1: b"yx1"}


def test_an_answer_of_another_epoch_attempt_or_incarnation_is_none() -> None:
    _, worker, client, batch = running(1)
    for epoch, number, attempt, incarnation in (
        (b"epoch..0", 1, 1, worker.incarnation),
        (EPOCH, 2, 1, worker.incarnation),
        (EPOCH, 1, 2, worker.incarnation),
        (EPOCH, 1, 1, b"child..9"),
    ):
        worker.says(Done, epoch, number, attempt, incarnation, [b"y"], None, None, 5.0)
    assert client.told() == []
    assert batch.batch == 1


def test_an_answer_from_one_who_offered_nothing_is_none() -> None:
    cluster = Cluster()
    stranger = cluster.stranger_worker()
    stranger.says(Done, EPOCH, 1, 1, stranger.incarnation, [b"y"], None, None, 5.0)
    assert cluster.core.counters["answer_without_a_question"] == 1


def test_outputs_of_one_turn_leave_as_one_message_a_client() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.says(Request, [group(0, 1), group(5, 1)])
    (batch,) = batches(worker.told())
    worker.answers(batch)
    (result,) = client.told()
    assert isinstance(result, Result)
    assert [(span.base, span.outputs) for span in result.spans] == [(0, [b"yx0"]), (5, [b"yx5"])]


def test_buffers_of_outputs_go_to_the_clients_whose_items_they_are() -> None:
    cluster = Cluster()
    ada, bob = cluster.client("ada"), cluster.client("bob")
    ada.asks(0, 1)
    bob.asks(0, 2)
    worker = cluster.worker()
    done = (EPOCH, 1, 1, worker.incarnation, [b"a", b"b", b"c"], [1, 0, 2], None, 5.0)
    worker.says(Done, *done, frames=[b"p", b"q", b"r"])
    assert ([one.frames for one in ada.inbox], [one.frames for one in bob.inbox]) == (
        [[b"p"]],
        [[b"q", b"r"]],
    )


def test_each_item_of_a_batch_of_several_groups_gets_what_is_its_own() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(), cluster.client()
    client.says(Request, [group(0, 6), group(10, 2)])
    _, batch = batches(worker.told())
    client.says(Cancel, [(5, 6)])
    worker.answers(batch, b"four", b"five", b"", b"eleven", errors=[(2, FAILED)])
    assert outcomes(client.told()) == {4: b"four", 10: "model_failed", 11: b"eleven"}


# --- late answers: others have the batch now ------------------------------------------------------


def withdrawn() -> tuple[Cluster, Any, Any, Any, Batch, Batch]:
    """Return a cluster whose first worker's second batch was given to the second worker."""
    cluster = Cluster()
    one, client = cluster.worker("w1"), cluster.client()
    client.asks(0, 8)
    _, late = batches(one.told())
    two = cluster.worker("w2", now=2.0)
    cluster.turn(3.0)
    (again,) = batches(two.told())
    return cluster, one, two, client, late, again


def test_what_a_client_asks_back_comes_back_where_no_worker_has_it() -> None:
    cluster = Cluster()
    client = cluster.client()
    worker = cluster.worker(size=2)
    client.asks(0, 2)
    client.asks(2, 8)
    (running, _) = batches(worker.told())
    (refused,) = client.says(Cancel, [(0, 10)], back=True)
    assert refused.refusals == [Refusal([(4, 10)], GIVEN_BACK)]
    worker.answers(running)
    assert outcomes(client.told()) == {0: b"yx0", 1: b"yx1"}


def test_a_late_answer_counts_for_what_has_no_outcome_yet() -> None:
    _, one, two, client, late, again = withdrawn()
    two.answers(again, b"a", b"", b"c", b"d", errors=[(1, FAILED)], now=3.1)
    assert outcomes(client.told()) == {4: b"a", 5: "model_failed", 6: b"c", 7: b"d"}
    one.answers(late, now=3.2)
    assert client.told() == []


def test_a_late_error_is_no_outcome_while_others_try() -> None:
    _, one, two, client, late, again = withdrawn()
    one.answers(late, b"", b"b", b"c", b"d", errors=[(0, FAILED)], now=3.1)
    assert outcomes(client.told()) == {5: b"b", 6: b"c", 7: b"d"}
    two.answers(again, now=3.2)
    assert outcomes(client.told()) == {4: b"yx4"}


def test_a_late_answer_counts_once() -> None:
    cluster, one, _, client, late, _ = withdrawn()
    one.answers(late, now=3.1)
    client.told()
    one.answers(late, now=3.2)
    assert client.told() == []
    assert cluster.core.counters["answer_without_a_question"] == 1


def test_the_last_sixteen_batches_that_a_worker_lost_may_be_answered_late() -> None:
    for losses, found in ((16, {0: b"yx0"}), (17, {})):
        cluster = Cluster()
        worker, client = cluster.worker(), cluster.client()
        client.asks(0, 1)
        (first,) = batches(worker.told())
        told = gives_back(worker, first)
        for _ in range(losses - 1):
            told = gives_back(worker, *batches(told))
        worker.answers(first)
        assert outcomes(client.told()) == found


# --- cancelling ----------------------------------------------------------------------------------


def test_a_cancelled_item_that_waits_is_never_run() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 3)
    assert client.says(Cancel, [(1, 2)]) == []
    assert batch_ids(cluster.worker().greeted) == [[(0, 1), (2, 3)]]


def test_the_answer_of_a_cancelled_item_is_dropped() -> None:
    _, worker, client, batch = running(3)
    client.says(Cancel, [(1, 2)])
    worker.answers(batch)
    assert outcomes(client.told()) == {0: b"yx0", 2: b"yx2"}


def test_the_error_of_a_cancelled_item_is_dropped() -> None:
    _, worker, client, batch = running(2)
    client.says(Cancel, [(0, 1)])
    worker.answers(batch, b"", b"y1", errors=[(0, FAILED)])
    assert outcomes(client.told()) == {1: b"y1"}


def test_a_batch_that_runs_is_not_told_of_cancelled_items() -> None:
    _, worker, client, _ = running(2)
    client.says(Cancel, [(0, 2)])
    assert worker.told() == []


def test_cancelling_what_is_not_there_changes_nothing() -> None:
    cluster, worker, client, batch = running(2)
    client.says(Cancel, [(0, 1), (0, 1), (7, 2**40)])
    worker.answers(batch)
    assert outcomes(client.told()) == {1: b"yx1"}
    assert cluster.core.topics.all["bert"].items == 0


# --- deadlines -----------------------------------------------------------------------------------


def test_an_item_that_waits_beyond_its_deadline_is_never_run() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1, ms=1_000)
    assert 1.0 <= (cluster.core.wakeup() or 0.0) < 1.004
    cluster.turn(1.004)
    assert outcomes(client.told()) == {0: "no_workers"}
    assert batch_ids(cluster.worker(now=1.01).greeted) == []


def test_without_a_worker_the_error_says_how_to_start_one() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 1, ms=1_000, now=1.0)
    cluster.turn(2.004)
    assert texts(client.told()) == [
        "the deadline passed after 1.004 s and no worker served topic 'bert' meanwhile; "
        "start one with: zbatch worker MODEL --topic bert"
    ]


def test_without_a_worker_the_error_says_which_topics_have_some() -> None:
    cluster = Cluster()
    cluster.worker("w1", topic="resnet")
    client = cluster.client()
    client.asks(0, 1, ms=1_000, now=1.0)
    cluster.turn(2.004)
    (text,) = texts(client.told())
    assert text.endswith("zbatch worker MODEL --topic bert; served here: resnet")


def test_where_a_worker_served_meanwhile_the_deadline_was_exceeded() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1), cluster.client()
    client.asks(0, 1, ms=1_000)
    client.asks(1, 1, ms=1_000)
    cluster.turn(1.004)
    told = client.told()
    assert outcomes(told) == {0: "deadline_exceeded", 1: "deadline_exceeded"}
    assert texts(told) == [
        "the deadline passed after 1.004 s, while it ran",
        "the deadline passed after 1.004 s, while it waited (1 unfinished items here)",
    ]
    assert len(worker.told()) == 1


def test_a_worker_that_left_had_served_what_arrived_before_its_last_word() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(slots=1, now=0.5), cluster.client()
    client.asks(0, 1, ms=9_000, now=1.0)
    worker.told()
    client.asks(1, 1, ms=8_000, now=1.0)
    worker.says(Bye, now=2.0)
    client.asks(2, 1, ms=7_000, now=3.0)
    cluster.turn(10.004)
    assert outcomes(client.told()) == {0: "deadline_exceeded", 1: "deadline_exceeded", 2: "no_workers"}


def test_an_answer_after_the_deadline_is_dropped() -> None:
    cluster, worker, client, batch = running(1, ms=1_000)
    cluster.turn(1.004)
    assert outcomes(client.told()) == {0: "deadline_exceeded"}
    worker.answers(batch, now=1.1)
    assert client.told() == []


def test_items_of_one_group_end_each_at_its_own_deadline() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.asks(0, 3, ms=1_000, later_ms=[0, 0, 4_000])
    cluster.turn(1.004)
    assert outcomes(client.told()) == {0: "no_workers", 1: "no_workers"}
    cluster.turn(5.004)
    assert outcomes(client.told()) == {2: "no_workers"}
    assert cluster.core.topics.all["bert"].items == 0


def test_what_expires_in_the_turn_of_its_dispatch_is_not_handed_out() -> None:
    cluster = Cluster(batching="window", max_latency=0.001)
    worker, client = cluster.worker(), cluster.client()
    client.asks(0, 1, ms=1, now=1.0)
    cluster.turn(1.001)
    told = client.told()
    assert batches(worker.told()) == []
    assert outcomes(told) == {0: "deadline_exceeded"}


# --- what must not run twice ---------------------------------------------------------------------


def test_what_may_have_run_is_not_run_again_where_the_model_forbids_it() -> None:
    cluster = Cluster()
    worker, client = cluster.worker(idempotent=False), cluster.client()
    assert outcomes(client.says(Request, [group(0, 2, again=True)])) == {0: "worker_lost", 1: "worker_lost"}
    assert worker.told() == []


def test_only_the_items_that_were_sent_again_are_refused() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.says(Request, [group(0, 1, again=True), group(1, 1)])
    worker = cluster.worker(idempotent=False)
    assert batch_ids(worker.greeted) == [[(1, 2)]]
    assert outcomes(client.told()) == {0: "worker_lost"}
