"""The backend local with real processes: what a job sees, what it can leave behind, and what kills cannot break."""

import asyncio
import getpass
import hashlib
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from policy.training.job_spec import ON_FAILURE, CacheSpec, LoadSpec, SessionSpec
from policy.training.reports import CheckpointFile, Claimed, Load, Restore
from policy.training.resources import NodeResources
from policy.training.statuses import Outcome, Phase
from tests.contracts.training.backends import (
    Control,
    all_output,
    claimed,
    ended,
    in_phase,
    no_checkpoints,
    printed,
    report_of,
    settings,
    started,
)
from tests.waiting import eventually
from trainer.backend import BackendAwayError, NoTerminalError
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.local import LocalBackend
from trainer.edges.local.directories import AttemptDirectory, JobDirectories
from trainer.runner.processes import descendants, processes
from trainer.runner.state import read_state
from trainer.settings import Settings

USER_IDS = "270000-270999"
FOR_EVER = "while :; do sleep 0.05; done"
PYTHON = sys.executable


class Stage:
    """Backends over one training directory, as trainers that come one after the other."""

    def __init__(self, own: Settings) -> None:
        self.settings = own
        self.control = Control()
        self.backend = self._new()
        self._all = [self.backend]

    def _new(self) -> LocalBackend:
        return LocalBackend(self.settings, self.control.spend, no_checkpoints)

    async def next_trainer(self) -> LocalBackend:
        """Another trainer that finds what the present one leaves; that one does nothing any more."""
        for job_id in list(self.backend._tasks):
            await self.backend._cancel(job_id)
        self.backend = self._new()
        self._all.append(self.backend)
        await self.backend.open()
        return self.backend

    def directory(self, job: Claimed) -> AttemptDirectory:
        return JobDirectories(self.settings.directory).attempt(job.job_id, job.attempt)

    def runner_pid(self, job: Claimed, rank: int = 0) -> int:
        state = read_state(str(self.directory(job).control_directory(rank)))
        assert state is not None
        return state.pid


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    new_stage = Stage(settings(tmp_path))
    await new_stage.backend.open()
    yield new_stage
    await new_stage.backend.close()


@pytest.fixture
def mark() -> Iterator[str]:
    """A number of seconds that nobody else sleeps. Whoever sleeps it at the end fails the test."""
    seconds = str(10_000_000 + os.getpid())
    yield seconds
    assert sleepers(seconds) == []


def sleepers(seconds: str) -> list[int]:
    """The processes that sleep for so long."""
    return [one.pid for one in processes() if one.is_alive and _arguments(one.pid)[-1:] == [seconds]]


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def texts(lines: list[tuple[bool, str]]) -> list[str]:
    return [text for _, text in lines]


# --- what a job sees ---


async def test_environment_is_exactly_the_documented_one(stage: Stage) -> None:
    own = {"GREETING": "hello\nworld", "LANG": "de_DE.UTF-8", "BT_MINE": "1"}
    stage.control.environment = own | {"TOLLGATE_NODE_RANK": "7", "BT_NODE_RANK": "7"}
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    job = replace(claimed(f"exec {PYTHON} -I -c '{code}'"), project_id="tp_1", project_name="llama")
    await started(stage.backend, job)

    await ended(stage.backend, job)
    environment = json.loads(texts(await all_output(stage.backend, job))[0])

    files = stage.directory(job).files
    assert {
        name: value for name, value in environment.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE")
    } == {
        "PATH": os.environ["PATH"],
        "HOME": f"{files}/node-0",
        "LANG": "de_DE.UTF-8",
        "TMPDIR": f"{files}/node-0/tmp",
        "PYTHONUNBUFFERED": "1",
        "GREETING": "hello\nworld",
        "BT_MINE": "1",
        "TOLLGATE_JOB_ID": job.job_id,
        "TOLLGATE_NODE_RANK": "0",
        "TOLLGATE_NODE_COUNT": "1",
        "TOLLGATE_LEADER_ADDR": "127.0.0.1",
        "TOLLGATE_CHECKPOINT_DIR": f"{files}/checkpoints",
        "BT_TRAINING_JOB_ID": job.job_id,
        "BT_TRAINING_JOB_NAME": job.job_id,
        "BT_TRAINING_PROJECT_ID": "tp_1",
        "BT_TRAINING_PROJECT_NAME": "llama",
        "BT_NODE_RANK": "0",
        "BT_GROUP_SIZE": "1",
        "BT_LEADER_ADDR": "127.0.0.1",
        "BT_NUM_GPUS": "0",
        "BT_RETRY_COUNT": "0",
        "BT_WORKING_DIR": f"{files}/node-0",
        "BT_SCRATCH_DIR": f"{files}/node-0/tmp",
        "BT_CHECKPOINT_DIR": f"{files}/checkpoints",
    }


