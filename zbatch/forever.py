"""run_zbatch_workers_forever: workers of a model class, from Python, at a broker that need not be there yet.

It takes the place of service_streamer's ``run_redis_workers_forever``.  Where its broker's address is a
loopback one and nobody listens there, it starts one, which ends with this process; any number of such calls,
in threads and processes, agree on one, since only one can listen.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from zbatch import spawned
from zbatch.config import BrokerSettings, keys_folder
from zbatch.homes import Home
from zbatch.notation import host_and_port
from zbatch.parts import spawn_part
from zbatch.processes import Child
from zbatch.streamer import BROKER, devices_of, endpoints_of

LOOK = 0.5
"""Seconds between two looks at whether a broker and the worker are there."""

GRACE = 5.0
"""Seconds that the worker gets to leave when the call is interrupted."""


def run_zbatch_workers_forever(
    model_class: Callable[..., Any],
    batch_size: int,
    max_latency: float = 0.1,
    worker_num: int = 1,
    cuda_devices: Sequence[int | str] | int | str | None = None,
    broker: str = BROKER,
    topic: str = "",
    mp_start_method: str = "spawn",
    model_init_args: Sequence[Any] | None = None,
    model_init_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Serve a model until its workers are told to leave; any thread may call this, and several at once.

    Args:
        model_class: A :class:`ManagedModel` class, or a function of a list; something that other processes
            can load.
        batch_size: Items that are run at once, at most.
        max_latency: Seconds that an item waits for company at most.  A lone one does not wait.
        worker_num: Model processes.
        cuda_devices: What ``CUDA_VISIBLE_DEVICES`` becomes in each of them, in turn.  None: what it is here.
        broker: ``host:port`` of the broker's frontend; its backend is the next port.
        topic: What callers ask for; empty: ``default``.
        mp_start_method: For the old signature's sake: processes are always spawned.
        model_init_args: Positional arguments of ``init_model``.
        model_init_kwargs: Keyword arguments of ``init_model``.

    Raises ``TypeError`` for a model that other processes cannot load, :class:`ConfigError` for numbers with
    which nothing could run, ``RuntimeError`` where loading fails.

    """
    spawned.require_start_method(mp_start_method)
    given = spawned.Given(
        model_class,
        batch_size,
        max_latency,
        worker_num,
        devices_of(cuda_devices),
        model_init_args or (),
        model_init_kwargs or {},
    )
    serve(given, broker, topic, lambda: False)


def serve(given: spawned.Given, broker: str, topic: str, is_over: Callable[[], bool]) -> None:
    """Run a worker, and a broker where none is, until it leaves or ``is_over`` says so.

    The folder of its key, where the broker asks for one, is ``$ZBATCH_KEYS``, as it is for clients.
    """
    spawned.refuse_while_main_is_imported("run_zbatch_workers_forever()")
    home = Home()
    frontend, backend = endpoints_of(broker)
    keeper = _Keeper(frontend, backend)
    worker: Child | None = None
    try:
        model = home.path / "model"
        given.write(model)
        settings = structs.replace(
            given.worker(model), topic=topic or "default", backend=(backend,), keys=keys_folder()
        )
        while not is_over():
            keeper.look()
            if worker is None:
                worker = spawn_part("worker", settings.topic, settings)
            status = worker.wait(LOOK)
            if status is None:
                continue
            worker.close()
            worker = None
            if status == 0:
                return
            if status > 0:
                raise RuntimeError("the model processes gave up; what went wrong stands on stderr")
            # It was killed: another one.
    finally:
        if worker is not None:
            worker.stop(GRACE)
            worker.close()
        keeper.close()
        home.remove()


class _Keeper:
    """Sees to it that somebody listens at a loopback address."""

    def __init__(self, frontend: str, backend: str) -> None:
        self._settings = BrokerSettings(
            frontend=(frontend,), backend=(backend,), keys=keys_folder(), log_level="warning"
        )
        self._address = host_and_port(frontend.removeprefix("tcp://"))
        self._is_here = self._address[0] == "::1" or self._address[0].startswith("127.")
        self._broker: Child | None = None

    def look(self) -> None:
        """Start a broker where none is."""
        if self._broker is not None:
            if self._broker.poll() is None:
                return
            # Another was first, or it was killed.
            self._broker.close()
            self._broker = None
        if self._is_here and self._is_free():
            # Whoever reads this process's output must not wait for the broker's end, too.
            self._broker = spawn_part("broker", "broker", self._settings, silent=True)

    def close(self) -> None:
        """End the broker that was started here, if one was."""
        if self._broker is not None:
            self._broker.stop(GRACE)
            self._broker.close()

    def _is_free(self) -> bool:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        with contextlib.closing(socket.socket(family)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(self._address)
            except OSError:
                return False
        return True
