from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from zbatch.messages import NOWHERE, AnyMessage, Fault, Group, Message, Who

KINDS: tuple[type[Message], ...] = get_args(AnyMessage)


def test_no_two_messages_share_a_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags) == 30


def test_every_message_stands_in_the_union() -> None:
    assert set(Message.__subclasses__()) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_message_begins_with_the_same_head(kind: type[Message]) -> None:
    assert kind.__struct_fields__[:3] == ("conn", "number", "ack")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_message_is_an_array_and_frozen(kind: type[Message]) -> None:
    config = kind.__struct_config__
    assert (config.array_like, config.frozen) == (True, True)


def test_messages_are_compared_by_value() -> None:
    assert Who(NOWHERE, 1, 0) == Who(NOWHERE, 1, 0)
    assert Who(NOWHERE, 1, 0) != Who(NOWHERE, 2, 0)


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Who(NOWHERE, 1, 0).number = 2  # type: ignore[misc]


def test_a_group_is_a_bare_one_unless_it_says_more() -> None:
    bare = Group(1, "bert", 250, [b"a"])
    assert msgspec.structs.astuple(bare) == (
        *(1, "bert", 250, [b"a"]),
        *(None, 0, "", None, False, False, None, None, 0, None),
    )


def test_a_fault_needs_a_code_and_a_text() -> None:
    assert msgspec.structs.astuple(Fault("overloaded", "full")) == ("overloaded", "full", 0, "", "")
