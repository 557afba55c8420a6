"""Times of the commands for policy files and the tree of groups in a workspace of many groups.

`python -m bench.studies.many_groups [--groups N]`. A real `tollgate control` with N groups (20 000) in trees of three
levels, each with four slugs of four limits, and the real commands: `groups list` and when its first line is printed,
completion, `export`, `plan` of the file that it wrote, `groups tree`. Control and the command have a core each. The
goals at 20 000: `groups list` within 10 s, its first line within 2 s, `export` within 10 s, `groups tree` within 20 s.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import select

from bench.programs.control_plane import ControlPlane
from bench.programs.processes import OTHER_CORE, treat_sigterm_as_interrupt
from control.edges.sql.group_rows import insert_group
from control.edges.sql.store import Store
from control.edges.sql.tables import workspaces
from control.records.policy import GroupRecord
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from tests.redis_server import private_redis

_TOLLGATE = str(Path(sys.executable).parent / "tollgate")
_AT_ONCE = 1000
_STATUSES = (0, 2)
"""The exit statuses of success; `plan` has 2 when there are changes."""
_RATES = (Limit(LimitType.REQUEST, Unit.MINUTE, 1000), Limit(LimitType.TOKEN, Unit.MINUTE, 100_000))
_DAYS = (Limit(LimitType.REQUEST, Unit.DAY, 100_000), Limit(LimitType.TOKEN, Unit.DAY, 10_000_000))


def parent_of(number: int) -> int | None:
    """Return the parent in trees of a hundred: 1 root, 9 groups below it, 90 leaves."""
    place = number % 100
    return None if place == 0 else number - place + (0 if place < 10 else place % 9 + 1)


def path_of(number: int) -> str:
    parent = parent_of(number)
    return f"{'' if parent is None else path_of(parent)}grp_{number:08}/"


def record_of(workspace_id: str, number: int) -> GroupRecord:
    parent = parent_of(number)
    models = tuple(SlugLimits(f"acme/model-{number // 100 * 4 + place}", _RATES, _DAYS) for place in range(4))
    above = None if parent is None else f"grp_{parent:08}"
    group = Group(f"grp_{number:08}", workspace_id, above, f"customer-{number}", Enforcement.CASCADING, models)
    return GroupRecord(group, f"Customer {number}", path_of(number), 1, 1)


async def fill(database: str, groups: int) -> None:
    store = Store.at(database)
    try:
        async with store.read() as conn:
            workspace_id = (await conn.execute(select(workspaces.c.id))).scalar_one()
        for start in range(0, groups, _AT_ONCE):
            async with store.write() as tx:
                for number in range(start, min(groups, start + _AT_ONCE)):
                    await insert_group(tx, record_of(workspace_id, number))
    finally:
        await store.close()


def measure(output: Path, environ: dict[str, str], *words: str) -> None:
    started_s = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    first_s = 0.0
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [_TOLLGATE, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
        ) as command,
    ):
        assert command.stdout is not None
        for line in command.stdout:
            first_s = first_s or time.monotonic() - started_s
            file.write(line)
    took_s = time.monotonic() - started_s
    if command.returncode not in _STATUSES:
        raise SystemExit(f"{' '.join(words)} ended with exit status {command.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{' '.join(words[:2])}: {took_s:.1f} s, the first line after {first_s:.1f} s,"
        f" {after.ru_utime - before.ru_utime:.1f} s of CPU here,"
        f" {output.stat().st_size / 1e6:.1f} MB written",
        flush=True,
    )


def main() -> None:
    treat_sigterm_as_interrupt()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=20_000)
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = f"sqlite+aiosqlite:///{folder}/control.db"
        redis = stack.enter_context(private_redis())
        control = stack.enter_context(ControlPlane(folder, database, redis.url))
        environ = {**os.environ, "TOLLGATE_URL": control.url, "TOLLGATE_API_KEY": control.make_workspace()}
        asyncio.run(fill(database, options.groups))
        measure(folder / "list", environ, "groups", "list")
        completing = {
            "_TOLLGATE_COMPLETE": "bash_complete",
            "COMP_WORDS": "tollgate groups get customer-19",
            "COMP_CWORD": "3",
        }
        measure(folder / "words", environ | completing)
        file = folder / "policy.yaml"
        measure(file, environ, "export")
        measure(folder / "plan", environ, "plan", str(file))
        measure(folder / "tree", environ, "groups", "tree")
        measure(folder / "tree.json", environ, "groups", "tree", "--json")


if __name__ == "__main__":
    main()
