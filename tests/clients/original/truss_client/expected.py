"""Functions and commands of `truss` that are refused on purpose, and those that do not work yet."""

from collections.abc import Mapping

NO_QUESTION = "Tollgate answers one GraphQL question"
REFUSED = {
    "whoami": NO_QUESTION,
}
"""The refused ones (with their case), and what the refusal must say."""
OPEN: Mapping[str, str] = {}
"""The failing ones, and why."""
