"""gunicorn's ``--preload`` of an app that asks for something before the fork."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.interop.conftest import Cluster
from tests.interop.sites import GEVENT, THREADS, gunicorn
from tests.interop.web import Server, joins, shout
from tests.live.shell import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@pytest.mark.parametrize("options", [THREADS, GEVENT], ids=["gthread", "gevent"])
def test_a_client_that_was_used_before_the_fork_is_a_new_one_in_each_process(
    start: Callable[..., Server], cluster: Cluster, options: Sequence[str]
) -> None:
    site = gunicorn("preload", "tests.interop.warm_app:app", *options, "--preload")
    server = start(site.command)
    assert cluster.clients() == 1
    until(lambda: joins([server]))
    until(lambda: shout([server]) and cluster.clients() == 1 + site.processes)
    server.stop(site.stop)
    cluster.is_left_by_all()
