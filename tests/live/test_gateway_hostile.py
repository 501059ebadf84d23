"""What clients do to a gateway that is no request: it costs them the answer, and nobody else anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.shell import Zbatch, until
from tests.live.test_gateway import MODEL, Gateway

pytestmark = pytest.mark.live

HEAD = b"POST /predict/default HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a broker, a worker and a gateway."""
    home: Path = tmp_path_factory.mktemp("hostile")
    front = f"ipc://{home}/front"
    journal = ("--arg", f"journal={home}/journal")
    process = Zbatch(
        home / "log", "serve", MODEL, "--gpu", "cpu", "--frontend", front, "--http", "127.0.0.1:0", *journal
    )
    made = Gateway(process)
    until(lambda: made.ask("GET", "/health/ready")[0] == 200)
    yield made
    process.process.terminate()
    process.process.wait()


def counted(service: Gateway, status: int) -> float:
    """Return how many requests for one item ended with this status."""
    wanted = f'zbatch_gateway_requests_total{{call="predict",process="0",status="{status}"}}'
    lines = service.ask("GET", "/metrics")[2].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + b"Content-Length: 10\r\n\r\n[1,2,3,44]",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n",
    ],
    ids=["length", "chunks"],
)
def test_who_leaves_at_any_byte_of_a_request_is_gone_and_no_failure(
    service: Gateway, request_: bytes
) -> None:
    before = counted(service, 499)
    in_body = range(request_.index(b"\r\n\r\n") + 4, len(request_))
    for end in range(len(request_)):
        with service.connect() as connection:
            connection.sendall(request_[:end])

    until(lambda: counted(service, 499) - before == len(in_body))
    assert counted(service, 500) == 0
    assert service.predict("on") == (200, "on")
    assert "Traceback" not in service.process.log.read_text()
