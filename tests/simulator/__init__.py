"""Whole clusters in one process, at virtual times, from a seed: the real brains under faults made common.

``world.py`` is time and chance, ``network.py`` what travels, ``processes.py`` what a process is;
``brokers.py``, ``callers.py`` and ``hosts.py`` are the bodies around the real cores.  ``faults.py`` does the
harm, ``checks.py`` says what must hold, ``lives.py`` is one seed from its first step to its last.
"""
