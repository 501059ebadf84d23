"""ZClient and AsyncZClient against a real broker and worker: what callers may rely on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest

from tests.live.shell import PATIENCE, ROOT, environment, until
from zbatch import AsyncZClient, BadRequest, BrokerUnreachable, Cancelled, ClientClosed, ZbatchError, ZClient
from zbatch.aio import AsyncCall
from zbatch.core.client import BURST

pytestmark = pytest.mark.live

MODEL = f"{ROOT}/tests/live/models.py:Obedient"
NOBODY = "tcp://127.0.0.1:9"
"""The discard port: nothing listens there."""


WITHOUT_LINUX = """
import asyncio, os, sys, threading, numpy, zmq
for name in ("fcntl", "resource", "pwd", "termios"):
    sys.modules[name] = None
foreign = ("sched_", "pidfd", "fork", "register_at", "memfd", "eventfd", "kill", "set", "wait", "uname")
for name in dir(os):
    if name.startswith(foreign):
        delattr(os, name)
from zbatch import AsyncZClient, ZClient

async def later():
    async with AsyncZClient(sys.argv[1]) as client:
        return await client.predict(["b"])

with ZClient(sys.argv[1]) as client:
    print(client.predict(["a"]), client.submit([numpy.arange(3)]).result()[0].tolist(), asyncio.run(later()))
