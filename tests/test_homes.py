"""Folders for private endpoints: whose are kept, and whose are removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zbatch import homes
from zbatch.homes import LOCK, Home


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "")
    monkeypatch.setattr(homes, "PATH_LENGTH", -1)
    monkeypatch.setattr(homes, "SHORT", str(tmp_path))
    yield tmp_path


def test_a_home_is_there_until_it_is_removed(place: Path) -> None:
    home = Home()
    assert [home.path] == list(place.iterdir())
    home.remove()
    home.remove()
    assert list(place.iterdir()) == []


def test_a_home_of_one_who_lives_is_kept_and_an_abandoned_one_goes(place: Path) -> None:
    first, killed = Home(), Home()
    os.close(killed._lock)  # as the kernel does
    second = Home()
    assert sorted(place.iterdir()) == sorted([first.path, second.path])


def test_what_is_no_home_is_left_alone(place: Path) -> None:
    (place / "zbatch-notes").mkdir()
    (place / "zbatch-file").write_text("mine")
    home = Home()
    assert len(list(place.iterdir())) == 3
    home.remove()


def test_a_home_that_cannot_be_locked_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(homes, "_lock", refuse)
    with pytest.raises(OSError, match="too many open files"):
        Home()
    assert list(place.iterdir()) == []


def test_homes_that_are_made_at_the_same_time_do_not_sweep_each_other(place: Path) -> None:
    def make(_: int) -> Home:
        home = Home()
        (home.path / "file").write_text("kept")
        return home

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(make, range(300)))
    assert sorted(place.iterdir()) == sorted(home.path for home in made)
    assert all((home.path / LOCK).exists() for home in made)
    for home in made:
        home.remove()
