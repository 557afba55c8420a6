"""The list of what a release consists of: `ARTEFACTS`. To add to a release, add a line there.

A builder writes files into `build.to`, from `build.tree` alone: the same bytes at any place and time, for any user.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from deploy.release import distributions as packages
from deploy.release.bill_of_materials import bill, locked, text_of
from deploy.release.clients import build_clients
from deploy.release.release_notes import notes

LOCK = "requirements.lock"
LOCKS = (LOCK, "deploy/release/requirements.lock", "requirements-dev.lock", "clients/typescript/package-lock.json")
"""The lock files of what is installed and of what builds: the provenance has their digests."""


@dataclass(frozen=True)
class Build:
    """A release that is being built."""

    tree: Path
    """A directory with the files of the commit and no others."""
    to: Path
    version: str
    commit: str
    epoch: int
    """The commit's time, in seconds since 1970: the only time that a file may contain."""

    def write(self, ending: str, text: str) -> None:
        """Write `tollgate-VERSION` with `ending` behind it."""
        path = self.to / f"tollgate-{self.version}{ending}"
        path.write_text(text, encoding="utf-8", newline="\n")

    def read(self, name: str) -> str:
        return (self.tree / name).read_text(encoding="utf-8")


def _packages(build: Build) -> None:
    packages.build(build.tree, build.to, build.epoch)


def _clients(build: Build) -> None:
    build_clients(build.tree, build.to, build.version, build.epoch)


def _lock(build: Build) -> None:
    build.write(f".{LOCK}", build.read(LOCK))


def _bill(build: Build) -> None:
    document = bill(build.version, locked(build.read(LOCK)), distributions(), build.epoch)
    build.write(".cdx.json", text_of(document))


def _notes(build: Build) -> None:
    build.write(".notes.md", notes(build.read("CHANGELOG.md"), build.version, build.commit))


ARTEFACTS: dict[str, Callable[[Build], None]] = {
    "wheel and sdist": _packages,
    "clients": _clients,
    "lock file": _lock,
    "bill of materials": _bill,
    "notes": _notes,
}
"""The functions that build, by the name of what each builds."""