"""


def test_results_have_the_length_and_the_order_of_the_items(client: ZClient[object, object]) -> None:
    assert client.predict(["a", 1, None, ("t",), {"k": [2.5]}]) == ["a", 1, None, ("t",), {"k": [2.5]}]
    assert client.predict(item for item in "xyz") == ["x", "y", "z"]
    assert client.predict_one("one") == "one"
    many = list(range(1000))
    assert client.predict(many) == many


def test_rows_of_an_array_are_items_and_large_arrays_come_back_whole(client: ZClient[object, object]) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = client.predict(rows)
    assert [one.tolist() for one in found] == rows.tolist()  # type: ignore[attr-defined]
    large = np.random.default_rng(0).random((3, 224, 224), dtype=np.float32)
    (back,) = client.predict([large])
    assert np.array_equal(back, large)  # type: ignore[arg-type]


def test_nothing_is_answered_with_nothing_without_a_broker() -> None:
    with ZClient[object, object](NOBODY) as client:
        assert client.predict([]) == []


@pytest.mark.parametrize("bare", ["text", b"bytes", {"a": 1}, 5])
def test_a_bare_value_is_refused_with_a_sentence(client: ZClient[object, object], bare: object) -> None:
    with pytest.raises(BadRequest, match="wrap it in a list"):
        client.predict(bare)  # type: ignore[arg-type]


def test_an_item_that_cannot_be_sent_is_a_type_error_at_the_caller(client: ZClient[object, object]) -> None:
    with pytest.raises(TypeError, match=r"item\['a'\]\[1\]"):
        client.predict([{"a": [1, object()]}])


def test_a_future_has_the_interface_of_concurrent_futures(client: ZClient[object, object]) -> None:
    futures = [client.submit([n]) for n in range(20)]
    done, left = concurrent.futures.wait(futures, timeout=PATIENCE)
    assert (len(done), len(left)) == (20, 0)
    again = [client.submit([n]) for n in range(20)]
    completed: list[Any] = list(concurrent.futures.as_completed(again, PATIENCE))  # type: ignore[arg-type]
    assert {future.result()[0] for future in completed} == set(range(20))
    future = client.submit(["x"])
    assert future.result(PATIENCE) == future.result() == ["x"]
    assert future.exception() is None
    assert future.done() and not future.cancelled() and not future.running()


def test_a_callback_is_called_once_early_or_late(client: ZClient[object, object]) -> None:
    called: list[object] = []
    future = client.submit([{"sleep": 0.2}])
    future.add_done_callback(called.append)
    future.result(PATIENCE)
    future.add_done_callback(called.append)
    until(lambda: called == [future, future])


def test_a_wait_that_runs_out_leaves_the_request_alive(client: ZClient[object, object]) -> None:
    future = client.submit([{"sleep": 0.5}])
    with pytest.raises(TimeoutError):
        future.result(0.05)
    assert future.result(PATIENCE) == [{"sleep": 0.5}]


def test_a_cancelled_future_says_so_everywhere(client: ZClient[object, object]) -> None:
    future = client.submit(["never"], topic="nobody")
    assert future.cancel() and future.cancelled() and future.done()
    with pytest.raises(Cancelled):
        future.result()
    with pytest.raises(concurrent.futures.CancelledError):
        future.exception()
    until(lambda: not client.status()["topics"].get("nobody", {}).get("unfinished"))


def test_a_future_can_be_awaited_in_an_event_loop(client: ZClient[object, object]) -> None:
    async def ask() -> list[object]:
        return await asyncio.wrap_future(client.submit(["awaited"]))

    assert asyncio.run(ask()) == ["awaited"]


def test_map_is_lazy_ordered_and_bounded(client: ZClient[object, object]) -> None:
    taken = 0

    def source() -> Iterator[object]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    mapped = client.map(source(), window=5)
    assert taken == 0
    assert next(mapped) == 0
    assert taken == 5
    assert list(mapped) == list(range(1, 100))


def test_many_threads_each_get_their_own(client: ZClient[object, object]) -> None:
    def ask(name: int) -> list[object]:
        return [client.predict_one((name, number)) for number in range(50)]

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(ask, range(32), timeout=PATIENCE))
    assert found == [[(name, number) for number in range(50)] for name in range(32)]


def test_without_a_broker_a_request_fails_at_its_deadline() -> None:
    with ZClient[object, object](NOBODY) as client:
        with pytest.raises(BrokerUnreachable, match="no broker at tcp://127"):
            client.predict(["x"], timeout=0.3)
        with pytest.raises(BrokerUnreachable, match="is one running"):
            client.status(timeout=0.2)


def test_the_second_of_several_brokers_is_asked_when_the_first_is_quiet(frontend: str) -> None:
    with ZClient[object, object](f"{NOBODY},{frontend}", timeout=PATIENCE) as client:
        assert client.predict(["moved"]) == ["moved"]


def test_closing_ends_what_is_open_and_what_comes_after(frontend: str) -> None:
    client = ZClient[object, object](frontend)
    future = client.submit(["x"], topic="nobody")
    assert client.predict(["y"]) == ["y"]
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        future.result(PATIENCE)
    with pytest.raises(ClientClosed):
        client.predict(["z"])


def test_a_client_that_is_collected_leaves_no_thread_and_no_descriptor(frontend: str) -> None:
    me = psutil.Process()
    before = (me.num_fds(), threading.active_count())
    for _ in range(5):
        client = ZClient[object, object](frontend)
        assert client.submit(["x"]).result(PATIENCE) == ["x"]
        gone = weakref.ref(client)
        del client
        gc.collect()
        assert gone() is None
    until(lambda: (me.num_fds(), threading.active_count()) <= before)


def test_after_a_fork_the_child_opens_its_own_connection(frontend: str) -> None:
    client = ZClient[object, object](frontend, timeout=PATIENCE)
    assert client.predict(["parent"]) == ["parent"]
    open_in_parent = client.submit([{"sleep": 0.2}])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = client.predict(["child"]) == ["child"]
            try:
                open_in_parent.result(PATIENCE)
            except ClientClosed:
                status = 0 if own else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert open_in_parent.result(PATIENCE) == [{"sleep": 0.2}]
    assert client.predict(["parent again"]) == ["parent again"]
    client.close()


@pytest.mark.parametrize(
    "code",
    [
        "client.predict(['x'])",
        "client.submit(['x'], topic='nobody')",
        "future = client.submit([{'sleep': 0.3}])",
        "import threading; threading.Thread(target=client.predict, args=(['x'],), daemon=True).start()",
        "client = ZClient('tcp://127.0.0.1:9'); client.submit(['x'])",
    ],
)
def test_the_interpreter_ends_whatever_is_open(frontend: str, code: str) -> None:
    program = f"import sys; from zbatch import ZClient; client = ZClient(sys.argv[1]); {code}"
    ended = subprocess.run(
        [sys.executable, "-c", program, frontend],
        env=environment(),
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0


# --- the event loop ------------------------------------------------------------------------------


def run_async(test: Callable[[AsyncZClient[object, object]], object], frontend: str) -> None:
    async def main() -> None:
        async with AsyncZClient[object, object](frontend, timeout=PATIENCE) as client:
            await test(client)  # type: ignore[misc]

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_the_event_loop_client_answers_many_at_once(frontend: str) -> None:
    async def ask(client: AsyncZClient[object, object]) -> None:
        assert await client.predict([]) == []
        assert await client.predict(["a", "b"]) == ["a", "b"]
        assert await asyncio.gather(*(client.predict_one(n) for n in range(500))) == list(range(500))
        assert [one async for one in client.map(range(50), window=7)] == list(range(50))
        assert (await client.status())["topics"]["default"]["unfinished"] == 0

    run_async(ask, frontend)


class Told(AsyncCall):
    """A call that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def arrived(self, output: object) -> None:
        self.told.append(output)

    def fail(self, error: ZbatchError) -> None:
        self.told.append(error.code)


