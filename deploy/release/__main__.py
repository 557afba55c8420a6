"""`python -m deploy.release [--to DIR] [--image]`: everything that a release consists of.

It builds the commit that is checked out, and refuses a tree with changes. See docs/deploying.md#a-release.
"""

import argparse
import hashlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

from deploy.release import image
from deploy.release.artefacts import ARTEFACTS, Build
from deploy.release.checkout import CheckoutError, clean_commit, files_of
from deploy.release.distributions import BuildError

ROOT = Path(__file__).resolve().parents[2]
CHECKSUMS = "SHA256SUMS"


def main() -> int:
    """Build as the command line says. Exit status 1 with one message if that fails."""
    options = _options()
    os.umask(0o022)
    try:
        release(ROOT, options.to, options.image)
    except (BuildError, CheckoutError, LookupError, image.ImageError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the directory; it is emptied first")
    parser.add_argument("--image", action="store_true", help="build the image, too; needs a Docker daemon")
    return parser.parse_args()


def release(tree: Path, to: Path, with_image: bool = False) -> None:
    """Write all files of a release into `to`, and say what each is."""
    commit, epoch = clean_commit(tree)
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with files_of(tree, commit) as files:
        version = tomllib.loads((files / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        build = Build(files, to, version, commit, epoch)
        for builder in ARTEFACTS.values():
            builder(build)
        if with_image:
            build.write("images.json", image.build(files, f"tollgate:{version}", epoch))
    (to / CHECKSUMS).write_text(checksums(to))
    print((to / CHECKSUMS).read_text(), end="")


def checksums(folder: Path) -> str:
    """Lines for `sha256sum --check`: every file of the folder but the list itself."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


if __name__ == "__main__":
    sys.exit(main())
