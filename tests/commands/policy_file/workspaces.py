"""Random workspaces and policy files, and how tests apply one to the other."""

from dataclasses import replace
from typing import Any

import yaml
from hypothesis import strategies as st

from commands.policy_file.applying import NewKey, NewWebhook, Observer, apply_steps
from commands.policy_file.document import read_document
from commands.policy_file.planning import Consent, Plan, make_plan
from commands.policy_file.reading import read_keys, read_workspace
from commands.policy_file.steps import Step, steps_of
from policy.limits.groups import threshold_key
from tests.fakes.workspace_api import WorkspaceApi

MINE = "mine"
ALL = Consent(prune=True, adopt=True, overwrite_drift=True)
Item = dict[str, Any]
SLUGS = ("acme/a", "acme/b")


DATES = ("2026-11-01", "2026-12-01")
AMOUNTS = st.sampled_from(["0", "0.15", 3])
TIER = st.fixed_dictionaries({"multiplier": st.sampled_from(["0.5", 2])})
TIERS = st.dictionaries(st.sampled_from(["flex", "priority"]), TIER, min_size=1)
LONG_AMOUNTS = {f"{kind}_per_million": AMOUNTS for kind in ("input", "cached_input", "output")}
CURRENCIES = st.sampled_from(["EUR", "USD"])
PRICES = st.fixed_dictionaries(
    {"currency": CURRENCIES, "input_per_million": AMOUNTS, "output_per_million": AMOUNTS},
    optional={
        "cache_write_per_million": AMOUNTS,
        "per_call": AMOUNTS,
        "max_output_tokens": st.integers(1, 2),
        "service_tiers": TIERS,
        "long_context": st.fixed_dictionaries({"above_input_tokens": st.just(200_000), **LONG_AMOUNTS}),
    },
)


def limits(types: tuple[str, ...], units: tuple[str, ...]) -> st.SearchStrategy[list[Item]]:
    one = st.fixed_dictionaries(
        {"type": st.sampled_from(types), "unit": st.sampled_from(units), "threshold": st.integers(1, 6)}
    )
    return st.lists(one, max_size=2, unique_by=lambda limit: limit["type"])


def spend_limits(currency: str) -> st.SearchStrategy[list[Item]]:
    one = st.fixed_dictionaries(
        {"unit": st.sampled_from(["DAY", "MONTH"]), "amount": st.integers(1, 6), "currency": st.just(currency)},
        optional={"enforcement": st.just("SOFT")},
    )
    return st.lists(one, max_size=2, unique_by=lambda limit: limit["unit"])


ENTRIES = st.fixed_dictionaries(
    {
        "rate_limits": limits(("TOKEN", "REQUEST", "CONCURRENT_REQUEST"), ("SECOND", "MINUTE")),
        "usage_limits": limits(("TOKEN", "REQUEST"), ("DAY",)),
    }
)


def models() -> st.SearchStrategy[list[Item]]:
    by_slug = st.dictionaries(st.sampled_from(SLUGS), ENTRIES, min_size=1)
    return by_slug.map(lambda entries: [{"slug": slug, **entry} for slug, entry in entries.items()])


