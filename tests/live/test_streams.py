"""Streams through real processes: whole or broken, each reader for itself."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.shell import PATIENCE, ROOT, Zbatch, until
from zbatch import (
    AsyncZClient,
    BatchError,
    Cancelled,
    ClientClosed,
    DeadlineExceeded,
    ModelFailed,
    ReaderTooSlow,
    WorkerLost,
    ZClient,
)

pytestmark = pytest.mark.live

PIECE = 100_000
"""Bytes of a part of which a few fill a window."""


class Farm:
    """A broker and a worker whose model talks."""

    def __init__(self, home: Path, model: str = "Talker", *options: str) -> None:
        self.frontend, self.backend = f"ipc://{home}/front", f"ipc://{home}/back"
        self.home = home
        self.journal = home / "journal"
        self.journal.touch()
        self.broker = self.start_broker()
        name = f"{ROOT}/tests/live/models.py:{model}"
        arg = ("--arg", f"journal={self.journal}")
        self.worker = Zbatch(
            home / "worker.log", "worker", name, "--gpu", "cpu", "--backend", self.backend, *arg, *options
        )
        self.worker.says("model ready")

    def start_broker(self) -> Zbatch:
        return Zbatch(
            self.home / "broker.log", "broker", "--frontend", self.frontend, "--backend", self.backend
        )

    def words(self, word: str) -> int:
        """Return how often the model noted a word."""
        return self.journal.read_text().count(word)

    def end(self) -> None:
        for one in (self.worker, self.broker):
            one.process.kill()
            one.process.wait()


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    farm = Farm(tmp_path)
    yield farm
    farm.end()


@pytest.fixture
def client(farm: Farm) -> Iterator[ZClient[Any, Any]]:
    with ZClient[Any, Any](farm.frontend, timeout=PATIENCE) as client:
        yield client


def names(name: str, count: int) -> list[str]:
    return [f"{name}{step}" for step in range(count)]


def together(*acts: Callable[[], object]) -> None:
    """Do several things at once, each in a thread."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


def test_many_readers_in_threads_and_loops_share_batches_and_get_their_own(
    farm: Farm, client: ZClient[Any, Any]
) -> None:
    got: dict[str, list[str]] = {}

    def read(name: str, count: int) -> None:
        got[name] = list(client.stream({"parts": count, "name": name, "pause": 0.01}))

    async def read_all() -> None:
        async with AsyncZClient[Any, Any](farm.frontend, timeout=PATIENCE) as own:

            async def read_one(name: str, count: int) -> None:
                order = {"parts": count, "name": name, "pause": 0.01}
                got[name] = [part async for part in own.stream(order)]

            await asyncio.gather(*(read_one(f"loop{one} ", one) for one in range(8)))

    readers = [lambda one=one: read(f"thread{one} ", one) for one in range(8)]
    together(lambda: asyncio.run(read_all()), *readers)
    wanted = {f"{kind}{one} ": names(f"{kind}{one} ", one) for kind in ("loop", "thread") for one in range(8)}
    assert got == wanted
    assert farm.words("began") < len(wanted)


def test_parts_travel_in_order_however_fast_they_come(client: ZClient[Any, Any]) -> None:
    assert list(client.stream({"parts": 3_000, "name": ""})) == names("", 3_000)
    pieces = list(client.stream({"parts": 100, "size": PIECE}))
    assert [int(piece[0]) for piece in pieces] == list(range(100))


def test_who_asks_for_the_whole_gets_all_parts_at_once(client: ZClient[Any, Any]) -> None:
    assert client.predict([{"parts": 2}, {"parts": 0}]) == [["0", "1"], []]
    with pytest.raises(BatchError):
        client.predict([{"parts": 2}, {"parts": 2, "fail": 1}])


def test_a_model_that_yields_nothing_answers_with_one_part(tmp_path: Path) -> None:
    farm = Farm(tmp_path, "Obedient")
    try:
        with ZClient[Any, Any](farm.frontend, timeout=PATIENCE) as client:
            assert list(client.stream("word")) == ["word"]
            with pytest.raises(ModelFailed):
                list(client.stream("fail"))
    finally:
        farm.end()


def test_an_error_comes_after_what_came_before_it(client: ZClient[Any, Any]) -> None:
    stream = client.stream({"parts": 5, "fail": 2})
    assert [next(stream), next(stream)] == ["0", "1"]
    for _ in range(2):
        with pytest.raises(ModelFailed, match="told to fail"):
            next(stream)


@pytest.mark.parametrize("parts", [0, 2])
def test_a_model_that_raises_ends_its_streams_in_that_error(client: ZClient[Any, Any], parts: int) -> None:
    stream = client.stream({"parts": 5, "raise": parts})
    assert [next(stream) for _ in range(parts)] == ["0", "1"][:parts]
    for _ in range(2):
        with pytest.raises(ModelFailed, match="told to raise"):
            next(stream)


def test_a_stream_whose_model_dies_before_its_first_part_is_whole(
    farm: Farm, client: ZClient[Any, Any]
) -> None:
    assert list(client.stream({"parts": 3, "die": 0})) == ["0", "1", "2"]
    assert farm.words("began") == 2


