"""The error tree: what can go wrong, whose turn it is to act, and how it crosses the wire.

Every class has a ``code`` (its word on the wire), an ``http_status`` and whether asking again may help
(``retryable``).  Nothing here decides *when* an error is raised; the table that says so is in
``docs/architecture.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, ClassVar

from zbatch.messages import Fault


class ZbatchError(Exception):
    """Anything that zbatch raises on purpose."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    @property
    def http_headers(self) -> dict[str, str]:
        """What belongs beside ``http_status``."""
        return {}

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else self.code


class BadRequest(ZbatchError, ValueError):
    """The caller asked for something malformed: a bad topic name, wrong arguments."""

    code = "bad_request"
    http_status = 400


class BadInput(BadRequest):
    """An item does not fit what the model declares, or cannot be decoded."""

    code = "bad_input"
    http_status = 422


class Unauthorized(ZbatchError):
    """No key, or one that nobody knows."""

    code = "unauthorized"
    http_status = 401


class Forbidden(ZbatchError):
    """A key without the role that this needs."""

    code = "forbidden"
    http_status = 403


class UnknownTopic(ZbatchError):
    """The broker was told its topics, and this is none of them."""

    code = "unknown_topic"
    http_status = 404


class TooLarge(ZbatchError):
    """A message, an item or a request is over its bound."""

    code = "too_large"
    http_status = 413


class Overloaded(ZbatchError):
    """A bound is reached; nothing was computed.  ``retry_after`` says in how many seconds to come back."""

    code = "overloaded"
    http_status = 429
    retryable = True

    def __init__(self, text: str = "overloaded", retry_after: float = 1.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after

    @property
    def http_headers(self) -> dict[str, str]:
        """When to come back, in whole seconds, as HTTP wants them."""
        return {"Retry-After": str(max(1, math.ceil(self.retry_after)))}


class Cancelled(ZbatchError, CancelledError):
    """The caller cancelled."""

    code = "cancelled"
    http_status = 499


class ModelFailed(ZbatchError):
    """The model raised, or returned an exception, for this item.

    ``kind`` is the name of its class, ``traceback`` its text; the exception itself never travels.
    """

    code = "model_failed"
    http_status = 500

    def __init__(self, text: str = "the model failed", kind: str = "", traceback: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.traceback = traceback

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.kind}: {text}" if self.kind else text


class BadOutput(ZbatchError):
    """The model returned other than one output for this item, or one that cannot be encoded."""

    code = "bad_output"
    http_status = 500


class PoisonItem(ZbatchError):
    """Alone in its batch, this item ended two model processes."""

    code = "poison_item"
    http_status = 500


class WorkerLost(ZbatchError):
    """Every attempt lost its worker, and no single item could be blamed."""

    code = "worker_lost"
    http_status = 503
    retryable = True


class ReaderTooSlow(ZbatchError):
    """A stream was read so slowly that its model went on without it, or not at all for its whole timeout."""

    code = "reader_too_slow"
    http_status = 429


class DeadlineExceeded(ZbatchError, TimeoutError):
    """The time that the caller gave is over."""

    code = "deadline_exceeded"
    http_status = 504
    retryable = True


class NoWorkers(DeadlineExceeded):
    """The deadline passed and no worker served the topic meanwhile."""

    code = "no_workers"
    http_status = 503


class BrokerUnreachable(DeadlineExceeded):
    """The deadline passed and no broker answered meanwhile."""

    code = "broker_unreachable"
    http_status = 503


class ClientClosed(ZbatchError):
    """The client was closed, or belongs to the process before a fork."""

    code = "client_closed"


class ProtocolMismatch(ZbatchError):
    """The two sides speak no common version of the protocol."""

    code = "protocol_mismatch"


class ConfigError(ZbatchError):
    """A setting is wrong; the text names where it stands and what was wanted."""

    code = "config_error"


class BatchError(ZbatchError):
    """Some items of a request failed.

    ``errors`` maps the position of each failed item to its error; ``results`` has None in those places.
    """

    code = "batch_error"
    http_status = 207

    def __init__(self, errors: Mapping[int, ZbatchError], results: Sequence[Any]) -> None:
        first, error = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of {len(results)} items failed; item {first}: {type(error).__name__}: {error}"
        )
        self.errors = dict(errors)
        self.results = list(results)

    def __reduce__(self) -> tuple[type[BatchError], tuple[dict[int, ZbatchError], list[Any]]]:
        return BatchError, (self.errors, self.results)


def _tree(root: type[ZbatchError]) -> dict[str, type[ZbatchError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[ZbatchError]] = _tree(ZbatchError)
"""Every class by its word on the wire."""

TEXT_LIMIT = 4_096
"""Characters of a message that travel: enough to understand, too few to fill a log."""

KIND_LIMIT = 64

TRACEBACK_LIMIT = 32_768


def to_fault(error: BaseException, traceback: str = "") -> Fault:
    """Return the error as data that can always be sent; what is no zbatch error becomes ``model_failed``."""
    if isinstance(error, ZbatchError) and not isinstance(error, ModelFailed):
        retry_after = error.retry_after if isinstance(error, Overloaded) else 0.0
        return Fault(error.code, text_of(error), retry_after_ms=int(retry_after * 1000))
    text, kind = text_of(error), type(error).__name__
    if isinstance(error, ModelFailed):
        # A model may make one of anything at all.
        text, kind = text_of(error, ZbatchError.__str__), str(error.kind)
        traceback = traceback or str(error.traceback)
    return Fault(
        ModelFailed.code,
        text,
        kind=encodable(kind)[:KIND_LIMIT],
        traceback=encodable(traceback[-TRACEBACK_LIMIT:])[-TRACEBACK_LIMIT:],
    )


def from_fault(fault: Fault) -> ZbatchError:
    """Return the exception that a fault stands for; an unknown code (a newer peer) is a ZbatchError."""
    cls = BY_CODE.get(fault.code)
    if cls is Overloaded:
        return Overloaded(fault.text, retry_after=fault.retry_after_ms / 1000)
    if cls is ModelFailed:
        return ModelFailed(fault.text, kind=fault.kind, traceback=fault.traceback)
    if cls is None or cls is BatchError:
        return ZbatchError(f"{fault.code}: {fault.text}")
    return cls(fault.text)


def text_of(error: BaseException, say: Callable[[Any], str] = str) -> str:
    """Return what an exception says, whatever its class makes of that.

    A model's exception may have a __str__ that raises, be it SystemExit; that must not hide its failure.
    """
    try:
        return encodable(say(error)[:TEXT_LIMIT])[:TEXT_LIMIT]
    except BaseException as second:
        return f"its text could not be made: {type(second).__name__}"


def encodable(text: str) -> str:
    """Return the text with half surrogate pairs spelled out: they have no bytes that could be sent."""
    return text.encode("utf-8", "backslashreplace").decode()
