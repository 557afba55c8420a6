"""Reads a Dockerfile: its global arguments, and its stages with their instructions.

Pure; knows only the forms that ours uses.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `RUN`, and what follows it on its line and the lines that continue it."""

    name: str
    text: str

    def words(self) -> list[str]:
        """The arguments of `COPY` and the like; those of `CMD` and `ENTRYPOINT` in their JSON form."""
        return [str(word) for word in json.loads(self.text)] if self.text.startswith("[") else self.text.split()

    def pairs(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables of `ENV` and `ARG`; `$NAME` stands for a variable of `environment`."""
        pairs = (word.partition("=") for word in self.words())
        return {name: _filled_in(value, environment) for name, _, value in pairs}


@dataclass(slots=True)
class Stage:
    """A `FROM` and its instructions. `base` is an image, or the name of an earlier stage."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)


def stages(dockerfile: str) -> list[Stage]:
    """All stages in their order, the one of the image last."""
    result: list[Stage] = []
    arguments: dict[str, str] = {}
    for instruction in _instructions(dockerfile):
        match instruction.name, result:
            case "FROM", _:
                base, _, name = instruction.text.partition(" AS ")
                result.append(Stage(_filled_in(base, arguments), name))
            case "ARG", []:
                arguments |= instruction.pairs({})
            case _:
                result[-1].instructions.append(instruction)
    return result


def _instructions(dockerfile: str) -> list[Instruction]:
    lines = (line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    joined = "\n".join(lines).replace("\\\n", "")
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def _filled_in(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values[match.group(1)], text)
