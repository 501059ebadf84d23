"""What the broker knows of one client: which ids it holds, which outcomes are on their way."""

from __future__ import annotations

from tests.core.queueing import make_held
from zbatch.core.backlog import CLOSED, Held
from zbatch.core.clients import Client
from zbatch.core.links import Link
from zbatch.messages import Fault, Refusal, Results


def make_link(peer: bytes = b"Fann") -> Link:
    return Link(peer, b"conn...1", b"life of a client", "client", "web-1", 12, 0.0)


def holding(*groups: Held) -> Client:
    client = Client(make_link(), b"ann")
    for held in groups:
        client.hold(held)
    return client


def test_what_is_held_are_the_ids_without_an_outcome() -> None:
    held = make_held(10, 4)
    client = holding(held, make_held(20, 2))
    assert client.held() == [(10, 14), (20, 22)]
    held.state[1] = CLOSED
    held.open = 3
    assert client.held() == [(10, 11), (12, 14), (20, 22)]


def test_a_group_that_spans_many_ids_is_found_once() -> None:
    held = make_held(200, 700)
    client = holding(held)
    assert client.groups() == [held]
    assert client.find(0, 10_000) == [(held, 0, 700)]


def test_a_range_finds_the_positions_that_are_in_it() -> None:
    first, second = make_held(10, 4), make_held(14, 2)
    client = holding(first, second)
    assert client.find(12, 15) == [(first, 2, 4), (second, 0, 1)]
    assert client.find(16, 99) == []
    assert client.find(0, 10) == []


def test_a_wide_range_costs_what_is_held_and_not_its_width() -> None:
    first, second = make_held(10, 4), make_held(5_000, 2)
    client = holding(first, second)
    assert client.find(0, 2**53) == [(first, 0, 4), (second, 0, 2)]


def test_a_narrow_range_looks_only_where_it_is() -> None:
    groups = [make_held(1_000 * number, 1) for number in range(9)]
    client = holding(*groups)
    assert client.find(3_000, 3_001) == [(groups[3], 0, 1)]
    assert client.find(3_500, 3_501) == []


def test_a_released_group_is_held_no_more() -> None:
    first, second = make_held(10, 300), make_held(310, 2)
    client = holding(first, second)
    client.release(first)
    assert client.held() == [(310, 312)]
    client.release(second)
    assert (client.held(), client.groups()) == ([], [])


def test_outcomes_count_as_held_until_the_client_has_acknowledged_them() -> None:
    client = holding()
    client.sent(4, [(0, 3)])
    client.sent(5, [(7, 8)])
    assert client.held() == [(0, 3), (7, 8)]
    client.acknowledged(4)
    assert client.held() == [(7, 8)]
    client.acknowledged(5)
    assert client.held() == []


def test_outcomes_that_wait_for_the_next_flush_count_as_held() -> None:
    client = holding()
    client.results.append(Results(5, [b"y", b"y"]))
    client.refusals.append(Refusal([(9, 10)], Fault("overloaded", "full")))
    assert client.held() == [(5, 7), (9, 10)]


def test_what_was_on_its_way_over_an_old_connection_is_lost() -> None:
    client = holding()
    client.sent(4, [(0, 3)])
    link = make_link(b"Fbob")
    client.reconnected(link)
    assert (client.held(), client.link) == ([], link)
