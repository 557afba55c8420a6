"""Codex in headless mode, on Responses."""

import json
import re
from itertools import groupby
from typing import Any

from tests.clients.agents.place import AFTER, PROGRAMS, Json, Place, named, script, turn
from tests.clients.python.harness import SCHEMA, Target, serve

SETTINGS = """
model = "{model}"
model_provider = "tollgate"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
[model_providers.tollgate]
name = "Tollgate"
base_url = "{base_url}/v1"
env_key = "TOLLGATE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
EFFORT = 'model_reasoning_effort="high"'
UNKNOWN_MODEL = re.compile(r"Model metadata for `[^`]+` not found")
"""Codex' own remark about every model that it does not know."""


def edits(target: Target, *options: str) -> Any:
    """Run two commands in parallel, one of which fails, and then one that edits a file."""
    place = Place(target)
    turns = [
        turn("Let me look.", command(f"cat {place.file}"), command(f"cat {place.missing}")),
        turn("Now the edit.", command(f"sed -i s/Hello/Goodbye/ {place.file}"), expects=("Hello, world.", "No such")),
        turn("Done.", expects=("exited with code 0",)),
    ]
    return run(place, target, turns, *options) | {"edited": place.file.read_text() == AFTER}


def edits_with_much_thinking(target: Target) -> Any:
    return edits(target, "-c", EFFORT)


def sees_a_picture(target: Target) -> Any:
    """One in the prompt, and another one in a tool's result."""
    place = Place(target)
    call = ("view_image", {"path": str(place.picture)})
    turns = [
        turn("Let me look.", call, expects=(named(place.other_picture),)),
        turn("It is tiny.", expects=(named(place.picture),)),
    ]
    return run(place, target, turns, "-i", str(place.other_picture))


def calls_a_tool_of_a_namespace(target: Target) -> Any:
    place = Place(target)
    turns = [
        turn("Let me try.", ("close_agent", {"target": "nobody"})),
        turn("It failed.", expects=("invalid agent id",)),
    ]
    return run(place, target, turns)


def structured(target: Target) -> Any:
    place = Place(target)
    (place.work / "schema.json").write_text(json.dumps(SCHEMA))
    turns = [turn('{"city": "Paris"}')]
    return run(place, target, turns, "--output-schema", str(place.work / "schema.json"))


def command(line: str) -> tuple[str, Json]:
    return "exec_command", {"cmd": line}


def run(place: Place, target: Target, turns: list[Json], *options: str) -> Json:
    home = place.home / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(SETTINGS.format(base_url=target.base_url, model=target.model))
    # Its sandbox needs rights that containers lack. All that it runs here are the commands of the script.
    words = [
        PROGRAMS / "codex",
        "exec",
        "--json",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
    ]
    lines = place.run(*words, *options, "--", script(turns), TOLLGATE_KEY=target.api_key)
    items = [line["item"] for line in lines if line["type"] == "item.completed"]
    messages = [{name: value for name, value in item.items() if name != "id"} for item in items]
    [usage] = [line["usage"] for line in lines if line["type"] == "turn.completed"]
    messages = [item for item in messages if not UNKNOWN_MODEL.match(item.get("message", ""))]
    if EFFORT not in options:  # it is for the vendor to say whether a model thinks by default
        messages = [item for item in messages if item["type"] != "reasoning"]
        del usage["reasoning_output_tokens"]
    return {
        "told": _in_order(messages),
        "usage": usage,
        "errors": [line for line in lines if line["type"] in ("error", "turn.failed")],
    }


def _in_order(messages: list[Json]) -> list[Json]:
    """Parallel commands end in any order."""
    groups = groupby(messages, key=lambda item: item["type"])
    return [item for _, group in groups for item in sorted(group, key=lambda item: item.get("command", ""))]


CASES = {
    "edits a file with tools": edits,
    "edits with much thinking": edits_with_much_thinking,
    "sees a picture": sees_a_picture,
    "calls a tool of a namespace": calls_a_tool_of_a_namespace,
    "structured output": structured,
}

if __name__ == "__main__":
    serve(CASES)