def test_a_call_without_a_future_is_told_of_its_one_outcome(frontend: str) -> None:
    large = {"array": np.arange(20_000)}

    async def ask(client: AsyncZClient[object, object]) -> None:
        calls = [Told() for _ in range(102)]
        for number, call in enumerate(calls[:100]):
            client.ask(call, number)
        client.ask(calls[100], large)
        client.ask(calls[101], "late", topic="nobody", timeout=0.05)
        while not all(call.told for call in calls):
            await asyncio.sleep(0.01)

        assert [call.told for call in calls[:100]] == [[number] for number in range(100)]
        np.testing.assert_equal(calls[100].told, [large])
        assert calls[101].told == ["no_workers"]

    run_async(ask, frontend)


def test_of_many_calls_without_a_future_the_first_leave_before_the_last_are_made(frontend: str) -> None:
    async def ask(client: AsyncZClient[object, object]) -> None:
        assert await client.predict(["welcomed"]) == ["welcomed"]
        calls = [Told() for _ in range(2 * BURST)]
        for number, call in enumerate(calls):
            client.ask(call, number)
        assert [call.group is not None for call in calls] == [True] * BURST + [False] * BURST
        while not all(call.told for call in calls):
            await asyncio.sleep(0.01)

        assert [call.told for call in calls] == [[number] for number in range(2 * BURST)]

    run_async(ask, frontend)


def test_where_the_first_of_many_calls_cannot_leave_they_end_and_the_next_begin_anew(frontend: str) -> None:
    def broken(now: float) -> list[Any]:
        raise OSError("no more")

    async def ask(client: AsyncZClient[object, object]) -> None:
        assert await client.predict(["welcomed"]) == ["welcomed"]
        assert client._line._core is not None
        client._line._core.flush = broken  # type: ignore[method-assign]
        calls = [Told() for _ in range(BURST + 1)]
        for number, call in enumerate(calls):
            client.ask(call, number)
        while not all(call.told for call in calls):
            await asyncio.sleep(0.01)

        assert [call.told for call in calls] == [["broker_unreachable"]] * BURST + [[BURST]]

    run_async(ask, frontend)


