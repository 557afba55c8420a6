"""`python -m deploy.release [--to DIR] [--epoch SECONDS] [--packages-only]`: everything that a release consists of.

It builds the commit that is checked out, and refuses a tree with changes. See docs/deploying.md#a-release.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from deploy.release import image
from deploy.release.bill_of_materials import bill, text_of
from deploy.release.distributions import BuildError, build
from deploy.release.release_notes import notes

ROOT = Path(__file__).resolve().parents[2]
CHECKSUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """The release cannot be built; the message says what to do."""


def main() -> int:
    """Build as the command line says. Exit status 1 with one message if that fails."""
    options = _options()
    os.umask(0o022)
    try:
        if options.packages_only:
            build(ROOT, options.to, options.epoch or 0)
        else:
            release(ROOT, options.to)
    except (BuildError, ReleaseError, LookupError, image.ImageError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the directory; it is emptied first")
    parser.add_argument("--packages-only", action="store_true", help="wheel and sdist alone; needs no git")
    environment = os.environ.get("SOURCE_DATE_EPOCH") or None
    parser.add_argument("--epoch", type=int, default=environment, help="their time, with --packages-only")
    return parser.parse_args()


def release(tree: Path, to: Path) -> None:
    """Write all files of a release into `to`, and say what each is."""
    if changed := _git(tree, "status", "--porcelain"):
        raise ReleaseError(f"the tree has changes; commit them or put them away:\n{changed}")
    commit, epoch = _git(tree, "log", "-1", "--format=%H %ct").split()
    shutil.rmtree(to, ignore_errors=True)
    wheel, _ = build(tree, to, int(epoch))
    version = wheel.name.split("-")[1]
    stem = f"tollgate-{version}"
    lock = (tree / "requirements.lock").read_text()
    (to / f"{stem}.requirements.lock").write_text(lock)
    (to / f"{stem}.cdx.json").write_text(text_of(bill(distributions(), lock, int(epoch))))
    (to / f"{stem}.notes.md").write_text(notes((tree / "CHANGELOG.md").read_text(), version, commit))
    if image.daemon_answers():
        (to / f"{stem}.images.json").write_text(image.build(tree, f"tollgate:{version}", int(epoch)))
    else:
        print("release: no Docker daemon answers, so no image is built; on a machine with one, run this again")
    (to / CHECKSUMS).write_text(checksums(to))
    print((to / CHECKSUMS).read_text(), end="")


def checksums(folder: Path) -> str:
    """Lines for `sha256sum --check`: every file of the folder but the list itself."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def _git(tree: Path, *words: str) -> str:
    process = subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise ReleaseError(f"a release is built from a git checkout: {process.stderr.strip()}")
    return process.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
