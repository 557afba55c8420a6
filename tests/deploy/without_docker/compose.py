"""Reads compose.yaml: what each service runs, with which settings, volumes and checks.

Pure; knows only the forms that ours uses.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?::(?P<kind>[?-])(?P<text>[^}]*))?\})")


@dataclass(frozen=True, slots=True)
class Volume:
    """`source` is a name of the file's `volumes`, or a path beside the file, which then begins with a dot."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Service:
    """A service with its variables filled in. `command` and `user` are empty where the image's own apply."""

    name: str
    image: str
    command: list[str]
    user: str
    environment: dict[str, str]
    volumes: list[Volume]
    scratch: list[str]
    read_only: bool
    drops_capabilities: bool
    open_files: int
    """The bound on files and connections of each process; 0: this machine's."""
    health_check: list[str]
    after: dict[str, bool]
    """The services to start before this one, and whether each must be healthy by then."""
    stop_signal: str
    stop_within_s: float


def services(compose_file: str, variables: Mapping[str, str]) -> list[Service]:
    """All services, each behind those that it needs. KeyError: a variable without a default is not set."""
    read = yaml.safe_load(compose_file)["services"]
    by_name = {name: _service(name, _filled_in(values, variables)) for name, values in read.items()}
    return list(_in_order(by_name))


def _service(name: str, values: Mapping[str, Any]) -> Service:
    return Service(
        name=name,
        image=values["image"],
        command=values.get("command", []),
        user=values.get("user", ""),
        environment=values.get("environment", {}),
        volumes=[_volume(text) for text in values.get("volumes", ())],
        scratch=values.get("tmpfs", []),
        read_only=values.get("read_only", False),
        drops_capabilities=values.get("cap_drop") == ["ALL"],
        open_files=values.get("ulimits", {}).get("nofile", 0),
        health_check=_check(values.get("healthcheck", {}).get("test", [])),
        after=_needed(values.get("depends_on", {})),
        stop_signal=values.get("stop_signal", "SIGTERM"),
        stop_within_s=float(values.get("stop_grace_period", "10s").removesuffix("s")),
    )


def _volume(text: str) -> Volume:
    source, target, *modes = text.split(":")
    return Volume(source, target, modes == ["ro"])


def _check(test: list[str]) -> list[str]:
    match test:
        case ["CMD", *words]:
            return words
        case ["CMD-SHELL", line]:
            return ["sh", "-c", line]
    return []


def _needed(depends_on: Any) -> dict[str, bool]:
    if isinstance(depends_on, list):
        return dict.fromkeys(depends_on, False)
    return {name: one["condition"] == "service_healthy" for name, one in depends_on.items()}


def _in_order(by_name: Mapping[str, Service]) -> Iterator[Service]:
    queue = dict(by_name)
    while queue:
        name = next(name for name, one in queue.items() if not one.after.keys() & queue.keys())
        yield queue.pop(name)


def _filled_in(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _filled_in(member, variables) for name, member in value.items()}
    if isinstance(value, list):
        return [_filled_in(member, variables) for member in value]
    return _VARIABLE.sub(lambda match: _value(match, variables), value) if isinstance(value, str) else value


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    if match["dollar"]:
        return "$"
    if match["kind"] == "-":
        return variables.get(match["name"]) or match["text"]
    return variables[match["name"]]


def read_variables(path: Path) -> dict[str, str]:
    """Read the variables of an `.env` file."""
    lines = (line.partition("=") for line in path.read_text().splitlines())
    return {name: value for name, _, value in lines}
