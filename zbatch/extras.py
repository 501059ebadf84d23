"""What is imported only where it is asked for, and what to install where it is not there.

A broker that nobody scrapes needs no HTTP, and a base install has no prometheus-client.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from zbatch.errors import ConfigError


class Metrics(NamedTuple):
    """What serves /metrics."""

    exposition: ModuleType
    series: ModuleType


def metrics() -> Metrics:
    """Return what serves /metrics; raises :class:`ConfigError` where the extra is not installed."""
    try:
        from zbatch import exposition, series  # noqa: PLC0415  see above
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("prometheus_client"):
            raise
        raise ConfigError(
            "metrics: prometheus-client is not installed; install it, or zbatch[metrics] with it"
        ) from None
    return Metrics(exposition, series)
