"""What a Streamer was given in Python, made anew in a model process.

As with multiprocessing's spawn, functions, bound methods and classes travel as a pickle, also those of the
main script, which is imported again for it.  The pickle is a file of this user's, written by the process
that made the Streamer; nothing that came over a socket is ever read so.
"""

from __future__ import annotations

import math
import operator
import os
import pickle
import pickletools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import process, spawn
from pathlib import Path
from typing import Any

from zbatch.config import WorkerSettings
from zbatch.core.worker import SHORTEST_LEASE
from zbatch.errors import ConfigError
from zbatch.model import Context, ManagedModel
from zbatch.runner import current_batch, progress

CUDA = "CUDA_VISIBLE_DEVICES"

SAYS = ("example", "idempotent", "version", "signature")
"""What a model's class may say of itself.  What ``init_model`` gives such a name means something else in code
that is older."""

MAINS = frozenset({"__main__", "__mp_main__"})
"""What the main script is called here, and where it was imported again."""

PLAIN = frozenset({int, float, str, bytes, bool, type(None)})
"""What holds no array; long lists of it (tokens) are passed over fast."""

RENEW = 5.0
"""Seconds between two looks at whether the batch that runs may need more time than its lease."""


class Spawned:
    """The model of a Streamer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._over = threading.Event()
        self._predict: Callable[[list[Any]], Sequence[Any]]
        self._close: Callable[[], object] | None = None

    def setup(self, context: Context) -> None:
        """Load what was written, for this of the model processes; raises what the user's code raises."""
        # A thread, whatever the main script does to threads when it is imported (gevent's patch).
        threading.Thread(target=keep_lease, args=(self._over,), name="zbatch-lease", daemon=True).start()
        with open(self._path, "rb") as stream:
            preparation, visible, devices = pickle.load(stream)
            # Before anything is imported that may count GPUs.
            gpu = devices[context.index % len(devices)] if devices else None
            if gpu is not None:
                os.environ[CUDA] = str(gpu)
            elif visible is not None:
                os.environ[CUDA] = visible
            else:
                os.environ.pop(CUDA, None)
            me: Any = process.current_process()
            # Whatever the main script would start while it is imported again says so instead.
            me._inheriting = True
            try:
                spawn.prepare(preparation)
                target, args, kwargs = pickle.load(stream)
            finally:
                del me._inheriting
        if isinstance(target, type) and issubclass(target, ManagedModel):
            model = target(gpu)
            model.init_model(*args, **kwargs)
            target = model.predict
            for name in SAYS:
                if hasattr(type(model), name):
                    setattr(self, name, getattr(model, name))
            self._close = getattr(model, "close", None)
        self._predict = target

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """Return one output for each item of the batch.

        What it gets is its own to write to, as what was pickled was: zbatch's own memory may be read again.
        """
        # Without NumPy no item holds an array.
        return self._predict([_writable(item) for item in batch] if "numpy" in sys.modules else batch)

    def close(self) -> None:
        """Let the model release what it holds."""
        self._over.set()
        if self._close is not None:
            self._close()


def keep_lease(over: threading.Event, every: float = RENEW) -> None:
    """Renew the lease of whatever batch runs, until ``over``, up to its last deadline.

    service_streamer knew no lease: who set a timeout of an hour may have a batch that takes as long.
    """
    while not over.wait(every):
        batch = current_batch()
        if batch is not None and is_too_short(batch.deadlines, time.monotonic()):
            progress()


def is_too_short(deadlines: Sequence[float], now: float) -> bool:
    """Return whether a batch whose lease began up to :data:`RENEW` ago may outlive it before its deadline."""
    return max(deadlines) - now > SHORTEST_LEASE - RENEW


def refuse_while_main_is_imported(what: str) -> None:
    """Raise ``RuntimeError`` where the main script is being imported again, to find what was spawned."""
    if getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"{what} runs while a model process imports the main script again: put what the script does "
            "under  if __name__ == '__main__':  or, where a web server runs it, the model into another module"
        )


