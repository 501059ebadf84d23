"""Curves for docs/tuning.md: what batch size, max latency, workers and gateway processes do."""
