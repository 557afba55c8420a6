"""deploy/systemd agrees with the product: commands, settings, times; and every unit is closed alike."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from control.command import main as control
from control.operator.cli import tollgate
from proxy.command import main as proxy
from runtime.setting_names import NAMES
from trainer.__main__ import main as trainer

FOLDER = Path(__file__).resolve().parents[2] / "deploy/systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.env.example"))
COMMANDS = {"control": control, "proxy": proxy, "trainer": trainer, "up": tollgate.commands["up"]}
DRAIN_S = 25.0
OWN = {"User", "Group", "Type", "KillMode", "TimeoutStopSec", "Environment", "EnvironmentFile", "ExecStart"}


def settings_of(unit: str) -> dict[str, list[str]]:
    """Return the directives of [Service]; a name may come more than once."""
    section = (FOLDER / unit).read_text().partition("[Service]\n")[2].partition("\n[Install]")[0]
    values: dict[str, list[str]] = defaultdict(list)
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            values[name].append(value)
    return values


@pytest.mark.parametrize("unit", UNITS)
def test_unit_starts_a_command_that_exists_with_flags_that_it_has(unit: str) -> None:
    (line,) = settings_of(unit)["ExecStart"]
    program, command, *flags = line.split()
    assert program == "/opt/tollgate/bin/tollgate"
    COMMANDS[command].make_context(command, flags).close()


@pytest.mark.parametrize("unit", UNITS)
def test_unit_sets_settings_that_exist_and_waits_for_the_drain(unit: str) -> None:
    directives = settings_of(unit)
    variables = dict(one.split("=", 1) for one in directives["Environment"])
    assert variables.keys() <= NAMES
    assert float(directives["TimeoutStopSec"][0]) > float(variables.get("TOLLGATE_DRAIN_TIMEOUT_S", DRAIN_S)) + 10
    (file,) = directives["EnvironmentFile"]
    assert Path(file.lstrip("-")).name + ".example" in EXAMPLES


def test_units_are_closed_alike() -> None:
    closed = [{name: value for name, value in settings_of(unit).items() if name not in OWN} for unit in UNITS]
    assert len(closed) == 4
    assert closed[1:] == closed[:-1]
    assert closed[0]["ProtectSystem"] == ["strict"]
    assert closed[0]["StateDirectoryMode"] == ["0700"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_name_settings_that_exist_and_hold_no_value_of_a_secret(example: str) -> None:
    variables = dict(re.findall(r"^#?(TOLLGATE_\w+)=(.*)$", (FOLDER / example).read_text(), re.MULTILINE))
    assert variables
    assert variables.keys() <= NAMES
    assert not variables.get("TOLLGATE_INTERNAL_TOKEN")
    assert not variables.get("TOLLGATE_METRICS_TOKEN")
    assert not variables.get("TOLLGATE_SECRET_KEY")
