"""The directories of an attempt at a job: the job's own, and beside it what jobs may not touch.

`<training directory>/jobs/<job id>/<attempt>/files` is the job's. `control` beside it belongs to trainer and runners.
See docs/reference/training.md#files-of-local.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policy.training.job_spec import DEFAULT_CHECKPOINT_PATH, DEFAULT_LOAD_PATH
from policy.training.reports import Claimed, Load
from policy.training.weights import WEIGHTS_PATH
from trainer.backend import JobEnvironment
from trainer.edges.local.job_users import Owner
from trainer.runner.reserved_file import fill, read, reserve

_JOBS = "jobs"
_RECORD = "job.json"


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The record of an attempt on disk: no secrets, no tokens. `cpus`, `gpus`: those of each node, by rank.

    `owner`: the user that its nodes run as; None: the trainer's.
    """

    job: Claimed
    hosts: tuple[str, ...]
    cpus: tuple[tuple[int, ...], ...]
    gpus: tuple[tuple[str, ...], ...]
    owner: Owner | None = None

    def to_json(self) -> str:
        job = replace(self.job, environment_token="", spec=replace(self.job.spec, environment={}))
        owner = None if self.owner is None else [self.owner.uid, self.owner.gid]
        places = {"hosts": self.hosts, "cpus": self.cpus, "gpus": self.gpus}
        return json.dumps({"job": job.to_wire(), **places, "owner": owner})

    @classmethod
    def from_json(cls, text: str) -> "AttemptRecord":
        """Raises KeyError, TypeError or ValueError if it is none."""
        wire = json.loads(text)
        cpus = tuple(tuple(map(int, of_node)) for of_node in wire["cpus"])
        gpus = tuple(tuple(map(str, of_node)) for of_node in wire["gpus"])
        owner = Owner(*map(int, wire["owner"])) if wire.get("owner") else None
        return cls(Claimed.from_wire(wire["job"]), tuple(map(str, wire["hosts"])), cpus, gpus, owner)


@dataclass(frozen=True, slots=True)
class AttemptDirectory:
    """The directory of one attempt."""

    root: Path

    @property
    def files(self) -> Path:
        """The job's own directory."""
        return self.root / "files"

    def node(self, rank: int) -> Path:
        return self.files / f"node-{rank}"

    def control_directory(self, rank: int) -> Path:
        return self.root / "control" / f"node-{rank}"

    def working_directory(self, job: Claimed, rank: int) -> Path:
        return _below(self.node(rank), job.spec.working_directory or ".")

    def checkpoints(self, job: Claimed) -> Path:
        return _below(self.files, job.spec.checkpoint_path or DEFAULT_CHECKPOINT_PATH)

    def loads(self, job: Claimed) -> Path:
        """The directory of checkpoints that the job loads."""
        return _below(self.files, job.spec.load.directory if job.spec.load else DEFAULT_LOAD_PATH)

    def load(self, job: Claimed, load: Load) -> Path:
        return _below(self.loads(job), load.directory)

    def weights(self, environment: JobEnvironment) -> str | None:
        """The directory of weights; None if the job has none."""
        return str(self.files / WEIGHTS_PATH) if environment.weights else None

    def make_loads(self, job: Claimed) -> None:
        if job.spec.load is not None:
            self.loads(job).mkdir(parents=True, exist_ok=True)
        for load in job.loads:
            self.load(job, load).mkdir(parents=True, exist_ok=True)

    def make(self, record: AttemptRecord) -> None:
        """Make everything, the record last: an attempt without it never began."""
        job = record.job
        ranks = range(record.job.spec.node_count)
        for rank in ranks:
            self.control_directory(rank).mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.root / "control").chmod(0o700)
        for name in ("stop.json", "end.json"):
            reserve(str(self.root / "control" / name))
        for rank in ranks:
            for path in (self.working_directory(job, rank), self.temporary(rank)):
                path.mkdir(parents=True, exist_ok=True)
        self.checkpoints(job).mkdir(parents=True, exist_ok=True)
        self.make_loads(job)
        if record.owner is not None:
            self.give_to(record.owner)
        draft = self.root / f"{_RECORD}.draft"
        draft.write_text(record.to_json(), encoding="utf-8")
        draft.rename(self.root / _RECORD)

    def temporary(self, rank: int) -> Path:
        return self.node(rank) / "tmp"

    def give_to(self, owner: Owner) -> None:
        """Give the job's own directory to its user alone, and let that user pass through those above it.

        From the inside out and by descriptors: other jobs of that user may run, and would lead `chown` elsewhere.
        """
        for path in (self.root, self.root.parent, self.root.parent.parent):
            path.chmod(0o711)
        self.files.chmod(0o700)
        for _, _, names, folder in os.fwalk(self.files, topdown=False):
            for name in names:
                os.chown(name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)
            os.fchown(folder, owner.uid, owner.gid)

    def record(self) -> AttemptRecord | None:
        """The record; None if the attempt never began."""
        try:
            return AttemptRecord.from_json((self.root / _RECORD).read_text(encoding="utf-8"))
        except (OSError, KeyError, TypeError, ValueError):
            return None

    def note(self, name: str, value: dict[str, Any]) -> None:
        """Write `stop` or `end` down. Raises OSError."""
        fill(str(self.root / "control" / f"{name}.json"), value)

    def noted(self, name: str) -> dict[str, Any] | None:
        return read(str(self.root / "control" / f"{name}.json"))


class JobDirectories:
    """All attempts below the training directory."""

    def __init__(self, root: Path) -> None:
        self._root = root / _JOBS

    def attempt(self, job_id: str, attempt: int) -> AttemptDirectory:
        return AttemptDirectory(_below(self._root, job_id) / str(attempt))

    def make(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def latest(self) -> Iterator[tuple[AttemptDirectory, AttemptRecord]]:
        """The latest attempt of each job that has one. Removes attempts that never began."""
        for job in sorted(self._root.iterdir()):
            attempts = sorted((int(path.name) for path in job.iterdir() if path.name.isdigit()), reverse=True)
            for number in attempts:
                directory = AttemptDirectory(job / str(number))
                record = directory.record()
                if record is not None and record.job.job_id == job.name:
                    yield directory, record
                    break
            else:
                self.remove(job.name)

    def remove(self, job_id: str) -> None:
        """Remove all attempts at a job. Raises OSError if something is left."""
        path = _below(self._root, job_id)
        if path.exists():
            # `rm` copes with trees of any depth, `chmod` with directories that a job has closed.
            _run(["chmod", "-R", "u+rwX", "--", str(path)])
            _run(["rm", "-rf", "--", str(path)])
        if path.exists():
            raise OSError(f"the files of job {job_id} could not be removed: {path}")


def _below(root: Path, relative: str) -> Path:
    """Raises ValueError if the path leads out of the root."""
    path = Path(os.path.normpath(root / relative))
    if path != root and root not in path.parents:
        raise ValueError(f"{relative} leads out of the job's directory")
    return path


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
