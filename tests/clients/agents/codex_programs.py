"""Codex with the slug of a newer model that it knows: its tools are namespaces in the input, and it runs JavaScript."""

import json
from typing import Any

from tests.clients.agents.codex import run
from tests.clients.agents.codex_patches import PATCH
from tests.clients.agents.place import AFTER, Place, turn
from tests.clients.python.harness import Target, serve


def programs(target: Target) -> Any:
    """Look at a file and patch it, each by a program."""
    place = Place(target)
    turns = [
        turn("Let me look.", _program(f"exec_command({json.dumps({'cmd': f'cat {place.file}'})})")),
        turn("Now the patch.", _program(f"apply_patch({json.dumps(PATCH)})"), expects=("Hello, world.",)),
        turn("Done.", expects=("Script completed",)),
    ]
    return run(place, target, turns) | {"edited": place.file.read_text() == AFTER}


def _program(call: str) -> tuple[str, dict[str, str]]:
    return "exec", {"input": f"text(await tools.{call});"}


CASES = {"edits a file by programs": programs}

if __name__ == "__main__":
    serve(CASES)