async def test_node_starts_in_its_working_directory_with_a_checkpoint_directory(stage: Stage) -> None:
    job = claimed("pwd; ls -d $TOLLGATE_CHECKPOINT_DIR", working_directory="a/b", checkpoint_path="out/c")
    await started(stage.backend, job)

    await ended(stage.backend, job)

    files = stage.directory(job).files
    assert texts(await all_output(stage.backend, job)) == [f"{files}/node-0/a/b", f"{files}/out/c"]


async def test_loaded_checkpoints_are_there_before_the_first_command(stage: Stage, tmp_path: Path) -> None:
    content = b"weights"
    file = CheckpointFile("a/w", len(content), hashlib.sha256(content).hexdigest())
    restore = Restore("step-1", "other/step-1/v", (file,))
    stored = tmp_path / "store" / "other" / "step-1" / "v" / "a" / "w"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(content)
    backend = LocalBackend(stage.settings, stage.control.spend, checkpoints_in((tmp_path / "store").as_uri()))
    await backend.open()
    loads = (Load("rank-0", restore), Load("rank-0/other", restore))
    command = "cd $BT_LOAD_CHECKPOINT_DIR; pwd; cat rank-0/step-1/a/w rank-0/other/step-1/a/w; echo"
    job = claimed(command, "[ $TOLLGATE_LOAD_CHECKPOINT_DIR = $BT_LOAD_CHECKPOINT_DIR ]", load=LoadSpec((), "in"))
    job = await started(backend, replace(job, loads=loads))

    assert (await ended(backend, job)).outcome is Outcome.COMPLETED
    assert texts(await all_output(backend, job)) == [f"{stage.directory(job).files}/in", "weightsweights"]
    assert await backend.checkpoints(job.job_id, job.attempt) == ()
    await backend.close()


def of_project(project_id: str, *commands: str, is_hf_home: bool = False) -> Claimed:
    """A job that has the cache of this project."""
    return replace(claimed(*commands, cache=CacheSpec(is_hf_home)), project_id=project_id)


async def test_jobs_of_a_project_share_a_directory_that_stays(stage: Stage) -> None:
    write = "mkdir $TOLLGATE_CACHE_DIR/a; echo kept > $BT_PROJECT_CACHE_DIR/a/b; ln -s / $BT_RW_CACHE_DIR/root"
    first = await started(stage.backend, of_project("tp_1", write, "echo $HF_HOME"))
    assert (await ended(stage.backend, first)).outcome is Outcome.COMPLETED
    (summary,) = await stage.backend.cache_summaries()
    entries = [(entry.path, entry.file_type, entry.permissions[0]) for entry in summary.entries]
    assert entries == [("a", "directory", "d"), ("root", "symlink", "l"), ("a/b", "file", "-")]
    assert (summary.project_id, summary.entries[2].size_bytes) == ("tp_1", 5)
    await stage.backend.forget(first.job_id, with_store=True)

    second = await started(
        stage.backend, of_project("tp_1", "cat $TOLLGATE_CACHE_DIR/a/b; echo $HF_HOME", is_hf_home=True)
    )
    other = await started(stage.backend, of_project("tp_2", "ls $TOLLGATE_CACHE_DIR | wc -l"))
    for job in (second, other):
        await ended(stage.backend, job)
    cache = stage.settings.directory / "caches" / "tp_1"
    assert texts(await all_output(stage.backend, second)) == ["kept", f"{cache}/huggingface"]
    assert texts(await all_output(stage.backend, other)) == ["0"]
    await stage.backend.forget_cache("tp_1")
    assert [path.name for path in cache.parent.iterdir()] == ["tp_2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other users")
