"""Real web servers, as a person at a shell starts them, and many who ask them at once over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from tests.live.shell import PATIENCE, ROOT, environment, until

ASKERS = 32
"""Requests that are open at once: far more than one batch of the shortest queue."""


@dataclass(frozen=True)
class Answer:
    """What came back over HTTP."""

    status: int
    headers: Message
    body: Any


@dataclass
class Server:
    """One command that listens on a port of its own; its output goes to a file.

    The command's first word is one that is installed beside this Python; ``{port}`` becomes the port.
    """

    command: Sequence[str]
    log: Path
    variables: Mapping[str, str]
    port: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.port = self.port or free_port()
        words = [word.replace("{port}", str(self.port)) for word in self.command]
        words[0] = str(Path(sys.executable).with_name(words[0]))
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=environment() | dict(self.variables),
            )
        until(self.answers)

    def answers(self) -> bool:
        """Return whether it listens itself, whoever else may on this port; fail if it ended instead."""
        assert self.process.poll() is None, self.log.read_text()
        return self.listens()

    def listens(self) -> bool:
        """Return whether it takes connections, or what it started does."""
        if self.process.poll() is not None:
            return False
        return any(listens(one, self.port) for one in [psutil.Process(self.process.pid), *self.family()])

    def ask(self, path: str, body: Any = None) -> Answer:
        """POST a body as JSON, or GET where there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return Answer(response.status, response.headers, json.loads(text) if is_json else text)

    def family(self) -> list[psutil.Process]:
        """Return the processes below it that may answer; it may have ended."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [one for one in below if is_server(one)]

    def stop(self, number: int) -> None:
        """End it by a signal, and see that all that it started ends."""
        family = self.family()
        self.process.send_signal(number)
        self.ends(family)

    def ends(self, family: Sequence[psutil.Process]) -> None:
        """Wait for its end, and that of what it started."""
        self.process.wait(PATIENCE)
        assert not psutil.wait_procs(family, PATIENCE)[1]

    def kill_processes(self) -> None:
        """Kill what answers: the processes that it started, which it replaces, or else itself."""
        family = self.family()
        if not family:
            self.kill()
            self.start()
            return
        for one in family:
            one.kill()
        assert not psutil.wait_procs(family, PATIENCE)[1]

    def kill(self) -> None:
        """End it, and all that it started, whatever happens."""
        if self.process.poll() is None:
            family = self.family()
            self.process.kill()
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        self.process.wait()


def is_server(process: psutil.Process) -> bool:
    """Return whether a process lives, and is not Python's bookkeeper of shared memory, which outlives all."""
    try:
        return "resource_tracker" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def listens(process: psutil.Process, port: int) -> bool:
    """Return whether a process takes connections at a port."""
    try:
        ends = process.net_connections("inet")
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in ends)


def ask_all(asked: Sequence[tuple[Server, str, Any]]) -> list[Answer]:
    """POST all bodies at once, each over a connection of its own; return the answers in order."""
    with ThreadPoolExecutor(len(asked)) as askers:
        return list(askers.map(lambda one: one[0].ask(one[1], one[2]), asked, timeout=PATIENCE))


def shout(servers: Sequence[Server]) -> list[Answer]:
    """Ask all servers at once, and see that each answer is its asker's."""
    texts = [f"item {number}" for number in range(ASKERS)]
    asked = [
        (server, "/predict/shout", {"text": text})
        for server, text in zip(cycle(servers), texts, strict=False)
    ]
    answers = ask_all(asked)
    assert [answer.status for answer in answers] == [200] * ASKERS, answers
    assert [answer.body["text"] for answer in answers] == [text.upper() for text in texts]
    return answers


def joins(servers: Sequence[Server]) -> bool:
    """Ask; return whether items that came over several clients shared a batch."""
    return any(answer.body["clients"] > 1 for answer in shout(servers))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
