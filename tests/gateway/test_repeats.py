"""Heads that came before: found byte for byte, with a body of the same length, and never too many."""

from __future__ import annotations

import pytest

from zbatch.gateway.repeats import LONGEST, MOST, Repeated, Repeats, head_of

HEAD = b"POST /predict/bert HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n"
KNOWN = Repeated("POST", "/predict/bert", "", {"host": "x", "content-length": "3"}, 3, {})


@pytest.fixture
def repeats() -> Repeats:
    repeats = Repeats()
    repeats.learn(HEAD, KNOWN)
    return repeats


def test_a_whole_request_with_a_head_that_came_before_is_known(repeats: Repeats) -> None:
    assert repeats.find(HEAD + b"abc") is KNOWN
    assert repeats.find(HEAD + b"\r\n\r") is KNOWN


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEAD,
        HEAD + b"ab",
        HEAD + b"abcd",
        HEAD + b"abc" + HEAD + b"abc",
        HEAD[:-1],
        b"\r\n" + HEAD + b"abc",
        HEAD.replace(b"host", b"Host") + b"abc",
        HEAD.replace(b"bert", b"tert") + b"abc",
        b"abc",
    ],
)
def test_what_differs_in_a_byte_is_left_to_the_parser(repeats: Repeats, data: bytes) -> None:
    assert repeats.find(data) is None


def test_a_head_ends_at_its_first_empty_line() -> None:
    assert head_of(HEAD + b"\r\n\r\n") == HEAD
    assert head_of(HEAD[:-1]) == b""


def test_a_head_that_is_too_long_is_none() -> None:
    lead = b"GET / HTTP/1.1\r\nx: "
    fits = lead + bytes(LONGEST - len(lead) - 4).replace(b"\0", b"x") + b"\r\n\r\n"

    assert len(fits) == LONGEST
    assert head_of(fits) == fits
    assert head_of(fits.replace(b"x: ", b"x: x")) == b""


def test_where_there_are_too_many_all_are_forgotten(repeats: Repeats) -> None:
    for number in range(MOST - 1):
        repeats.learn(b"%d\r\n\r\n" % number, KNOWN)
    assert repeats.find(HEAD + b"abc") is KNOWN

    repeats.learn(b"one more\r\n\r\n", KNOWN)

    assert repeats.find(HEAD + b"abc") is None
    assert repeats.find(b"one more\r\n\r\nabc") is KNOWN
