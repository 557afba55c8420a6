"""Installs a wheel of this tree into an otherwise empty virtual environment, as `pip install` would.

Only the wheel's own dependencies are linked from this interpreter, so packages for tests cannot be imported.
Nothing is downloaded.
"""

import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime")
SOURCES = (*PACKAGES, "pyproject.toml", "README.md", "LICENSE")


def install(to: Path) -> Path:
    """Build the wheel, install it below `to`, and return the new environment's `bin`."""
    folder = to / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    _pip("--python", folder / "bin" / "python", "install", "--no-index", "--no-deps", build_wheel(to))
    (site_packages,) = folder.glob("lib/python*/site-packages")
    dependencies = to / "dependencies"
    dependencies.mkdir()
    for name in sorted(required_by("tollgate") - {"tollgate"}):
        _link(name, dependencies)
    (site_packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return folder / "bin"


def build_wheel(to: Path) -> Path:
    """Build in a copy of the tree, because a build leaves directories behind."""
    copy = to / "source"
    copy.mkdir()
    for name in SOURCES:
        one = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(one, copy / name, ignore=ignored) if one.is_dir() else shutil.copy(one, copy)
    _pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", to / "wheels", copy)
    (wheel,) = (to / "wheels").iterdir()
    return wheel


def required_by(name: str) -> set[str]:
    """The names of the distribution and of everything that it requires on this machine."""
    needs: set[tuple[str, str]] = set()
    front = {(name, "")}
    while front:
        one, extra = front.pop()
        needs.add((one, extra))
        for text in distribution(one).requires or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                front |= {(need.name, extra_name) for extra_name in ("", *need.extras)} - needs
    return {canonicalize_name(name) for name, _ in needs}


def _link(name: str, to: Path) -> None:
    """Link each top-level file or directory of a distribution into `to`. Several may share a namespace package."""
    installed = distribution(name)
    for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        if not (to / top).is_symlink():
            (to / top).symlink_to(str(installed.locate_file(top)))


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
