"""Keeps one job's checkpoint directory in the checkpoint store: looks, sends in the background, reports.

See docs/reference/training.md#checkpoints.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from policy.training.reports import CheckpointFile, CheckpointReport, Restore
from policy.training.store_keys import location
from runtime.daemon_threads import in_daemon_thread
from runtime.object_store import StoreError
from trainer.backend import ANY_TERMS, BackendAwayError, CheckpointTerms
from trainer.edges.checkpoints.description import Description
from trainer.edges.checkpoints.directory import (
    ChangedError,
    CheckpointSnapshot,
    UnusableCheckpointError,
    checkpoint_snapshots,
)
from trainer.edges.checkpoints.restoring import restore_into
from trainer.edges.checkpoints.settling import Settling
from trainer.edges.checkpoints.store import Store
from trainer.edges.checkpoints.transfer import Transfer

KEEP_OLD_S = 30.0
"""The time that an earlier content stays in the store once a newer one is reported: control may be away meanwhile."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
MAX_REMOVED = 20
"""The number of checkpoints in the store, removed by the job, that are still reported."""
MAX_UNREADABLE = 5
"""The number of tries of a checkpoint whose files the trainer cannot read."""
_FINISH_PAUSE_S = 0.1
_GIB_BYTES = 1024**3
Result = TypeVar("Result")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Complete:
    """A checkpoint that is complete on disk, and its report. `report.files` None: it is not in the store yet."""

    snapshot: CheckpointSnapshot
    report: CheckpointReport

    @property
    def version(self) -> str:
        return self.snapshot.version


