from __future__ import annotations

from zbatch.core.links import BACK, FRONT, STRANGERS, Link, Links, origin_of
from zbatch.messages import Hello, Role

LIFE = b"0123456789abcdef"
OTHER_LIFE = b"fedcba9876543210"


def peer(number: int, side: bytes = FRONT) -> bytes:
    """Return what the body calls a connection whose routing id was given by libzmq."""
    return side + b"\0" + number.to_bytes(4)


def hello(conn: bytes = b"conn...1", life: bytes = LIFE, role: Role = "client") -> Hello:
    return Hello(conn, 1, 0, life, role, 1, host="box", pid=42)


def introduced(links: Links, number: int, hello: Hello, now: float = 0.0) -> Link:
    link = links.introduce(peer(number), hello, now)
    assert link is not None
    return link


def test_a_hello_says_who_is_behind_a_peer() -> None:
    links = Links()
    link = introduced(links, 1, hello(), now=5.0)
    assert (link.peer, link.conn, link.life, link.role) == (peer(1), b"conn...1", LIFE, "client")
    assert (link.host, link.pid, link.heard, link.gone) == ("box", 42, 5.0, None)
    assert (links.by_peer, links.by_life) == ({peer(1): link}, {LIFE: link})


def test_the_next_message_carries_the_next_number() -> None:
    link = introduced(Links(), 1, hello())
    assert link.stamp() == (b"conn...1", 1, 1)
    link.received = 7
    assert link.stamp() == (b"conn...1", 2, 7)


def test_a_life_is_heard_on_its_newest_connection_only() -> None:
    links = Links()
    introduced(links, 1, hello())
    link = introduced(links, 2, hello(b"conn...2"))
    assert (links.by_peer, links.by_life) == ({peer(2): link}, {LIFE: link})


def test_a_second_hello_on_one_connection_begins_its_numbers_again() -> None:
    links = Links()
    introduced(links, 1, hello()).stamp()
    link = introduced(links, 1, hello(b"conn...2"))
    assert (links.by_peer, links.by_life) == ({peer(1): link}, {LIFE: link})
    assert link.stamp() == (b"conn...2", 1, 1)


def test_a_hello_said_again_changes_no_numbers() -> None:
    links = Links()
    first = introduced(links, 1, hello())
    first.stamp()
    first.acked = 1
    link = introduced(links, 1, hello())
    assert (link.stamp(), link.acked) == ((b"conn...1", 2, 1), 1)


def test_a_life_does_not_change_its_role() -> None:
    links = Links()
    link = links.introduce(peer(1, BACK), hello(role="worker"), 0.0)
    assert links.introduce(peer(2, BACK), hello(role="supervisor"), 0.0) is None
    assert (links.by_peer, links.by_life) == ({peer(1, BACK): link}, {LIFE: link})


def test_who_may_only_ask_does_not_become_a_worker() -> None:
    links = Links()
    assert links.introduce(peer(1, FRONT), hello(role="worker"), 0.0) is None
    assert links.introduce(peer(2, FRONT), hello(role="supervisor"), 0.0) is None
    assert links.introduce(peer(3, BACK), hello(role="client"), 0.0) is None
    assert (links.by_peer, links.by_life) == ({}, {})


def test_one_connection_is_one_life() -> None:
    links = Links()
    link = introduced(links, 1, hello())
    assert links.introduce(peer(1), hello(life=OTHER_LIFE), 0.0) is None
    assert (links.by_peer, links.by_life) == ({peer(1): link}, {LIFE: link})


def test_a_peer_that_chose_its_own_routing_id_is_not_introduced() -> None:
    for chosen in (b"f", b"fme", b"fmyself", b"f12345", b"f\0123456"):
        assert Links().introduce(chosen, hello(), 0.0) is None


def test_a_forgotten_connection_leaves_nothing() -> None:
    links = Links()
    links.forget(introduced(links, 1, hello()))
    assert (links.by_peer, links.by_life) == ({}, {})


def test_forgetting_an_old_connection_leaves_the_new_one() -> None:
    links = Links()
    old = introduced(links, 1, hello())
    new = introduced(links, 2, hello(b"conn...2"))
    links.forget(old)
    assert (links.by_peer, links.by_life) == ({peer(2): new}, {LIFE: new})


def test_a_stranger_is_asked_once_a_second() -> None:
    links = Links()
    assert links.may_ask(peer(1), 0.0)
    assert not links.may_ask(peer(1), 0.999)
    assert links.may_ask(peer(2), 0.999)
    assert links.may_ask(peer(1), 1.0)
    assert not links.may_ask(peer(1), 1.999)


def test_who_was_introduced_may_be_asked_at_once_when_strange_again() -> None:
    links = Links()
    links.may_ask(peer(1), 0.0)
    links.forget(introduced(links, 1, hello()))
    assert links.may_ask(peer(1), 0.5)


def test_a_flood_of_strangers_is_remembered_up_to_a_bound() -> None:
    links = Links()
    for number in range(10_000):
        links.may_ask(peer(number), 0.0)
    assert len(links._asked) == STRANGERS
    assert links.may_ask(peer(0), 0.5)
    assert not links.may_ask(peer(9_999), 0.5)


def test_an_origin_tells_lives_apart_and_does_not_tell_them() -> None:
    assert origin_of(LIFE) == bytes.fromhex("923ee422e53ad8e7")
    assert origin_of(LIFE) != origin_of(OTHER_LIFE)
    assert introduced(Links(), 1, hello()).origin == origin_of(LIFE)