def test_a_call_without_a_future_that_is_withdrawn_is_told_nothing(frontend: str) -> None:
    async def ask(client: AsyncZClient[object, object]) -> None:
        withdrawn, never_sent, refused = Told(), Told(), Told()
        client.ask(withdrawn, "never", topic="nobody")
        await client.predict(["sent"])
        client.withdraw(withdrawn)
        client.ask(never_sent, "never", topic="nobody")
        client.withdraw(never_sent)
        with pytest.raises(TypeError):
            client.ask(refused, object())
        while (await client.status())["topics"].get("nobody", {}).get("unfinished"):
            await asyncio.sleep(0.01)

        assert withdrawn.told == never_sent.told == refused.told == []

    run_async(ask, frontend)


def test_a_call_without_a_future_hears_that_its_client_is_closed(frontend: str) -> None:
    async def ask(client: AsyncZClient[object, object]) -> None:
        call = Told()
        client.ask(call, "never", topic="nobody")
        await client.close()

        assert call.told == ["client_closed"]
        with pytest.raises(ClientClosed):
            client.ask(Told(), "too late")

    run_async(ask, frontend)


def test_cancelling_the_task_cancels_the_request(frontend: str) -> None:
    async def ask(client: AsyncZClient[object, object]) -> None:
        task = client.submit(["never"], topic="nobody")
        await client.predict(["sent"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await client.status())["topics"].get("nobody", {}).get("unfinished"):
            await asyncio.sleep(0.01)

    run_async(ask, frontend)


def test_the_event_loop_client_starts_no_thread(frontend: str) -> None:
    before = set(threading.enumerate())

    async def ask(client: AsyncZClient[object, object]) -> None:
        await client.predict(["x"])
        assert set(threading.enumerate()) <= before

    run_async(ask, frontend)


def test_a_deadline_passes_in_the_event_loop_too() -> None:
    async def ask(client: AsyncZClient[object, object]) -> None:
        with pytest.raises(BrokerUnreachable):
            await client.predict(["x"], timeout=0.3)

    run_async(ask, NOBODY)


def test_an_event_loop_client_belongs_to_one_loop(frontend: str) -> None:
    client = AsyncZClient[object, object](frontend)

    async def ask() -> None:
        await client.predict(["x"])

    asyncio.run(ask())
    with pytest.raises(ClientClosed, match="another event loop"):
        asyncio.run(ask())


def test_an_async_iterator_left_early_cancels_the_rest(frontend: str) -> None:
    async def ask(client: AsyncZClient[object, object]) -> None:
        mapped: AsyncIterator[object] = client.map(range(1000), window=10)
        async for one in mapped:
            assert one == 0
            break
        await mapped.aclose()  # type: ignore[attr-defined]
        while (await client.status())["topics"]["default"]["unfinished"]:
            await asyncio.sleep(0.01)

    run_async(ask, frontend)


def test_a_client_needs_nothing_that_only_linux_has(frontend: str) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", WITHOUT_LINUX, frontend],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert (asked.stdout, asked.stderr, asked.returncode) == ("['a'] [0, 1, 2] ['b']\n", "", 0)


def test_an_item_that_cannot_travel_is_named_by_its_place_among_several(client: ZClient[Any, Any]) -> None:
    with pytest.raises(TypeError, match=r"^item 1\['p'\]\[0\] is a builtins\.object"):
        client.predict([1, {"p": [object()]}])
    with pytest.raises(TypeError, match=r"^item\['p'\] is a builtins\.object"):
        client.predict([{"p": object()}])


def test_a_client_whose_status_never_came_leaves_nothing_when_it_is_dropped() -> None:
    before = psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(BrokerUnreachable):
            ZClient[Any, Any](NOBODY).status(timeout=0.1)
    gc.collect()
    until(lambda: not any(one.name == "zbatch-client" for one in threading.enumerate()))
    until(lambda: psutil.Process().num_fds() <= before)


def test_askers_in_many_threads_all_get_a_status(client: ZClient[Any, Any]) -> None:
    with ThreadPoolExecutor(8) as pool:
        shown = list(pool.map(lambda _: client.status(timeout=PATIENCE), range(200)))
    assert all("topics" in one for one in shown)
