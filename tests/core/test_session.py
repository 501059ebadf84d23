from __future__ import annotations

from itertools import count

from zbatch.core.actions import Send
from zbatch.core.session import EXCUSED, LARGE, SLOWEST, Session
from zbatch.messages import Bulk, Pulse, Welcome, Who

EPOCH = b"epoch..."


def session() -> Session:
    """Return a session whose connections are numbered, on its first one."""
    numbers = count(1)
    one = Session(b"\0", lambda size: next(numbers).to_bytes(size), beat=1.0)
    one.renew()
    return one


CONN_1 = (1).to_bytes(8)
CONN_2 = (2).to_bytes(8)


def test_messages_are_numbered_within_their_connection() -> None:
    one = session()
    assert [one.stamp(), one.stamp()] == [(CONN_1, 1, 0), (CONN_1, 2, 0)]


def test_every_message_acknowledges_what_was_received() -> None:
    one = session()
    one.accepts(Pulse(CONN_1, 3, 0), now=1.0)
    assert one.stamp() == (CONN_1, 1, 3)


def test_a_welcome_says_that_the_broker_knows_this_connection() -> None:
    one = session()
    assert one.accepts(Welcome(CONN_1, 1, 1, EPOCH, 1, message_bytes=1024), now=5.0)
    assert (one.welcomed, one.message_bytes, one.received, one.acked, one.heard) == (True, 1024, 1, 1, 5.0)


def test_what_was_acknowledged_stays_acknowledged() -> None:
    one = session()
    one.accepts(Pulse(CONN_1, 1, 7), now=1.0)
    one.accepts(Pulse(CONN_1, 2, 5), now=2.0)
    assert (one.received, one.acked) == (2, 7)


def test_a_message_of_an_older_connection_is_not_for_this_one() -> None:
    one = session()
    one.renew()
    assert not one.accepts(Welcome(CONN_1, 1, 1, EPOCH, 1), now=5.0)
    assert (one.conn, one.welcomed, one.heard) == (CONN_2, False, None)


def test_who_is_heard_and_has_no_number() -> None:
    one = session()
    one.accepts(Pulse(CONN_1, 3, 2), now=1.0)
    assert one.accepts(Who(CONN_1, 0, 0), now=2.0)
    assert (one.received, one.acked, one.heard) == (3, 2, 2.0)


def test_a_new_connection_begins_from_nothing() -> None:
    one = session()
    one.stamp()
    one.accepts(Welcome(CONN_1, 1, 1, EPOCH, 1), now=1.0)
    one.renew()
    assert (one.conn, one.sent, one.received, one.acked, one.welcomed) == (CONN_2, 0, 0, 0, False)
    assert one.stamp() == (CONN_2, 1, 0)


def test_the_next_sign_of_life_is_due_a_beat_after_the_last() -> None:
    one = session()
    one.spoke(now=5.0)
    assert one.speaks == 6.0


# --- large messages ------------------------------------------------------------------------------


def test_only_what_is_large_is_announced() -> None:
    session = Session(b"peer", lambda size: b"c" * size, 1.0)
    session.renew()
    assert session.announce(LARGE - 1) == []
    assert session.announce(LARGE) == [Send(b"peer", Bulk(b"c" * 8, 1, 0, LARGE))]


def test_what_was_announced_may_be_waited_for() -> None:
    session = Session(b"peer", lambda size: b"c" * size, 1.0)
    session.renew()
    session.accepts(Bulk(b"c" * 8, 1, 0, 10 * SLOWEST), 5.0)
    assert session.heard == 15.0
    session.accepts(Pulse(b"c" * 8, 2, 0), 6.0)
    assert session.heard == 6.0


def test_what_was_announced_is_not_waited_for_for_ever() -> None:
    session = Session(b"peer", lambda size: b"c" * size, 1.0)
    session.renew()
    session.accepts(Bulk(b"c" * 8, 1, 0, 2**50), 5.0)
    assert (EXCUSED, session.heard) == (30.0, 35.0)
