"""What an operator reads: lines that nothing can break, floods that are counted, and no waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from zbatch import journal as module
from zbatch.journal import BURST, QUEUE_LINES, Journal

NOON = 1_764_590_400.25


class Page:
    """A place to write on, and a clock to turn by hand."""

    def __init__(self) -> None:
        self.text = b""
        self.now = 0.0

    def journal(self, format: str = "text", level: str = "info") -> Journal:
        return Journal(
            format,
            "broker",
            level=level,
            write=self._write,
            monotonic=lambda: self.now,
            wall=lambda: NOON,
        )

    def _write(self, line: bytes) -> None:
        self.text += line


def lines(page: Page, journal: Journal) -> list[str]:
    journal.close()
    return page.text.decode().split("\n")[:-1]


def test_an_event_is_one_line_of_text() -> None:
    page = Page()
    journal = page.journal()
    journal.event("worker ready", topic="bert", gpu=0, idle=True, model=None, ids=["a", 1])
    assert lines(page, journal) == [
        "2025-12-01T12:00:00.250Z info broker: worker ready topic=bert gpu=0 idle=true model=none ids=a,1"
    ]


def test_an_event_is_one_line_of_json() -> None:
    page = Page()
    journal = page.journal("json")
    journal.event(
        "worker lost", level="warning", detail="a\n\tb", topic="bert", gpu=0, ids=["a"], time="never"
    )
    assert [json.loads(line) for line in lines(page, journal)] == [
        {
            "time": "2025-12-01T12:00:00.250Z",
            "level": "warning",
            "from": "broker",
            "event": "worker lost",
            "topic": "bert",
            "gpu": 0,
            "ids": "a",
            "detail": "a\n    b",
        }
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a b", '"a b"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "hi"\\', '"say \\"hi\\"\\\\"'),
        ("a\nfake line", '"a\\x0afake line"'),
        ("\x1b[31mred", '"\\x1b[31mred"'),
        ("\u202eturned", '"\\u202eturned"'),
        ("\U000e0001", '"\\U000e0001"'),
        ("\udcff", "\\udcff"),
        (0.25, "0.25"),
        ("x" * 301, "x" * 300 + "..."),
        ("ünï", "ünï"),
    ],
)
def test_a_value_can_neither_start_a_line_nor_speak_to_the_terminal(value: object, shown: str) -> None:
    page = Page()
    journal = page.journal()
    journal.event("seen", value=value)
    assert lines(page, journal) == [f"2025-12-01T12:00:00.250Z info broker: seen value={shown}"]


@pytest.mark.parametrize("value", ["a\nb", "\x1b[31m", "\x7f\x9b", "\u202e", "\U000e0001", "ü"])
def test_json_is_printable_and_reads_back_the_same(value: str) -> None:
    page = Page()
    journal = page.journal("json")
    journal.event("seen", value=value)
    (line,) = lines(page, journal)
    assert line.isprintable()
    assert json.loads(line)["value"] == value


def test_a_detail_keeps_its_lines_and_each_is_marked() -> None:
    page = Page()
    journal = page.journal()
    journal.event("model failed", level="error", detail="Traceback:\n\tline 1\n2025 info broker: \x1b[0mfake")
    assert lines(page, journal) == [
        "2025-12-01T12:00:00.250Z error broker: model failed",
        "    | Traceback:",
        "    |     line 1",
        "    | 2025 info broker: \\x1b[0mfake",
    ]


def test_what_matters_less_than_was_asked_for_is_not_printed() -> None:
    page = Page()
    journal = page.journal(level="warning")
    journal.event("a", level="info")
    journal.event("b", level="error")
    assert lines(page, journal) == ["2025-12-01T12:00:00.250Z error broker: b"]


def test_a_flood_of_one_event_is_counted_and_hides_no_other() -> None:
    page = Page()
    journal = page.journal()
    for _ in range(BURST + 5):
        journal.event("malformed message")
    journal.event("worker ready")
    page.now = 1.0
    journal.event("malformed message")
    journal.event("malformed message")
    printed = [line.partition("broker: ")[2] for line in lines(page, journal)]
    assert printed == [
        *["malformed message"] * BURST,
        "worker ready",
        "malformed message left_out=5",
        "malformed message left_out=1",
    ]


def test_who_asks_for_debug_lines_gets_all_of_them() -> None:
    page = Page()
    journal = page.journal(level="debug")
    assert journal.prints("debug")
    assert not page.journal().prints("debug")
    for number in range(BURST + 5):
        journal.event("batch ran", level="debug", batch=number)
    assert len(lines(page, journal)) == BURST + 5


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_list_is_printed_to_its_end(format: str) -> None:
    page = Page()
    journal = page.journal(format)
    ids = [f"request-{number}" for number in range(100)]
    journal.event("requests failed", request_ids=ids)
    (line,) = lines(page, journal)
    assert ",".join(ids) in line


def test_a_stalled_reader_holds_nobody_up_and_what_is_lost_is_counted() -> None:
    stalled, free = threading.Event(), threading.Event()
    written: list[bytes] = []

    def write(line: bytes) -> None:
        written.append(line)
        stalled.set()
        assert free.wait(10)

    journal = Journal(write=write)
    journal.event("first")
    assert stalled.wait(10)
    for number in range(QUEUE_LINES + 7):
        journal.event(f"event {number}")
    assert journal.dropped == 7
    journal.close(timeout=0.0)
    free.set()


def test_the_first_line_after_a_loss_tells_of_it() -> None:
    page = Page()
    journal = page.journal()
    journal.dropped = 3
    journal.event("worker ready")
    assert lines(page, journal) == ["2025-12-01T12:00:00.250Z info broker: worker ready dropped=3"]


def test_a_reader_that_is_gone_costs_the_line_only() -> None:
    def write(line: bytes) -> None:
        raise BrokenPipeError

    journal = Journal(write=write)
    journal.event("a")
    journal.event("b")
    journal.close(10.0)
    assert journal.dropped == 2


def test_a_journal_that_said_nothing_closes_at_once() -> None:
    Journal().close()


def test_lines_go_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    journal = Journal(name="broker")
    journal.event("worker ready")
    journal.close(10.0)
    assert capfd.readouterr().err.endswith(" info broker: worker ready\n")


def test_a_full_pipe_that_does_not_block_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, bytes(65_536))
        except BlockingIOError:
            break

    class Stderr:
        def fileno(self) -> int:
            return writer

    def drain(*_: object) -> None:
        os.read(reader, 1 << 20)

    monkeypatch.setattr(sys, "stderr", Stderr())
    monkeypatch.setattr("select.select", drain)
    module._to_stderr(b"the end")
    assert os.read(reader, 1 << 20).endswith(b"the end")
    os.close(reader)
    os.close(writer)


def test_without_a_stderr_of_its_own_the_second_descriptor_is_used(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing: Any = None
    monkeypatch.setattr(sys, "stderr", nothing)
    module._to_stderr(b"still here\n")
    assert capfd.readouterr().err == "still here\n"


def test_a_process_whose_stderr_is_never_read_ends_all_the_same() -> None:
    code = (
        "from zbatch.journal import Journal\n"
        "journal = Journal()\n"
        "for n in range(600): journal.event(f'event {n}', text='x' * 290)\n"
        "journal.close(0.1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        assert process.wait(30) == 0
