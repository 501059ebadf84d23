"""What a core asks its body to do: say something to a peer.  Nothing else ever leaves a core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from zbatch.messages import Message


class Send(Struct, frozen=True, gc=False):
    """Say something to a peer; the frames are array buffers, in the order of the items."""

    peer: bytes
    message: Message
    frames: Sequence[Any] = ()
