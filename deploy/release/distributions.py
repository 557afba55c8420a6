"""Builds wheel and sdist, the same bits from the same sources: on any machine, in any directory, under any umask.

The build runs in a copy of the sources with fixed modes and times. The sdist is packed again, because setuptools writes
the builder's user and the time of the build into it. `SOURCE_DATE_EPOCH` (reproducible-builds.org) is the one time.
`python -m deploy.release.distributions DIR` builds Tollgate's own without git: the Dockerfile does.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGES = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in", "requirements.lock")
_HOOKS = (
    "import sys; from setuptools import build_meta as hooks; to = sys.argv[1];"
    " hooks.build_wheel(to); hooks.build_sdist(to)"
)
"""The build backend's hooks, as PEP 517 names them."""


class BuildError(Exception):
    """The build backend failed; the message is its output."""


def build(tree: Path, to: Path, epoch: int) -> tuple[Path, Path]:
    """Build Tollgate's wheel and sdist of `tree` into `to`; return their paths."""
    return build_project(tree, sources(tree), to, epoch)


def build_project(root: Path, names: Iterable[Path], to: Path, epoch: int) -> tuple[Path, Path]:
    """Build the wheel and the sdist of the project in `root` into `to`; return their paths.

    `names`: its files, relative to `root`. `epoch`: the time of all of them, in seconds since 1970.
    Needs setuptools in this interpreter and no network. Raises `BuildError`.
    """
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tollgate-build-") as folder:
        copy = Path(folder) / "source"
        output = Path(folder) / "made"
        copy_plainly(root, names, copy, epoch)
        output.mkdir()
        _run_hooks(copy, output, epoch)
        (wheel,) = output.glob("*.whl")
        (sdist,) = output.glob("*.tar.gz")
        pack_again(sdist, to / sdist.name, epoch)
        shutil.copyfile(wheel, to / wheel.name)
    return to / wheel.name, to / sdist.name


def sources(tree: Path) -> Iterator[Path]:
    """The files that distributions are built from, relative to `tree`."""
    yield from (Path(name) for name in FILES)
    for package in PACKAGES:
        for path in sorted((tree / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                yield path.relative_to(tree)


def copy_plainly(root: Path, names: Iterable[Path], copy: Path, epoch: int) -> None:
    """Copy files with one mode and one time, whatever theirs are."""
    for name in names:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target)
        target.chmod(0o644)
        os.utime(target, (epoch, epoch))


def _run_hooks(copy: Path, output: Path, epoch: int) -> None:
    base = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    environment = base | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    process = subprocess.run(
        [sys.executable, "-c", _HOOKS, str(output)],
        cwd=copy,
        env=environment,
        umask=0o022,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise BuildError(process.stdout + process.stderr)


def pack_again(archive: Path, to: Path, epoch: int) -> None:
    """Write the files of a `.tar.gz` in the order of their names, with one owner, one time and one mode."""
    with (
        tarfile.open(archive) as packed,
        to.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=epoch) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as plain,
    ):
        for member in sorted(packed.getmembers(), key=lambda one: one.name):
            plain.addfile(_plain(member, epoch), packed.extractfile(member) if member.isfile() else None)


def _plain(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    plain = tarfile.TarInfo(member.name)
    plain.type = member.type
    plain.size = member.size
    plain.mtime = epoch
    plain.mode = 0o755 if member.isdir() else 0o644
    return plain


if __name__ == "__main__":
    try:
        build(Path.cwd(), Path(sys.argv[1]), int(os.environ.get("SOURCE_DATE_EPOCH") or 0))
    except BuildError as error:
        sys.exit(f"release: {error}")
