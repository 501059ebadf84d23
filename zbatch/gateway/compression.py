"""Bodies that are compressed: gzip and deflate, in both directions, and never more than was allowed.

A body of a few kilobytes may stand for gigabytes, so what comes out is bounded while it comes out.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from zbatch.errors import BadRequest, TooLarge

GZIP, DEFLATE = "gzip", "deflate"

WORTH = 1_024
"""Bytes: a smaller answer is sent as it is, for it fits into one packet anyway."""

SAMPLE, GAIN = 16 << 10, 0.9
"""If the first so many bytes do not become this share of themselves, the rest will not either: most clients
accept every encoding, and numbers of a model hardly get smaller by any."""

LEVEL = 1
"""Zlib's fastest: the gateway's loop waits for it, and arrays gain little by a better one."""

PARTS = 16
"""Gzip files one behind the other that a body may consist of: each costs a copy of all that follows."""

_GZIP, _ZLIB, _BARE = 31, 15, -15
"""How zlib calls the three forms: in a gzip file, in its own frame, and without any."""

_FORMS: Mapping[str, int] = {GZIP: _GZIP, "x-gzip": _GZIP, DEFLATE: _ZLIB}


def is_known(encoding: str) -> bool:
    """Return whether a body in this encoding is read here."""
    return encoding.strip().lower() in _FORMS


def decompress(encoding: str, body: bytes, limit: int) -> bytes:
    """Return what a body stands for, at most ``limit`` bytes of it.

    Raises :class:`TooLarge` where it is more, and :class:`BadRequest` where it is cut off or no such thing.
    """
    name = encoding.strip().lower()
    form = _FORMS[name]
    if form == _ZLIB and not _has_frame(body):
        form = _BARE  # some send deflate's data as they are
    parts: list[bytes] = []
    left = limit
    for _ in range(PARTS):
        reader = zlib.decompressobj(form)
        try:
            part = reader.decompress(body, left + 1)
        except zlib.error as error:
            raise BadRequest(f"the body is no {name}: {error}") from None
        left -= len(part)
        if left < 0:
            raise TooLarge(f"the body has more than {limit} bytes when decompressed, wanted at most {limit}")
        parts.append(part)
        if not reader.eof:
            raise BadRequest(f"the body is no {name}: it is cut off")
        body = reader.unused_data
        if not body:
            return b"".join(parts)
        if form != _GZIP:
            raise BadRequest(f"the body is no {name}: {len(body)} bytes follow its end")
    raise BadRequest(f"the body is more than {PARTS} gzip files, wanted one")


def chosen(accept: str | None) -> str:
    """Return in which encoding an answer is welcome, by Accept-Encoding; empty: as it is."""
    if not accept:
        return ""
    weights: dict[str, float] = {}
    for one in accept.split(",")[:32]:
        name, _, parameters = one.partition(";")
        weights[name.strip().lower()] = _weight(parameters)
    free = weights.get("*", 0.0)
    found = {name: weights.get(name, free) for name in (GZIP, DEFLATE)}
    best = max(found, key=lambda name: found[name])
    return best if found[best] > 0 else ""


def is_worth_it(body: bytes) -> bool:
    """Return whether a body gets much smaller when it is compressed."""
    return len(body) >= WORTH and len(zlib.compress(body[:SAMPLE], LEVEL)) < GAIN * min(SAMPLE, len(body))


def compress(encoding: str, body: bytes) -> bytes:
    """Return a body in the encoding that was chosen."""
    writer = zlib.compressobj(LEVEL, zlib.DEFLATED, _FORMS[encoding])
    return writer.compress(body) + writer.flush()


def _weight(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    if name.strip().lower() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _has_frame(body: bytes) -> bool:
    """Return whether a body begins as zlib's own frame does."""
    return len(body) > 1 and body[0] & 0x0F == zlib.DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
