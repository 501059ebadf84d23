"""What the pages say about the code is held against the code."""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from tools import draw_states
from zbatch import errors, series
from zbatch.config import (
    BenchSettings,
    BrokerSettings,
    CheckSettings,
    ClientSettings,
    GatewaySettings,
    StatusSettings,
    WorkerSettings,
    leaves,
)
from zbatch.core import figures, retry
from zbatch.core.status import snapshot
from zbatch.screen import render

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
KINDS = (
    BrokerSettings,
    WorkerSettings,
    ClientSettings,
    StatusSettings,
    BenchSettings,
    CheckSettings,
    GatewaySettings,
)
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
                    break
                found.append(cells(row))
            return found
    raise AssertionError(f"no table with the titles {titles}")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize("name", draw_states.TABLES)
def test_state_tables_are_those_that_the_cores_draw(name: str) -> None:
    assert f"<!-- drawn: {name} -->\n\n{draw_states.draw(name)}\n<!-- end -->" in ARCHITECTURE


COLUMNS = ("class", "`code`", "`retryable`", "`http_status`", "when")


def test_the_table_of_errors_has_every_error_as_it_is() -> None:
    told = {
        re.findall(r"`(\w+)`", row[0])[0]: (row[1].strip("`"), row[2], int(row[3]))
        for row in rows(ARCHITECTURE, *COLUMNS)
    }
    assert told == {
        one.__name__: (code, "yes" if one.retryable else "no", one.http_status)
        for code, one in errors.BY_CODE.items()
    }


def test_the_table_of_errors_names_the_bases_that_callers_may_catch() -> None:
    for row in rows(ARCHITECTURE, *COLUMNS):
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
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


# --- docs/operations.md --------------------------------------------------------------------------

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def said_in_code(*methods: str) -> set[str]:
    """Return the first argument of every call of these methods, where it is a text."""
    found = set()
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / "zbatch" / module).read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in methods:
                    found |= texts(first)
    return found


def texts(node: ast.expr) -> set[str]:
    """Return what a text may be; the parts of a launcher are brokers, workers and gateways."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(rest))]):
            return {f"{role}{rest}" for role in ("broker", "worker", "gateway")}
        case ast.IfExp(body=one, orelse=other):
            return texts(one) | texts(other)
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
            return {f"{start}..."}
    return set()


def test_the_table_of_events_has_every_event_that_is_said() -> None:
    told = {
        event
        for row in rows(OPERATIONS, "event", "said by", "what to do")
        for event in re.findall(r"`([^`]+)`", row[0])
    }
    assert told == said_in_code("event", "note", "_note")


def test_the_table_of_counters_has_every_counter_that_is_no_event() -> None:
    told = {row[0].strip("`") for row in rows(OPERATIONS, "counter", "meaning")}
    assert told == said_in_code("count")


def test_every_column_of_status_is_explained() -> None:
    page = io.StringIO()
    worker = {"topic": "bert", "host": "h", "pid": 1}
    Console(file=page, width=200).print(render({"topics": {"bert": {}}, "workers": [worker]}))
    shown = [line.split() for line in page.getvalue().splitlines() if line.startswith("topic ")]
    first, second = OPERATIONS.split("Then the model processes:")
    for titles, text in zip(shown, (first, second), strict=True):
        explained = {title for row in rows(text, "column", "meaning") for title in row[0].split(", ")}
        assert explained == set(titles)


def test_every_figure_of_a_topic_in_status_is_named() -> None:
    shown = draw_states.Stage().asks().serves()
    figures = json.loads(snapshot(shown.core, 1.0))
    # What the table shows under another name is explained there.
    shown_as = {"oldest_age_s", "items_per_s", "mean_batch", "fill", "latency_ms", "closed", "errors"}
    for name in figures["topics"]["t"].keys() - shown_as - {"waiting", "running", "workers"}:
        assert f"`{name}`" in OPERATIONS


@pytest.mark.parametrize("state", ["idle", "busy", "suspect", "draining", "gone", "stuck"])
def test_every_state_of_a_worker_is_explained(state: str) -> None:
    assert f"`{state}`" in OPERATIONS


def test_settings_that_the_page_names_exist() -> None:
    known = {leaf.option for kind in KINDS for leaf in leaves(kind)}
    others = {"--config", "--check", "--watch", "--json", "--undo"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", OPERATIONS)) - others <= known | {"--batchsize"}


def test_every_test_that_the_table_of_changes_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    folder = Path("tests")
    for first, name in re.findall(r"`(tests/[\w/]*?)?(test_\w+\.py)`", text):
        folder = Path(first) if first else folder
        assert (ROOT / folder / name).is_file(), f"{folder / name}"


# --- metrics -------------------------------------------------------------------------------------

METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("title", "table"), series.TABLES.items())
def test_the_tables_of_metrics_have_every_series_as_it_is(
    title: str, table: tuple[series.Series, ...]
) -> None:
    _, _, text = METRICS.partition(f"## {title}\n")
    told = [
        (row[0].strip("`"), row[1], tuple(re.findall(r"`(\w+)`", row[2])), row[3])
        for row in rows(text, "series", "kind", "labels", "meaning")
    ]
    assert told == [tuple(one) for one in table]


def test_the_bounds_of_metrics_are_those_of_the_code() -> None:
    assert (series.NAMED, figures.MOST) == (64, 4_096)
    assert "64 topics and 64 slots" in METRICS
    assert "4,096 topics" in METRICS


# --- guarantees ----------------------------------------------------------------------------------


GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def named_tests(page: str) -> list[tuple[str, str]]:
    """Return what a page names as showing something: a file, and a test in it or nothing."""
    return re.findall(r"`(tests/[\w/]+\.py|benchmarks/\w+\.py)(?:::(\w+))?`", page)


def missing_tests(page: str) -> list[str]:
    """Return those that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in named_tests(page)
        if not (ROOT / path).is_file() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]


