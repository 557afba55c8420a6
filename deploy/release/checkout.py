"""Reads the commit that a release is built from, out of the git checkout of this tree."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CheckoutError(Exception):
    """A release cannot be built from this checkout; the message says what to do."""


def clean_commit(tree: Path) -> tuple[str, int]:
    """Return the commit that is checked out and its time. Raises `CheckoutError` if the tree has changes."""
    if changes := _git(tree, "status", "--porcelain"):
        raise CheckoutError(f"the tree has changes; commit them or put them away:\n{changes}")
    commit, epoch = _git(tree, "log", "-1", "--no-show-signature", "--format=%H %ct").split()
    return commit, int(epoch)


@contextmanager
def files_of(tree: Path, commit: str) -> Iterator[Path]:
    """Yield a directory with the files of `commit`, as they were committed, and no others.

    The tree itself may hold what git ignores, in packages too, and line ends of the user's choice.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-release-") as folder:
        archive = Path(folder) / "commit.tar"
        plain = ("-c", "core.autocrlf=false", "-c", "core.eol=lf", "-c", "core.attributesFile=/dev/null")
        _git(tree, *plain, "archive", "--format=tar", f"--output={archive}", commit)
        files = Path(folder) / "files"
        files.mkdir()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(files)], check=True)
        yield files


def _git(tree: Path, *words: str) -> str:
    process = subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise CheckoutError(f"a release is built from a git checkout: {process.stderr.strip()}")
    return process.stdout.strip()
