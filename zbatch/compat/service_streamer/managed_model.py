"""service_streamer's module of this name."""

from zbatch.model import ManagedModel

__all__ = ["ManagedModel"]
