"""The use that a node's processes make of this machine, and the bytes in its directory."""

import os
import subprocess
import sys
from pathlib import Path

from trainer.edges.local.node_use import directory_bytes, disk_bytes, processes_use
from trainer.runner.state import RunnerState

BUSY = "import os, time\nwhile sum(os.times()[:2]) < 0.2: pass\nprint(flush=True)\ntime.sleep(60)"


def test_processes_below_the_runner_count_and_so_do_those_that_it_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running_ns, memory = processes_use(RunnerState(os.getpid(), 0, "", None))
        child.kill()
    ended_ns, _ = processes_use(RunnerState(os.getpid(), 0, "", None))
    assert running_ns >= 150_000_000
    assert ended_ns >= 150_000_000
    assert memory > 1_000_000


def test_a_lost_cgroup_is_made_up_for_by_the_processes() -> None:
    _, memory = processes_use(RunnerState(os.getpid(), 0, "", "/tmp/tollgate-none"))
    assert memory >= 0


def test_files_count_by_what_they_take_of_the_disk(tmp_path: Path) -> None:
    before = directory_bytes(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file").write_bytes(b"x" * 100_000)
    (tmp_path / "out").symlink_to("/usr")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(10**9)
    after = directory_bytes(tmp_path)
    assert before == 0
    assert after is not None
    assert 100_000 <= after < 200_000


def test_a_directory_with_too_many_files_is_not_added_up(tmp_path: Path) -> None:
    for name in range(4):
        (tmp_path / str(name)).touch()
    assert directory_bytes(tmp_path, most=3) is None
    assert directory_bytes(tmp_path, most=4) == 0


def test_what_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert directory_bytes(tmp_path / "gone") == 0
    assert disk_bytes(tmp_path / "gone") is None
    assert disk_bytes(tmp_path) > 0  # type: ignore[operator]  # it is there
