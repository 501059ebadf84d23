"""Real processes under real faults: ``make chaos`` for minutes, ``make soak`` for a million requests.

``hosts.py`` makes hosts (network namespaces on a bridge, or loopback through ``proxy.py`` where none can be
made), ``farm.py`` the brokers, workers and callers on them, ``harm.py`` does the harm from a seed, and
``ledger.py`` says whether each request had exactly one outcome, its own.
"""
