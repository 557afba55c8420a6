"""`make deploy-check`: builds the image and runs compose.yaml's services without a Docker daemon.

Needs root, debootstrap and package registries; takes about ten minutes, the second time five. Exit status 1 if a step
fails. See CONTRIBUTING.md#image-and-compose-file-without-docker, docs/decisions/0044.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.without_docker.containers import empty
from tests.deploy.without_docker.image import Builder
from tests.deploy.without_docker.progress import Say, clock
from tests.deploy.without_docker.systems import StepError, base_system, services_system

ROOT = Path(__file__).resolve().parents[3]
NEEDED = {"debootstrap": "debootstrap", "ip": "iproute2", "unshare": "util-linux", "git": "git"}


def main() -> int:
    options = _options()
    say = clock()
    if reason := unable():
        print(f"deploy-check: {reason}", file=sys.stderr)
        return 1
    try:
        build(options.work, say, fresh=options.fresh)
    except StepError as error:
        print(f"deploy-check: {error}", file=sys.stderr)
        return 1
    status = in_a_network_of_its_own("tests.deploy.without_docker.topology", str(options.work))
    say("every step held" if status == 0 else f"failed; logs and volumes are in {options.work / 'run'}")
    return status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy-check", description=__doc__)
    parser.add_argument("--work", type=lambda text: Path(text).resolve(), default=ROOT / ".deploy-check")
    parser.add_argument("--fresh", action="store_true", help="make the Debian systems anew")
    return parser.parse_args()


def unable() -> str:
    """Return what this machine lacks; "" if nothing."""
    if os.geteuid() != 0:
        return "run it as root: it makes root directories, mounts and network namespaces"
    packages = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    return f"apt-get install {' '.join(packages)}" if packages else ""


def build(work: Path, say: Say, *, fresh: bool) -> None:
    """Carry out the Dockerfile on the files of this checkout. The image is described in `image.json`."""
    if fresh:
        empty(work)
    work.mkdir(exist_ok=True)
    log = work / "build.log"
    log.write_text("")
    context = copied_checkout(work / "context")
    base = base_system(work, log, say)
    image = Builder(context, base, work, log, say).build((context / "Dockerfile").read_text())
    services_system(work, base, log, say)
    image.write(work / "image.json")


def copied_checkout(context: Path) -> Path:
    """The files that git knows, as they are now: what `docker build` would see of a clean checkout."""
    listed = subprocess.run(("git", "-C", str(ROOT), "ls-files", "-z"), capture_output=True, text=True, check=True)
    empty(context)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, context / name)
    return context


def in_a_network_of_its_own(module: str, *words: str) -> int:
    """Run one of our modules as a program in new network and mount namespaces. They end with it."""
    isolate = ("unshare", "--net", "--mount", "--fork", "--kill-child")
    return subprocess.run((*isolate, sys.executable, "-m", module, *words), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
