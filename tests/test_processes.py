"""The note that outlives its writer."""

from __future__ import annotations

import os
import threading
import time

import pytest

from zbatch.processes import NAMES_BYTES, Note, Noted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [1_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    return now


def test_a_note_tells_what_its_writer_was_doing(clock: list[int]) -> None:
    parents = Note.create()
    childs = Note.attach(os.dup(parents.descriptor))
    assert parents.read() == Noted(bytes(8), 0, 0, 0, "loading")
    childs.show("ready")
    childs.begin(b"epoch  1", 7, 0.000_000_5, apart=True)
    assert parents.read() == Noted(b"epoch  1", 7, 0, 1_500, "ready", 1_000, 1_000, True)
    clock[0] = 1_400
    childs.progress(0.000_001)
    assert parents.read() == Noted(b"epoch  1", 7, 0, 2_400, "ready", 1_000, 1_400, True)
    childs.finish(7)
    childs.show("draining")
    assert parents.read() == Noted(b"epoch  1", 7, 7, 2_400, "draining", 1_000, 1_400, True)
    childs.close()
    assert parents.read().finished == 7
    parents.clear()
    assert parents.read() == Noted(bytes(8), 0, 0, 0, "loading")
    parents.close()


def test_what_finished_under_another_broker_does_not_count(clock: list[int]) -> None:
    note = Note.create()
    note.begin(b"epoch  1", 7, 1.0)
    note.finish(7)
    note.begin(b"epoch  1", 8, 1.0)
    assert note.read().finished == 7
    note.begin(b"epoch  2", 7, 1.0)
    assert note.read()[:3] == (b"epoch  2", 7, 0)
    note.close()


def test_a_note_remembers_how_far_each_broker_was_served(clock: list[int]) -> None:
    note = Note.create()
    for epoch, batch in ((b"epoch  1", 7), (b"epoch  2", 3), (b"epoch  1", 8), (b"epoch  3", 1)):
        note.begin(epoch, batch, 1.0)
        note.finish(batch)
    assert note.read().others == ((b"epoch  1", 8), (b"epoch  2", 3))
    for number in range(20):
        note.begin(b"epoch %2d" % number, 1, 1.0)
    assert note.read().others == tuple((b"epoch %2d" % number, 1) for number in range(18, 10, -1))
    note.close()


def test_a_writing_cut_off_by_death_leaves_what_stood_before(clock: list[int]) -> None:
    note = Note.create()
    note.begin(b"epoch  1", 7, 1.0)
    whole = note.read()
    count = int.from_bytes(os.pread(note.descriptor, 8, 0), "little")
    # As far as a writer can come without saying that it is through.
    os.pwrite(note.descriptor, b"\xff" * 40, 64 if count % 2 else 320)
    assert note.read() == whole
    note.close()


def test_the_next_child_goes_on_where_the_last_one_died(clock: list[int]) -> None:
    parents = Note.create()
    for number in (1, 2, 3):
        parents.clear()
        childs = Note.attach(os.dup(parents.descriptor))
        childs.begin(b"epoch  1", number, 1.0)
        assert parents.read().begun == number
        childs.close()
    parents.close()


def test_two_threads_may_write_and_nothing_is_lost() -> None:
    note = Note.create()

    def show() -> None:
        for number in range(500):
            note.show(str(number))

    thread = threading.Thread(target=show)
    thread.start()
    for batch in range(500):
        note.begin(b"epoch  1", batch, 1.0)
        note.finish(batch)
        seen = note.read()
        assert seen.begun == seen.finished == batch
    thread.join()
    assert note.read().state == "499"
    note.close()


def test_a_note_has_the_request_ids_of_the_batch_that_runs(clock: list[int]) -> None:
    parents = Note.create()
    childs = Note.attach(os.dup(parents.descriptor))
    assert parents.names(bytes(8), 0) == []
    childs.name(b"epoch  1", 7, ["r1", "rü2"])
    childs.begin(b"epoch  1", 7, 1.0)
    childs.close()
    assert parents.names(b"epoch  1", 7) == ["r1", "rü2"]
    assert parents.names(b"epoch  1", 8) == []
    assert parents.names(b"epoch  2", 7) == []
    assert parents.read().begun == 7
    parents.close()


def test_a_note_has_as_many_request_ids_as_find_room(clock: list[int]) -> None:
    note = Note.create()
    names = ["x" * 127 + chr(0x4E00 + number) for number in range(1_000)]
    note.name(b"epoch  1", 7, names)
    kept = note.names(b"epoch  1", 7)
    assert kept == names[: len(kept)]
    assert len(kept) == NAMES_BYTES // 131
    note.name(b"epoch  1", 8, [])
    assert note.names(b"epoch  1", 8) == []
    note.close()


@pytest.mark.parametrize("why", ["no model at /tmp/\udcff", "ä" * 40_000, "twö\nlines"])
def test_why_a_model_is_refused_is_kept_as_far_as_it_finds_room(why: str) -> None:
    note = Note.create()
    assert note.refusal() == ""
    note.refuse(why)
    kept = note.refusal()
    assert kept
    assert why.replace("\udcff", "?").startswith(kept)
