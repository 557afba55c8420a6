"""Checks where an attempt has its files."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from policy.training.job_spec import JobSpec, SecretRef
from policy.training.reports import Claimed
from policy.training.resources import NodeResources
from trainer.edges.local.directories import AttemptDirectory, AttemptRecord, JobDirectories
from trainer.edges.local.job_users import Owner

SPEC = JobSpec(start_commands=("true",), resources=NodeResources(1000, 256))
JOB = Claimed("job1", 2, SPEC, "token", None)


def test_record_holds_no_token_and_no_environment(tmp_path: Path) -> None:
    job = replace(JOB, spec=replace(SPEC, environment={"A": "plain", "B": SecretRef("HF_TOKEN")}))
    directory = AttemptDirectory(tmp_path / "2")
    directory.make(AttemptRecord(job, ("host",), ((0,),), ((),), Owner(os.getuid(), os.getgid())))

    text = (tmp_path / "2" / "job.json").read_text()

    owner = Owner(os.getuid(), os.getgid())
    assert directory.record() == AttemptRecord(replace(JOB, environment_token=""), ("host",), ((0,),), ((),), owner)
    assert not any(word in text for word in ("plain", "HF_TOKEN", '"token"'))


@pytest.mark.parametrize("path", ["..", "a/../../b", "/etc", "../node-1"])
def test_paths_that_lead_out_of_the_job_are_refused(tmp_path: Path, path: str) -> None:
    directory = AttemptDirectory(tmp_path)

    with pytest.raises(ValueError, match="leads out"):
        directory.working_directory(replace(JOB, spec=replace(SPEC, working_directory=path)), 0)
    with pytest.raises(ValueError, match="leads out"):
        directory.checkpoints(replace(JOB, spec=replace(SPEC, checkpoint_path=path.replace("../node-1", ".."))))


def test_control_files_are_not_below_the_jobs_own_directory(tmp_path: Path) -> None:
    directory = AttemptDirectory(tmp_path)

    assert directory.files not in directory.control_directory(0).parents
    assert directory.files in directory.checkpoints(replace(JOB, spec=replace(SPEC, checkpoint_path="control"))).parents


def test_job_directory_is_given_away_last_so_that_its_user_cannot_redirect_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = AttemptDirectory(tmp_path / "jobs" / "job1" / "2")
    changes = list[tuple[int, int]]()
    monkeypatch.setattr(os, "fchown", lambda folder, uid, gid: changes.append((os.fstat(folder).st_ino, uid)))

    directory.make(AttemptRecord(JOB, ("host",), ((0,),), ((),), Owner(12345, 12345)))

    paths = [directory.files, directory.node(0), directory.temporary(0), directory.checkpoints(JOB)]
    assert sorted(changes) == sorted((path.stat().st_ino, 12345) for path in paths)
    assert changes[-1][0] == directory.files.stat().st_ino


def test_attempt_that_never_began_is_removed_and_the_latest_is_found(tmp_path: Path) -> None:
    directories = JobDirectories(tmp_path)
    directories.make()
    (tmp_path / "jobs" / "lost" / "1" / "control").mkdir(parents=True)
    for number in (2, 10):
        record = AttemptRecord(replace(JOB, attempt=number), ("host",), ((0,),), ((),))
        directories.attempt("job1", number).make(record)

    attempts = [(record.job.job_id, record.job.attempt) for _, record in directories.latest()]

    assert attempts == [("job1", 10)]
    assert not (tmp_path / "jobs" / "lost").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"job": {}, "hosts": [], "cpus": []})])
def test_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)

    assert AttemptDirectory(tmp_path).record() is None
