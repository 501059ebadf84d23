"""A long life of one cluster: many requests, clients that come and go, restarts: ``make soak``."""
