"""A caller under chaos: a process that asks all the time, and writes down each request and each outcome.

It ends when its stdin does, after the last outcome.  A line is ``ask ID TIMEOUT`` or ``end ID CODE LATE``,
where the code is ``ok`` or the error's, and LATE how many seconds the outcome came after its deadline (less
than nothing: before).
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import TextIO

from zbatch import BatchError, ZbatchError, ZClient


class Caller:
    """Several threads, one client, one log."""

    def __init__(self, name: str, brokers: str, log: TextIO, seed: int) -> None:
        self._name = name
        self._client: ZClient[str, str] = ZClient(brokers, topic="echo")
        self._log = log
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._count = 0
        self.ended = threading.Event()

    def run(self, threads: int) -> None:
        """Ask until told to end."""
        askers = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(threads)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self._client.close()

    def _ask(self, number: int) -> None:
        chance = random.Random(self._random.random() + number)
        while not self.ended.is_set():
            items = [self._name_of(chance) for _ in range(chance.choice((1, 1, 1, 3)))]
            timeout = chance.choice((0.5, 5.0, 30.0, 60.0))
            deadline = time.monotonic() + timeout
            self._write(*(f"ask {item} {timeout}" for item in items))
            codes = self._outcomes(items, timeout)
            late = time.monotonic() - deadline
            self._write(*(f"end {item} {code} {late:.3f}" for item, code in zip(items, codes, strict=True)))
            time.sleep(chance.uniform(0.0, 0.01))

    def _outcomes(self, items: list[str], timeout: float) -> list[str]:
        try:
            answers: list[str | Exception] = list(self._client.predict(items, timeout=timeout))
        except BatchError as error:
            answers = [error.errors.get(at, one) for at, one in enumerate(error.results)]
        except ZbatchError as error:
            return [error.code] * len(items)
        return [_code(item, answer) for item, answer in zip(items, answers, strict=True)]

    def _name_of(self, chance: random.Random) -> str:
        with self._lock:
            self._count += 1
            number = self._count
        mark = chance.choice("!?") if chance.random() < 0.002 else "-"
        return f"{mark}{self._name}.{number}"

    def _write(self, *lines: str) -> None:
        with self._lock:
            self._log.write("".join(f"{line}\n" for line in lines))


def _code(item: str, answer: object) -> str:
    if isinstance(answer, ZbatchError):
        return answer.code
    return "ok" if answer == f"y{item}" else f"foreign:{answer!r:.60}"


def main(name: str, brokers: str, log: str, seed: str, threads: str = "8") -> None:
    """Ask until stdin ends."""
    with open(log, "w", buffering=1) as stream:
        caller = Caller(name, brokers, stream, int(seed))
        runs = threading.Thread(target=caller.run, args=(int(threads),))
        runs.start()
        sys.stdin.read()
        caller.ended.set()
        runs.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
