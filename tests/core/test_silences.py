"""A supervisor knows which of its brokers it does not hear; its body tells the operator."""

from __future__ import annotations

from zbatch.config import Timing
from zbatch.core.supervisor import SupervisorCore
from zbatch.messages import Hello, Welcome


def test_a_broker_is_silent_since_it_was_last_heard_or_else_since_the_start() -> None:
    core = SupervisorCore(2, b"s" * 16, bytes, Timing(), "bert")
    first, _ = core.start(10.0)
    assert type(first.message) is Hello
    core.handle(b"\0", Welcome(first.message.conn, 1, 1, b"epoch..1", 1), [], 13.0)
    assert core.silences(15.0) == [2.0, 5.0]
