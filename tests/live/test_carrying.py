"""Whatever happens to the thread that carries calls, each call ends once, in time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

import zbatch
from tests.live.shell import PATIENCE, ROOT, environment, until
from zbatch import (
    AsyncZClient,
    BadRequest,
    BrokerUnreachable,
    ClientClosed,
    ConfigError,
    DeadlineExceeded,
    ZClient,
)

pytestmark = pytest.mark.live

MODEL = f"{ROOT}/tests/live/models.py:Obedient"


def test_cancels_that_race_with_outcomes_leave_a_client_that_answers(client: ZClient[Any, Any]) -> None:
    def race(_: int) -> int:
        for _ in range(20):
            futures = [client.submit([number]) for number in range(64)]
            futures[0].result()
            for future in futures:
                future.cancel()
        return len(client.predict([1, 2]))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(race, range(3))) == [2, 2, 2]


@pytest.mark.parametrize("ask", ["predict", "submit"])
def test_an_endpoint_that_cannot_be_connected_to_is_an_error_of_every_call(ask: str) -> None:
    with ZClient[Any, Any]("tcp://-bad-:5555", timeout=PATIENCE) as client:
        for _ in range(2):
            with pytest.raises(ConfigError, match="cannot connect to"):
                _ = client.predict([1]) if ask == "predict" else client.submit([1]).result()


def test_without_descriptors_a_call_fails_by_name_and_the_next_one_begins_anew(frontend: str) -> None:
    program = f"""
import os, resource
from zbatch import BrokerUnreachable, ZClient
client = ZClient({frontend!r}, timeout={PATIENCE})
taken = []
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for ask in (client.predict, lambda items: client.submit(items).result()):
    try:
        ask([1])
    except BrokerUnreachable as error:
        print("refused:", error)
for one in taken:
    os.close(one)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(client.predict([2]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.count("refused: no connection can be opened: Too many open files") == 2
    assert done.stdout.endswith("[2]\n")


class _Alarm(Exception):
    pass


def test_a_signals_handler_that_raises_at_the_helm_leaves_others_their_outcomes(
    client: ZClient[Any, Any],
) -> None:
    def ring(*_: object) -> None:
        raise _Alarm

    client.predict([0])
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with ThreadPoolExecutor(1) as pool:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            other = pool.submit(client.submit, [{"sleep": 0.4}])
            with pytest.raises(_Alarm):
                client.predict([{"sleep": 2.0}])
            until(other.result().done)
            assert other.result().result() == [{"sleep": 0.4}]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_caller_that_waits_ends_in_time_though_nobody_carries_its_call(client: ZClient[Any, Any]) -> None:
    client.predict([0])
    helm = client._line._helm
    assert helm.take()
    try:
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(client.predict, [1], timeout=0.2) for _ in range(2)]
            for one in both:
                assert isinstance(one.exception(PATIENCE), DeadlineExceeded)
    finally:
        helm.leave()
    assert client.predict([2]) == [2]


def test_a_callback_may_ask_close_and_leave(frontend: str) -> None:
    client = ZClient[Any, Any](frontend, timeout=PATIENCE)
    answers: list[Any] = []
    first = client.submit([1])
    first.add_done_callback(lambda _: answers.append(client.predict([2])))
    until(lambda: answers == [[2]])
    client.submit([3]).add_done_callback(lambda _: sys.exit(3))
    client.submit([4]).add_done_callback(lambda _: client.close())
    until(lambda: bool(client._line.closed))
    with pytest.raises(ClientClosed):
        client.predict([5])


def test_a_local_client_outlives_a_callback_that_wants_to_leave() -> None:
    with zbatch.local(lambda batch: batch) as client:
        client.submit([1]).add_done_callback(lambda _: sys.exit(3))
        assert client.predict([2]) == [2]


def test_a_callback_that_blocks_keeps_no_other_call(client: ZClient[Any, Any]) -> None:
    release = threading.Event()
    client.submit([1]).add_done_callback(lambda _: release.wait(PATIENCE))
    assert client.submit([2]).result() == [2]
    release.set()


def test_a_client_that_is_closed_while_its_items_are_taken_says_so(frontend: str) -> None:
    client = ZClient[Any, Any](frontend, timeout=PATIENCE)

    def items() -> Iterator[int]:
        yield 1
        client.close()
        yield 2

    with pytest.raises(ClientClosed):
        client.predict(items())


def test_a_cancel_within_another_calls_outcome_does_not_wait_for_itself(client: ZClient[Any, Any]) -> None:
    # The garbage collector may do that: it closes a map() that nobody goes on with.
    never = client.submit(["never"], topic="nobody")
    with client._line._settling:
        assert never.cancel()
    assert client.predict([1]) == [1]


def test_clients_that_are_let_go_with_an_answered_future_leak_nothing(frontend: str) -> None:
    def ask() -> None:
        future = ZClient[Any, Any](frontend, timeout=PATIENCE).submit([1])
        assert future.result() == [1]

    before, me = set(threading.enumerate()), psutil.Process()
    ask()
    gc.collect()
    until(lambda: set(threading.enumerate()) <= before)
    files = me.num_fds()
    for _ in range(10):
        ask()
    gc.collect()
    until(lambda: set(threading.enumerate()) <= before)
    until(lambda: me.num_fds() <= files + 2)


def test_threads_that_share_a_future_all_get_its_outputs(client: ZClient[Any, Any]) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(100):
                several, one = client.submit(["a", ("b",), "c"]), client.submit([("d",)])
                found = list(pool.map(lambda future: future.result(), [several, one] * 4))
                assert found == [["a", ("b",), "c"], [("d",)]] * 4
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "\ud800"},
        {"key": "k" * 257},
        {"timeout": 1e300},
        {"timeout": 10**400},
        {"timeout": float("nan")},
        {"cost": 1e16},
        {"cost": 10**400},
        {"cost": "ab"},
        {"cost": float("nan")},
        {"topic": ["a"]},
        {"topic": "\ud800"},
        {"priority": 2**40},
    ],
    ids=str,
)
def test_an_argument_beyond_its_bounds_is_refused_and_hurts_no_other_call(
    client: ZClient[Any, Any], wrong: dict[str, Any]
) -> None:
    other = client.submit([1])
    with pytest.raises(BadRequest):
        client.submit([2], **wrong)
    assert other.result() == [1]