async def test_cache_is_reached_by_its_projects_jobs_alone_whatever_user_they_get() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        own = settings(Path(directory))
        capacity = replace(own.capacity, nodes=2)
        stage = Stage(Settings(own.control_url, "", own.directory, capacity=capacity, user="270000-270001"))
        await stage.backend.open()
        add = "umask 077; echo $(id -u) >> $TOLLGATE_CACHE_DIR/users; cat $TOLLGATE_CACHE_DIR/users | wc -l"
        caching = await started(stage.backend, of_project("tp_1", add, FOR_EVER))
        await printed(stage.backend, caching, "1")
        beside = await started(stage.backend, of_project("tp_1", add))
        await ended(stage.backend, beside)
        assert texts(await all_output(stage.backend, beside)) == ["2"]
        users = (own.directory / "caches" / "tp_1" / "users").read_text().split()
        assert len(set(users)) == 1, "jobs that have the cache at a time have one user"
        await stage.backend.stop(caching.job_id, Outcome.STOPPED)
        await ended(stage.backend, caching)

        for number in range(6):  # each of the two ids is sooner or later the one that had the cache
            thief = await started(stage.backend, claimed(f"ls {own.directory}/caches/tp_1 2>/dev/null | wc -l; id -u"))
            await ended(stage.backend, thief)
            assert texts(await all_output(stage.backend, thief))[0] == "0"
            mine = await started(stage.backend, of_project("tp_1", add))
            await ended(stage.backend, mine)
            assert texts(await all_output(stage.backend, mine)) == [str(number + 3)]
            for job in (thief, mine):
                await stage.backend.forget(job.job_id, with_store=True)
        await stage.backend.close()


async def test_commands_that_read_standard_input_find_it_empty(stage: Stage) -> None:
    job = await started(stage.backend, claimed("cat; read line || echo nothing"))

    assert (await ended(stage.backend, job)).outcome is Outcome.COMPLETED
    assert texts(await all_output(stage.backend, job)) == ["nothing"]


async def test_runner_passes_no_open_files_or_ignored_signals_on(stage: Stage) -> None:
    job = await started(stage.backend, claimed("ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status"))

    await ended(stage.backend, job)

    count, ignored = texts(await all_output(stage.backend, job))
    assert int(count) == 4  # standard input, output, error, and what `ls` has open
    assert int(ignored.split()[1], 16) & ~(0b11 << 31) == 0  # the C library keeps signals 32 and 33 for itself


async def test_nodes_run_as_the_training_user_who_cannot_read_control_files(tmp_path: Path) -> None:
    user = "nobody" if os.geteuid() == 0 else getpass.getuser()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        own = settings(Path(directory))
        stage = Stage(Settings(own.control_url, "", own.directory, capacity=own.capacity, user=user))
        await stage.backend.open()
        job = claimed("id -un; touch mine $TOLLGATE_CHECKPOINT_DIR/mine $TMPDIR/mine && stat -c %U ../node-0/mine")
        await started(stage.backend, job)

        report = await ended(stage.backend, job)

        assert (report.outcome, report.error_message) == (Outcome.COMPLETED, None)
        assert texts(await all_output(stage.backend, job)) == [user, user]
        assert stage.directory(job).control_directory(0).stat().st_uid == os.geteuid()
        assert stage.directory(job).control_directory(0).parent.stat().st_mode & 0o777 == 0o700
        await stage.backend.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other users")
async def test_jobs_with_users_of_their_own_reach_neither_secrets_nor_files_of_each_other() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        own = settings(Path(directory))
        stage = Stage(Settings(own.control_url, "", own.directory, capacity=own.capacity, user=USER_IDS))
        await stage.backend.open()
        stage.control.environment = {"TOKEN": "of-the-victim"}
        victim = await started(stage.backend, claimed("echo mine > file; sleep 600"))
        await in_phase(stage.backend, victim, Phase.RUNNING)
        stage.control.environment = {}
        search = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c of-the-victim"
        files = f"ls -R {stage.directory(victim).files} 2>/dev/null | wc -l"
        thief = await started(stage.backend, claimed(f"{search}; {files}; id -u; echo $USER"))

        await ended(stage.backend, thief)

        secrets, listed, uid, name = texts(await all_output(stage.backend, thief))
        assert (secrets, listed, name) == ("0", "0", "job")
        assert int(uid) != stage.directory(victim).files.stat().st_uid
        await stage.backend.stop(victim.job_id, Outcome.STOPPED)
        await ended(stage.backend, victim)
        await stage.backend.close()


