"""zbatch: many callers, one batch.  A ZeroMQ cluster that batches model requests across processes and hosts."""
