"""The helm: one thread at a time carries, and what is open when it leaves is not forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from zbatch.helm import Helm

PATIENCE = 20.0


class Ship:
    """Counts what is open and who steered."""

    def __init__(self) -> None:
        self.open = 0
        self.steered: list[str] = []
        self.idle = threading.Event()
        self.helm = Helm(self.steer, lambda: self.open > 0)

    def steer(self) -> None:
        self.steered.append(threading.current_thread().name)
        self.open = 0
        self.idle.set()


@pytest.fixture
def ship() -> Iterator[Ship]:
    ship = Ship()
    yield ship
    ship.helm.end()
    ship.helm.join(PATIENCE)


def test_one_thread_at_a_time_has_the_helm(ship: Ship) -> None:
    helm = ship.helm
    assert helm.take()
    assert (helm.is_taken, helm.is_mine) == (True, True)
    assert not helm.take()
    helm.leave()
    assert (helm.is_taken, helm.is_mine) == (False, False)


def test_another_threads_helm_is_not_mine(ship: Ship) -> None:
    helm = ship.helm
    thread = threading.Thread(target=helm.take)
    thread.start()
    thread.join(PATIENCE)
    assert (helm.is_taken, helm.is_mine) == (True, False)


def test_who_leaves_with_nothing_open_starts_no_thread(ship: Ship) -> None:
    helm = ship.helm
    assert helm.take()
    helm.leave()
    assert not helm.has_thread


def test_what_is_open_when_somebody_leaves_is_carried_by_the_helms_own_thread(ship: Ship) -> None:
    assert ship.helm.take()
    ship.open = 1
    ship.helm.leave()
    assert ship.idle.wait(PATIENCE)
    assert ship.steered == ["zbatch-client"]


def test_a_call_while_somebody_is_there_is_not_lost(ship: Ship) -> None:
    assert ship.helm.take()
    ship.helm.call()
    ship.open = 1
    ship.helm.leave()
    assert ship.idle.wait(PATIENCE)


def test_the_thread_ends_and_can_be_waited_for(ship: Ship) -> None:
    before = set(threading.enumerate())
    ship.helm.call()
    assert ship.idle.wait(PATIENCE)
    ship.helm.end()
    ship.helm.join(PATIENCE)
    assert set(threading.enumerate()) <= before


def test_after_the_end_nobody_is_called(ship: Ship) -> None:
    ship.helm.end()
    ship.helm.call()
    ship.helm.join(PATIENCE)
    assert not ship.helm.has_thread
