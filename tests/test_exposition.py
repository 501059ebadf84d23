"""Who serves /metrics, over real sockets: the page, its encodings, and that nobody holds it up for long."""

from __future__ import annotations

import gzip
import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily

from zbatch import exposition
from zbatch.errors import ConfigError
from zbatch.exposition import FORMS, Exposition, Pages, page
from zbatch.journal import Journal

Serve = Callable[..., int]


class Told:
    """A journal's lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.came = threading.Condition()

    def __call__(self, line: bytes) -> None:
        with self.came:
            self.lines.append(line.decode())
            self.came.notify_all()

    def says(self, words: str) -> str:
        """Wait until it has said these words; return the line."""
        with self.came:
            assert self.came.wait_for(lambda: any(words in line for line in self.lines), 60), self.lines
            return next(line for line in self.lines if words in line)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def serve(told: Told) -> Iterator[Serve]:
    """Serve something at a free port; return the port."""
    journal = Journal(write=told)
    served: list[Exposition] = []

    def serve(source: Any, host: str = "127.0.0.1") -> int:
        served.append(Exposition(f"{host}:0", source, journal))
        served[-1].start()
        return int(told.says("metrics served").rpartition(":")[2].partition("/")[0])

    yield serve
    for one in served:
        one.close()
    journal.close()


def answers() -> CollectorRegistry:
    """Return a registry with one gauge."""
    registry = CollectorRegistry()
    Gauge("answer", "To everything.", registry=registry).set(42)
    return registry


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_what_a_source_has_is_read_over_http(serve: Serve) -> None:
    status, headers, body = get(serve(answers()))
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"\nanswer 42.0\n" in body


def test_a_page_is_packed_for_those_who_can_unpack_it(serve: Serve) -> None:
    port = serve(answers())
    _, headers, body = get(port, Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == get(port)[2]


def test_openmetrics_is_spoken_with_those_who_ask_for_it(serve: Serve) -> None:
    _, headers, body = get(serve(answers()), Accept="application/openmetrics-text;version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
@pytest.mark.parametrize("version", ["new", "1.x", "9" * 5_000])
def test_a_version_that_is_none_gets_the_plainest_page(kind: str, version: str) -> None:
    assert page(answers(), f"{kind};version={version}") == page(answers())


class Counting:
    """A source that says how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def collect(self) -> Any:
        self.times += 1
        yield GaugeMetricFamily("times", "Times.", self.times)


def test_pages_are_kept_for_a_second_each_in_its_form() -> None:
    now, source = [5.0], Counting()
    pages = Pages(source, lambda: now[0])
    seen: list[tuple[float, str, int]] = []
    for now[0] in (5.0, 5.99, 6.0):
        for encoding in ("", "gzip"):
            _, body = pages.page("", encoding)
            text = gzip.decompress(body) if encoding else body
            seen.append((now[0], encoding, int(float(text.split()[-1]))))

    assert seen == [
        (5.0, "", 1),
        (5.0, "gzip", 2),
        (5.99, "", 1),
        (5.99, "gzip", 2),
        (6.0, "", 3),
        (6.0, "gzip", 4),
    ]


def test_who_asks_for_ever_other_forms_gets_the_plainest_one() -> None:
    now, source = [5.0], Counting()
    pages = Pages(source, lambda: now[0])
    asked = [f"application/openmetrics-text;version=1.0.{number}" for number in range(1_000)]
    kinds = {dict(pages.page(accept).headers)["Content-Type"].partition(";")[0] for accept in asked}

    assert kinds == {"application/openmetrics-text", "text/plain"}
    assert source.times == FORMS + 1
    now[0] = 6.0
    assert b"# EOF" in pages.page(asked[-1]).body


def test_any_other_path_says_where_the_metrics_are(serve: Serve) -> None:
    assert get(serve(answers()), "/")[::2] == (404, b"the metrics are at /metrics\n")


def test_any_other_method_is_not_there(serve: Serve) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", serve(answers()), timeout=60)
    connection.request("POST", "/metrics", b"x")
    assert connection.getresponse().status == 501
    connection.close()


def test_an_ipv6_address_is_served_too(serve: Serve) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 on this machine")
    port = serve(answers(), "[::1]")
    with socket.create_connection(("::1", port), timeout=60) as one:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert one.recv(15) == b"HTTP/1.0 200 OK"


def test_what_goes_wrong_is_said_and_the_next_one_is_answered(serve: Serve, told: Told) -> None:
    class Broken:
        times = 0

        def collect(self) -> Any:
            self.times += 1
            if self.times == 1:
                raise RuntimeError("no figures")
            return answers().collect()

    port = serve(Broken())
    assert get(port)[::2] == (500, b"the metrics cannot be shown\n")
    assert "RuntimeError: no figures" in told.says("metrics failed")
    assert get(port)[0] == 200


def test_who_says_nothing_is_sent_away_and_the_next_one_is_answered(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "PATIENCE", 0.1)
    port = serve(answers())
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        silent.sendall(b"GET /metrics")
        assert get(port)[0] == 200
        assert silent.recv(1) == b""


BROKEN = {
    "no HTTP": b"\x00\xff\r\n\r\n",
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a line that is too long": b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "a header that is too long": b"GET /metrics HTTP/1.1\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
    "too many headers": b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "a version that is none": b"GET /metrics HTTP/x\r\n\r\n",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_request_is_refused_and_the_next_one_is_answered(
    serve: Serve, told: Told, what: str
) -> None:
    port = serve(answers())
    with socket.create_connection(("127.0.0.1", port), timeout=60) as odd:
        odd.sendall(BROKEN[what])
        # Who is refused before all was read may also be cut off.
        with suppress(ConnectionResetError):
            assert b"200 OK" not in odd.recv(65_536)
    assert get(port)[0] == 200
    assert not [line for line in told.lines if "failed" in line]


def test_who_leaves_before_the_answer_is_no_news(serve: Serve, told: Told) -> None:
    port = serve(answers())
    with socket.create_connection(("127.0.0.1", port), timeout=60) as hasty:
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        hasty.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert get(port)[0] == 200
    assert not [line for line in told.lines if "failed" in line]


def test_a_port_in_use_is_an_error_of_the_settings(serve: Serve, told: Told) -> None:
    port = serve(answers())
    with pytest.raises(ConfigError, match=f"^metrics: cannot listen on 127.0.0.1:{port}: .*in use"):
        Exposition(f"127.0.0.1:{port}", answers(), Journal(write=told)).start()


def test_one_that_ends_waits_for_nobody_who_is_being_answered(told: Told) -> None:
    journal = Journal(write=told)
    served = Exposition("127.0.0.1:0", answers(), journal)
    served.start()
    port = int(told.says("metrics served").rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        silent.sendall(b"GET /metrics")
        served.close()
        served.close()
        silent.setblocking(False)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    journal.close()


def test_without_prometheus_client_a_sentence_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['prometheus_client'] = None\n"
        "from zbatch import extras\n"
        "from zbatch.errors import ConfigError\n"
        "try:\n"
        "    extras.metrics()\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == (
        "metrics: prometheus-client is not installed; install it, or zbatch[metrics] with it\n"
    )


def test_what_serves_metrics_is_imported_where_it_is_asked_for() -> None:
    program = (
        "import sys\n"
        "import zbatch.broker, zbatch.worker, zbatch.model_process\n"
        "print({'prometheus_client', 'http.server', 'pynvml'} & set(sys.modules))\n"
        "from zbatch import extras\n"
        "print(extras.metrics().series.BrokerSeries.__name__)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\nBrokerSeries\n"