async def test_training_user_that_cannot_reach_the_directory_is_told_at_once(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "training").mkdir(parents=True)
    closed.chmod(0o600)
    own = settings(closed / "training")
    user = "nobody" if os.geteuid() == 0 else "root"
    backend = Stage(Settings(own.control_url, "", own.directory, user=user)).backend

    with pytest.raises(BackendAwayError, match="TOLLGATE_TRAINING_USER"):
        await backend.open()
    closed.chmod(0o700)


# --- output ---


async def test_secret_is_masked_though_it_is_printed_in_pieces_or_in_a_long_line(stage: Stage) -> None:
    secret = "hunter2-hunter2"
    stage.control.environment = {"TOKEN": secret}
    stage.control.secrets = (secret, "ab")
    pieces = "printf %s hunter2-; sleep 0.1; echo hunter2 ab"
    long_line = "head -c 65530 /dev/zero | tr '\\0' x; echo $TOKEN"
    job = await started(stage.backend, claimed(pieces, long_line, "echo $TOKEN >&2"))

    await ended(stage.backend, job)

    lines = texts(await all_output(stage.backend, job))
    assert lines == ["*** ab", "x" * 65530 + "***", "***"]
    assert not any(secret.encode() in path.read_bytes() for path in _files(stage.directory(job).root))


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


async def test_endless_line_and_binary_rubbish_become_bounded_lines(stage: Stage) -> None:
    job = await started(
        stage.backend, claimed("head -c 300000 /dev/zero", "head -c 20000 /dev/urandom; echo; echo end")
    )

    await ended(stage.backend, job)

    lines = texts(await all_output(stage.backend, job))
    assert [len(line) for line in lines[:4]] == [65_536] * 4
    assert max(map(len, lines)) <= 65_536
    assert lines[-1] == "end"


