"""A process between the Ray worker of a node and its runner: `python guard.py PARENT ARGV…`. Standard library only.

A Ray worker kills its children when it ends, and what a killed runner had started would go on. So the guard is that
child. It ends with the worker, however that ends. Then the kernel sends the runner SIGTERM, and it ends the node.
See docs/reference/training.md#ray.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the runner and pass SIGTERM on to it. The exit status means nothing: the runner writes down its own."""
    parent = int(sys.argv[1])
    argv = sys.argv[2:]
    _tied(signal.SIGKILL, parent)()
    tie = _tied(signal.SIGTERM, os.getpid())
    runner = subprocess.Popen(argv, start_new_session=True, preexec_fn=tie)  # noqa: PLW1509  (this process has no threads)
    signal.signal(signal.SIGTERM, lambda number, _: runner.send_signal(number))
    _close_output()
    runner.wait()
    return 0


def _tied(number: signal.Signals, parent: int) -> Callable[[], None]:
    """Makes the calling process get a signal when its parent ends. What it needs is looked up before a fork."""
    prctl = ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel was told
            os._exit(1)

    return tie


def _close_output() -> None:
    """Close the guard's output, so that only the runner says that it has started."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)


if __name__ == "__main__":
    sys.exit(main())
