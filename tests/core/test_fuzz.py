"""Whatever is said to a broker: only declared errors, bounds hold, and what is refused changes nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.fuzz.__main__ import corpus
from tests.fuzz.feeding import STRANGER, Broker, feed, message_of
from tests.test_wire import GOLDEN
from zbatch.messages import AnyMessage, Hello
from zbatch.wire import VERSION

MESSAGES = [(message, [b"buffer"] * buffers) for message, buffers, _ in GOLDEN]


@given(st.sampled_from(MESSAGES), st.integers(0, 3))
def test_what_is_refused_changes_nothing(said: tuple[Any, list[bytes]], who: int) -> None:
    broker = Broker()
    broker.client.asks(0, 3)
    before = broker.digest()
    message, frames = said
    peer = broker.peers[who]
    if isinstance(message, Hello):
        return
    # On another conn than theirs it is a stranger's word, whoever says it.
    broker.hear(peer, structs.replace(message, conn=b"another."), frames)
    assert broker.digest() == before


@given(st.sampled_from(GOLDEN), st.integers(0, 255))
def test_of_a_message_in_another_version_nothing_is_read(
    case: tuple[AnyMessage, int, bytes], version: int
) -> None:
    assert (message_of(bytes([version]) + case[2][1:]) is not None) == (version == VERSION)


@settings(max_examples=300)
@given(st.sampled_from(corpus()), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8))
def test_damaged_messages_raise_nothing_but_what_is_declared(
    seed: bytes, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(seed)
    for place, value in damage:
        data[place % len(data)] = value
    feed(bytes(data))


def test_a_stranger_is_one() -> None:
    broker = Broker()
    assert STRANGER not in broker.core.links.by_peer
    assert message_of(b"\x02") is None
    assert all(message_of(raw) is not None for _, _, raw in GOLDEN)