def test_a_stream_whose_model_dies_after_its_first_part_ends_in_an_error(
    farm: Farm, client: ZClient[Any, Any]
) -> None:
    stream = client.stream({"parts": 10_000, "pause": 0.01})
    assert next(stream) == "0"
    models = farm.worker.family()
    models[-1].kill()
    with pytest.raises(WorkerLost):
        list(stream)
    farm.worker.says("model ready", times=2)
    assert list(client.stream({"parts": 1})) == ["0"]


def test_a_stream_whose_broker_is_killed_ends_in_an_error(farm: Farm, client: ZClient[Any, Any]) -> None:
    stream = client.stream({"parts": 10_000, "pause": 0.01})
    assert next(stream) == "0"
    farm.broker.signal(signal.SIGKILL)
    farm.broker.ends()
    farm.broker = farm.start_broker()
    with pytest.raises(WorkerLost):
        list(stream)
    until(lambda: farm.words("ended") == 1)
    assert list(client.stream({"parts": 1})) == ["0"]


def test_a_stream_that_has_not_begun_survives_its_broker(farm: Farm, client: ZClient[Any, Any]) -> None:
    stream = client.stream({"parts": 3, "pause": 1.0})
    until(lambda: farm.words("began"))
    farm.broker.signal(signal.SIGKILL)
    farm.broker.ends()
    farm.broker = farm.start_broker()
    assert list(stream) == ["0", "1", "2"]


def test_a_stream_outlives_its_timeout_while_parts_come(client: ZClient[Any, Any]) -> None:
    assert list(client.stream({"parts": 8, "pause": 0.4}, timeout=2.0)) == names("", 8)
    stream = client.stream({"parts": 2, "pause": 3.0}, timeout=1.0)
    with pytest.raises(DeadlineExceeded):
        next(stream)


def test_a_model_waits_for_its_only_reader(farm: Farm, client: ZClient[Any, Any]) -> None:
    stream = client.stream({"parts": 300, "size": PIECE})
    next(stream)
    time.sleep(2.5)
    assert farm.words("ended") == 0
    assert len(list(stream)) == 299


def test_a_model_does_not_wait_for_a_reader_while_others_wait_for_the_model(
    farm: Farm, client: ZClient[Any, Any]
) -> None:
    stream = client.stream({"parts": 300, "size": PIECE})
    next(stream)
    assert client.predict([{"parts": 1}]) == [["0"]]
    with pytest.raises(ReaderTooSlow, match="others wait for the model, which has waited"):
        list(stream)


def test_a_reader_that_sleeps_holds_back_only_itself(farm: Farm, client: ZClient[Any, Any]) -> None:
    # Both come while another batch runs, so that they share the next one.
    holding = client.submit([{"parts": 1, "pause": 0.5}])
    until(lambda: farm.words("began"))
    sleeps = client.stream({"parts": 300, "size": PIECE})
    reads = client.stream({"parts": 300, "size": PIECE})
    holding.result()
    assert len(list(reads)) == 300
    assert farm.words("began") == 2
    got = 0
    with pytest.raises(ReaderTooSlow):
        for _ in sleeps:
            got += 1
    assert 0 < got < 300


def test_a_reader_that_reads_nothing_for_its_timeout_gives_its_worker_back(
    farm: Farm, client: ZClient[Any, Any]
) -> None:
    stream = client.stream({"parts": 300, "size": PIECE}, timeout=2.0)
    next(stream)
    assert client.predict([{"parts": 1}]) == [["0"]]
    with pytest.raises(ReaderTooSlow):
        list(stream)


def test_a_reader_that_leaves_stops_the_model(farm: Farm, client: ZClient[Any, Any]) -> None:
    for left in (1, 2, 3):
        stream = client.stream({"parts": 10**9, "pause": 0.001})
        for part in stream:
            if part == "5":
                break
        if left == 1:
            stream.close()
        if left == 2:
            with stream:
                pass
        del stream
        until(lambda left=left: farm.words("ended") == left)  # type: ignore[misc]
    assert client.predict([{"parts": 1}]) == [["0"]]


def test_a_stream_that_was_closed_has_no_end(client: ZClient[Any, Any]) -> None:
    stream = client.stream({"parts": 10**9, "pause": 0.001})
    next(stream)
    stream.close()
    with pytest.raises(Cancelled):
        next(stream)


def test_a_task_that_is_cancelled_or_lets_go_stops_the_model(farm: Farm) -> None:
    async def main() -> None:
        async with AsyncZClient[Any, Any](farm.frontend, timeout=PATIENCE) as client:
            order = {"parts": 10**9, "pause": 0.001}

            async def read() -> None:
                async for _ in client.stream(order):
                    pass

            task = asyncio.create_task(read())
            await asyncio.to_thread(until, lambda: farm.words("began") == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: farm.words("ended") == 1)
            async for _ in client.stream(order):
                break
            await asyncio.to_thread(until, lambda: farm.words("ended") == 2)
            async with client.stream(order) as stream:
                assert await anext(stream) == "0"
            with pytest.raises(Cancelled):
                await anext(stream)

    asyncio.run(main())


def test_a_client_that_closes_ends_its_streams_in_an_error(farm: Farm) -> None:
    client = ZClient[Any, Any](farm.frontend, timeout=PATIENCE)
    stream = client.stream({"parts": 10**9, "pause": 0.001})
    next(stream)
    client.close()
    with pytest.raises(ClientClosed):
        list(stream)
    with pytest.raises(ClientClosed):
        client.stream({"parts": 1})
    until(lambda: farm.words("ended") == 1)
