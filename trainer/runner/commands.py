"""Starts a command of the job: a session and process group of its own, the job's user, limits and environment only."""

import ctypes
import os
import resource
import signal
from typing import NoReturn

from trainer.runner.cgroup import Cgroup
from trainer.runner.launch import Launch

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SHELL = "/bin/sh"
_UMASK = 0o022
_OOM_SCORE = "500"
"""The score by which the kernel, out of memory, ends jobs before anything of Tollgate."""


class StartError(Exception):
    """The command could not be started. The message says why."""


def become_reaper() -> None:
    """Every process that loses its parent below this one becomes its child, so that none can hide."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Preparation:
    """The steps of a new process before it runs something of the job's. Looked up before the fork."""

    def __init__(self, launch: Launch, cgroup: Cgroup | None) -> None:
        self._owner = launch.owner
        self._cgroup = cgroup
        self._runner = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl

    def __call__(self) -> None:
        """Join the cgroup, give up what the job may not have, die with the runner."""
        if self._cgroup is not None:
            self._cgroup.join()
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.umask(_UMASK)
        if self._owner is not None:
            user, group = self._owner
            os.setgroups([group])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
        self._prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # else a set-user-ID program could not be killed
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which resets it

    @property
    def runner(self) -> int:
        return self._runner


def start(command: str, launch: Launch, prepare: Preparation, output: tuple[int, int]) -> int:
    """Run a `/bin/sh -c` line; returns its pid, which is its process group's too. Raises StartError."""
    failure, report = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(failure)
        os.close(report)
        raise StartError(f"no process could be started: {error.strerror}") from error
    if pid == 0:
        _run(command, launch, prepare, (*output, report))
    os.close(report)
    with open(failure, "rb") as reading:
        problem = reading.read()  # ends when the command runs: the pipe closes itself then
    if problem:
        os.waitpid(pid, 0)
        raise StartError(problem.decode(errors="replace"))
    return pid


def _run(command: str, launch: Launch, prepare: Preparation, files: tuple[int, int, int]) -> NoReturn:
    """Become the command, in the new process."""
    stdout, stderr, report = files
    try:
        os.setsid()
        reset_signals()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        prepare()
        if os.getppid() != prepare.runner:  # it died before the kernel was told to end this process with it
            os._exit(1)
        os.chdir(launch.working_directory)
        os.execve(_SHELL, ["sh", "-c", command], launch.environment)  # noqa: S606  (with a shell)
    except (OSError, ValueError) as error:
        os.write(report, str(error).encode(errors="replace")[:1000])
    finally:
        os._exit(126)


def reset_signals() -> None:
    """Give every signal its usual meaning again, whatever the runner made of it."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except OSError:  # the C library keeps it for itself
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
