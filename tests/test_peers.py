"""Who is measured beside zbatch, who is ahead, and who is missing; the measuring itself is run as a whole."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.loads import Figure, Setup
from benchmarks.models import gpu_seconds
from benchmarks.peers import environments, http, processor, rows, table, turns, wrk
from benchmarks.peers.__main__ import chosen
from benchmarks.peers.processor import Division
from benchmarks.peers.rows import (
    ABOVE,
    GATEWAY,
    MILLISECOND,
    MOSEC,
    MOSEC_BY_WRK,
    OPTIONAL,
    REDIS,
    ZBATCH,
    bound,
    without,
)
from benchmarks.rounds import Outcome
from benchmarks.rows import Contender, Load, Row


def row_of(
    mine: list[float], theirs: list[float], *, who: str = ZBATCH, against: str = MOSEC, **more: Any
) -> Outcome:
    made = Outcome("load", who, against, "items/s", mine, theirs, None, None, less_is_better=False)
    return dataclasses.replace(made, **more)


def test_a_peer_with_the_better_median_is_ahead_and_seen_to_be() -> None:
    one = row_of([90.0, 80.0, 120.0], [100.0, 100.0, 100.0])
    assert table.ahead(one) == "PEER"
    assert table.cells(one)[-1] == "PEER"
    page = table.markdown([one], [], {}, {}, {}, None)
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


def test_a_time_with_a_limit_of_its_own_is_compared_with_a_millisecond() -> None:
    direct = Contender(rows.DIRECT, "direct", Setup("lone", 1, batch_size=1))
    row = Row("lone", rows.DIRECT, MILLISECOND, 0.8, 0.5, "p50")
    made = turns.run(Load("load", (direct,), (row,)), 1, 0.1, lambda _: None, lambda *_: None)
    assert made.outcomes[0].baseline == [1.0]
    assert made.outcomes[0].unit == "ms p50"
    assert table.ahead(made.outcomes[0]) == ""


def test_our_gateway_is_judged_against_a_peer_and_a_peer_not_against_an_ideal() -> None:
    assert table.ahead(row_of([90.0], [100.0], who=GATEWAY, against=MOSEC_BY_WRK)) == "PEER"
    assert table.ahead(row_of([90.0], [100.0], who=MOSEC_BY_WRK, against="ideal")) == ""


def test_whom_wrk_asks_stands_in_a_table_of_its_own_and_so_does_the_processor_time() -> None:
    by_wrk = row_of([1.0], [1.0], who=GATEWAY, against=MOSEC_BY_WRK)
    assert table.groups([by_wrk, row_of([1.0], [1.0])]) == [
        (table.FRONTS, [row_of([1.0], [1.0])]),
        (table.BOTH_BY_WRK, [by_wrk]),
    ]
    division = Division("load", GATEWAY)
    division.add({}, {(1, 1): (processor.MAIN, 0.5), (2, 2): (processor.LOAD, 1.0)}, 1.0, 10_000)
    page = table.markdown([by_wrk], [division], {}, {}, {}, None)
    assert f"| load | {GATEWAY} | 50.0 | 0.0 | 0.0 | 0.0 | 0.0 | 100.0 | 1.50 |" in page


def test_processor_time_is_what_a_thread_took_meanwhile_for_each_answer() -> None:
    division = Division("load", GATEWAY)
    before = {(7, 7): (processor.BROKER, 2.0), (7, 8): (processor.BROKER, 1.0)}
    after = {(7, 7): (processor.BROKER, 2.5), (7, 9): (processor.BROKER, 0.1)}
    division.add(before, after, 2.0, 10_000)
    division.add(after, after, 2.0, 10_000)
    assert division.microseconds(processor.BROKER) == pytest.approx(30.0)
    assert division.cores == pytest.approx(0.15)


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


def test_without_wrk_nobody_is_asked_by_it_and_all_others_are() -> None:
    missing = rows.missing_of({"wrk": "wrk is not installed"})
    assert set(missing) == {GATEWAY, MOSEC_BY_WRK}
    left = [without(load, missing) for load in rows.LOADS]
    assert [load.name for load in left if not load.rows] == [
        load.name for load in rows.LOADS if load.name.startswith("wrk-")
    ]


def test_a_missing_peer_is_named_with_its_reason() -> None:
    page = table.markdown([row_of([1.0], [1.0])], [], {}, {REDIS: "redis-server is\nnot installed"}, {}, None)
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
    made = turns.run(load, 1, 0.1, lambda _: None, lambda who, why: fallen.append((who, why)))
    assert [one.title for one in made.outcomes] == ["a"]
    assert [who for who, _ in fallen] == [MOSEC]
    assert "has no attribute 'No'" in fallen[0][1]


def test_every_peer_of_a_load_has_a_row_in_it() -> None:
    for load in rows.LOADS:
        peers = {one.name for one in load.contenders} & rows.PEERS
        assert peers == {one.against for one in load.rows} & rows.PEERS, load.name


def test_every_row_compares_contenders_of_its_load() -> None:
    for load in rows.LOADS:
        names = (
            {one.name for one in load.contenders} | ({"ideal"} if load.ideal else set()) | {rows.MILLISECOND}
        )
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


def test_what_wrk_counted_before_and_after_the_measured_time_does_not_count() -> None:
    # 20 answers each 10 ms, for 3 s: in the second between 1 and 2 s that is 2,000 a second.
    counts = ", ".join(f"[{millisecond}, 20]" for millisecond in range(10, 3010, 10))
    told = f'{{"p50_us": 9900, "p99_us": 9990, "wrong": 1, "failed": 0, "counts": [{counts}]}}'
    figure = wrk.figure_of(told, 1.0, 1.0)
    assert figure.rate == pytest.approx(2000.0)
    assert dataclasses.replace(figure, rate=0.0) == Figure(
        0.0, p50=0.0099, p99=0.00999, answers=6000, wrong=1
    )


def test_requests_without_an_answer_end_the_measurement() -> None:
    with pytest.raises(wrk.Lost, match="3 requests had no answer"):
        wrk.figure_of('{"p50_us": 1, "wrong": 0, "failed": 3, "counts": []}', 1.0, 1.0)


def test_the_whole_answer_to_a_picture_is_known_beforehand() -> None:
    front = http.Front("http://host/", [(b"picture", 40.0)], lambda *_: True)
    assert http.with_answers("picture", front) == [(b"picture", b"\x00\x00\x20\x42" + bytes(3996))]


@pytest.mark.live
def test_the_whole_answer_to_a_text_is_the_servers_first_with_another_text() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_answer, args=[listener, b'{ "text": "a" }', 1], daemon=True).start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        front = http.Front(endpoint, [(http.post(endpoint, b"a"), b'"a"'), (b"b", b'"b"')], lambda *_: True)
        asked = http.with_answers("text", front)
    assert asked == [(front.requests[0][0], b'{ "text": "a" }'), (b"b", b'{ "text": "b" }')]


@pytest.mark.live
def test_processor_time_is_told_apart_by_process_and_thread() -> None:
    waits = "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print(flush=True)"
    command = [sys.executable, "-c", waits, "zbatch.gateway"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as front:
        assert front.stdout is not None
        front.stdout.readline()
        parts = [part for part, _ in processor.read([front.pid]).values()]
        front.communicate()
    assert parts == [processor.MAIN, processor.THREADS]


@pytest.mark.live
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_wrk_tells_an_answer_that_nobody_waits_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # One to see whether anybody listens, one to ask.
        server = threading.Thread(target=_answer, args=[listener, b"other", 2], daemon=True)
        server.start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        asked = [(http.post(endpoint, text), text) for text in (b"own", b"other")]
        figure = wrk.measure(1, endpoint, asked, 0.0, 1.0)
        server.join(30)
    assert figure.answers > 2
    # Every second one is answered with the other's body.
    assert abs(figure.wrong - figure.answers / 2) <= 1


@pytest.mark.live
def test_the_http_load_generator_tells_an_answer_that_is_not_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=_answer, args=[listener, b"other", 1], daemon=True)
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
    # It ends by itself in the end, which bounds the wait below.
    asleep = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        os.killpg(asleep.pid, signal.SIGSTOP)
        waker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.waker"], stdin=subprocess.PIPE, text=True
        )
        changed = os.waitid(os.P_PID, asleep.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert changed is not None and changed.si_code == os.CLD_STOPPED
        waker.communicate(f"{asleep.pid}\n", timeout=30)
        assert asleep.wait(30) == -signal.SIGTERM
    finally:
        asleep.kill()
        asleep.wait()


def _answer(listener: socket.socket, body: bytes, connections: int) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    for _ in range(connections):
        plug, _ = listener.accept()
        with plug, contextlib.suppress(ConnectionError):
            while plug.recv(1 << 16):
                plug.sendall(answer)
