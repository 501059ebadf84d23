"""Settings: typed, frozen, refused early; each field is explained where it stands.

This file owns what may be set, the defaults, and where a value came from (command line, environment,
file).  Nothing else reads the environment.
"""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What a broker holds at most; beyond it callers get ``Overloaded`` or ``TooLarge`` at once."""

    topic_items: int = 65_536
    topic_bytes: int = 2 << 30
    client_items: int = 16_384
    client_bytes: int = 512 << 20
    message_bytes: int = 256 << 20
    unserved_topics: int = 1_000


class Timing(Struct, frozen=True, forbid_unknown_fields=True):
    """How long silence lasts before it means something; seconds."""

    beat: float = 1.0
    quiet: float = 3.0
    """A client asks elsewhere when its broker has been silent this long: one lost beat is no death."""
    suspect: float = 3.0
    """A worker silent this long gets no new work."""
    rejoin: float = 4.0
    """A worker whose connection is gone may come back on a new one this long (hazards 3)."""
    silent: float = 12.0
    """A peer silent this long is gone."""
    client_silent: float = 10.0
    reconnect: float = 0.1
    reconnect_max: float = 5.0
    drain: float = 25.0


class BrokerCoreSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the broker's core needs to know."""

    topics: tuple[str, ...] | None = None
    """The topics that may be asked for; None: any."""
    batching: str = "eager"
    batch_size: int | None = None
    """A cap over what workers announce."""
    max_latency: float | None = None
    limits: Limits = Limits()
    timing: Timing = Timing()
