"""`python -m tests.clients.original.truss_client.script CONTROL PROXY API_KEY REPLICA PART…` prints what `truss` did.

A part is `functions`, `push` or `commands`: all other ones. It runs in the environment of `truss`, whose `~/.trussrc`
has one remote, in a working directory of its own. A line is a record of `tests/clients/original/recording.py`.
"""

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from truss.cli.cli import truss_cli
from truss.remote.remote_factory import RemoteFactory

from tests.clients.original.place import Place
from tests.clients.original.truss_client import commands, functions
from tests.clients.original.truss_client.recording import Recorder


def _cause(steps: Callable[[], None]) -> str:
    """Run the steps; return why they broke off, or "" if they did not."""
    try:
        steps()
    except Exception as error:  # noqa: BLE001 - what was not reached is reported with it
        traceback.print_exc()
        return f"not reached: {type(error).__name__}: {error}"
    return ""


def main() -> None:
    place = Place(*sys.argv[1:5])
    (remote,) = RemoteFactory.get_available_config_names()
    api = RemoteFactory.create(remote).api
    api.suppress_error_print = True
    recorder = Recorder(api, Path(sys.executable).with_name("truss"))
    steps = {
        "functions": partial(functions.run, recorder, place),
        "push": partial(commands.run_push, recorder, place, Path.cwd()),
        "commands": partial(commands.run, recorder, place, Path.cwd()),
    }
    parts = sys.argv[5:]
    causes = [_cause(steps[part]) for part in parts]
    recorder.close(commands.names(truss_cli) if "commands" in parts else (), "; ".join(filter(None, causes)))
    for record in recorder.records:
        print(json.dumps(asdict(record)), flush=True)


if __name__ == "__main__":
    main()
