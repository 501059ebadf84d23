"""How settings are written: what each reader takes, and the sentence for what it refuses."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable

import pytest

from zbatch import notation

DAY = datetime.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("read", "value", "wanted"),
    [
        (notation.text, "a", "a"),
        (notation.whole, 3, 3),
        (notation.whole, " -3 ", -3),
        (notation.number, 3, 3.0),
        (notation.number, "1e3", 1000.0),
        (notation.flag, True, True),
        (notation.flag, "yes", True),
        (notation.flag, " OFF ", False),
        (notation.flag, 0, False),
        (notation.seconds, 2, 2.0),
        (notation.seconds, 0.25, 0.25),
        (notation.seconds, "10ms", 0.01),
        (notation.seconds, "1.5 s", 1.5),
        (notation.seconds, ".5", 0.5),
        (notation.seconds, "200us", 0.0002),
        (notation.seconds, "1m", 60.0),
        (notation.seconds, "2h", 7200.0),
        (notation.size, 10, 10),
        (notation.size, "10", 10),
        (notation.size, "256MiB", 256 << 20),
        (notation.size, "1.5 KiB", 1536),
        (notation.size, "2kB", 2000),
        (notation.words, "a, b,,a", ("a", "b")),
        (notation.words, ["a,b", "c"], ("a", "b", "c")),
        (notation.words, "", ()),
        (notation.topics, ("a", "b"), ("a", "b")),
        (notation.gpus, "all", ("all",)),
        (notation.gpus, "cpu", ("cpu",)),
        (notation.gpus, 1, ("1",)),
        (notation.gpus, [0, "1"], ("0", "1")),
        (notation.gpus, "0,GPU-8f2c-1,MIG-GPU-8f/1/0", ("0", "GPU-8f2c-1", "MIG-GPU-8f/1/0")),
        (notation.arguments, {"a": 1}, {"a": 1}),
        (notation.arguments, ("a=1", "b=x=y", "c="), {"a": 1, "b": "x=y", "c": ""}),
        (notation.arguments, "a=[1, 2]", {"a": [1, 2]}),
        (notation.arguments, '{"a": true}', {"a": True}),
        (notation.endpoint_to_bind, " tcp://127.0.0.1:5555 ", "tcp://127.0.0.1:5555"),
        (notation.endpoint_to_bind, "tcp://*:0", "tcp://*:0"),
        (notation.address, " 127.0.0.1:9100 ", "127.0.0.1:9100"),
        (notation.address, "[::1]:0", "[::1]:0"),
        (notation.endpoint_to_bind, "tcp://[::1]:*", "tcp://[::1]:*"),
        (notation.endpoint_to_bind, "ipc:///run/zbatch", "ipc:///run/zbatch"),
        (notation.endpoint_to_connect, "ipc://@name", "ipc://@name"),
        (notation.endpoint_to_connect, "tcp://gpu-1.example:5556", "tcp://gpu-1.example:5556"),
        (notation.endpoint_to_connect, "tcp://[fe80::1%eth0]:1", "tcp://[fe80::1%eth0]:1"),
        (notation.endpoints_to_bind, "tcp://*:1,ipc://x", ("tcp://*:1", "ipc://x")),
        (notation.endpoints_to_connect, ["tcp://a:1", "tcp://b:1"], ("tcp://a:1", "tcp://b:1")),
    ],
)
def test_what_is_written_is_read(read: Callable[[object], object], value: object, wanted: object) -> None:
    assert read(value) == wanted


@pytest.mark.parametrize(
    ("read", "value", "sentence"),
    [
        (notation.text, 5, "wanted a string, got 5"),
        (notation.whole, "1.5", "wanted a whole number, got '1.5'"),
        (notation.whole, "9" * 5_000, f"wanted a whole number of at most 40 digits, got '{'9' * 20}'..."),
        (
            notation.size,
            "9" * 400,
            f"wanted a size such as 64KiB, 256MiB or 1048576 (bytes), got '{'9' * 20}'...",
        ),
        (notation.whole, 1.5, "wanted a whole number, got 1.5"),
        (notation.whole, True, "wanted a whole number, got True"),
        (notation.number, "many", "wanted a number, got 'many'"),
        (notation.number, "nan", "wanted a number, got nan"),
        (notation.number, True, "wanted a number, got True"),
        (notation.number, [1], "wanted a number, got [1]"),
        (notation.flag, "perhaps", "wanted true or false, got 'perhaps'"),
        (
            notation.seconds,
            "10 parsecs",
            "wanted a duration such as 10ms, 2s, 1m or 0.5 (seconds), got '10 parsecs'",
        ),
        (notation.seconds, -1, "wanted a duration such as 10ms, 2s, 1m or 0.5 (seconds), got -1"),
        (notation.seconds, math.inf, "wanted a duration such as 10ms, 2s, 1m or 0.5 (seconds), got inf"),
        (notation.seconds, "9000h", "wanted a year at most, got 32400000.0 s"),
        (notation.text, "caf\udce9", "wanted UTF-8, got 'caf\\udce9'"),
        (notation.item, "caf\udce9", "wanted UTF-8, got 'caf\\udce9'"),
        (notation.item, "[" * 100_000, "wanted JSON that is less deep, got '[[[[[[[[[[[[[[[[[[[['..."),
        (notation.seconds, True, "wanted a duration such as 10ms, 2s, 1m or 0.5 (seconds), got True"),
        (notation.seconds, None, "wanted a duration such as 10ms, 2s, 1m or 0.5 (seconds), got None"),
        (notation.size, "5 MB/s", "wanted a size such as 64KiB, 256MiB or 1048576 (bytes), got '5 MB/s'"),
        (notation.size, -1, "wanted a size such as 64KiB, 256MiB or 1048576 (bytes), got -1"),
        (notation.size, True, "wanted a size such as 64KiB, 256MiB or 1048576 (bytes), got True"),
        (notation.size, 1.5, "wanted a size such as 64KiB, 256MiB or 1048576 (bytes), got 1.5"),
        (notation.words, 5, "wanted a string or a list of strings, got 5"),
        (notation.words, [5], "wanted a string, got 5"),
        (notation.topic, "", "wanted a topic's name, 1 to 128 printable characters without a comma, got ''"),
        (
            notation.topic,
            "a\nb",
            "wanted a topic's name, 1 to 128 printable characters without a comma, got 'a\\nb'",
        ),
        (
            notation.topic,
            "a,b",
            "wanted a topic's name, 1 to 128 printable characters without a comma, got 'a,b'",
        ),
        (notation.gpus, "", "wanted all, cpu, or GPUs by index or UUID such as 0,1, got ''"),
        (
            notation.seconds,
            "9" * 60_000 + "x",
            f"wanted a duration such as 10ms, 2s, 1m or 0.5 (seconds), got '{'9' * 20}'...",
        ),
        (
            notation.size,
            "9" * 60_000 + "x",
            f"wanted a size such as 64KiB, 256MiB or 1048576 (bytes), got '{'9' * 20}'...",
        ),
        (notation.gpus, "cuda:0", "wanted all, cpu, or GPUs by index or UUID such as 0,1, got 'cuda:0'"),
        (notation.gpus, "0,cpu", "wanted all, cpu, or GPUs by index or UUID such as 0,1, got '0,cpu'"),
        (notation.gpus, True, "wanted a string, got True"),
        (notation.arguments, "a", "wanted key=value, got 'a'"),
        (notation.arguments, ["a=1", "a=2"], "wanted a once, got it twice"),
        (notation.arguments, 5, "wanted key=value, got 5"),
        (notation.arguments, ["1a=2"], "wanted key=value, where the key is a name of Python, got '1a'"),
        (
            notation.arguments,
            {"a": DAY},
            f"wanted for a what JSON can say (text, numbers, true, lists, tables), got {DAY!r}",
        ),
        (
            notation.endpoint_to_bind,
            "localhost:5555",
            "wanted tcp://host:port or ipc:///path, got 'localhost:5555'; say tcp://localhost:5555",
        ),
        (notation.address, "9100", "wanted host:port such as 127.0.0.1:9100, got '9100'"),
        (notation.address, ":8000", "wanted host:port such as 127.0.0.1:8000, got ':8000'"),
        (notation.address, "*:9100", "wanted host:port such as 127.0.0.1:8000, got '*:9100'"),
        (notation.address, "host:x", "wanted a port from 0 to 65535, got 'x' in 'host:x'"),
        (notation.endpoint_to_bind, "5555", "wanted tcp://host:port or ipc:///path, got '5555'"),
        (
            notation.endpoint_to_connect,
            "http://host:80",
            "wanted tcp://host:port or ipc:///path, got 'http://host:80': 'http' is no transport here",
        ),
        (notation.endpoint_to_connect, "ipc://", "wanted ipc:///path of at most 100 bytes, got 'ipc://'"),
        (
            notation.endpoint_to_connect,
            "tcp://host",
            "wanted tcp://host:port, got 'tcp://host', which has no port; say tcp://host:5555",
        ),
        (
            notation.endpoint_to_connect,
            "tcp://[::1]",
            "wanted tcp://host:port, got 'tcp://[::1]', which has no port; say tcp://[::1]:5555",
        ),
        (
            notation.endpoint_to_connect,
            "tcp://::1:5555",
            "wanted an IPv6 address in brackets, tcp://[::1]:5555, got 'tcp://::1:5555'",
        ),
        (
            notation.endpoint_to_connect,
            "tcp://a b:5555",
            "wanted tcp://host:port, got 'tcp://a b:5555': 'a b' is no host",
        ),
        (
            notation.endpoint_to_connect,
            "tcp://host:http",
            "wanted a port from 1 to 65535, got 'http' in 'tcp://host:http'",
        ),
        (
            notation.endpoint_to_connect,
            "tcp://host:0",
            "wanted a port from 1 to 65535, got '0' in 'tcp://host:0'",
        ),
        (
            notation.endpoint_to_bind,
            "tcp://host:65536",
            "wanted a port from 0 to 65535, got '65536' in 'tcp://host:65536'",
        ),
        (
            notation.endpoint_to_connect,
            "tcp://*:5555",
            "cannot connect to 'tcp://*:5555'; name the host, such as tcp://127.0.0.1:5555",
        ),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(
    read: Callable[[object], object], value: object, sentence: str
) -> None:
    with pytest.raises(ValueError) as caught:
        read(value)
    assert str(caught.value) == sentence


def test_choice_names_all_that_is_allowed() -> None:
    read = notation.choice("eager", "window").read
    assert read("eager") == "eager"
    with pytest.raises(ValueError, match=r"^wanted eager or window, got 'lazy'$"):
        read("lazy")


@pytest.mark.parametrize(
    ("endpoint", "private"),
    [
        ("ipc:///run/zbatch", True),
        ("tcp://127.0.0.1:5555", True),
        ("tcp://127.8.8.8:5555", True),
        ("tcp://[::1]:5555", True),
        ("tcp://localhost:5555", True),
        ("tcp://*:5555", False),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://[::]:5555", False),
        ("tcp://10.0.0.1:5555", False),
        ("tcp://localhost.example:5555", False),
        ("tcp://eth0:5555", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(endpoint: str, private: bool) -> None:
    assert notation.is_loopback(endpoint) is private


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:8000", ("127.0.0.1", 8000)), ("[::1]:0", ("::1", 0)), ("web-1:80", ("web-1", 80))],
)
def test_an_address_is_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert notation.host_and_port(notation.address(address)) == parts


def test_json_is_read_and_anything_else_is_text() -> None:
    assert notation.json_or_text("[1, null]") == [1, None]
    assert notation.json_or_text("how are you") == "how are you"
    assert notation.item("[1, null]") == "[1, null]"


@pytest.mark.parametrize(
    ("show", "value", "shown"),
    [
        (notation.show_seconds, 0.0, '"0s"'),
        (notation.show_seconds, 60.0, '"60s"'),
        (notation.show_seconds, 0.0105, '"10.5ms"'),
        (notation.show_seconds, 0.0001, '"100us"'),
        (notation.show_seconds, 1e-9, "1e-9"),
        (notation.show_size, 0, "0"),
        (notation.show_size, 1000, "1000"),
        (notation.show_size, 3 << 10, '"3KiB"'),
        (notation.show_size, 2 << 30, '"2GiB"'),
        (notation.toml, {"a": 1, "b c": ["x", True]}, '{a = 1, "b c" = ["x", true]}'),
        (notation.show_arguments, {"a": {"b": 1}}, "{a = {b = 1}}"),
        (notation.show_arguments, {"a": None}, '"{\\"a\\":null}"'),
        (notation.toml, "a\x7f\n\"b'", '"a\\u007f\\n\\"b\'"'),
    ],
)
def test_a_value_is_shown_as_a_file_would_have_it(
    show: Callable[[object], str], value: object, shown: str
) -> None:
    assert show(value) == shown
