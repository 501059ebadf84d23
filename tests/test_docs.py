"""What the pages say about the code is held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import draw_states
from zbatch import errors
from zbatch.core import retry

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
MODULES = sorted(path.relative_to(ROOT / "zbatch").as_posix() for path in (ROOT / "zbatch").rglob("*.py"))


def rows(page: str, *titles: str) -> list[list[str]]:
    """Return the rows of the table with these titles."""
    lines = iter(page.splitlines())
    for line in lines:
        if cells(line) == list(titles):
            next(lines)
            found: list[list[str]] = []
            for row in lines:
                if not row.startswith("|"):
                    return found
                found.append(cells(row))
    raise AssertionError(f"no table with the titles {titles}")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize("name", draw_states.TABLES)
def test_state_tables_are_those_that_the_cores_draw(name: str) -> None:
    assert f"<!-- drawn: {name} -->\n\n{draw_states.draw(name)}\n<!-- end -->" in ARCHITECTURE


def test_the_table_of_errors_has_every_error_as_it_is() -> None:
    told = {
        re.findall(r"`(\w+)`", row[0])[0]: (row[1].strip("`"), row[2], int(row[3]))
        for row in rows(ARCHITECTURE, "class", "code", "again", "HTTP", "when")
    }
    assert told == {
        one.__name__: (code, "yes" if one.retryable else "no", one.http_status)
        for code, one in errors.BY_CODE.items()
    }


def test_the_table_of_errors_names_the_bases_that_callers_may_catch() -> None:
    for row in rows(ARCHITECTURE, "class", "code", "again", "HTTP", "when"):
        name, *bases = re.findall(r"`(\w+)`", row[0])
        assert set(bases) <= {one.__name__ for one in getattr(errors, name).__mro__}


def test_the_numbers_of_retrying_are_those_of_the_code() -> None:
    assert (retry.ATTEMPTS, retry.DEATHS_ALONE) == (3, 2)
    assert "the third is `WorkerLost`" in ARCHITECTURE
    assert "the second death makes it `PoisonItem`" in ARCHITECTURE


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_place_in_the_picture(module: str) -> None:
    if module != "core/__init__.py":
        assert f"`{module}`" in ARCHITECTURE


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_place_in_the_table_of_changes(module: str) -> None:
    named = " ".join(
        " ".join(row[:2])
        for row in rows(
            (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "I want to change", "edit", "prove it in"
        )
    )
    if not module.endswith("__init__.py"):
        assert re.search(rf"[`/]{re.escape(module.rpartition('/')[2])}`", named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
