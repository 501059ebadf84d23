"""The check of the whole finds what is wrong, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.books import check

GOOD = """ask -a.1 5.0
ask ?a.2 5.0
end -a.1 ok -4.9
end ?a.2 model_failed -4.9
"""


def faults(
    home: Path, log: str, ran: str = "-a.1\n?a.2\n", *, killed: bool = False, stopped: bool = False
) -> list[str]:
    (home / "a.calls").write_text(log)
    (home / "ran.txt").write_text(ran)
    return check(
        [home / "a.calls"],
        home / "ran.txt",
        batch_size=8,
        killed={"a"} if killed else set(),
        stopped={"a"} if stopped else set(),
        lives=1,
    ).faults


def test_good_books_are_good(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        (GOOD + "end -a.1 ok -4.9\n", "a: -a.1 has 2 outcomes"),
        (GOOD + "ask -a.3 5.0\n", "a: -a.3 has 0 outcomes"),
        ("ask -a.1 5.0\nend -a.1 foreign:'y-b.1' -4.9\n", "a: -a.1 ended as foreign:'y-b.1'"),
        ("ask -a.1 5.0\nend -a.1 model_failed -4.9\n", "a: -a.1 ended as model_failed"),
        ("ask ?a.2 5.0\nend ?a.2 ok -4.9\n", "a: ?a.2 cannot end well and did"),
        ("ask -a.1 5.0\nend -a.1 ok 2.0\n", "a: -a.1 ended 2.00 s after its deadline, as ok"),
    ],
)
def test_a_broken_promise_is_found(tmp_path: Path, log: str, fault: str) -> None:
    assert faults(tmp_path, log) == [fault]


def test_what_runs_too_often_is_found(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD, "-a.1\n" * 8) == ["-a.1 ran 8 times, at most 7 were to be expected"]


def test_who_was_killed_has_no_outcome_and_who_was_stopped_a_late_one(tmp_path: Path) -> None:
    assert faults(tmp_path, "ask -a.1 5.0\n", killed=True) == []
    assert faults(tmp_path, "ask -a.1 5.0\nend -a.1 ok 2.0\n", stopped=True) == []
