"""Why nothing comes: what a command says on stderr while it still waits for the first answer of a topic.

A topic that nobody serves may be about to come, so a request for it waits as long as any; who mistyped its
name should not have to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from zbatch.errors import ZbatchError

PATIENCE = 0.7
"""Seconds that the first answer may take before one wants to know why, and until the broker has said so."""


class Asked(Protocol):
    """A client, as far as it is needed here."""

    def status(self, *, timeout: float) -> Any:
        """Return the broker's snapshot."""


class Doubt:
    """Says what is wrong where no answer came for a moment, if anything is.

    Args:
        client: Asks the broker.
        topic: What was asked for.
        say: Takes a sentence, in a thread of its own.
        patience: Seconds.

    """

    def __init__(
        self, client: Asked, topic: str, say: Callable[[str], object], patience: float = PATIENCE
    ) -> None:
        self._client = client
        self._topic = topic
        self._say = say
        self._patience = patience
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zbatch-doubt", daemon=True)

    def begin(self) -> None:
        """Begin to wait, now that something was asked for; done again it is nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """Doubt no more: something came, or nobody waits any longer."""
        self._is_over.set()

    def _run(self) -> None:
        if not self._is_over.wait(self._patience):
            why = why_nothing_comes(self._client, self._topic)
            if why is not None and not self._is_over.is_set():
                self._say(why)


def why_nothing_comes(client: Asked, topic: str) -> str | None:
    """Return what is wrong with a topic, or with its broker; None: nothing is."""
    from zbatch.screen import trouble  # noqa: PLC0415  its imports take longer than most first answers

    try:
        return trouble(client.status(timeout=PATIENCE), topic)
    except ZbatchError as error:
        return str(error)
