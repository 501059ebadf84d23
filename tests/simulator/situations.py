"""What a run of many lives must have met: each fault wherever it could hurt, and each outcome."""

from __future__ import annotations

from collections import Counter

ENOUGH = 2_000
"""Lives from which a run is expected to meet everything below."""

MODEL = ("loading", "idle", "running", "running with another behind", "unacknowledged")
LOAD = ("it is idle", "items wait", "items run")
CLIENT = ("nothing is open", "something is open")
CARRIES = (
    "it carries nothing",
    "it carries words to the broker",
    "it carries words from the broker",
    "there is none",
)

FAULTS = {
    "model killed": MODEL,
    "model stopped": MODEL,
    "interpreter held": MODEL,
    "host killed": (*MODEL, "no model"),
    "host drained": MODEL,
    "supervisor stopped": MODEL,
    "broker killed": LOAD,
    "broker drained": LOAD,
    "broker stopped": LOAD,
    "broker lost for good": LOAD,
    "broker cut off from its workers": LOAD,
    "client killed": CLIENT,
    "client closed": CLIENT,
    "client stopped": CLIENT,
    "connection of a client broken": CARRIES,
    "connection of a worker broken": CARRIES,
    "connection of a supervisor broken": CARRIES,
    "connection of a client half open": CARRIES,
    "connection of a worker half open": CARRIES,
    "connection of a supervisor half open": CARRIES,
    "partition": ("both ways", "to brokers", "from brokers"),
    "cancel": ("it waits", "it runs", "no broker has it"),
}

OUTCOMES = (
    "outcome result",
    "outcome model_failed",
    "outcome poison_item",
    "outcome worker_lost",
    "outcome deadline_exceeded",
    "outcome no_workers",
    "outcome broker_unreachable",
    "outcome overloaded",
    "outcome too_large",
    "outcome unknown_topic",
    "cancelled",
    "stream whole",
    "stream worker_lost after parts",
    "stream model_failed after parts",
    "stream reader_too_slow after parts",
    "stream deadline_exceeded before any",
)

IN_BROKERS = (
    "broker: answer_without_a_question",
    "broker: batch_lost_on_the_way",
    "broker: client_gone",
    "broker: lease_overrun",
    "broker: retries",
    "broker: strange_messages",
    "broker: unreachable",
    "broker: worker_died",
    "broker: worker_lost",
    "broker: worker_suspect",
)


def missing(met: Counter[str], lives: int) -> list[str]:
    """Return what a run of so many lives should have met and did not."""
    if lives < ENOUGH:
        return []
    faults = [f"{fault} while {place}" for fault, places in FAULTS.items() for place in places]
    return [name for name in (*faults, *OUTCOMES, *IN_BROKERS) if not met[name]]