class CheckpointSync:
    """The checkpoints of one attempt at a job; satisfies `trainer.backend.JobCheckpoints`.

    After a restart of the trainer a new one takes up what the old one left: all that it knew is on disk and in the
    store.
    """

    def __init__(
        self,
        directory: Path,
        store: Store,
        job_id: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        terms: CheckpointTerms = ANY_TERMS,
    ) -> None:
        self._directory = directory
        self._store = store
        self._job_id = job_id
        self._workspace_id = terms.workspace_id
        self._max_gib = terms.max_gib
        self._clock = clock
        self._transfer = Transfer(directory, store, job_id)
        self._settling = Settling()
        self._looking = asyncio.Lock()
        self._worker: asyncio.Task[None] | None = None
        self._due: dict[str, _Complete] = {}
        self._synced: dict[str, _Complete] = {}
        self._reports: dict[str, CheckpointReport] = {}
        self._outdated_at: dict[str, float] = {}
        """The time at which the earlier contents of a checkpoint are removed from the store."""
        self._ignored: set[str] = set()
        """Versions that are not sent: what was restored, and what cannot be read."""
        self._unreadable: Counter[str] = Counter()
        self._restored: Restore | None = None
        self._is_restored_known = False
        self._has_open = False
        self._is_finishing = False
        self._refusals: dict[str, str] = {}
        """The reasons why checkpoints are not stored, by name; "" is the directory."""
        self._warned: set[tuple[str, str]] = set()
        self._pause_s = 0.0
        self._retry_at = clock()

    @property
    def is_syncing(self) -> bool:
        """Return whether a checkpoint that is complete on disk is not in the store yet, or `finish` has not ended."""
        is_due = any(not self._may_be_restored(name) for name in self._due)
        return self._is_finishing or is_due or any(report.files is None for report in self._visible())

    @property
    def refusal(self) -> str | None:
        """Return which checkpoint is not stored as it is, and why, for people. None if there is none."""
        if not self._refusals:
            return None
        name, reason = next(iter(self._refusals.items()))
        others = len(self._refusals) - 1
        return f"checkpoint {name!r} is not stored: {reason}" + (f" (and {others} more are not)" if others else "")

    async def run_once(self) -> Sequence[CheckpointReport]:
        """Look at the directory, let complete checkpoints be sent in the background, and report all."""
        async with self._looking:
            self._reap()
            if self._clock() >= self._retry_at and await self._knows_restored():
                await self._look()
                self._start_work()
            return sorted(self._visible(), key=lambda report: (report.created_at_ms, report.name))

    async def restore(self, restore: Restore) -> None:
        """Put a checkpoint from the store back under its name. It is not reported until its content changes."""
        snapshot = await self._in_turn(partial(restore_into, self._directory, self._store, restore))
        try:
            await in_daemon_thread(self._transfer.note_restored, restore)
        except StoreError as error:
            raise BackendAwayError(f"the checkpoint store {self._store} cannot be used ({error})") from error
        self._restored = restore
        self._is_restored_known = True
        self._ignored.add(snapshot.version)

    async def load(self, checkpoint: Restore) -> None:
        """Put a checkpoint of another job into the directory."""
        await self._in_turn(partial(restore_into, self._directory, self._store, checkpoint))

    async def finish(self) -> None:
        """Finish the sync of an ended job: returns once all that is complete or stays unchanged is in the store."""
        self._is_finishing = True
        await self.run_once()
        while not self._is_done():
            await asyncio.sleep(_FINISH_PAUSE_S)
            await self.run_once()
        self._is_finishing = False

    async def remove(self) -> None:
        """Remove everything of the job from the store. BackendAwayError."""
        self._transfer.stop()
        async with self._looking:
            if self._worker is not None:
                await asyncio.wait({self._worker})
                self._worker = None
            try:
                await in_daemon_thread(self._transfer.remove_all)
            except StoreError as error:
                raise BackendAwayError(f"the checkpoint store {self._store} cannot be used ({error})") from error

    async def _in_turn(self, transfer: Callable[[], Result]) -> Result:
        """Run it in a thread, when the workspace has a place for it."""
        return await self._store.transfers.run(self._workspace_id, transfer, is_bounded=False)

    def _is_done(self) -> bool:
        is_idle = self._worker is None and self._is_restored_known
        return is_idle and not (self._due or self._has_open or self._outdated_at)

    def _visible(self) -> list[CheckpointReport]:
        return [report for name, report in self._reports.items() if not self._may_be_restored(name)]

    def _may_be_restored(self, name: str) -> bool:
        """Return whether its content may be what it was restored with."""
        return self._restored is not None and self._restored.name == name

    # --- looking ---

    async def _knows_restored(self) -> bool:
        """Learn from the store what an earlier trainer restored."""
        if not self._is_restored_known:
            try:
                self._restored = await in_daemon_thread(self._transfer.restored)
            except StoreError as error:
                self._fail(error)
                return False
            self._is_restored_known = True
        return True

    async def _look(self) -> None:
        try:
            on_disk = await in_daemon_thread(checkpoint_snapshots, self._directory)
        except OSError as error:
            self._refuse("", f"the directory cannot be read: {error.strerror}")
            return
        usable = [one for one in on_disk.values() if isinstance(one, CheckpointSnapshot) and self._is_small_enough(one)]
        for name, unusable in on_disk.items():
            if isinstance(unusable, UnusableCheckpointError):
                self._refuse(name, str(unusable))
        complete, open_ones = self._settling.look(usable, self._clock(), time.time_ns())
        self._has_open = bool(open_ones)
        self._forget_vanished({one.name for one in usable})
        for snapshot in complete:
            await self._consider(snapshot)

    def _is_small_enough(self, snapshot: CheckpointSnapshot) -> bool:
        most = self._store.sizes.of(self._workspace_id)
        remedy = "ask the operator to raise TOLLGATE_CHECKPOINT_MAX_SIZE"
        if self._max_gib is not None and self._max_gib * _GIB_BYTES < most:
            most = self._max_gib * _GIB_BYTES
            remedy = "give the job a larger volume_size_gib"
        if snapshot.size_bytes <= most:
            return True
        self._refuse(
            snapshot.name,
            f"its files are larger than {most} bytes together, holes in them counted. Write a smaller one, or {remedy}",
        )
        return False

    def _forget_vanished(self, names: set[str]) -> None:
        """Checkpoints that the job removed: the store keeps those that it has, and control has long heard of most."""
        self._due = {name: due for name, due in self._due.items() if name in names}
        removed = [one for one in self._synced.values() if one.snapshot.name not in names]
        removed.sort(key=lambda one: one.snapshot.changed_ns)
        for one in removed[:-MAX_REMOVED]:
            del self._synced[one.snapshot.name]
            self._outdated_at.pop(one.snapshot.name, None)
        present = names | self._synced.keys()
        self._reports = {name: report for name, report in self._reports.items() if name in present}

    async def _consider(self, snapshot: CheckpointSnapshot) -> None:
        name = snapshot.name
        version = snapshot.version
        versions = (self._synced.get(name), self._due.get(name))
        if version in self._ignored or any(one is not None and one.version == version for one in versions):
            return
        try:
            description = await in_daemon_thread(self._transfer.describe, snapshot)
        except ChangedError:
            return
        except OSError:
            description = Description()  # sending it will fail too, and say why
        due = _Complete(snapshot, self._report(snapshot, description))
        self._due[name] = due
        if name not in self._synced:
            self._reports[name] = due.report

    def _report(self, snapshot: CheckpointSnapshot, description: Description) -> CheckpointReport:
        return CheckpointReport(
            name=snapshot.name,
            location=location(self._job_id, snapshot.name, snapshot.version),
            created_at_ms=snapshot.changed_ns // 1_000_000,
            checkpoint_type=description.checkpoint_type,
            base_model=description.base_model,
            lora_adapter_config=description.lora_adapter_config,
            size_bytes=snapshot.size_bytes,
        )

    # --- sending ---

    def _reap(self) -> None:
        if self._worker is not None and self._worker.done():
            worker = self._worker
            self._worker = None
            worker.result()

    def _start_work(self) -> None:
        is_time = self._worker is None and self._clock() >= self._retry_at
        if is_time and (self._due or self._outdated()):
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Send everything, the oldest first, until something fails; then remove what newer contents replaced."""
        while self._due and self._clock() >= self._retry_at:
            await self._send(min(self._due.values(), key=lambda due: due.snapshot.changed_ns))
        for name in self._outdated():
            await self._remove_outdated(name)

    async def _send(self, due: _Complete) -> None:
        try:
            if self._may_be_restored(due.snapshot.name) and await self._is_restored(due):
                self._ignored.add(due.version)
                self._drop(due)
                return
            files = await self._in_turn(partial(self._transfer.send, due.snapshot))
        except ChangedError:
            await self._discard(due)
        except StoreError as error:
            self._fail(error)
        except OSError as error:
            self._cannot_read(due, error)
        else:
            self._succeed(due, files)

    async def _is_restored(self, due: _Complete) -> bool:
        assert self._restored is not None
        if await self._in_turn(partial(self._transfer.has_content, due.snapshot, self._restored.files)):
            return True
        self._restored = None
        return False

    def _succeed(self, due: _Complete, files: tuple[CheckpointFile, ...]) -> None:
        name = due.snapshot.name
        self._store.works()
        self._pause_s = 0.0
        self._refusals.pop(name, None)
        self._drop(due)
        self._synced[name] = replace(due, report=replace(due.report, files=files))
        self._reports[name] = self._synced[name].report
        self._outdated_at[name] = self._clock() + KEEP_OLD_S
        log.info("Checkpoint %r of job %s is in the store: %d files, verified.", name, self._job_id, len(files))

    async def _discard(self, due: _Complete) -> None:
        """Remove what was sent of it. It is looked at again, and sent when it is complete again."""
        self._drop(due)
        try:
            await in_daemon_thread(self._transfer.discard, due.snapshot)
        except StoreError as error:
            self._fail(error)

    def _drop(self, due: _Complete) -> None:
        if self._due.get(due.snapshot.name) == due:
            del self._due[due.snapshot.name]

    def _fail(self, error: StoreError) -> None:
        self._store.failed(str(error))
        self._pause()

    def _cannot_read(self, due: _Complete, error: OSError) -> None:
        self._unreadable[due.version] += 1
        self._pause()
        if self._unreadable[due.version] >= MAX_UNREADABLE:
            self._refuse(due.snapshot.name, f"its files cannot be read: {error.strerror}")
            self._ignored.add(due.version)
            self._drop(due)
            if due.snapshot.name not in self._synced:
                self._reports.pop(due.snapshot.name, None)

    def _pause(self) -> None:
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2 or FIRST_PAUSE_S)
        self._retry_at = self._clock() + self._pause_s

    def _outdated(self) -> list[str]:
        """The checkpoints whose earlier contents may go now."""
        now = self._clock()
        over = (name for name, at in self._outdated_at.items() if self._is_finishing or at <= now)
        return [name for name in over if name not in self._due]

    async def _remove_outdated(self, name: str) -> None:
        synced = self._synced.get(name)
        at = self._outdated_at.pop(name, 0.0)
        if synced is None:
            return
        try:
            await in_daemon_thread(self._transfer.remove_others, synced.snapshot)
        except StoreError as error:
            self._outdated_at.setdefault(name, at)
            self._fail(error)

    def _refuse(self, name: str, reason: str) -> None:
        self._refusals[name] = reason
        if (name, reason) not in self._warned:
            self._warned.add((name, reason))
            log.warning("Checkpoint %r of job %s is not stored (%s); the job goes on.", name, self._job_id, reason)
