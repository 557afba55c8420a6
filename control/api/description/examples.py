"""The example of each operation: a call, and what a control plane answered, from `examples.json`.

`python -m tests.control.api.description.recorded` writes the file; a test sends each call again.
"""

import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    """A call that succeeds. `parameters`: those of path and query. `request`: its body, null if it has none."""

    parameters: Mapping[str, str]
    request: Any
    answer: Any


NO_EXAMPLE = Example({}, None, None)
"""The example of an operation that never succeeds."""


def examples_by_id() -> Mapping[str, Example]:
    """The example of each operation by its id."""
    data = pkgutil.get_data(__package__, "examples.json") or b""
    return {
        id: Example(one.get("path", {}) | one.get("query", {}), one.get("request"), one["answer"])
        for id, one in json.loads(data).items()
    }
