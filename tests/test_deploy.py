"""What deploy/ shows is what there is: systemd accepts the units, and their commands are ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from zbatch import config
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
    drain = config.Timing().drain
    for name, least in (("zbatch-worker@.service", drain), ("zbatch-broker.service", 5.0)):
        (seconds,) = re.findall(r"TimeoutStopSec=(\d+)", (DEPLOY / name).read_text())
        assert float(seconds) > least


def test_the_compose_file_is_one() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert sorted(found["services"]) == ["broker", "worker"]
    for service in found["services"].values():
        assert {"image", "command", "restart", "stop_grace_period", "volumes"} <= set(service)
