"""When a batch closes: what each policy says to an idle worker."""

from __future__ import annotations

import pytest

from zbatch.core.batching import POLICIES, Decision, Eager, View, Window, pays_to_prefetch


def view(waiting: int, *, full: bool = False, limit: int = 32, oldest: float = 0.0) -> View:
    return View(waiting, full, limit, oldest, max_latency=0.010)


def test_eager_takes_what_waits_at_once() -> None:
    assert Eager().decide(view(1), 0.0) == Decision(1)


def test_eager_takes_no_more_than_the_worker_may_have() -> None:
    assert Eager().decide(view(40, full=True, limit=32), 0.0) == Decision(32)


def test_window_waits_for_company_until_the_oldest_item_has_waited_long_enough() -> None:
    policy = Window()
    assert policy.decide(view(3, oldest=1.0), 1.009) == Decision(0, 1.010)
    assert policy.decide(view(3, oldest=1.0), 1.010) == Decision(3)


def test_a_window_of_nothing_takes_what_waits_at_once() -> None:
    assert Window().decide(View(1, False, 32, oldest=1.0, max_latency=0.0), 1.0) == Decision(1)


def test_window_takes_a_full_batch_at_once() -> None:
    assert Window().decide(view(40, full=True, limit=32), 0.0) == Decision(32)


@pytest.mark.parametrize(
    ("run", "shared", "pays"), [(0.039, True, True), (0.040, True, False), (0.040, False, True)]
)
def test_where_runs_are_long_and_several_ask_it_does_not_pay_to_prefetch(
    run: float, shared: bool, pays: bool
) -> None:
    assert pays_to_prefetch(run, shared=shared) is pays


def test_a_policy_is_found_by_the_name_that_people_give() -> None:
    assert {name: policy().name for name, policy in POLICIES.items()} == {
        "eager": "eager",
        "window": "window",
    }
