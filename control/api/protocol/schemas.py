"""Base classes and field types of all schemas: strict requests, pages of lists. Every schema's name ends in V1.

See docs/reference/management-api.md#conventions and docs/reference/management-api.md#description.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from policy.endpoints import SLUG_PATTERN

DEFAULT_PAGE = 100
MAX_PAGE = 1000
CURSOR = "From the previous page's pagination. The other parameters are then ignored."


class RequestV1(BaseModel):
    """A request: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True, defer_build=True)


class ResponseV1(BaseModel):
    """A response. A member without a default is always in it, and one with a default unless it says `exclude_if`."""

    model_config = ConfigDict(hide_input_in_errors=True, defer_build=True)


ALWAYS_WHOLE = ResponseV1.model_config | ConfigDict(json_schema_serialization_defaults_required=True)
"""The configuration of a response that has members with defaults and none that may be left out."""


def _integral(value: Any) -> Any:
    """Convert a whole float to an integer: JSON Schema counts 1.0 as one."""
    return int(value) if type(value) is float and value.is_integer() else value


def _decimal(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else value


INTEGRAL = BeforeValidator(_integral)
"""Write it after the bounds of an integer in a body: before them, pydantic omits them from the schema."""
DECIMAL = BeforeValidator(_decimal)
"""The same for an integer in a query."""
NO_NUL: dict[str, Any] = {"pattern": r"^[^\x00]*$"}
"""The pattern for the schema; `bodies` refuses NUL characters everywhere."""
Name = Annotated[str, Field(min_length=1, max_length=255, json_schema_extra=NO_NUL)]
IdText = Annotated[str, Field(min_length=1, max_length=128, json_schema_extra=NO_NUL)]
_SLUG: dict[str, Any] = {"pattern": f"^{re.sub('[?]P<[a-z]+>', '', SLUG_PATTERN.pattern)}$"}
"""The pattern for the schema; `policy.endpoints.check_slug` validates, with a better message."""
SlugText = Annotated[str, Field(min_length=3, max_length=257, examples=["acme/chat"], json_schema_extra=_SLUG)]
TimeText = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T12:00:00.000Z"])]
"""ISO 8601 UTC."""
RoleName = Literal["viewer", "billing", "operator", "admin"]


class DeletedV1(ResponseV1):
    """The answer to a deletion: the id of the thing, and the ids of what it was part of."""

    model_config = ALWAYS_WHOLE

    deleted: Literal[True] = True


class PaginationResponseV1(ResponseV1):
    """The continuation of a list. `cursor` fetches the next page and is null on the last one."""

    model_config = ALWAYS_WHOLE

    has_more: bool
    cursor: str | None = None


class PageQueryV1(RequestV1):
    """Parameters of every list. With `cursor`, the others are ignored."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Page size."), DECIMAL] = DEFAULT_PAGE
    cursor: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_-]{1,4096}$", description=CURSOR)] = None


class WholeListQueryV1(PageQueryV1):
    """Parameters of a list whose items have the original's name, too: its clients ask for no second page."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Page size."), DECIMAL] = MAX_PAGE


def original_name(name: str) -> Any:
    """The field in which a page has its items under the name that the original gives them."""
    return Field(description=f"The same as `items`: the original's clients read `{name}`.")


def not_all_null(*names: str, nullable: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of a PATCH in which one of `names` is not null, or one of `nullable` is present, null or not.

    For `names`, null means absent. Client generators ignore `not`; validators do not.
    """
    nothing: dict[str, Any] = {name: {"type": "null"} for name in names} | {name: {"not": {}} for name in nullable}
    return {"not": {"properties": nothing}}