@dataclass(frozen=True)
class Given:
    """A model that somebody handed in, and how it is to be run."""

    target: Callable[..., Any]
    """A :class:`ManagedModel` class, or whatever can be called with a list."""
    batch_size: int
    max_latency: float
    num: int = 1
    """Model processes."""
    devices: Sequence[int | str] = ()
    """What ``CUDA_VISIBLE_DEVICES`` becomes in them, in turn; none: what it is here."""
    args: Sequence[Any] = ()
    """Positional and keyword arguments of ``init_model``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_limits(self.batch_size, self.max_latency, self.num)

    def write(self, path: Path) -> None:
        """Write the model down for the processes that will run it.

        Raises ``TypeError`` for what other processes cannot load.
        """
        name = getattr(self.target, "__qualname__", type(self.target).__qualname__)
        try:
            body = pickle.dumps((self.target, tuple(self.args), dict(self.kwargs)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            hint = (
                "a lambda has no name that other processes could load; "
                "write a function at the top of a module"
                if "<lambda>" in name
                else "wanted what other processes can load: a function or class at the top of a module, "
                "a method of an object that can be pickled"
            )
            raise TypeError(f"{name} cannot be sent to a model process: {hint} ({error})") from None
        main = _main() if _names_main(body) else {}
        if main is None:
            raise TypeError(
                f"{name} cannot be sent to a model process: it is defined where no other process can import "
                "it from (a notebook, a console, -c, a package's __main__.py); write it into a module"
            )
        head = pickle.dumps((_preparation() | main, os.environ.get(CUDA), list(self.devices)))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(head)
            stream.write(body)

    def worker(self, path: Path) -> WorkerSettings:
        """Return the settings of a worker that runs what was written; its devices are the model's matter."""
        return WorkerSettings(
            model="zbatch.spawned:Spawned",
            args={"path": str(path)},
            gpu=("cpu",),
            num=operator.index(self.num),
            batch_size=operator.index(self.batch_size),
            max_latency=float(self.max_latency),
            log_level="warning",
        )


def require_limits(batch_size: Any, max_latency: Any, worker_num: Any = 1) -> None:
    """Raise :class:`ConfigError` for what is no number, or none with which anything could run."""
    for name, value in (("batch_size", batch_size), ("worker_num", worker_num)):
        if not hasattr(value, "__index__") or operator.index(value) < 1:
            raise ConfigError(f"{name} is {value!r}, wanted a whole number, at least 1")
    # No string, no NaN, no infinity: all of these end in a worker that never serves.
    if not hasattr(max_latency, "__float__") or not 0 <= float(max_latency) < math.inf:
        raise ConfigError(f"max_latency is {max_latency!r}, wanted seconds, at least 0")


def require_start_method(name: str) -> None:
    """Raise ``ValueError`` for what is no way to start processes; all are taken for spawn."""
    if name not in ("spawn", "fork", "forkserver"):
        raise ValueError(f"mp_start_method is {name!r}, wanted spawn, fork or forkserver")


def _writable(value: Any) -> Any:
    """Return an item with copies in the place of its arrays."""
    if type(value) in (list, tuple):
        return type(value)([one if type(one) in PLAIN else _writable(one) for one in value])
    if type(value) is dict:
        return {key: _writable(one) for key, one in value.items()}
    return value.copy() if isinstance(value, sys.modules["numpy"].ndarray) else value


def _preparation() -> dict[str, Any]:
    """Return what multiprocessing needs to bring another process to where this one is."""
    return {
        "sys_path": [one or os.getcwd() for one in sys.path],
        "sys_argv": sys.argv,
        "orig_dir": os.getcwd(),
    }


def _main() -> dict[str, str] | None:
    """Return how multiprocessing may import the main script again; None, where it cannot."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        # It leaves the main module of a package or a folder alone.
        return None if name.rpartition(".")[2] == "__main__" else {"init_main_from_name": name}
    # A script that is read from stdin names a file, too.
    return {"init_main_from_path": str(Path(path).absolute())} if path and Path(path).is_file() else None


def _names_main(pickled: bytes) -> bool:
    """Return whether something that was pickled is to be found in the main script."""
    return any(word in MAINS for _, word, _ in pickletools.genops(pickled) if type(word) is str)
