"""Descriptions of how a process ended, in words that say what to look for. Pure."""

import signal


def how_it_ended(status: int) -> str:
    """Describe an exit status as subprocess has it: a negative one is the signal that ended the process."""
    if status == -signal.SIGKILL:
        return "was killed (signal 9); possibly out of memory"
    if status < 0:
        return f"was killed (signal {-status}, {_name(-status)})"
    return f"ended with status {status}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
