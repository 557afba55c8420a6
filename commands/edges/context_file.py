"""The file of contexts: management APIs by name, each with its key, and which one is in use. Only its owner reads it.

See docs/reference/command-line.md#contexts.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from commands.errors import NoAccessError
from runtime.private_files import replace_file, tighten_files


@dataclass(frozen=True, slots=True)
class Context:
    """A management API, and a key of management scope for one workspace of it."""

    url: str
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name. `in_use` None: commands find their way as they do without contexts."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    in_use: str | None = None

    @property
    def present(self) -> Context | None:
        """The one in use."""
        return None if self.in_use is None else self.by_name.get(self.in_use)


def path_of_contexts(environment: Mapping[str, str] = os.environ) -> Path:
    """`tollgate/contexts.json` in the user's directory of settings (XDG Base Directory)."""
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".config"
    return Path(home) / "tollgate" / "contexts.json"


def read_contexts(path: Path) -> Contexts:
    """The contexts; none if there is no file. Raises NoAccessError if it is damaged or cannot be read."""
    try:
        tighten_files(path)
        value = json.loads(path.read_text())
        contexts = {name: Context(one["url"], one["api_key"]) for name, one in value["contexts"].items()}
        return Contexts(contexts, value["in_use"])
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise NoAccessError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoAccessError(f"{path} is no file of contexts; remove it, and add them again") from None


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file. Raises NoAccessError."""
    value = {
        "in_use": contexts.in_use,
        "contexts": {name: asdict(context) for name, context in contexts.by_name.items()},
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(value, indent=2) + "\n")
    except OSError as error:
        raise NoAccessError(f"{path} cannot be written: {error.strerror}") from None
