"""deploy/'s dashboard, rules and scrape config, read by a real Prometheus (apt-get install prometheus).

It scrapes a broker, a worker and a gateway under load, so each series that the dashboard and the rules name
must be there, and each expression must mean something.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.shell import PATIENCE, ROOT, Zbatch, until
from zbatch import ZbatchError, ZClient, nvml

pytest.importorskip("httptools", reason="the gateway needs zbatch[http]")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="no prometheus on this machine; Debian: apt-get install prometheus",
    ),
]

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "zbatch.json").read_text(encoding="utf-8"))
MODEL = f"{ROOT}/tests/live/models.py:Obedient"

NO_GPU = nvml.load() is None
"""Where there is none, nothing can be shown of it."""


def promtool(*arguments: str | Path) -> None:
    ran = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def expressions() -> list[str]:
    """Return what the dashboard's panels ask, for everything."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = {"$__rate_interval": "1m", "$instance": ".*", "$topic": ".*"}
    for name, value in variables.items():
        asked = [one.replace(name, value) for one in asked]
    return asked


def rules() -> list[str]:
    """Return what the rules ask."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def named() -> set[str]:
    """Return every series that the dashboard or a rule names."""
    found = set(re.findall(r"\bzbatch_\w+|\bprocess_\w+", " ".join(expressions() + rules())))
    return {name for name in found if not (NO_GPU and name.startswith("zbatch_gpu_"))}


class Prometheus:
    """A Prometheus of our own, which reads what deploy/'s does, from other addresses."""

    def __init__(self, home: Path, *addresses: str) -> None:
        config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        config["rule_files"] = [str(RULES)]
        for job, address in zip(config["scrape_configs"], addresses, strict=True):
            job["static_configs"][0]["targets"] = [address]
        (home / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.log = (home / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={home}/prometheus.yml",
                f"--storage.tsdb.path={home}/data",
                f"--web.listen-address={self.address}",
            ],
            stdout=self.log,
            stderr=self.log,
        )

    def ask(self, what: str, **query: str) -> Any:
        """Return what its API answers."""
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def is_there(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE):
            return True
        return False

    def has(self, expression: str) -> bool:
        """Return whether an expression has a value now."""
        return bool(self.ask("query", query=expression)["result"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


class Load:
    """Asks for what goes well, what fails and more than there is room for, until it is told to end."""

    def __init__(self, frontend: str, gateway: str) -> None:
        self._gateway = gateway
        self._ended = threading.Event()
        self._client = ZClient[Any, Any](frontend, topic="bert", timeout=PATIENCE)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(ZbatchError):
                self._client.predict(["a", "fail", "c"])
            self._post("a")
            self._post("fail")
            many = [self._client.submit([at]) for at in range(40)]
            for one in many:
                with suppress(ZbatchError):
                    one.result(PATIENCE)

    def _post(self, item: str) -> None:
        url = f"http://{self._gateway}/predict/bert"
        asked = urllib.request.Request(url, json.dumps(item).encode(), {"content-type": "application/json"})
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            answer.read()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


@pytest.fixture
def prometheus(run: Callable[..., Zbatch], tmp_path: Path) -> Iterator[Prometheus]:
    """Give a Prometheus that watches a broker, a worker and a gateway under load; a model process dies."""
    frontend, backend = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    ends = ("--frontend", frontend, "--backend", backend)
    metrics = ("--metrics", "127.0.0.1:0")
    broker = run("broker", *ends, *metrics, "--limits-topic-items", "16")
    worker = run("worker", MODEL, "--topic", "bert", "--gpu", "cpu", *ends[2:], *metrics)
    worker.says("model ready")
    served = [
        re.findall(r"at=http://(\S+)/metrics", one.says("metrics served"))[0] for one in (broker, worker)
    ]
    gateway = run("gateway", "--http", "127.0.0.1:0", "--endpoint", frontend)
    served += re.findall(r"url=http://(\S+)", gateway.says("gateway started"))
    load = Load(frontend, served[-1])
    watching = Prometheus(tmp_path, *served)
    try:
        until(watching.is_there)
        (process,) = [one for one in worker.family() if "zbatch.model_process" in " ".join(one.cmdline())]
        process.kill()
        worker.says("model ready", times=2)
        yield watching
    finally:
        watching.close()
        load.close()


@pytest.mark.timeout(240)
def test_prometheus_finds_every_series_and_understands_every_expression(prometheus: Prometheus) -> None:
    missing = named()
    end = time.monotonic() + PATIENCE
    while missing:
        missing = {name for name in missing if not prometheus.has(name)}
        assert time.monotonic() < end, missing
        time.sleep(0.1)
    # A rate needs to be seen twice.
    empty = [one for one in expressions() if not (NO_GPU and "zbatch_gpu_" in one)]
    while empty:
        empty = [one for one in empty if not prometheus.has(one)]
        assert time.monotonic() < end, empty
        time.sleep(0.1)
    targets = prometheus.ask("targets")["activeTargets"]
    assert {(one["labels"]["job"], one["health"], one["lastError"]) for one in targets} == {
        ("zbatch-broker", "up", ""),
        ("zbatch-worker", "up", ""),
        ("zbatch-gateway", "up", ""),
    }

    def judged() -> dict[str, str]:
        groups = prometheus.ask("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    until(lambda: "unknown" not in judged().values())
    assert set(judged().values()) == {"ok"}
    assert len(judged()) == len(rules())


def test_the_rules_and_the_config_are_valid() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", CONFIG)


def test_the_rules_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(ROOT / "tests" / "live" / "alerts_test.yml", tmp_path)
    promtool("test", "rules", tmp_path / "alerts_test.yml")
