"""Claude Code in headless mode, on Messages."""

from itertools import groupby
from typing import Any

from tests.clients.agents.place import AFTER, PROGRAMS, Json, Place, named, script, turn
from tests.clients.python.harness import Target, serve

SETTINGS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
TOOL_BLOCKS = ("tool_use", "tool_result", "document")
VOLATILE = ("id", "tool_use_id", "signature", "citations")


def edits(target: Target, **settings: str) -> Any:
    """Read two files in parallel, one of which is missing, and edit the other."""
    place = Place(target)
    edit = {"file_path": str(place.file), "old_string": "Hello", "new_string": "Goodbye"}
    turns = [
        turn("Let me look.", _read(place.file), _read(place.missing)),
        turn("Now the edit.", ("Edit", edit), expects=("Hello, world.", "File does not exist")),
        turn("Done.", expects=("has been updated",)),
    ]
    report = _run(place, target, turns, **settings)
    return report | {"edited": place.file.read_text() == AFTER}


def edits_without_thinking(target: Target) -> Any:
    """A model that thinks all the same may show it."""
    report = edits(target, MAX_THINKING_TOKENS="0")
    return report | {"told": [block for block in report["told"] if block["type"] != "thinking"]}


def sees_a_picture(target: Target) -> Any:
    """Read a picture: an image in a tool's result."""
    place = Place(target)
    turns = [turn("Let me look.", _read(place.picture)), turn("It is tiny.", expects=(named(place.picture),))]
    return _run(place, target, turns)


def reads_a_document(target: Target) -> Any:
    """Read a PDF: a document beside a tool's result."""
    place = Place(target)
    turns = [turn("Let me look.", _read(place.document)), turn("It is empty.", expects=(named(place.document),))]
    return _run(place, target, turns)


def runs_a_command_that_fails(target: Target) -> Any:
    place = Place(target)
    command = ("Bash", {"command": "echo oops; exit 3"})
    turns = [turn("Let me try.", command), turn("It failed.", expects=("Exit code 3",))]
    return _run(place, target, turns)


def structured(target: Target) -> Any:
    """`--json-schema`: a tool of the client's own."""
    place = Place(target)
    schema = '{"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}'
    turns = [turn("", ("StructuredOutput", {"done": True})), turn("Done.")]
    return _run(place, target, turns, "--json-schema", schema)


def _read(path: object) -> tuple[str, Json]:
    return "Read", {"file_path": str(path)}


def _run(place: Place, target: Target, turns: list[Json], *options: str, **settings: str) -> Json:
    words = [PROGRAMS / "claude", "-p", script(turns), "--output-format", "stream-json", "--verbose"]
    words += ["--model", target.model, "--allowedTools", "Read,Edit,Bash", *options]
    to = {"ANTHROPIC_BASE_URL": target.base_url, "ANTHROPIC_API_KEY": target.api_key}
    lines = place.run(*words, **SETTINGS, **to, **settings)
    turns = [line["message"] for line in lines if line["type"] in ("assistant", "user")]
    blocks = [block for message in turns if isinstance(message["content"], list) for block in message["content"]]
    [result] = [line for line in lines if line["type"] == "result"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    return {
        "told": [{name: value for name, value in block.items() if name not in VOLATILE} for block in _in_order(blocks)],
        "usage": {name: result["usage"][name] for name in names},
        "result": {name: result.get(name) for name in ("subtype", "is_error", "num_turns", "stop_reason", "result")},
        "structured": result.get("structured_output"),
        "denied": result["permission_denials"],
    }


def _in_order(blocks: list[Json]) -> list[Json]:
    """Calls before their results: a call runs while the answer still streams, and parallel ones end in any order."""
    call_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]

    def place(block: Json) -> tuple[int, int]:
        kind = TOOL_BLOCKS.index(block["type"])
        return kind, call_ids.index(block["tool_use_id"]) if block["type"] == "tool_result" else 0

    groups = groupby(blocks, key=lambda block: block["type"] in TOOL_BLOCKS)
    ordered = [sorted(group, key=place) if is_tools else list(group) for is_tools, group in groups]
    return [block for group in ordered for block in group]


CASES = {
    "edits a file with tools": edits,
    "edits without thinking": edits_without_thinking,
    "sees a picture": sees_a_picture,
    "reads a document": reads_a_document,
    "runs a command that fails": runs_a_command_that_fails,
    "structured output": structured,
}

if __name__ == "__main__":
    serve(CASES)
