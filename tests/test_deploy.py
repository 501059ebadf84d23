"""What deploy/ shows is what there is: systemd accepts the units, and their commands are ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from zbatch import config, launcher, series
from zbatch.cli import main

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    # It also looks whether the command is there; here it is not, so another one stands in.
    text = unit.read_text().replace("/opt/zbatch/bin/zbatch", "/bin/true")
    text = re.sub(r"^(User|SupplementaryGroups)=.*\n", "", text, flags=re.M)
    # A template is checked as one of its instances.
    copy = tmp_path / unit.name.replace("@", "@large")
    copy.write_text(text)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = [line for line in ran.stderr.splitlines() if copy.name in line]
    assert (ran.returncode, said) == (0, []), ran.stderr


@pytest.mark.parametrize("path", [*UNITS, DEPLOY / "compose.yaml"], ids=lambda path: path.name)
def test_every_command_and_option_is_one_of_ours(path: Path) -> None:
    commands = re.findall(r"(?:ExecStart=\S*|command: )zbatch (\w+) ?(.*)", path.read_text())
    assert commands
    for command, rest in commands:
        options = set(re.findall(r"(--[a-z-]+)", rest))
        known = {option for parameter in main.commands[command].params for option in parameter.opts}
        assert options <= known


def test_the_units_give_time_enough_to_leave() -> None:
    leaves = {
        "zbatch-worker@.service": config.Timing().drain,
        "zbatch-broker.service": 5.0,
        "zbatch-gateway.service": config.GatewaySettings().drain + launcher.LAST_WORDS,
    }
    assert sorted(leaves) == [unit.name for unit in UNITS]
    for name, least in leaves.items():
        (seconds,) = re.findall(r"TimeoutStopSec=(\d+)", (DEPLOY / name).read_text())
        assert float(seconds) > least


def test_the_compose_file_is_one() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert sorted(found["services"]) == ["broker", "gateway", "worker"]
    for service in found["services"].values():
        assert {"image", "command", "restart", "stop_grace_period", "user", "volumes"} <= set(service)


# --- what is watched --------------------------------------------------------------------------------

DASHBOARD = DEPLOY / "grafana" / "zbatch.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERIES = {one.name + part for table in series.TABLES.values() for one in table for part in PARTS[one.kind]}


@pytest.mark.parametrize("path", [DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_every_series_that_is_watched_is_one_of_ours(path: Path) -> None:
    named = set(re.findall(r"\bzbatch_\w+", path.read_text(encoding="utf-8")))
    assert named
    assert named <= SERIES


def test_every_panel_of_the_dashboard_says_what_it_shows_and_lies_beside_the_others() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & taken
        assert all(x < 24 for x, _ in own)
        taken |= own
        if panel["type"] != "row":
            assert panel["title"] and panel["description"] and panel["targets"]


def test_every_alert_says_how_bad_it_is_and_what_is_wrong() -> None:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")


def test_the_addresses_that_are_scraped_are_those_that_serve_serves() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    scraped = [target for job in jobs for one in job["static_configs"] for target in one["targets"]]
    served = config.resolve_serve({"model": "m:M", "metrics": scraped[0]}).settings
    assert scraped == [served.broker.metrics, served.workers[0].metrics, config.GatewaySettings().http]
