"""The usage of processes: no thread's and no child's time is lost, and it is what the scheduler says."""

import os
import subprocess
import sys
import threading
import time
from math import isnan
from pathlib import Path

import pytest

from bench.programs.processes import BenchError, wait_until
from bench.usage import PartUsage, read

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
BUSY = "import time\nwhile time.thread_time() < 0.1: pass"
BUSY_AND_WAITING = BUSY + "\nprint(flush=True)\ninput()"
THREADS = "import threading; threading.Thread(target=input).start(); print(flush=True)"


def work(cpu_s: float) -> None:
    """Use `cpu_s` of CPU in this thread."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def ourselves() -> PartUsage:
    return PartUsage(lambda: [os.getpid()])


def test_run_time_is_the_sum_of_the_threads_in_schedstat() -> None:
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = read([child.pid]).cpu_s
        tasks = list(Path(f"/proc/{child.pid}/task").iterdir())
        between = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        assert len(tasks) == 2
        assert before <= between <= read([child.pid]).cpu_s
        child.kill()


def test_time_of_a_thread_that_ended_is_kept_and_its_switches_are_unknown() -> None:
    stop = threading.Event()

    def wait_and_work() -> None:
        stop.wait()
        work(0.05)

    thread = threading.Thread(target=wait_and_work)
    thread.start()
    part = ourselves()
    stop.set()
    thread.join()
    wait_until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), "the thread's end", every_s=0.001)
    usage = part.end()
    assert usage.cpu_s >= 0.05
    assert isnan(usage.switches)


def test_time_of_a_child_that_ended_is_added() -> None:
    part = ourselves()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert part.end().cpu_s >= 0.1 - 2 * TICK_S  # user and system time of a child are whole ticks


def test_process_that_started_meanwhile_counts() -> None:
    pids: list[int] = []
    part = PartUsage(lambda: pids)
    with subprocess.Popen([sys.executable, "-c", BUSY_AND_WAITING], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        pids = [child.pid]
        assert part.end().cpu_s >= 0.1
        child.kill()


def test_process_that_ended_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        part = PartUsage(lambda: [child.pid])
        child.kill()
    with pytest.raises(BenchError, match=f"process {child.pid} ended"):
        part.end()


def test_switches_are_counted() -> None:
    part = ourselves()
    for _ in range(10):
        time.sleep(0.001)
    assert part.end().switches >= 10
