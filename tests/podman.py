"""A program `podman` for machines without one: runs a container's command on the machine itself, and records it.

It takes the options of `podman run` that Ray and Tollgate use, and no others. There are two images: `NODE` has what the
machine has, `BARE` has nothing but Python; no registry has another one.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODE = "registry.example/jobs/node:1"
BARE = "registry.example/jobs/bare:1"
_RECORD = "podman.jsonl"
_PROGRAM = f"""#!{sys.executable}
import json, os, sys
WITH_VALUE = ("-v", "--env", "--entrypoint")
FLAGS = ("--rm", "--timeout", "--network", "--pid", "--ipc", "--userns", "--cgroup-manager", "--volume", "--entrypoint")
argv = sys.argv[1:]
verb = argv.pop(0)
options = []
while argv[0].startswith("-"):
    name, has_value, value = argv.pop(0).partition("=")
    if not has_value and name in WITH_VALUE:
        value = argv.pop(0)
    elif name not in FLAGS:
        sys.exit(f"Error: unknown flag: {{name}}")
    options.append((name, value))
image, *command = argv
with open(os.path.join(os.path.dirname(sys.argv[0]), "{_RECORD}"), "a") as record:
    record.write(json.dumps({{"verb": verb, "image": image, "options": options, "command": command}}) + "\\n")
if image not in ("{NODE}", "{BARE}"):
    print(f"Trying to pull {{image}}...", file=sys.stderr)
    print(f"Error: initializing source docker://{{image}}: manifest unknown", file=sys.stderr)
    sys.exit(125)
environment = dict(os.environ)
for name, value in options:
    if name == "--env":
        variable, _, text = value.partition("=")
        environment[variable] = text
    if name in ("-v", "--volume"):
        source, target, *_ = value.split(":")
        command = [part.replace(target + "/", source + "/") for part in command]
environment["FROM_IMAGE"] = image
entrypoint = [value for name, value in options if name == "--entrypoint"]
program, *arguments = entrypoint + command
assert program == "python", program
isolation = ["-I", "-S"] if image == "{BARE}" else []
os.execve("{sys.executable}", ["{sys.executable}", *isolation, *arguments], environment)
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """The program in a directory, which is to be put in front of the PATH."""

    directory: Path

    @classmethod
    def install(cls, directory: Path) -> "Podman":
        directory.mkdir(exist_ok=True)
        program = directory / "podman"
        program.write_text(_PROGRAM)
        program.chmod(0o755)
        return cls(directory)

    def runs(self) -> list[Any]:
        """The calls so far: `verb`, `image`, `options` and `command` of each."""
        record = self.directory / _RECORD
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
