"""What is done to a farm, from a seed: kill, stop, drain, cut, slow down, reset."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import psutil

from tests.chaos.farm import Farm, Program


class Harm:
    """Does harm, and undoes it after a while."""

    def __init__(self, farm: Farm, seed: int) -> None:
        self._farm = farm
        self._random = Random(seed)
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self.done: Counter[str] = Counter()
        self.stopped: set[str] = set()
        """Callers that were stopped, or cut off from their own clock's sense of time."""
        kinds = [
            self._kill_model,
            self._kill_worker,
            self._kill_broker,
            self._stop_model,
            self._stop_broker,
            self._stop_caller,
            self._drain_worker,
            self._drain_broker,
            self._proxy,
            self._proxy,
        ]
        if farm.bridge is not None:
            kinds += [self._cut, self._cut, self._slow]
        self._kinds = kinds

    def turn(self) -> None:
        """Undo what is over, and do something new now and then."""
        now = time.monotonic()
        for one in [one for one in self._undo if one[0] <= now]:
            self._undo.remove(one)
            one[1]()
        if self._random.random() < 0.35:
            self._random.choice(self._kinds)()

    def _later(self, act: Callable[[], None], least: float = 0.3, most: float = 9.0) -> None:
        self._undo.append((time.monotonic() + self._random.uniform(least, most), act))

    def _begin_again(self, program: Program) -> None:
        self._later(lambda: None if program.alive else program.start(), 0.1, 5.0)

    # --- workers -----------------------------------------------------------------------------------

    def _model(self) -> psutil.Process | None:
        models = [
            process
            for worker in self._farm.workers
            for process in worker.below()
            if "zbatch.model_process" in _command(process)
        ]
        return self._random.choice(models) if models else None

    def _kill_model(self) -> None:
        model = self._model()
        if model is not None:
            self.done["model killed"] += 1
            with contextlib.suppress(psutil.NoSuchProcess):
                model.kill()

    def _stop_model(self) -> None:
        model = self._model()
        if model is not None:
            self.done["model stopped"] += 1
            with contextlib.suppress(psutil.NoSuchProcess):
                model.suspend()
            self._later(lambda: _resume(model))

    def _kill_worker(self) -> None:
        worker = self._random.choice(self._farm.workers)
        if worker.alive:
            self.done["worker killed"] += 1
            worker.kill()
            self._begin_again(worker)

    def _drain_worker(self) -> None:
        worker = self._random.choice(self._farm.workers)
        if worker.alive and not worker.stopped:
            self.done["worker drained"] += 1
            worker.signal(signal.SIGTERM)
            self._later(lambda: self._again_when_gone(worker))

    def _again_when_gone(self, program: Program) -> None:
        if program.alive:
            self._later(lambda: self._again_when_gone(program), 0.5, 1.0)
        else:
            program.start()

    # --- brokers and callers -----------------------------------------------------------------------

    def _kill_broker(self) -> None:
        broker = self._random.choice(self._farm.brokers)
        if broker.alive:
            self.done["broker killed"] += 1
            broker.kill()
            self._begin_again(broker)

    def _stop_broker(self) -> None:
        self._stop(self._random.choice(self._farm.brokers), "broker stopped")

    def _stop_caller(self) -> None:
        caller = self._random.choice(self._farm.callers)
        self.stopped.add(caller.name)
        self._stop(caller, "caller stopped")

    def _stop(self, program: Program, what: str) -> None:
        if program.alive and not program.stopped:
            self.done[what] += 1
            program.signal(signal.SIGSTOP)
            self._later(lambda: program.signal(signal.SIGCONT))

    def _drain_broker(self) -> None:
        broker = self._random.choice(self._farm.brokers)
        if broker.alive and not broker.stopped:
            self.done["broker drained"] += 1
            broker.signal(signal.SIGTERM)
            self._later(lambda: self._again_when_gone(broker), 5.5, 8.0)

    # --- the network -------------------------------------------------------------------------------

    def _cut(self) -> None:
        host = self._random.choice(self._farm.hosts())
        self.done["link cut"] += 1
        host.cut()
        self._later(host.mend, 0.3, 13.0)

    def _slow(self) -> None:
        host = self._random.choice(self._farm.hosts())
        self.done["link slowed"] += 1
        host.slow(self._random.choice((64, 256, 2_000)))
        self._later(host.mend, 1.0, 9.0)

    def _proxy(self) -> None:
        proxy = self._random.choice(self._farm.proxies)
        order = self._random.choice(("delay 200 150", "slice", "slow 256", "cut", "half", "reset"))
        self.done[f"proxy: {order.split()[0]}"] += 1
        proxy.order(order)
        self._later(lambda: proxy.order("mend"), 0.5, 12.0)


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()
