"""ZClient: ask a broker from any number of threads.

What a caller says is checked in ``calls.py``, carried by ``connection.py``, decided in ``core/client.py``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

from zbatch import payload
from zbatch.calls import Asking, Caller, encode_copied
from zbatch.config import Timing, client_endpoints, keys_folder
from zbatch.connection import Connection
from zbatch.pipelines import Pipeline
from zbatch.security import where_asked

In = TypeVar("In")
Out = TypeVar("Out")


class ZClient(Caller[In, Out]):
    """A client of one or more brokers; safe from any number of threads, usable after a fork.

    Making one returns at once and needs no broker yet.  Use it as a context manager, or ``close()`` it.

    Args:
        endpoint: ``tcp://host:port`` or ``ipc://path`` of a broker's frontend; several in a list or with
            commas, the next is used when one goes quiet.  None: ``$ZBATCH_BROKER``, else the default.
        topic: The model to ask, where a call names no other.
        timeout: Seconds a request may take, where a call names no other.
        keys: A folder with ``client.key_secret`` and the broker's public key, for brokers that ask for keys.
            None: ``$ZBATCH_KEYS``, else no key.
        retry: Where a broker is :class:`Overloaded`, ask again when it says, or a little later, while the
            deadline allows it.
        copy: Copy large arrays when they are submitted.  Without it they travel uncopied, and must not
            change before the outcome.

    """

    def __init__(
        self,
        endpoint: str | Sequence[str] | None = None,
        *,
        topic: str | Pipeline = "default",
        timeout: float = 30.0,
        keys: str | os.PathLike[str] | None = None,
        retry: bool = False,
        copy: bool = False,
        timing: Timing | None = None,
    ) -> None:
        self.endpoints = client_endpoints(endpoint)
        own_keys = where_asked(keys_folder(keys), "client", "admin")
        self._line: Connection = Connection(self.endpoints, timing or Timing(), own_keys, retry)
        super().__init__(Asking(topic, timeout, encode=encode_copied if copy else payload.encode), self._line)
        self._finalizer = weakref.finalize(self, self._line.retire)
        self._finalizer.atexit = False

    def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        """Return the broker's snapshot of itself: topics, workers, clients.

        Raises :class:`BrokerUnreachable` when none answers in time.
        """
        return self._line.status(timeout)

    def close(self) -> None:
        """Say goodbye to the broker; requests without an outcome raise :class:`ClientClosed`."""
        self._finalizer.detach()
        self._line.close()

    def __repr__(self) -> str:
        return f"ZClient({','.join(self.endpoints)!r}, topic={self._asking.topic!r})"
