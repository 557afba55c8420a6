"""The statements that a command is to make. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commands.errors import ManagementError
from policy.statements.months import month_window


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """Statements of a month, as `csv` or `html`. `draft`: also while events of the month may be added.

    `with_groups_below`: a statement has the calls of all groups below its own.
    """

    month: str
    start: str
    end: str
    form: str
    draft: bool
    with_groups_below: bool = False

    @classmethod
    def of(cls, month: str, form: str, draft: bool, with_groups_below: bool = False) -> "StatementRequest":
        """Raises ValueError unless `month` is a month."""
        return cls(month, *month_window(month), form, draft, with_groups_below)

    def query(self, entity: str | None = None) -> dict[str, Any]:
        """Return the query of the usage report, for one entity or for all."""
        query = {"start": self.start, "end": self.end, "group_by": "entity", "lines": "true"}
        if self.with_groups_below:
            query["rollup"] = "true"
        return query if entity is None else {**query, "external_entity_id": entity}

    def is_final(self, window: Mapping[str, str]) -> bool:
        """Return whether the report's window is the whole month. ManagementError if not, and no draft is wanted."""
        if (is_final := window["end_time"] == self.end) or self.draft:
            return is_final
        raise ManagementError(
            f"events of {self.month} are not final until a holdback after {self.end}; --draft prints what there is"
        )
