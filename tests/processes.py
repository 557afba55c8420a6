"""Reads from /proc whether a process still runs, and what it is."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether any thread of the process runs, and so may still hold sockets and files.

    An unreaped zombie (in a container without an init) does not run. But a process whose main thread has ended is also
    shown as a zombie while its other threads are still ending.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_line(pid: int) -> str:
    """The words of the process, separated by spaces; "" if it does not run."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
