"""Each framework: real servers, real HTTP, real processes.  What holds for one holds for all."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.interop.conftest import ROOM, Cluster
from tests.interop.sites import SITES, Site
from tests.interop.web import Answer, Server, ask_all, free_port, joins, shout
from tests.live.shell import PATIENCE, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

HELD = 2
"""Requests for each process that are open while the model waits: enough to see whether one stops others."""


@pytest.fixture(scope="module", params=SITES, ids=lambda site: str(site.name))
def site(request: pytest.FixtureRequest) -> Site:
    """Give each site in turn."""
    found: Site = request.param
    return found


@pytest.fixture(scope="module")
def servers(site: Site, start: Callable[..., Server], cluster: Cluster) -> Iterator[list[Server]]:
    """Run a site's servers."""
    port = free_port() if site.shares_port else 0
    servers = [start(site.command, port) for _ in range(site.copies)]
    yield servers
    for server in servers:
        server.stop(site.stop)
    cluster.is_left_by_all()


@pytest.fixture
def crowd(cluster: Cluster) -> Iterator[None]:
    """Fill the topic ``full``."""
    futures = [cluster.client.submit([number], topic="full") for number in range(ROOM)]
    until(lambda: cluster.client.status()["topics"].get("full", {}).get("waiting") == ROOM)
    yield
    for future in futures:
        future.cancel()
    until(lambda: cluster.unfinished("full") == 0)


@contextmanager
def waiting(
    site: Site, servers: Sequence[Server], cluster: Cluster, gate: Path
) -> Iterator[list[Future[Answer]]]:
    """Have requests open in all processes, which the model holds until the end, or the examples' deadline."""
    requests = site.copies * site.processes * min(site.at_once, HELD)
    answers: list[Future[Answer]] = []
    with ThreadPoolExecutor(requests) as askers:
        try:
            for number, server in zip(range(requests), cycle(servers), strict=False):
                body = {"text": f"held {number}", "until": str(gate)}
                answers.append(askers.submit(server.ask, "/predict/shout", body))
                # One after the other, or one process would take them all.
                until(lambda: any_done(answers) or cluster.unfinished("shout") == len(answers))
            yield answers
        finally:
            gate.touch()


def any_done(answers: Sequence[Future[Answer]]) -> bool:
    """Return whether a request came to its end."""
    return any(one.done() for one in answers)


def in_time(attempt: Callable[[Path], bool], home: Path) -> None:
    """Try with a gate of its own each time until the machine is faster than the examples' deadline."""
    gates = (home / f"gate {number}" for number in count())
    until(lambda: attempt(next(gates)))


def own(answers: Sequence[Future[Answer]]) -> bool:
    """Return whether the deadline spared all; see that those whom it did have their own answers."""
    found = [one.result() for one in answers]
    spared = {number: one for number, one in enumerate(found) if one.status != 504}
    assert [one.status for one in spared.values()] == [200] * len(spared), found
    assert [one.body["text"] for one in spared.values()] == [f"HELD {number}" for number in spared]
    return len(spared) == len(found)


def tell(site: Site, server: Server) -> None:
    """Send SIGTERM, and wait until it has been seen."""
    before = server.log.read_text().count(site.farewell)
    server.process.send_signal(signal.SIGTERM)
    if site.farewell:
        until(lambda: server.log.read_text().count(site.farewell) > before)
    else:
        until(lambda: not server.listens())


def told(answer: Answer) -> tuple[int, str, str | None]:
    """Return what an answer says of an error."""
    assert answer.body["error"]
    return answer.status, answer.body["code"], answer.headers["Retry-After"]


def test_every_answer_is_its_own_and_batches_form_across_server_processes(
    site: Site, servers: list[Server], cluster: Cluster
) -> None:
    until(lambda: joins(servers))
    assert 2 <= cluster.clients() <= site.copies * site.processes


def test_others_are_answered_while_many_wait(
    site: Site, servers: list[Server], cluster: Cluster, tmp_path: Path
) -> None:
    if site.at_once == 1:
        pytest.skip("its processes do one thing at a time")

    def attempt(gate: Path) -> bool:
        with waiting(site, servers, cluster, gate) as answers:
            assert {server.ask("/ping").body for server in servers for _ in range(10)} == {"pong"}
            all_waited = not any_done(answers)
        return own(answers) and all_waited

    in_time(attempt, tmp_path)


@pytest.mark.parametrize(
    ("topic", "item", "wanted"),
    [
        ("a,b", {}, (400, "bad_request", None)),
        ("strange", {}, (404, "unknown_topic", None)),
        ("full", {}, (429, "overloaded", "1")),
        ("shout", {"fail": True}, (500, "model_failed", None)),
    ],
)
def test_an_error_comes_out_by_the_table_at_once(
    servers: list[Server], crowd: None, topic: str, item: Any, wanted: tuple[int, str, str | None]
) -> None:
    assert told(servers[0].ask(f"/predict/{topic}", item)) == wanted


def test_an_error_at_the_deadline_comes_out_by_the_table(servers: list[Server], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    late = (servers[0], "/predict/shout", {"until": str(gate), "text": ""})
    try:
        answers = ask_all([late, (servers[0], "/predict/idle", {})])
    finally:
        gate.touch()
    assert [told(one) for one in answers] == [(504, "deadline_exceeded", None), (503, "no_workers", None)]


def test_server_processes_that_are_killed_in_the_midst_leave_no_client_behind(
    site: Site, servers: list[Server], cluster: Cluster, tmp_path: Path
) -> None:
    with waiting(site, servers, cluster, tmp_path / "gate"):
        for server in servers:
            server.kill_processes()
    cluster.is_left_by_all()
    until(lambda: joins(servers))


def test_requests_that_are_open_at_sigterm_have_their_answers(
    site: Site, servers: list[Server], cluster: Cluster, tmp_path: Path
) -> None:
    if not site.finishes:
        pytest.skip("it drops what is open")

    def attempt(gate: Path) -> bool:
        families = [server.family() for server in servers]
        with waiting(site, servers, cluster, gate) as answers:
            for server in servers:
                tell(site, server)
        for server, family in zip(servers, families, strict=True):
            server.ends(family)
            server.start()
        return own(answers)

    in_time(attempt, tmp_path)


def test_a_reload_leaves_no_client_behind(site: Site, servers: list[Server], cluster: Cluster) -> None:
    if not site.reload:
        pytest.skip("it has no signal for that")
    shout(servers)
    for server in servers:
        processes = server.family()
        server.process.send_signal(site.reload)
        assert not psutil.wait_procs(processes, PATIENCE)[1]
    cluster.is_left_by_all()
    until(lambda: joins(servers))


def test_a_restart_leaves_no_client_behind(site: Site, servers: list[Server], cluster: Cluster) -> None:
    shout(servers)
    for server in servers:
        server.stop(site.stop)
    cluster.is_left_by_all()
    for server in servers:
        server.start()
    until(lambda: joins(servers))
