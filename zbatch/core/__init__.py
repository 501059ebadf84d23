"""The brains: every decision of broker, worker and client, without a clock, a socket or a thread."""
