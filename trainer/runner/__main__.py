"""The runner: `trainer.runner.launch.runner_argv()` with a Launch on standard input. It outlives who started it.

It writes `state.json` (who it is), `output.log` and `exit.json` (how the node ended) into its control directory.
See docs/reference/training.md#how-a-node-ends.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

from trainer.runner.commands import become_reaper
from trainer.runner.launch import Launch
from trainer.runner.node import Node, Result
from trainer.runner.node_limits import NodeLimits
from trainer.runner.output_log import OutputLog
from trainer.runner.reserved_file import fill, reserve
from trainer.runner.state import EXIT_FILE, RunnerState, claim

_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    """Run the node. A launch that is not whole, or that another process has claimed, starts nothing."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # whatever the trainer has open, such as locks, is not the job's
    launch = Launch.from_json(sys.stdin.buffer.read())
    _detach_input()
    os.chdir(launch.control_directory)
    reserve(EXIT_FILE)
    become_reaper()
    output = OutputLog(".", launch.secrets)
    wakeup = _wakeup()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    early: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: early.append(number))
    limits = NodeLimits(launch)
    if not claim(RunnerState.own(None if limits.cgroup is None else limits.cgroup.path)):
        return
    node = Node(launch, limits, output, wakeup)
    signal.signal(signal.SIGTERM, lambda *_: node.stop())
    if early:
        node.stop()
    _run(launch, node, output)


def _run(launch: Launch, node: Node, output: OutputLog) -> None:
    if launch.notice:
        output.say(launch.notice)
    result = node.run(_once(_tell_started))
    if result.status and launch.keep_s is not None and not result.was_stopped:
        _fill_exit(result, is_kept=True)
        node.keep(launch.keep_s)
    node.close()
    if output.loss is not None:
        result.reason = "; ".join(filter(None, (result.reason, output.loss)))
    _fill_exit(result, is_kept=False)


def _fill_exit(result: Result, is_kept: bool) -> None:
    value = {
        "status": result.status,
        "reason": result.reason and result.reason[:500],
        "did_run": result.did_run,
        "was_stopped": result.was_stopped,
        "is_kept": is_kept,
        "at_ns": time.time_ns(),
    }
    fill(EXIT_FILE, value)


def _detach_input() -> None:
    """Replace standard input: nothing below may read it, and its number may not become another file's."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _tell_started() -> None:
    """A line on standard output, then its end: whoever started the runner may have gone."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.write(1, b"started\n")
    except OSError:
        pass
    finally:
        os.dup2(nothing, 1)
        os.close(nothing)


def _once(tell: Callable[[], None]) -> Callable[[], None]:
    rest = [tell]
    return lambda: rest.pop()() if rest else None


def _wakeup() -> int:
    """A file that is readable after each signal."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading
