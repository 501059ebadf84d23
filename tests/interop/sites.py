"""The web applications of ``examples/frameworks``, each as it is deployed."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

APPS = "examples.frameworks"


@dataclass(frozen=True)
class Site:
    """One way to run one of the examples."""

    name: str
    command: Sequence[str]
    """How it is started, see ``web.Server``."""

    copies: int = 1
    """How often it is started: what has one process alone needs another for batches across processes."""

    shares_port: bool = False
    """Whether its copies listen on one port."""

    processes: int = 1
    """Processes of each copy that have a client once they were asked."""

    at_once: int = 8
    """Requests that a process can have open at once."""

    finishes: bool = True
    """Whether it answers what is open at SIGTERM before it ends."""

    farewell: str = ""
    """What it logs when SIGTERM has come; without one it stops listening then."""

    stop: int = signal.SIGTERM
    """The signal by which it is told to end."""

    reload: int = 0
    """The signal by which it replaces its processes, if there is one."""


def gunicorn(name: str, app: str, *options: str, processes: int = 2, at_once: int = 8) -> Site:
    """Return a site that gunicorn runs; its master is not asked."""
    command = ("gunicorn", "--bind", "127.0.0.1:{port}", "--workers", str(processes), *options, app)
    return Site(
        name,
        command,
        processes=processes,
        at_once=at_once,
        farewell="Handling signal: term",
        reload=signal.SIGHUP,
    )


THREADS = ("--threads", "16")
GEVENT = ("--worker-class", "gevent")

SITES = [
    Site(
        "flask",
        ("flask", "--app", "examples/frameworks/flask_app.py", "run", "--port", "{port}"),
        copies=2,
        # On SIGTERM its development server ends without a goodbye, and without answers.
        finishes=False,
        stop=signal.SIGINT,
    ),
    gunicorn("gunicorn sync", f"{APPS}.flask_app:app", processes=4, at_once=1),
    gunicorn("gunicorn gthread", f"{APPS}.flask_app:app", *THREADS),
    gunicorn("gunicorn gthread preload", f"{APPS}.flask_app:app", *THREADS, "--preload"),
    gunicorn("gunicorn gevent", f"{APPS}.flask_app:app", *GEVENT),
    # The patch comes after the client was made here, and before it there.
    gunicorn("gunicorn gevent preload", f"{APPS}.flask_app:app", *GEVENT, "--preload"),
    gunicorn(
        "gunicorn gevent preload config",
        f"{APPS}.flask_app:app",
        *("--config", "examples/frameworks/gunicorn_gevent.py", "--preload"),
    ),
    gunicorn("django", f"{APPS}.django_app:application", *THREADS),
    Site(
        "fastapi",
        ("uvicorn", "--workers", "2", "--port", "{port}", f"{APPS}.fastapi_app:app"),
        processes=2,
        farewell="Shutting down",
        reload=signal.SIGHUP,
    ),
    Site("aiohttp", ("python", "examples/frameworks/aiohttp_app.py", "{port}"), copies=2),
    gunicorn("aiohttp gunicorn", f"{APPS}.aiohttp_app:app", "--worker-class", "aiohttp.GunicornWebWorker"),
    Site("tornado", ("python", "examples/frameworks/tornado_app.py", "{port}"), copies=2, shares_port=True),
]