@st.composite
def policies(draw: st.DrawFn) -> Item:
    """A legal policy file. Groups of the same name have the same place in every file: places cannot change."""
    document: Item = {"version": 1, "name": MINE}
    document["secrets"] = [
        {"name": f"s{n}", "value_from": {"env": f"S{n}"}} for n in draw(st.sets(st.integers(0, 2), min_size=1))
    ]
    targets = st.fixed_dictionaries(
        {
            "provider": st.sampled_from(["VENDOR_B", "OPENAI"]),
            "target_model": st.sampled_from(["x", "y"]),
            "secret": st.sampled_from([secret["name"] for secret in document["secrets"]]),
        },
        optional={
            "upstream_state": st.sampled_from(["REFUSE", "PASS"]),
            "dialects": st.sampled_from([("MESSAGES",), ("RESPONSES", "CHAT_COMPLETIONS")]).map(list),
            "price_options": st.sampled_from(["REFUSE", "PASS"]),
        },
    )
    document["endpoints"] = [
        {"slug": slug, "target": target}
        for slug, target in draw(st.dictionaries(st.sampled_from(SLUGS), targets)).items()
    ]
    document["groups"] = draw(forests())
    entities = [group["external_entity_id"] for group in document["groups"]]
    hooks = st.fixed_dictionaries(
        {"url": st.sampled_from(["https://a.example", "https://b.example"]), "enabled": st.booleans()},
        optional={
            "description": st.sampled_from(["", "billing"]),
            "include_details": st.booleans(),
            "event_types": st.sampled_from([("LIMIT_ALERT",), ("LIMIT_ALERT", "API_BILLING_USAGE")]).map(list),
            **({"group": st.sampled_from(entities)} if entities else {}),
        },
    )
    document["webhooks"] = draw(st.lists(hooks, max_size=4))
    dated = st.dictionaries(st.tuples(st.sampled_from(SLUGS), st.sampled_from(DATES)), PRICES, max_size=3)
    document["prices"] = [
        {"slug": slug, "valid_from": valid_from, **price} for (slug, valid_from), price in draw(dated).items()
    ]
    return document


@st.composite
def forests(draw: st.DrawFn) -> list[Item]:
    """Group n is below group (n-1)//2; the odd tree of the two is CASCADING."""
    by_number: dict[int, Item] = {}
    ceilings: dict[int, dict[Any, int]] = {}
    currencies = draw(st.tuples(CURRENCIES, CURRENCIES))
    for number in range(2 * 7):
        tree, place = divmod(number, 7)
        above = None if place == 0 else tree * 7 + (place - 1) // 2
        if (above is not None and above not in by_number) or not draw(st.integers(0, 3)):
            continue
        item: Item = {"external_entity_id": f"g{number}", "models": draw(models())}
        if draw(st.booleans()):
            item["name"] = draw(st.sampled_from(["n", "no", "12"]))
        if draw(st.booleans()):
            item["alert_percents"] = draw(st.lists(st.integers(1, 100), max_size=2, unique=True))
        if above is None:
            item["limit_enforcement"] = ("INDEPENDENT", "CASCADING")[tree]
        else:
            item["parent"] = f"g{above}"
        item["spend_limits"] = draw(spend_limits(currencies[tree]))
        ceilings[number] = dict(ceilings.get(-1 if above is None else above, {}))
        if tree == 1:
            clamp(item["models"], ceilings[number])
            clamp_amounts(item["spend_limits"], ceilings[number])
        by_number[number] = item
    return list(by_number.values())


def clamp(entries: list[Item], ceilings: dict[Any, int]) -> None:
    """Lower thresholds to those of the ancestors, and lower `ceilings` to the thresholds."""
    for entry in entries:
        for limit in (*entry["rate_limits"], *entry["usage_limits"]):
            key = threshold_key(entry["slug"], limit["type"], limit["unit"])
            limit["threshold"] = ceilings[key] = min(limit["threshold"], ceilings.get(key, limit["threshold"]))


def clamp_amounts(limits: list[Item], ceilings: dict[Any, int]) -> None:
    for limit in limits:
        limit["amount"] = ceilings[limit["unit"]] = min(limit["amount"], ceilings.get(limit["unit"], limit["amount"]))


async def plan_of(api: WorkspaceApi, text: str, consent: Consent, values: dict[str, str]) -> tuple[Plan, Any]:
    workspace = replace(await read_workspace(api, values), keys=await read_keys(api))
    return make_plan(read_document(text), workspace, consent, frozenset(values)), workspace


async def apply_text(api: WorkspaceApi, text: str, consent: Consent, values: dict[str, str]) -> Plan:
    """Plan and apply; the plan. With refusals it is only a plan."""
    plan, workspace = await plan_of(api, text, consent, values)
    if not plan.refusals:
        await apply_steps(api, steps_of(plan, workspace), workspace, values, Observer(_no_step, _no_webhook, _no_key))
    return plan


def text_of(document: Item) -> str:
    return str(yaml.safe_dump(document, sort_keys=False))


def _no_step(_number: int, _total: int, _step: Step) -> None:
    pass


def _no_webhook(_webhook: NewWebhook) -> None:
    pass


def _no_key(_key: NewKey) -> None:
    pass
