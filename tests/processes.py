"""Reads from /proc whether processes that tests start and kill still run."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether any thread of it runs, and so may still hold sockets and files.

    A zombie that nobody reaps (in a container without an init) does not run; but a process whose main thread has
    ended is shown as one while its other threads are still on their way out.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False
