"""The console script: Ctrl-C ends a command without a traceback while its modules are still imported."""

import signal


def main() -> None:
    """Import the command with the system's own handling of SIGINT, then run it with Python's."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from runtime.imports import without_collections

    with without_collections():
        from control.operator.cli import main as run

    signal.signal(signal.SIGINT, handler)
    run()
