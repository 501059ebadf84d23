"""The names of service_streamer, on zbatch: code written for it moves over by changing an import.

Positions, defaults, types and order are the old ones.  What an error is differs: where the old one let every
call run into its timeout, the cause is raised at once.
"""

from __future__ import annotations

import re
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from zbatch import gpus, spawned
from zbatch.client import ZClient
from zbatch.cluster import Cluster
from zbatch.config import BrokerSettings, ServeSettings
from zbatch.embedded import local
from zbatch.futures import Future
from zbatch.homes import Home

WORKER_TIMEOUT = 20
"""Seconds that a call may take where its streamer was told nothing; read at each call, so it may be set."""

BROKER = "localhost:5555"
"""Where a broker listens for clients by default."""

ADDRESS = re.compile(r"(?:tcp://)?([\w.-]+|\[[\w.:%]+\]):(\d{1,5})", re.ASCII)
"""A host and a port; an address of IPv6 is in brackets."""

LOOK = 0.05
"""Seconds between two looks at whether the workers are ready."""


def _default_timeout() -> float:
    return WORKER_TIMEOUT


class _Streamer:
    """What all streamers have in common: whom they ask, and how."""

    default_timeout: Callable[[], float] = staticmethod(_default_timeout)
    """Returns how many seconds a call may take where a streamer was told nothing."""

    _client: Any
    _worker_timeout: float | None = None

    def predict(self, batch: Collection[Any]) -> list[Any]:
        """Return the output for each item, in order.

        Raises :class:`DeadlineExceeded`, a ``TimeoutError``, when it takes longer than the streamer's
        timeout; :class:`ModelFailed` or :class:`BadOutput` where the function raises or returns a wrong
        number of outputs, and :class:`BatchError` where it does so for some of several items.
        """
        return self.submit(batch).result()

    def submit(self, batch: Collection[Any]) -> Future[Any]:
        """Ask, and return at once; ``result(timeout)`` of what is returned may be called again and again."""
        if not hasattr(batch, "__len__"):
            raise TypeError(f"wanted a list of items, got {type(batch).__name__}; use list(...)")
        future: Future[Any] = self._client.submit(list(batch), timeout=self._timeout())
        return future

    def _timeout(self) -> float:
        return self.default_timeout() if self._worker_timeout is None else self._worker_timeout


class ThreadedStreamer(_Streamer):
    """Batches what the threads of this process ask for, and runs it in one thread of this process.

    Args:
        predict_function: Returns one output for each item of a list.
        batch_size: Items that are run at once, at most.
        max_latency: Seconds that an item waits for company at most.  A lone one does not wait.
        worker_timeout: Seconds that a call may take.  None: :data:`WORKER_TIMEOUT`.

    Raises :class:`ConfigError` for numbers with which nothing could run.
    """

    def __init__(
        self,
        predict_function: Callable[[list[Any]], Sequence[Any]],
        batch_size: int,
        max_latency: float = 0.1,
        worker_timeout: float | None = None,
    ) -> None:
        if not callable(predict_function):
            raise TypeError(f"wanted a function of a list, got {type(predict_function).__name__}")
        spawned.require_limits(batch_size, max_latency)
        self._worker_timeout = worker_timeout

        def run(batch: list[Any]) -> Sequence[Any]:
            return predict_function(batch)

        # A function of ours: what was given is called, whatever other methods it has.
        self._client = local(run, batch_size, max_latency)

    def destroy_workers(self) -> None:
        """End the thread; what has no outcome, and every later call, raises :class:`ClientClosed`."""
        self._client.close()


