"""Who waits for a broker's snapshot, and which answer is for whom."""

from __future__ import annotations

from zbatch.lines import Askers


def test_an_answer_is_for_those_who_were_there_when_it_was_asked_for() -> None:
    askers: Askers[str] = Askers()
    askers.add("first")
    assert askers.is_due
    askers.ask()
    askers.add("late")
    assert (askers.is_due, askers.is_open) == (False, True)
    assert askers.answer() == ["first"]
    assert (askers.is_due, askers.is_open) == (True, False)
    askers.ask()
    assert askers.answer() == ["late"]


def test_who_waits_no_longer_is_not_asked_for() -> None:
    askers: Askers[str] = Askers()
    askers.add("first")
    askers.ask()
    askers.add("late")
    for one in ("first", "late", "never there"):
        askers.withdraw(one)
    assert (askers.is_due, askers.is_open, askers.answer()) == (False, False, [])


def test_all_are_let_go_at_the_end() -> None:
    askers: Askers[str] = Askers()
    askers.add("first")
    askers.ask()
    askers.add("late")
    assert askers.clear() == ["first", "late"]
    assert askers.clear() == []
