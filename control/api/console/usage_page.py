"""`/console/usage/data` and `/console/embed/{token}`: the usage of one group, for its own people.

See docs/reference/console.md#usage-page.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web

from control.api.billing.balances import shown_balance
from control.api.billing.usage_totals import shown_sums, shown_totals
from control.api.console.pages import embedded_notice, embedded_page
from control.api.console.usage_keys import ROUTES as KEY_ROUTES
from control.api.console.usage_keys import manages_keys
from control.api.console.usage_statements import shown_month
from control.api.console.usage_views import NOT_STORED, UsageView, link_of, usage_routes
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.usage import shown_limit
from control.errors import DatabaseUnavailableError, UsageLinkOverError
from control.records.console import NamedGroup
from control.records.times import time_text
from control.resources.billing.report_groups import Totals
from control.resources.changes.shown import shown_key_name
from control.resources.console.usage_links import group_of_link
from control.resources.console.usage_money import MoneySources, PageMoney, read_page_money
from control.resources.console.usage_page import BelowTotals, UsagePage, read_usage_page
from control.resources.group_usage import LimitUse
from control.resources.spend.group_spend import BoundSpend
from policy.prices import amount_text
from policy.spend.effective import SpendBound
from policy.spend.limits import spend_limit_to_wire

_UNAVAILABLE = "Usage cannot be read right now. Try again in a moment."


async def _embedded_page(request: web.Request) -> web.StreamResponse:
    link = link_of(request)
    if link is None:
        return embedded_notice((), 404, f"{UsageLinkOverError().message.capitalize()}.")
    try:
        group = await group_of_link(request.app[DEPENDENCIES].store, link)
    except DatabaseUnavailableError:
        return embedded_notice(link.frame_origins, 503, _UNAVAILABLE)
    if group is None:
        return embedded_notice(link.frame_origins, 404, f"{UsageLinkOverError().message.capitalize()}.")
    return embedded_page(link.frame_origins)


async def _data(request: web.Request, view: UsageView) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    reports = dependencies.usage_reports
    page = await read_usage_page(dependencies.store, reports, dependencies.counters, view.workspace_id, view.group)
    money = None
    if dependencies.settings.portal_cost:
        sources = MoneySources(dependencies.store, dependencies.spend, dependencies.balances)
        money = await read_page_money(sources, view.workspace_id, view.group)
    members = _shown(view.group, page, money) | {"manages_keys": manages_keys(dependencies, view)}
    return web.json_response(members, headers=NOT_STORED)


def _shown(group: NamedGroup, page: UsagePage, money: PageMoney | None) -> dict[str, Any]:
    sums = partial(_sums, has_cost=money is not None)
    return {
        "group": asdict(group),
        "as_of": time_text(page.as_of_ms),
        "limits": [_limit(group, use) for use in page.limits],
        "totals": {"day": sums(page.day), "month": sums(page.month)},
        "days": [{"date": date, **sums(totals)} for date, totals in page.days],
        "slugs": [{"slug": slug, **sums(totals)} for slug, totals in page.slugs],
        "keys": [{**shown_key_name(key), "calls": calls} for key, calls in page.keys],
        "statements": [shown_month(month, page.as_of_ms) for month in page.months],
        **({} if money is None else _money(group, money)),
    }


def _money(group: NamedGroup, money: PageMoney) -> dict[str, Any]:
    return {
        "spend_limits": [_shown_spend_limit(group, bound, spend) for bound, spend in money.limits],
        "balance": None if money.balance is None else shown_balance(money.balance),
    }


def _shown_spend_limit(group: NamedGroup, bound: SpendBound, spend: BoundSpend | None) -> dict[str, Any]:
    """The limit without other groups: the spend of a shared one tells theirs."""
    own = bound.counting_group == group.id
    figures: dict[str, str | None] = dict.fromkeys(("spent", "reserved", "remaining", "reset_at"))
    if own and spend is not None:
        amounts = {"spent": spend.use.spent, "reserved": spend.use.reserved, "remaining": spend.remaining}
        figures |= {name: amount_text(amount) for name, amount in amounts.items()}
        figures["reset_at"] = time_text(spend.resets_at_ms)
    return {**spend_limit_to_wire(bound.limit), "own": own, **figures}


def _limit(group: NamedGroup, use: LimitUse) -> dict[str, Any]:
    """The limit as the management API shows it, without other groups: the count of a shared limit tells their usage."""
    members = shown_limit(use).model_dump()
    del members["source_group"], members["counting_group"]
    own = use.bound.counting_group == group.id
    return members | {"own": own} | ({} if own else {"current_usage": None, "resets_in_s": None})


def _sums(totals: BelowTotals, has_cost: bool) -> dict[str, Any]:
    return {**_figures(totals.own, has_cost), "with_groups_below": _figures(totals.whole, has_cost)}


def _figures(totals: Totals, has_cost: bool) -> dict[str, Any]:
    members = shown_totals(totals) if has_cost else shown_sums(totals.usage)
    input = members.pop("input_tokens")
    return {**members, "uncached_input_tokens": input - totals.usage.cached_input}


ROUTES = [web.get("/console/embed/{token}", _embedded_page), *usage_routes("data", _data), *KEY_ROUTES]