async def test_full_disk_loses_lines_of_output_but_not_the_exit_status(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo first; until [ -e go ]; do sleep 0.01; done; seq 2000; exit 3"))
    await printed(stage.backend, job, "first")

    resource.prlimit(stage.runner_pid(job), resource.RLIMIT_FSIZE, (4096, 4096))
    (stage.directory(job).node(0) / "go").touch()
    report = await ended(stage.backend, job)

    lines = texts(await all_output(stage.backend, job))

    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 0 exited with status 3")
    assert lines[0] == "first"
    assert any(line.endswith("lines of output were lost: File too large") for line in lines)


# --- how nodes end ---


def _daemons(seconds: str) -> str:
    """Commands that leave processes in the background: same group, own session, double fork, deaf to SIGTERM."""
    return (
        f"sleep {seconds} & setsid sleep {seconds} & (setsid sh -c 'sleep {seconds} & exit' &);"
        f" (trap '' TERM HUP; setsid env -i sleep {seconds} &); echo ready;"
    )


async def test_nothing_survives_a_node_that_ends(stage: Stage, mark: str) -> None:
    job = await started(stage.backend, claimed(_daemons(mark) + "sleep 0.2; exit 0"))

    await ended(stage.backend, job)

    assert sleepers(mark) == []


async def test_nothing_survives_a_stop_that_is_ignored(stage: Stage, mark: str) -> None:
    job = await started(stage.backend, claimed(_daemons(mark) + f"trap '' TERM; {FOR_EVER}"))
    await printed(stage.backend, job, "ready")

    await stage.backend.stop(job.job_id, Outcome.STOPPED)
    report = await ended(stage.backend, job)

    assert (report.outcome, sleepers(mark)) == (Outcome.STOPPED, [])


async def test_process_below_the_shell_has_the_whole_grace_to_save_its_work(stage: Stage) -> None:
    script = "import signal, sys, time\ndef save(*_):\n time.sleep(0.3); print('saved'); sys.exit()\n"
    script += "signal.signal(signal.SIGTERM, save); print('ready')\nwhile True: time.sleep(1)"
    job = await started(stage.backend, claimed(f'{PYTHON} -c "{script}"; echo after'))
    await printed(stage.backend, job, "ready")

    await stage.backend.stop(job.job_id, Outcome.REQUEUED)

    assert (await ended(stage.backend, job)).outcome is Outcome.REQUEUED
    assert "saved" in texts(await all_output(stage.backend, job))


async def test_node_that_fails_ends_the_others_and_is_named(stage: Stage, mark: str) -> None:
    job = claimed(f'[ "$TOLLGATE_NODE_RANK" = 1 ] && kill -SEGV $$; sleep {mark}', node_count=3)
    await started(stage.backend, job)

    report = await ended(stage.backend, job)

    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 1 was killed by SIGSEGV")
    assert [node.exit_status for node in report.nodes] == [-15, -11, -15]


async def test_killed_runner_fails_the_job_and_leaves_nothing(stage: Stage, mark: str) -> None:
    daemons = _daemons(mark).replace("env -i ", "")  # without a cgroup a cleared environment hides what its runner lost
    job = await started(stage.backend, claimed(daemons + FOR_EVER))
    await printed(stage.backend, job, "ready")

    os.kill(stage.runner_pid(job), signal.SIGKILL)
    report = await ended(stage.backend, job)

    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 0's runner was killed")
    assert [node.exit_status for node in report.nodes] == [-9]
    assert sleepers(mark) == []
    assert texts(await all_output(stage.backend, job)) == ["ready"]


async def test_node_that_takes_too_much_memory_is_killed_and_the_limit_named(stage: Stage) -> None:
    code = "import time; taken = bytearray(300 << 20); time.sleep(1000)"
    small = NodeResources(millicpu=1000, memory_mib=128)
    job = await started(stage.backend, claimed(f"{PYTHON} -I -c '{code}'", resources=small))

    report = await ended(stage.backend, job)

    assert report.outcome is Outcome.FAILED
    assert report.error_message == "node 0 was killed by SIGKILL (memory limit 128 MiB)"


async def test_node_may_use_no_more_processors_than_it_asked_for(stage: Stage) -> None:
    jobs = [claimed(f"{PYTHON} -I -c 'import os; print(sorted(os.sched_getaffinity(0)))'; cat go") for _ in range(2)]
    for job in jobs:
        await started(stage.backend, job)
    for job in jobs:
        await ended(stage.backend, job)

    cpu_sets = [json.loads(texts(await all_output(stage.backend, job))[0]) for job in jobs]

    assert [len(cpus) for cpus in cpu_sets] == [1, 1]
    assert cpu_sets[0] != cpu_sets[1] or os.cpu_count() == 1


async def test_orphans_of_a_job_do_not_stay_as_zombies(stage: Stage) -> None:
    job = await started(stage.backend, claimed(f"for n in 1 2 3 4 5; do (sleep 0 &); done; echo done; {FOR_EVER}"))
    await printed(stage.backend, job, "done")

    def no_zombies() -> bool:
        return all(one.is_alive for one in descendants(stage.runner_pid(job)))

    await eventually(no_zombies)


async def test_command_that_cannot_start_is_a_failed_deployment(stage: Stage) -> None:
    stage.control.environment = {f"V{n}": "x" * 100_000 for n in range(100)}
    job = await started(stage.backend, claimed("echo never"))

    report = await ended(stage.backend, job)

    assert report.outcome is Outcome.DEPLOY_FAILED
    assert "node 0 could not start: [Errno 7] Argument list too long" in str(report.error_message)


async def test_files_that_cannot_be_made_are_a_failed_deployment(stage: Stage) -> None:
    job = claimed("echo never")
    (stage.settings.directory / "jobs" / job.job_id).touch()

    await started(stage.backend, job)
    report = await ended(stage.backend, job)

    assert report.outcome is Outcome.DEPLOY_FAILED
    assert report.error_message == "the job's nodes could not be started: Not a directory"


async def test_job_that_is_stopped_before_its_environment_came_runs_nothing(stage: Stage) -> None:
    stage.control.is_away = True
    job = await started(stage.backend, claimed("echo never"))
    await eventually(lambda: stage.control.spent)

    await stage.backend.stop(job.job_id, Outcome.STOPPED)
    report = await ended(stage.backend, job)

    assert report.outcome is Outcome.STOPPED
    assert await all_output(stage.backend, job) == []


async def test_fifty_short_jobs_all_complete_and_leave_nothing_behind(stage: Stage, mark: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    jobs = [claimed(f"sleep {mark} & echo $TOLLGATE_JOB_ID") for _ in range(50)]
    for job in jobs:
        await started(stage.backend, job)
    for job in jobs:
        assert (await ended(stage.backend, job)).outcome is Outcome.COMPLETED
        assert texts(await all_output(stage.backend, job)) == [job.job_id]
        await stage.backend.forget(job.job_id, with_store=True)

    assert list((stage.settings.directory / "jobs").iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_closed_and_deep_directories_of_a_job_are_removed(stage: Stage) -> None:
    deep = "import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')"
    job = await started(
        stage.backend, claimed(f'{PYTHON} -I -c "{deep}"', "mkdir -p closed/in && chmod 0 closed && ln -s / root")
    )
    assert (await ended(stage.backend, job)).outcome is Outcome.COMPLETED

    await stage.backend.forget(job.job_id, with_store=False)

    assert not stage.directory(job).root.parent.exists()


# --- sessions ---


async def test_shell_runs_in_the_job_and_ends_with_it(stage: Stage) -> None:
    job = await started(stage.backend, claimed(FOR_EVER, working_directory="here"))
    await in_phase(stage.backend, job, Phase.RUNNING)

    shell = await stage.backend.terminal(job.job_id, job.attempt, 0)
    await shell.write(b"echo $TOLLGATE_JOB_ID in $(basename $PWD).\n")
    output = b""
    while f"{job.job_id} in here.".encode() not in output:
        output += await shell.read()
    await stage.backend.stop(job.job_id, Outcome.STOPPED)
    while await shell.read():
        pass
    await ended(stage.backend, job)

    with pytest.raises(NoTerminalError):
        await stage.backend.terminal(job.job_id, job.attempt, 0)
    await shell.close()


async def test_failed_node_is_kept_for_its_session_until_the_job_is_stopped(stage: Stage) -> None:
    session = SessionSpec(ON_FAILURE, timeout_minutes=60)
    job = await started(stage.backend, claimed("echo work > kept; exit 3", session=session))

    async def failure() -> str | None:
        report = await report_of(stage.backend, job)
        return None if report is None else report.error_message

    assert await eventually(failure) == "node 0 exited with status 3"
    assert (await report_of(stage.backend, job)).phase is Phase.RUNNING  # type: ignore[union-attr]
    shell = await stage.backend.terminal(job.job_id, job.attempt, 0)
    await shell.write(b"cat kept; exit\n")
    output = b""
    while received := await shell.read():
        output += received
    await shell.close()
    assert b"work\r\n" in output
    await stage.backend.stop(job.job_id, Outcome.STOPPED)
    report = await ended(stage.backend, job)
    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 0 exited with status 3")


# --- crashes ---


async def test_next_trainer_adopts_a_job_that_runs(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo one; until [ -e go ]; do sleep 0.01; done; echo two; exit 3"))
    await printed(stage.backend, job, "one")

    backend = await stage.next_trainer()
    await in_phase(backend, job, Phase.RUNNING)
    (stage.directory(job).node(0) / "go").touch()
    report = await ended(backend, job)

    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 0 exited with status 3")
    assert texts(await all_output(backend, job)) == ["one", "two"]
    assert stage.control.spent == [job.environment_token]


async def test_next_trainer_knows_how_a_job_ended_meanwhile(stage: Stage) -> None:
    job = await started(stage.backend, claimed("until [ -e go ]; do sleep 0.01; done; exit 4"))
    await in_phase(stage.backend, job, Phase.RUNNING)
    directory = stage.directory(job)
    pid = stage.runner_pid(job)

    for job_id in list(stage.backend._tasks):
        await stage.backend._cancel(job_id)
    (directory.node(0) / "go").touch()
    await asyncio.to_thread(os.waitpid, pid, 0)
    backend = await stage.next_trainer()

    assert (await ended(backend, job)).error_message == "node 0 exited with status 4"


async def test_next_trainer_keeps_to_a_stop_that_was_asked_for(stage: Stage) -> None:
    job = await started(stage.backend, claimed(f"trap '' TERM; echo ready; {FOR_EVER}"))
    await printed(stage.backend, job, "ready")

    await stage.backend.stop(job.job_id, Outcome.REQUEUED)
    backend = await stage.next_trainer()

    assert (await ended(backend, job)).outcome is Outcome.REQUEUED


async def test_ended_job_is_reported_alike_by_each_trainer(stage: Stage) -> None:
    job = await started(stage.backend, claimed("echo one; exit 5"))
    before = await ended(stage.backend, job)

    backend = await stage.next_trainer()

    assert await ended(backend, job) == before
    assert texts(await all_output(backend, job)) == ["one"]


async def test_trainer_that_was_killed_before_it_started_the_runner_gives_the_job_back(stage: Stage) -> None:
    stage.control.is_away = True
    job = await started(stage.backend, claimed("echo never"))
    await eventually(lambda: stage.control.spent)

    backend = await stage.next_trainer()
    report = await ended(backend, job)

    assert report.outcome is Outcome.REQUEUED
    assert await all_output(backend, job) == []


async def test_reused_pid_of_a_runner_is_left_alone(stage: Stage) -> None:
    job = await started(stage.backend, claimed(FOR_EVER))
    await in_phase(stage.backend, job, Phase.RUNNING)
    pid = stage.runner_pid(job)
    for job_id in list(stage.backend._tasks):
        await stage.backend._cancel(job_id)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, pid, 0)
    stranger = await asyncio.create_subprocess_exec("sleep", "1000")
    try:
        path = stage.directory(job).control_directory(0) / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": stranger.pid}))

        backend = await stage.next_trainer()
        report = await ended(backend, job)
        await backend.close()

        assert report.error_message == "node 0's runner was killed"
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\xfe"])
async def test_rubbish_in_the_files_of_an_attempt_ends_it(stage: Stage, rubbish: bytes) -> None:
    job = await started(stage.backend, claimed("exit 0"))
    await ended(stage.backend, job)
    root = stage.directory(job).root
    for path in ("control/end.json", "control/stop.json", "control/node-0/state.json", "control/node-0/exit.json"):
        (root / path).write_bytes(rubbish)

    backend = await stage.next_trainer()

    assert (await ended(backend, job)).outcome is Outcome.FAILED


async def test_runner_and_job_survive_a_trainer_that_is_killed(stage: Stage, tmp_path: Path) -> None:
    """A real process with a backend, killed with SIGKILL."""
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from tests.contracts.training.backends import *\nfrom trainer.edges.local import LocalBackend\n"
        "async def run():\n"
        " backend = LocalBackend(settings(Path(sys.argv[1])), Control().spend, no_checkpoints)\n"
        " await backend.open()\n"
        " job = await started(backend, claimed('until [ -e go ]; do sleep 0.01; done; echo survived'))\n"
        " await in_phase(backend, job, Phase.RUNNING)\n"
        " print(job.job_id, flush=True)\n await asyncio.sleep(1000)\n"
        "asyncio.run(run())"
    )
    argv = [PYTHON, "-c", script, str(stage.settings.directory)]
    trainer = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert trainer.stdout is not None
    job_id = (await trainer.stdout.readline()).decode().strip()
    trainer.kill()
    await trainer.wait()

    job = Claimed(job_id, 1, claimed().spec, "", None)
    backend = await stage.next_trainer()
    await in_phase(backend, job, Phase.RUNNING)
    (stage.directory(job).node(0) / "go").touch()

    assert (await ended(backend, job)).outcome is Outcome.COMPLETED
    assert texts(await all_output(backend, job)) == ["survived"]


async def test_path_that_is_too_long_for_a_socket_is_no_obstacle(tmp_path: Path) -> None:
    stage = Stage(settings(tmp_path / ("d" * 120)))
    await stage.backend.open()
    job = await started(stage.backend, claimed(FOR_EVER))
    await in_phase(stage.backend, job, Phase.RUNNING)

    shell = await stage.backend.terminal(job.job_id, job.attempt, 0)

    assert await shell.read()
    await shell.close()
    await stage.backend.close()
