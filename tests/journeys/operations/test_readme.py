"""A newcomer's first governed call: the commands are taken from README.md and run as they are written there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.product import ended, ready_line, spawn
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, in_thread

ROOT = Path(__file__).parents[3]
SECTION = "## Your first governed call\n"
MOST_COMMANDS = 5


def commands() -> list[str]:
    """The commands of the section's first two code blocks, up to the call."""
    section = (ROOT / "README.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    blocks = re.findall(r"```\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks[:2] for line in block.splitlines()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the commands use, in a directory of its own, because they make `.tollgate` where they run."""
    for name in ("Makefile", "deploy", "docs", "pyproject.toml", *(lock.name for lock in ROOT.glob("*.lock"))):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    return tmp_path


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A newcomer's: no setting of ours but where OpenAI is, which here is a scripted upstream."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    with in_thread(ScriptedUpstream()) as upstream:
        yield ours | {"OPENAI_API_KEY": "sk-newcomer", "TOLLGATE_VENDOR_B_BASE_URL": upstream.url}


def test_first_call_takes_at_most_five_commands(checkout: Path, environment: dict[str, str]) -> None:
    start, *others = commands()
    assert start == "make up"
    assert len(others) < MOST_COMMANDS
    ports = dict(zip(("proxy", "control", "admin"), (str(own_port()) for _ in range(3)), strict=True))
    flags = " ".join(f"--{name}-port {port}" for name, port in ports.items())
    up = spawn((f"UP_FLAGS={flags}",), environment, checkout / "up.log", ("make", "-s", "-C", str(checkout), "up"))
    try:
        assert ready_line(up).startswith("ready "), (checkout / "up.log").read_text()
        script = "\n".join(("set -e", *others)).replace(":8080/", f":{ports['proxy']}/")
        result = subprocess.run(
            ["bash", "-c", script], cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        answer = json.loads(result.stdout.splitlines()[-1])
        assert answer["choices"][0]["message"]["content"] == "Hello there!"
        assert answer["model"] == "acme/assistant"
    finally:
        up.terminate()
        ended(up)


@pytest.mark.parametrize("target", ["up", "demo", "check-python"])
def test_running_the_product_installs_no_package_of_its_tests(target: str, tmp_path: Path) -> None:
    def plan(target: str) -> str:
        words = ["make", "-n", "-C", str(ROOT), target, f"VENV={tmp_path / 'none'}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    assert "requirements-dev.lock" in plan("install")
    assert "-r requirements.lock" in plan(target)
    assert "requirements-dev.lock" not in plan(target)
    assert "requirements-ray.lock" not in plan(target)
