"""The last release, out of this clone's history: its tree runs with this environment's packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.release.distributions import PACKAGES

ROOT = Path(__file__).resolve().parents[3]
CHANGELOG = "CHANGELOG.md"
HEADING = "## Unreleased\n"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def last_release() -> str:
    """Return the last commit before CHANGELOG.md had changes after its newest version; "" if the history lacks it."""
    newest = git("log", "-1", "--first-parent", "-m", "--format=%H", f"-S{HEADING}", "--", CHANGELOG)
    if HEADING not in git("show", f"{newest}:{CHANGELOG}"):
        return newest  # it gave the section the version's name
    return git("rev-parse", "--verify", "--quiet", f"{newest}^1")


@pytest.fixture(scope="module")
def last_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    revision = last_release()
    if not revision:
        pytest.skip("the last release is not in this clone's history: git fetch --unshallow")
    tree = tmp_path_factory.mktemp("last-release")
    archive = tmp_path_factory.mktemp("archive") / "release.tar"
    subprocess.run(["git", "archive", "-o", str(archive), revision], cwd=ROOT, check=True)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
    packages = [name for name in PACKAGES if (tree / name).is_dir()]
    compile_all = [sys.executable, "-m", "compileall", "-q", *packages]  # once, and not in each process that starts
    subprocess.run(compile_all, cwd=tree, check=True)
    return tree
