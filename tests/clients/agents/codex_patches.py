"""Codex with the slug of a model that it knows: it offers a tool whose input is a patch, not JSON."""

from typing import Any

from tests.clients.agents.codex import command, run
from tests.clients.agents.place import AFTER, BEFORE, Place, turn
from tests.clients.python.harness import Target, serve

PATCH = f"*** Begin Patch\n*** Update File: greeting.txt\n@@\n-{BEFORE}+{AFTER}*** End Patch\n"


def patches(target: Target) -> Any:
    """Look at a file, patch it, and patch it once more, which fails."""
    place = Place(target)
    patch = ("apply_patch", {"input": PATCH})
    turns = [
        turn("Let me look.", command(f"cat {place.file}")),
        turn("Now the patch.", patch, expects=("Hello, world.",)),
        turn("Once more.", patch, expects=("Updated the following files",)),
        turn("Done.", expects=("Failed to find expected lines",)),
    ]
    return run(place, target, turns) | {"edited": place.file.read_text() == AFTER}


CASES = {"edits a file with a patch": patches}

if __name__ == "__main__":
    serve(CASES)
