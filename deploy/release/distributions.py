"""Builds wheel and sdist, the same bits from the same sources: on any machine, in any directory, under any umask.

The build runs in a copy of the sources with fixed modes and times. The sdist is packed again, because setuptools writes
the builder's user and the time of the build into it. `SOURCE_DATE_EPOCH` (reproducible-builds.org) is the one time.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
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
    """Build the wheel and the sdist of `tree` into `to`; return their paths. `epoch`: seconds since 1970.

    Needs setuptools in this interpreter and no network. Raises `BuildError`.
    """
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tollgate-build-") as folder:
        copy = Path(folder) / "source"
        output = Path(folder) / "made"
        _copy_sources(tree, copy, epoch)
        output.mkdir()
        _run_hooks(copy, output, epoch)
        (wheel,) = output.glob("*.whl")
        (sdist,) = output.glob("*.tar.gz")
        _pack_again(sdist, to / sdist.name, epoch)
        shutil.copyfile(wheel, to / wheel.name)
    return to / wheel.name, to / sdist.name


def sources(tree: Path) -> Iterator[Path]:
    """The files that distributions are built from, relative to `tree`."""
    yield from (Path(name) for name in FILES)
    for package in PACKAGES:
        for path in sorted((tree / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                yield path.relative_to(tree)


def _copy_sources(tree: Path, copy: Path, epoch: int) -> None:
    for name in sources(tree):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / name, target)
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


def _pack_again(sdist: Path, to: Path, epoch: int) -> None:
    """Write the same files in the order of their names, with one owner, one time and one mode."""
    with (
        tarfile.open(sdist) as packed,
        to.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=epoch) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(packed.getmembers(), key=lambda one: one.name):
            archive.addfile(_plain(member, epoch), packed.extractfile(member) if member.isfile() else None)


def _plain(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    plain = tarfile.TarInfo(member.name)
    plain.type = member.type
    plain.size = member.size
    plain.mtime = epoch
    plain.mode = 0o755 if member.isdir() else 0o644
    return plain
