"""Whatever a job writes and whenever, a checkpoint that is COMPLETE is what was on disk at one moment."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.training.reports import CheckpointReport
from policy.training.store_keys import store_key
from runtime.object_store import ObjectStore
from tests.trainer.edges.checkpoints.job import Job
from tests.trainer.edges.checkpoints.object_filesystem import object_store
from trainer.edges.checkpoints import Store

FILES = ("a", "b", "sub/c")
Step = tuple[str, int]
writes = st.tuples(st.sampled_from(["write", "append", "remove", "recreate", "mark"]), st.integers(0, len(FILES) - 1))
steps = st.lists(
    st.one_of(writes, writes, st.tuples(st.just("look"), st.just(3)), st.just(("restart", 0))), max_size=15
)
START: tuple[Step, ...] = (("write", 0), ("write", 1), ("look", 3), ("look", 3))
"""Two files, and their transfer."""
State = frozenset[tuple[str, bytes]]


class Writer:
    """Changes one checkpoint, and remembers every state that it was in. Each content has a length of its own, because
    the clock of the test is faster than that of the files."""

    def __init__(self, job: Job) -> None:
        self._root = job.directory / "step-1"
        self._size = 0
        self.states: list[State] = [frozenset()]

    def do(self, step: Step) -> None:
        kind, place = step
        path = self._root / FILES[place]
        self._size += 1
        if kind == "remove":
            path.unlink(missing_ok=True)
        elif kind == "recreate":
            shutil.rmtree(self._root, ignore_errors=True)
        else:
            path = self._root / ".complete" if kind == "mark" else path
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab" if kind == "append" else "wb") as file:
                self.states.append(self._state())  # as `wb` emptied it
                file.write(bytes([64 + self._size]) * self._size)
        self.states.append(self._state())

    def _state(self) -> State:
        files = (path for path in self._root.rglob("*") if path.is_file()) if self._root.exists() else ()
        return frozenset((str(path.relative_to(self._root)), path.read_bytes()) for path in files)


class InterferingStore(Store):
    """Lets the job write in the middle of transfers."""

    interfere: Callable[[], None] = staticmethod(lambda: None)

    def write(self, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        self.interfere()
        super().write(key, size_bytes, self._interfered(pieces))
        self.interfere()

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        yield from super().read(key, start)
        if "%" not in key:
            self.interfere()

    def _interfered(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            self.interfere()


def stored(store: ObjectStore, report: CheckpointReport) -> State:
    return frozenset(
        (file.path, b"".join(ObjectStore.read(store, store_key(report.location, file.path))))
        for file in report.files or ()
    )


async def run(directory: Path, job_steps: Sequence[Step], during: Sequence[Step]) -> None:
    store = InterferingStore(object_store()[0])
    job = Job(directory / "checkpoints", store)
    writer = Writer(job)
    queue = list(during)
    store.interfere = lambda: writer.do(queue.pop(0)) if queue else None
    for kind, value in (*START, *job_steps, *([("look", 3)] * 4)):
        if kind == "restart":
            await idle(job)
            job.restart()
        elif kind == "look":
            check(store, writer, await job.look(float(value)))
            await idle(job)
        else:
            writer.do((kind, value))
    await idle(job)
    final = writer.states[-1]
    queue.clear()
    async with asyncio.timeout(20):
        while final and not any(stored(store, one) == final for one in check(store, writer, await job.look(3.0))):
            await asyncio.sleep(0.001)


async def idle(job: Job) -> None:
    """Wait until the transfer that runs, if any, has ended."""
    worker: Any = job.sync._worker
    if worker is not None:
        await asyncio.wait({worker})


def check(store: ObjectStore, writer: Writer, reports: Sequence[CheckpointReport]) -> Sequence[CheckpointReport]:
    complete = [report for report in reports if report.files is not None]
    for report in complete:
        assert stored(store, report) in writer.states
    return complete


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, st.lists(writes, max_size=6))
def test_a_complete_checkpoint_is_what_was_on_disk_at_one_moment(job_steps: list[Step], during: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), job_steps, during))
