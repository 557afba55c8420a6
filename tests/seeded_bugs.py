"""Plants one known bug at a time into a copy of the sources and reports whether a test fails because of it.

`python -m tests.seeded_bugs [NAME…]` exits with 1 if a bug survived. A bug in the rules of limits is planted into both
the Redis scripts and the reference implementation, so that tests comparing the two cannot find it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("policy", "proxy", "control", "runtime", "tests", "pyproject.toml")
SUITE = (
    "tests/policy/limits/test_windows.py",
    "tests/proxy/edges/redis/test_settlement_sender.py",
    "tests/proxy/edges/redis/test_admission_requests.py",
    "tests/contracts/redis/test_counters.py",
    "tests/contracts/redis/test_admission_machine.py",
    "tests/contracts/redis/test_clock_steps.py",
    "tests/contracts/redis/test_counters_late.py",
    "tests/contracts/redis/test_counters_redis.py",
    "tests/contracts/redis/test_counters_local.py",
    "tests/proxy/test_give_back.py",
    "tests/contracts/redis/test_counters_cluster.py",
    "tests/contracts/redis/test_counters_sentinel.py",
)


@dataclass(frozen=True)
class Edit:
    """Replaces whole lines of one file. `old` occurs in it exactly once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Seed:
    """One bug: a name and the edits that plant it."""

    name: str
    edits: tuple[Edit, ...]


def read_seeds(text: str) -> tuple[Seed, ...]:
    """Parse seeds: `== name`, then per edit `@@ path`, old lines after `-` and new lines after `+`."""
    seeds = []
    for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        name, _, places = part.partition("\n")
        seeds.append(Seed(name, tuple(map(_edit, re.split(r"^@@ ", places, flags=re.MULTILINE)[1:]))))
    return tuple(seeds)


def _edit(place: str) -> Edit:
    path, *lines = place.strip("\n").split("\n")
    old, new = ("".join(f"{line[1:]}\n" for line in lines if line.startswith(sign)) for sign in "-+")
    return Edit(path, old, new)


def all_seeds() -> tuple[Seed, ...]:
    return read_seeds((ROOT / "tests" / "seeded_bugs.txt").read_text())


class SeedDoesNotFitError(Exception):
    """A seed quotes lines that the source no longer has exactly once. Update the quote in tests/seeded_bugs.txt."""


def plant(seed: Seed, root: Path) -> None:
    """Apply the seed's edits to the sources below `root`. Raises SeedDoesNotFitError."""
    for edit in seed.edits:
        path = root / edit.path
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise SeedDoesNotFitError(f"{seed.name}: {text.count(edit.old)} times in {edit.path}: {edit.old!r}")
        path.write_text(text.replace(edit.old, edit.new))


def copy_sources(target: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target / name)


def killer_of(seed: Seed, suite: Iterable[str] = SUITE) -> str | None:
    """The first test that fails with the bug planted, or None if the bug survives the suite."""
    with tempfile.TemporaryDirectory(prefix="tg-seed-") as folder:
        copy_sources(Path(folder))
        plant(seed, Path(folder))
        for tests in suite:
            run = subprocess.run(
                [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", tests],
                cwd=folder,
                env={"PATH": "/usr/bin:/bin:/usr/local/bin", "PYTHONPATH": folder, "HOME": folder},
                capture_output=True,
                text=True,
                check=False,
            )
            if run.returncode == 1:
                failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return failed[0].partition(" ")[2].partition(" - ")[0] if failed else tests
            if run.returncode != 0:
                raise RuntimeError(f"{seed.name}: pytest could not run: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return None


def main(names: list[str]) -> int:
    """Report on all seeds, or on those whose names contain one of `names`. Returns the exit status."""
    seeds = [one for one in all_seeds() if not names or any(name in one.name for name in names)]
    survivors = 0
    for one in seeds:
        killer = killer_of(one)
        survivors += killer is None
        verdict = f"killed   {one.name}  ({killer})" if killer else f"SURVIVED {one.name}"
        print(verdict, flush=True)
    print(f"{len(seeds) - survivors} of {len(seeds)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
