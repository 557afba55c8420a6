"""Limits on the command line: `acme/chat:REQUEST/MINUTE=60`, and how `groups set` changes a list of models. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from policy.limits.kinds import LimitType, Unit, compared_unit

_FORM = re.compile(rf"([^:]+):({'|'.join(LimitType)})/({'|'.join(Unit)})=([0-9]{{1,16}}|none)", re.IGNORECASE)
_EXPECTED = "expected SLUG:TYPE/UNIT=N, such as acme/chat:REQUEST/MINUTE=60; none in place of N removes the limit"
Model = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One limit of a slug. `threshold` None removes it."""

    slug: str
    type: str
    unit: str
    threshold: int | None

    @property
    def list_name(self) -> str:
        return "rate_limits" if Unit[self.unit].is_rolling else "usage_limits"

    def replaces(self, present: Mapping[str, Any]) -> bool:
        """A slug has one rate limit per type, of either unit, and one usage limit per type and unit."""
        is_other_unit_replaced = self.list_name == "rate_limits" and self.threshold is not None
        is_unit_same = compared_unit(self.type, present["unit"]) == compared_unit(self.type, self.unit)
        return present["type"] == self.type and (is_other_unit_replaced or is_unit_same)


def parse_limits(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> tuple[LimitChange, ...]:
    """The callback of `--limit`. Raises click.BadParameter."""
    return tuple(_parse(text) for text in texts)


def changed(models: Sequence[Mapping[str, Any]], slugs: Sequence[str], limits: Sequence[LimitChange]) -> list[Model]:
    """The models with access to `slugs` and the limits of their slugs added or replaced. Others stay as they are.

    What removes a limit names its unit, too; of calls in flight, any.
    """
    by_slug = {model["slug"]: dict(model) for model in models}
    for slug in (*slugs, *(limit.slug for limit in limits)):
        by_slug.setdefault(slug, {"slug": slug})
    for limit in limits:
        model = by_slug[limit.slug]
        present = model.get(limit.list_name) or []
        others = [one for one in present if not limit.replaces(one)]
        if limit.threshold is not None:
            others.append({"type": limit.type, "unit": limit.unit, "threshold": limit.threshold})
        model[limit.list_name] = others
    return list(by_slug.values())


def limits_of(model: Mapping[str, Any]) -> Iterator[str]:
    """Each limit of a model of a group as people read it: `60 REQUEST/MINUTE`."""
    for limit in (*(model.get("rate_limits") or ()), *(model.get("usage_limits") or ())):
        yield f"{limit['threshold']} {limit['type']}/{limit['unit']}"


def _parse(text: str) -> LimitChange:
    form = _FORM.fullmatch(text)
    if form is None:
        raise click.BadParameter(f"{text!r}: {_EXPECTED}")
    slug, type, unit, threshold = form.groups()
    number = None if threshold.lower() == "none" else int(threshold)
    return LimitChange(slug, type.upper(), unit.upper(), number)
