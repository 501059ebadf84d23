"""What a gateway needs before it serves."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from zbatch.config import GatewaySettings
from zbatch.errors import ConfigError
from zbatch.gateway.server import Place
from zbatch.journal import Journal


@pytest.mark.parametrize("name", ["httptools", "jsonschema_rs", "prometheus_client"])
def test_without_a_library_of_the_extra_a_sentence_says_what_to_install(name: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules[{name!r}] = None\n"
        "sys.argv[1:] = ['gateway', '--http', '127.0.0.1:0']\n"
        "from zbatch.__main__ import run\n"
        "run()\n"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"Error: the gateway needs {name}; install zbatch[http]\n"


def test_who_was_bound_at_the_same_time_and_listens_first_is_told_of() -> None:
    pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")
    from zbatch.gateway import server

    journal = Journal(write=lambda line: None)
    place = server.Place("127.0.0.1", 0)
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", place.port))
        first.listen()
        with pytest.raises(
            ConfigError, match=f"--http 127.0.0.1:{place.port} .*: somebody else listens there;"
        ):
            asyncio.run(server._serve(GatewaySettings(http="127.0.0.1:0"), place, journal, None, None))
    place.close()
    journal.close()


def test_a_place_where_somebody_listens_is_refused_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            Place("127.0.0.1", port)
    assert str(refused.value) == (
        f"--http 127.0.0.1:{port} cannot be listened on: "
        "somebody else listens there; stop them, or say another port"
    )


def test_a_place_is_shared_by_those_alone_who_all_share_it() -> None:
    first = Place("127.0.0.1", 0, is_shared=True)
    second = Place("127.0.0.1", first.port, is_shared=True)
    for one in (first, second):
        one.socket.listen()
    with pytest.raises(ConfigError, match="somebody else listens there"):
        Place("127.0.0.1", first.port)
    first.close()
    second.close()


def test_an_address_of_another_host_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^--http 192\.0\.2\.1:0 cannot be listened on: cannot assign"):
        Place("192.0.2.1", 0)