def test_every_fault_and_every_kind_of_hostile_input_is_there_once() -> None:
    ids = re.findall(r"^\| ([FH]\d+) \|", GUARANTEES, flags=re.M)
    assert ids == [f"F{at}" for at in range(1, 39)] + [f"H{at}" for at in range(1, 24)]


def test_every_test_that_shows_a_guarantee_exists() -> None:
    assert len(named_tests(GUARANTEES)) > 70
    assert missing_tests(GUARANTEES) == []


def test_every_line_says_what_shows_it() -> None:
    lines = re.findall(r"^\| ([FH]\d+) \|.*\| ([^|]+) \|$", GUARANTEES, flags=re.M)
    assert [one for one, shown in lines if "`" not in shown] == []


# --- faq -----------------------------------------------------------------------------------------

FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
ANSWERS = dict(re.findall(r"^### (.+)\n\n((?:(?!##).*\n?)+)", FAQ, flags=re.M))


def test_every_test_that_an_answer_names_exists() -> None:
    assert missing_tests(FAQ) == []


@pytest.mark.parametrize("question", ANSWERS)
def test_every_answer_is_short_and_shown_or_says_that_it_is_not_there(question: str) -> None:
    answer, _, shown = ANSWERS[question].partition("Shown by")
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", shown) or "is not there" in answer
    assert len(answer.split()) <= 90


def test_every_question_has_an_answer() -> None:
    assert list(ANSWERS) == re.findall(r"^### (.+)$", FAQ, flags=re.M)


# --- beside mosec --------------------------------------------------------------------------------

COMPARED = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
MOVED = (ROOT / "docs" / "migrate_from_mosec.md").read_text(encoding="utf-8")
LINES = [
    cells(line)
    for line in COMPARED.splitlines()
    if line.startswith("| ") and not line.startswith("| MOSEC |")
]

MOSEC = """
    Server Worker SSEWorker Runtime get_logger ClientError DecodingError EncodingError ServerError
    ValidationError MosecTimeoutError MosecError MsgpackMixin TypedMsgPackMixin NumBinIPCMixin
    PlasmaShmIPCMixin RedisShmIPCMixin append_worker register_runtime register_daemon run() num
    max_batch_size max_wait_time timeout start_method env route deserialize serialize serialize_ipc
    deserialize_ipc example multi_examples resp_mime_type req_mime_type worker_id stage
    get_forward_json_schema send_stream_event forward /inference /metrics /openapi/swagger/
    /openapi/metadata.json mosec_service_throughput_total mosec_service_process_duration_second
    mosec_service_batch_size mosec_service_batch_duration_second mosec_service_remaining_task --path
    --capacity --timeout --wait --address --port --namespace --debug --log-level --dry-run --compression
    --max-request-size 400 408 413 422 429 500 503 404 405
"""
"""What its users know by name."""


def test_every_test_that_the_comparison_names_exists() -> None:
    assert len(named_tests(COMPARED)) > 90
    assert missing_tests(COMPARED) == []


def test_every_line_of_the_comparison_is_shown_or_says_that_it_is_not_there() -> None:
    assert len(LINES) > 100
    for theirs, ours, shown in LINES:
        assert named_tests(shown) or ours.startswith(("not yet", "not there")), theirs


@pytest.mark.parametrize("name", MOSEC.split())
def test_every_name_of_mosec_has_its_line(name: str) -> None:
    old = " ".join(cells(line)[0] for line in MOVED.splitlines() if line.startswith("| "))
    assert re.search(rf"(?<![\w/-]){re.escape(name)}(?![\w-])", old)


# --- frameworks ----------------------------------------------------------------------------------

CUTS = [
    (page, example, text)
    for page in sorted((ROOT / "docs" / "frameworks").glob("*.md"))
    for example, text in re.findall(
        r"<!-- from (\S+) -->\n```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S
    )
]


@pytest.mark.parametrize(
    ("page", "example", "text"), CUTS, ids=[f"{page.name}-{number}" for number, (page, *_) in enumerate(CUTS)]
)
def test_what_a_page_on_a_framework_shows_stands_in_its_example(page: Path, example: str, text: str) -> None:
    assert text.strip() in (ROOT / example).read_text(encoding="utf-8"), (
        f"{page.name} is older than {example}"
    )


def test_every_example_of_a_framework_is_shown() -> None:
    examples = {path.name for path in (ROOT / "examples" / "frameworks").glob("*.py")}
    assert {Path(example).name for _, example, _ in CUTS} == examples
