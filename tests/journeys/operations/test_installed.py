"""The installed wheel contains everything that its commands need outside of a checkout."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.journeys.installed import install
from tests.journeys.product import ended, ready_line, spawn


@pytest.fixture(scope="module")
def tollgate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of a fresh installation."""
    return install(tmp_path_factory.mktemp("installed")) / "tollgate"


@pytest.fixture
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("TOLLGATE_", "PYTHON"))}


def test_wheel_contains_the_product_and_no_tests(tollgate: Path, tmp_path: Path) -> None:
    look = "import control, proxy, policy; print(control.__file__); import openai"
    command = [str(tollgate.parent / "python"), "-I", "-c", look]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout.startswith(str(tollgate.parents[1]))
    assert "No module named 'openai'" in result.stderr


def test_demo_succeeds_from_the_installed_wheel(tollgate: Path, environment: dict[str, str], tmp_path: Path) -> None:
    result = subprocess.run(
        [str(tollgate), "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all 23 steps held" in result.stdout


@pytest.mark.soak
def test_up_becomes_ready_from_the_installed_wheel(
    tollgate: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("up", "--proxy-port", "0", "--control-port", "0", "--admin-port", "0")
    up = spawn(words, environment, tmp_path / "up.log", (str(tollgate),))
    line = ready_line(up)
    up.terminate()
    assert (ended(up), line.split(" ")[0]) == (0, "ready"), (tmp_path / "up.log").read_text()
