"""`…/statement` of a usage page: a month of the group's own calls, as a file for spreadsheets or to print.

See docs/reference/console.md#statements.
"""

from functools import partial
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from control.api.billing.usage_report import shown_line
from control.api.console.usage_views import NOT_STORED, UsageView, usage_routes
from control.api.protocol.bodies import read_query
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.schemas import RequestV1
from control.long_work import beside
from control.resources.billing.prices import shown_price
from control.resources.console.usage_statements import StatementLines, StatementOrder, is_over, read_statement
from policy.statements.statement import Statement, statement_text

_TYPES = {"csv": "text/csv", "html": "text/html"}
_HEADERS = {"Content-Security-Policy": "default-src 'none'; sandbox", "Referrer-Policy": "no-referrer", **NOT_STORED}


class StatementQueryV1(RequestV1):
    """Names a statement."""

    month: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}$", description="A UTC month.", examples=["2026-11"])]
    format: Literal["csv", "html"] = "csv"
    with_groups_below: Literal["true", "false"] = "false"


def shown_month(month: str, as_of_ms: int) -> dict[str, str]:
    """A month that has a statement. A draft of one that is not over gets further calls."""
    return {"month": month, "status": "final" if is_over(month, as_of_ms) else "draft"}


async def _statement(request: web.Request, view: UsageView) -> web.Response:
    query = read_query(request, StatementQueryV1)
    assert isinstance(query, StatementQueryV1)
    dependencies = request.app[DEPENDENCIES]
    has_prices = dependencies.settings.portal_cost
    order = StatementOrder(query.month, query.with_groups_below == "true", has_prices)
    lines = await read_statement(dependencies.store, dependencies.usage_reports, view.workspace_id, view.group, order)
    make = partial(_text, view, order, lines, query.format)
    text = await beside(view.workspace_id, len(lines.lines), make)
    draft = "" if lines.is_final else "-draft"
    file = f'attachment; filename="statement-{query.month}{draft}.{query.format}"'
    headers = {**_HEADERS, "Content-Disposition": file}
    return web.Response(text=text, content_type=_TYPES[query.format], charset="utf-8", headers=headers)


def _text(view: UsageView, order: StatementOrder, lines: StatementLines, form: str) -> str:
    members: list[dict[str, Any]] = [shown_line(line, shown_price) for line in lines.lines]
    entity = view.group.external_entity_id
    statement = Statement(
        entity, order.month, members, lines.is_final, order.with_groups_below, shows_amounts=order.has_prices
    )
    return statement_text(statement, form)


ROUTES = usage_routes("statement", _statement)
