"""Who is measured beside zbatch, who is ahead, and who is missing; the measuring itself is run as a whole."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import report
from benchmarks.loads import Figure, Setup
from benchmarks.models import gpu_seconds
from benchmarks.peers import environments, http, rows, table, turns
from benchmarks.peers.__main__ import chosen
from benchmarks.peers.rows import ABOVE, MOSEC, OPTIONAL, REDIS, ZBATCH, bound, without
from benchmarks.rounds import Outcome
from benchmarks.rows import Contender, Load, Row


def row_of(ours: list[float], theirs: list[float], *, against: str = MOSEC, **more: Any) -> Outcome:
    made = Outcome("load", ZBATCH, against, "items/s", ours, theirs, None, None, less_is_better=False)
    return dataclasses.replace(made, **more)


def test_a_peer_with_the_better_median_is_ahead_and_seen_to_be() -> None:
    one = row_of([90.0, 80.0, 120.0], [100.0, 100.0, 100.0])
    assert table.ahead(one) == "PEER"
    assert table.cells(one)[-1] == "PEER"
    page = table.markdown([one], {}, {}, {}, None)
    assert "A peer is ahead in 1 rows:" in page
    assert "- load: mosec (HTTP), 1.11 times ours" in page


def test_where_less_is_better_the_smaller_one_is_ahead() -> None:
    assert table.ahead(row_of([2.0], [1.0], less_is_better=True)) == "PEER"
    assert table.ahead(row_of([1.0], [2.0], less_is_better=True)) == "ours"


def test_what_the_table_shows_as_one_is_even() -> None:
    assert table.ahead(row_of([99.6], [100.0])) == "even"
    assert table.ahead(row_of([99.4], [100.0])) == "PEER"


def test_nobody_is_ahead_of_an_ideal_or_of_the_direct_call() -> None:
    assert table.ahead(row_of([50.0], [100.0], against="ideal")) == ""
    assert table.ahead(row_of([50.0], [100.0], against=rows.DIRECT)) == ""


def test_a_lone_call_is_measured_by_what_is_above_the_direct_call() -> None:
    row = Row("lone", ZBATCH, rows.DIRECT, 1.0, 0.4, ABOVE)
    figures = {ZBATCH: [Figure(1.0, p50=0.0055)] * 3, rows.DIRECT: [Figure(1.0, p50=0.005)] * 3}
    one = turns.outcome(row, figures)
    assert one.ratios == pytest.approx([0.5, 0.5, 0.5])
    assert report.verdict(one) == "reach"
    assert table.cells(one)[5] == "+0.50 ms"


@pytest.mark.parametrize(("milliseconds", "word"), [(5.3, "aim"), (6.0, "reach"), (6.2, "below")])
def test_the_verdict_of_a_lone_call_is_about_the_difference(milliseconds: float, word: str) -> None:
    row = Row("lone", ZBATCH, rows.DIRECT, 1.0, 0.4, ABOVE)
    figures = {ZBATCH: [Figure(1.0, p50=milliseconds / 1000)], rows.DIRECT: [Figure(1.0, p50=0.005)]}
    assert report.verdict(turns.outcome(row, figures)) == word


def test_a_wrong_answer_of_a_peer_is_told_as_one_of_ours_is() -> None:
    row = Row("load", ZBATCH, MOSEC)
    figures = {ZBATCH: [Figure(2.0)], MOSEC: [Figure(1.0, wrong=3)]}
    assert report.verdict(turns.outcome(row, figures)) == "3 wrong answers"


def test_a_missing_program_takes_only_the_peer_that_needs_it() -> None:
    missing = rows.missing_of({"redis": "redis-server is not installed"})
    assert missing == {REDIS: "redis-server is not installed"}
    load = next(one for one in rows.LOADS if one.name == "arrays")
    left = without(load, missing)
    assert REDIS in {one.name for one in load.contenders}
    assert {one.name for one in load.contenders} - {one.name for one in left.contenders} == {REDIS}
    assert not [one for one in left.rows if REDIS in {one.ours, one.against}]


def test_a_missing_peer_is_named_with_its_reason() -> None:
    page = table.markdown([row_of([1.0], [1.0])], {}, {REDIS: "redis-server is\nnot installed"}, {}, None)
    assert f"- missing: {REDIS}: redis-server is not installed" in page


def test_an_environment_that_cannot_be_made_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = environments.prepare(["mosec"], "", lambda _: None)
    assert list(missing) == ["mosec"]
    assert "could not be made" in missing["mosec"]


def test_a_peer_that_does_not_start_loses_its_rows_and_not_the_others(tmp_path: Path) -> None:
    direct = Contender(rows.DIRECT, "direct", Setup("lone", 1, model="Brief", batch_size=1))
    again = dataclasses.replace(direct, name="again")
    broken = Contender(MOSEC, "direct", dataclasses.replace(direct.setup, model="No"))
    load = Load("load", (direct, broken, again), (Row("a", "again", rows.DIRECT), Row("b", "again", MOSEC)))
    fallen: list[tuple[str, str]] = []
    outcomes = turns.run(load, 1, 0.1, lambda _: None, lambda who, why: fallen.append((who, why)))
    assert [one.title for one in outcomes] == ["a"]
    assert [who for who, _ in fallen] == [MOSEC]
    assert "has no attribute 'No'" in fallen[0][1]


def test_every_peer_of_a_load_has_a_row_in_it() -> None:
    for load in rows.LOADS:
        peers = {one.name for one in load.contenders} & set(rows.NEEDS)
        assert peers == {one.against for one in load.rows} & set(rows.NEEDS), load.name


def test_every_row_compares_contenders_of_its_load() -> None:
    for load in rows.LOADS:
        names = {one.name for one in load.contenders} | ({"ideal"} if load.ideal else set())
        assert {name for one in load.rows for name in (one.ours, one.against)} <= names, load.name


def test_large_peers_come_only_when_they_are_asked_for() -> None:
    def names(added: tuple[str, ...]) -> set[str]:
        return {one.name for load in chosen((), added, "torch") for one in load.contenders}

    assert names(()) == names(("ray", "pytriton")) - set(OPTIONAL.values())
    assert set(OPTIONAL.values()) <= names(("ray", "pytriton"))


def test_without_torch_there_is_no_transformer() -> None:
    assert {load.name for load in chosen((), (), "torch")} - {load.name for load in chosen((), (), "")} == {
        "transformer-1",
        "transformer-2",
    }


def test_the_bound_of_few_callers_is_that_of_the_best_number_of_workers() -> None:
    # 128 callers fill two batches of 64 for two workers, or give eight workers 16 each.
    assert bound(1, 128, 64) == pytest.approx(64 / gpu_seconds(64))
    assert bound(8, 1024, 64) == pytest.approx(8 * 64 / gpu_seconds(64))
    assert bound(8, 128, 64) == pytest.approx(8 * 16 / gpu_seconds(16))


def test_an_answer_is_read_when_all_of_it_is_there() -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    assert [http.body_of(whole[:length]) for length in range(len(whole))] == [None] * len(whole)
    assert http.body_of(whole) == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nfull",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_success_of_known_length_is_refused(answer: bytes) -> None:
    with pytest.raises(http.Refused):
        http.body_of(answer)


@pytest.mark.live
def test_the_http_load_generator_tells_an_answer_that_is_not_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=_answer_other, args=[listener], daemon=True)
        server.start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        asked = [(http.post(endpoint, text), text) for text in (b"own", b"other")]
        front = http.Front(endpoint, asked, http.is_own_text)
        figure = http.measure(Setup("connections", 1), front, 0.0, 0.2)
        server.join(30)
    assert figure.answers > 2
    # The first of two is answered with the other's body.
    assert abs(figure.wrong - figure.answers / 2) <= 1


@pytest.mark.live
def test_who_is_stopped_ends_when_the_benchmark_is_killed() -> None:
    asleep = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        os.killpg(asleep.pid, signal.SIGSTOP)
        waker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.waker"], stdin=subprocess.PIPE, text=True
        )
        wait_for(lambda: state_of(asleep.pid) == psutil.STATUS_STOPPED)
        waker.communicate(f"{asleep.pid}\n", timeout=30)
        assert asleep.wait(30) == -signal.SIGTERM
    finally:
        asleep.kill()
        asleep.wait()


def state_of(process: int) -> str:
    return psutil.Process(process).status()


def wait_for(condition: Callable[[], bool]) -> None:
    patience = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < patience
        time.sleep(0.01)


def _answer_other(listener: socket.socket) -> None:
    plug, _ = listener.accept()
    with plug:
        while plug.recv(1 << 16):
            plug.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
