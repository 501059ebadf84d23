"""What a gateway shows of its processes, whichever of them is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from zbatch import series
from zbatch.exposition import page
from zbatch.gateway.metrics import Figures, GatewaySeries
from zbatch.model_metrics import Shelf

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture
def shelves() -> Iterator[tuple[Shelf, Shelf]]:
    """Give two processes the shelf that they share."""
    made = Shelf.create(2)
    yield Shelf.attach(made.told(0)), Shelf.attach(made.told(1))
    made.close()


def figures(calls: int) -> Figures:
    counted = Figures()
    for _ in range(calls):
        counted.answered("predict", 200, 0.25, 10)
    counted.received += 7
    return counted


def samples(source: GatewaySeries) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in parse_text(page(source).body.decode())
        for one in family.samples
    }


def one(calls: int, shelf: Shelf | None = None) -> GatewaySeries:
    return GatewaySeries(figures(calls), lambda: (3, True), shelf)


def test_one_process_shows_its_own() -> None:
    found = samples(one(2))
    wanted = {
        ("zbatch_gateway_requests_total", "predict", "0", "200"): 2.0,
        ("zbatch_gateway_request_seconds_count", "predict", "0"): 2.0,
        ("zbatch_gateway_request_seconds_bucket", "predict", "0.5", "0"): 2.0,
        ("zbatch_gateway_received_bytes_total", "0"): 7.0,
        ("zbatch_gateway_sent_bytes_total", "0"): 20.0,
        ("zbatch_gateway_in_flight_requests", "0"): 3.0,
        ("zbatch_gateway_ready", "0"): 1.0,
    }
    assert {what: found.get(what) for what in wanted} == wanted
    assert found["zbatch_process_resident_memory_bytes", "0"] > 0


def test_whichever_of_several_is_asked_shows_all(shelves: tuple[Shelf, Shelf]) -> None:
    first, second = (one(at + 1, shelf) for at, shelf in enumerate(shelves))
    first.leave()
    second.leave()
    wanted = {
        ("zbatch_gateway_requests_total", "predict", "0", "200"): 1.0,
        ("zbatch_gateway_requests_total", "predict", "1", "200"): 2.0,
    }
    for asked in (first, second):
        found = samples(asked)
        assert {what: found.get(what) for what in wanted} == wanted
        assert found["zbatch_process_resident_memory_bytes", "1"] > 0


def test_one_that_has_said_nothing_yet_is_not_shown(shelves: tuple[Shelf, Shelf]) -> None:
    found = samples(one(1, shelves[1]))
    assert {what[-2] for what in found if what[0] == "zbatch_gateway_requests_total"} == {"1"}


def test_what_is_no_text_of_one_does_not_cost_the_page_of_the_others(shelves: tuple[Shelf, Shelf]) -> None:
    shelves[0].slates[0].write(b"\x92\x01\x91\x93\xa2\xff\xff\xcc\xc8\x01")
    found = samples(one(1, shelves[1]))
    assert {what[-2] for what in found if what[0] == "zbatch_gateway_requests_total"} == {"1"}


def test_one_that_is_gone_is_shown_as_it_was_but_not_its_process(shelves: tuple[Shelf, Shelf]) -> None:
    gone = GatewaySeries(figures(5), lambda: (0, False), shelves[0])
    pid = os.fork()
    if pid == 0:
        gone.leave()
        os._exit(0)
    os.waitpid(pid, 0)
    found = samples(one(1, shelves[1]))
    assert found["zbatch_gateway_requests_total", "predict", "0", "200"] == 5.0
    assert ("zbatch_process_resident_memory_bytes", "0") not in found


def test_one_of_one_leaves_nothing() -> None:
    one(1).leave()


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_family_is_shown_as_its_table_says(accept: str) -> None:
    parse = parse_openmetrics if accept else parse_text
    found = {one.name: (one.type, one.documentation) for one in parse(page(one(1), accept).body.decode())}
    assert {name: told for name, told in found.items() if not name.startswith("zbatch_process_")} == {
        one.name.removesuffix("_total"): (one.kind, one.help) for one in series.GATEWAY
    }
    assert {name for name in found if name.startswith("zbatch_process_")} == {
        one.name.removesuffix("_total") for one in series.PROCESS
    }