def test_the_shortest_timeout_is_one() -> None:
    with ZClient[Any, Any]("tcp://127.0.0.1:9") as client, pytest.raises(BrokerUnreachable):
        client.predict([1], timeout=5e-324)


def test_a_fork_in_the_middle_of_a_wait_leaves_the_child_able_to_wait(frontend: str) -> None:
    program = f"""
import concurrent.futures, os, zbatch
from zbatch import futures
with futures._shared.making:
    child = os.fork()
if not child:
    client = zbatch.ZClient({frontend!r}, timeout={PATIENCE})
    done, _ = concurrent.futures.wait([client.submit([1])], {PATIENCE})
    os._exit(len(done))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(), timeout=PATIENCE, check=False)
    assert done.returncode == 1


def test_a_local_client_in_a_child_says_why_it_carries_nothing() -> None:
    with zbatch.local(lambda batch: batch) as client:
        child = os.fork()
        if not child:
            try:
                client.predict([1])
            except ClientClosed as error:
                os._exit(0 if "stays with the process that made it" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_waiting_for_several_futures_works_while_a_callback_blocks(client: ZClient[Any, Any]) -> None:
    release = threading.Event()
    futures = [client.submit([number]) for number in range(3)]
    futures[0].add_done_callback(lambda _: release.wait(PATIENCE))
    done, _ = concurrent.futures.wait(futures, PATIENCE)
    release.set()
    assert done == set(futures)


def test_in_an_event_loop_too_an_endpoint_that_cannot_be_connected_to_is_an_error_of_every_call() -> None:
    async def ask() -> None:
        async with AsyncZClient[Any, Any]("tcp://-bad-:5555", timeout=PATIENCE) as client:
            for _ in range(2):
                with pytest.raises(ConfigError, match="cannot connect to"):
                    await client.predict([1])

    asyncio.run(ask())


def test_in_an_event_loop_too_a_client_that_breaks_down_ends_its_calls_and_begins_anew(frontend: str) -> None:
    def broken(now: float) -> list[Any]:
        raise OSError("no more")

    async def ask() -> None:
        async with AsyncZClient[Any, Any](frontend, timeout=PATIENCE) as client:
            assert await client.predict([1]) == [1]
            assert client._line._core is not None
            client._line._core.flush = broken  # type: ignore[method-assign]
            with pytest.raises(BrokerUnreachable, match=r"broke down and begins anew \(OSError: no more\)"):
                await client.predict([2])
            assert await client.predict([3]) == [3]

    asyncio.run(ask())


def test_a_client_that_breaks_down_ends_its_calls_and_begins_anew(client: ZClient[Any, Any]) -> None:
    def broken(now: float) -> list[Any]:
        raise OSError("no more")

    assert client.predict([1]) == [1]
    assert client._line._core is not None
    client._line._core.flush = broken  # type: ignore[method-assign]
    future = client.submit([2])
    until(future.done)
    with pytest.raises(BrokerUnreachable, match=r"broke down and begins anew \(OSError: no more\)"):
        future.result()
    assert client.predict([3]) == [3]