class Streamer(_Streamer):
    """Batches what the threads of this process ask for, and runs it in processes of its own.

    They are a broker and workers as any other, on a private endpoint, and supervised: a process that dies is
    replaced, and what it ran is run again.  All of them end with this object, or with this process.

    Args:
        predict_function_or_model: A function or bound method of a list, or a :class:`ManagedModel` class;
            something that other processes can load.
        batch_size: Items that are run at once, at most.
        max_latency: Seconds that an item waits for company at most.  A lone one does not wait.
        worker_num: Model processes.
        cuda_devices: What ``CUDA_VISIBLE_DEVICES`` becomes in the first, the second, ... of them, in turn.
            None: what it is here.
        model_init_args: Positional arguments of ``init_model``.
        model_init_kwargs: Keyword arguments of ``init_model``.
        wait_for_worker_ready: Return when all model processes are ready; raise where they are not within
            ``worker_timeout`` for each of them, or gave up.
        mp_start_method: For the old signature's sake: processes are always spawned.
        worker_timeout: Seconds that a call, and a wait for workers, may take.  None: :data:`WORKER_TIMEOUT`.

    Raises ``TypeError`` for a model that other processes cannot load, :class:`ConfigError` for numbers with
    which nothing could run.
    """

    def __init__(
        self,
        predict_function_or_model: Callable[..., Any],
        batch_size: int,
        max_latency: float = 0.1,
        worker_num: int = 1,
        cuda_devices: Sequence[int | str] | int | str | None = None,
        model_init_args: Sequence[Any] | None = None,
        model_init_kwargs: Mapping[str, Any] | None = None,
        wait_for_worker_ready: bool = False,
        mp_start_method: str = "spawn",
        worker_timeout: float | None = None,
    ) -> None:
        if not callable(predict_function_or_model):
            raise TypeError(f"wanted a function of a list, got {type(predict_function_or_model).__name__}")
        spawned.refuse_while_main_is_imported("Streamer()")
        spawned.require_start_method(mp_start_method)
        self._worker_timeout = worker_timeout
        self._worker_num = worker_num
        home = Home()
        try:
            model = home.path / "model"
            given = spawned.Given(
                predict_function_or_model,
                batch_size,
                max_latency,
                worker_num,
                devices_of(cuda_devices),
                model_init_args or (),
                model_init_kwargs or {},
            )
            given.write(model)
            front = f"ipc://{home.path}/front"
            broker = BrokerSettings(frontend=(front,), backend=(), log_level="warning")
            client: ZClient[Any, Any] = ZClient(front, keys="")
            self._client = client
            self._cluster = Cluster(
                ServeSettings(broker=broker, workers=(given.worker(model),)), home.path, client._line.close
            )
        except BaseException:
            home.remove()
            raise
        self._end = weakref.finalize(self, _end, self._cluster, home)
        if wait_for_worker_ready:
            try:
                self._wait_for_worker_ready()
            except BaseException:
                self.destroy_workers()
                raise

    def _wait_for_worker_ready(self, timeout: float | None = None) -> None:
        """Return when all model processes are ready (users of the old one call this).

        ``timeout`` is for each of them, as it was.  Raises ``TimeoutError`` when they are not in time,
        :class:`ClientClosed` when they gave up.
        """
        if timeout is None:
            timeout = self._timeout()
        timeout *= self._worker_num
        until = time.monotonic() + timeout
        ready = 0
        while ready < self._worker_num:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"{ready} of {self._worker_num} workers are ready after {timeout:g} s; give "
                    "worker_timeout the seconds that one takes to load"
                )
            try:
                topics = self._client.status(timeout=left)["topics"]
            except TimeoutError:
                continue
            ready = topics.get("default", {}).get("workers", 0)
            if ready < self._worker_num:
                self._cluster.wait(min(left, LOOK))

    def destroy_workers(self) -> None:
        """End the processes; what has no outcome, and every later call, raises :class:`ClientClosed`."""
        self._client.close()
        self._end()


class ZStreamer(_Streamer):
    """Asks workers that ``run_zbatch_workers_forever`` or ``zbatch worker`` started, on any host.

    Args:
        broker: ``host:port`` of the broker's frontend.  It need not be there yet.
        topic: The model to ask; empty: ``default``.

    """

    def __init__(self, broker: str = BROKER, topic: str = "") -> None:
        self._client = ZClient(endpoints_of(broker)[0], topic=topic or "default")

    def destroy_workers(self) -> None:
        """Refuse: the workers are not this client's."""
        raise NotImplementedError("the workers are not this client's; end them where they were started")

    def close(self) -> None:
        """Say goodbye to the broker; what has no outcome raises :class:`ClientClosed`."""
        self._client.close()


def endpoints_of(broker: str) -> tuple[str, str]:
    """Return the endpoints of the frontend and the backend of a broker that is named ``host:port``.

    The backend is the next port.  Raises ``ValueError`` for what is no such name.
    """
    named = ADDRESS.fullmatch(str(broker))
    if named is None or not 0 < int(named[2]) < 65_535:
        raise ValueError(f"broker is {broker!r}, wanted host:port of its frontend, such as {BROKER}")
    # The name may mean ::1 as well, where nobody listens.
    host, port = "127.0.0.1" if named[1].lower() == "localhost" else named[1], named[2]
    return f"tcp://{host}:{port}", f"tcp://{host}:{int(port) + 1}"


def devices_of(cuda_devices: Sequence[int | str] | int | str | None) -> list[int | str]:
    """Return the devices to use in turn; those that are not there are told in one warning."""
    if cuda_devices is None:
        return []
    devices: list[int | str] = []
    devices += str(cuda_devices).split(",") if isinstance(cuda_devices, int | str) else cuda_devices
    there = gpus.visible()
    missing = [one for one in map(str, devices) if one not in there and one != "-1"]
    if missing:
        have = f"there are {', '.join(there)}" if there else "there is none"
        warnings.warn(f"cuda_devices names GPU {', '.join(missing)}: {have}", RuntimeWarning, stacklevel=3)
    return devices


def _end(cluster: Cluster, home: Home) -> None:
    """End what a Streamer started; in a child of a fork it is the parent's."""
    if cluster.is_mine:
        cluster.close()
        home.remove()
