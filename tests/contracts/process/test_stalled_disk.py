"""A proxy whose data directory is on a disk that stalls: a file system of its own is frozen under it.

Not collected where nothing can be mounted: `tests/proxy/edges/journal/test_segments.py` has a disk that is only told to
stall.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contracts.process.test_supervisor import World, a_world
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")

DISK_BYTES = 200 << 20


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def make_disk(image: Path, size: int) -> None:
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    run("mkfs.ext4", "-q", image)


def can_mount() -> bool:
    """Return whether a file system can be mounted and frozen: only root may, and not in most containers."""
    tools = ("mkfs.ext4", "fsfreeze", "unshare", "mount")
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in tools):
        return False
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "disk"
        try:
            make_disk(image, 4 << 20)
            run("unshare", "--mount", "mount", "-o", "loop", image, "/mnt")
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


__test__ = can_mount()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The directory of a file system of its own."""
    image = tmp_path / "disk"
    place = tmp_path / "mounted"
    place.mkdir()
    make_disk(image, DISK_BYTES)
    run("mount", "-o", "loop", image, place)
    try:
        yield place
    finally:
        run("umount", "--lazy", place)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    run("fsfreeze", "--freeze", disk)
    try:
        yield
    finally:
        run("fsfreeze", "--unfreeze", disk)


@pytest.fixture
async def world(disk: Path) -> AsyncIterator[World]:
    with private_redis() as redis:
        async with a_world(disk, redis) as world:
            yield world


async def test_calls_and_readiness_go_on_while_the_disk_is_frozen(world: World, disk: Path) -> None:
    proxy = world.proxy
    proxy.log = disk.parent / "proxy.log"
    await proxy.start()
    assert (await proxy.call())[0] == 200
    with frozen(disk):
        async with asyncio.timeout(PATIENCE_S):
            assert [(await proxy.call())[0] for _ in range(20)] == [200] * 20
            assert (await proxy.admin("/readyz"))[0] == 200

    async def all_are_shipped() -> bool:
        return len(world.events) == 21

    await eventually(all_are_shipped)


async def test_calls_of_a_frozen_disk_survive_the_death_of_their_worker(world: World, disk: Path) -> None:
    proxy = world.proxy
    proxy.log = disk.parent / "proxy.log"
    await proxy.start()
    with frozen(disk):
        async with asyncio.timeout(PATIENCE_S):
            assert [(await proxy.call())[0] for _ in range(5)] == [200] * 5
        (worker,) = proxy.workers()
        os.kill(worker, 9)

    async def all_are_shipped() -> bool:
        return len(world.events) == 5

    await eventually(all_are_shipped)
    await proxy.until_ready()
    assert not list(Path("/dev/shm").glob(f"tollgate-journal-*/{worker}")), "nothing is left in memory"
