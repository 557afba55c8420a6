"""Decodes the replica's rows for the directory.

What a newer version wrote is skipped. Groups, limits and keys of it raise: without a part of them a caller could do
more.
"""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import orjson

from policy.limits.effective import LimitSet, limit_set
from policy.limits.groups import Enforcement
from policy.snapshot import (
    KeyRow,
    PriceRow,
    WorkspaceRow,
    group_balance_from_wire,
    group_spend_from_wire,
    limits_from_wire,
)
from policy.spend.effective import KeySpend, SpendPlan, spend_plan
from policy.spend.limits import check_currency
from proxy.accounting.slug_prices import SlugPrices
from proxy.directory_values import CallingGroup, KeyHolder
from proxy.errors import PolicyUnavailableError

_ENTRIES_KEPT = 4096
_PATHS_KEPT = 1024

Compiled = TypeVar("Compiled")
log = logging.getLogger(__name__)


def slug_prices(slug: str, body: dict[str, Any]) -> SlugPrices:
    return SlugPrices(PriceRow.from_wire(slug, body))


def spend_plan_of(
    path: Sequence[str], enforcement: Enforcement, bodies: Sequence[str], key: KeySpend | None = None
) -> SpendPlan | None:
    """The spend plan of these groups' rows, for all their keys or for one with limits of its own.

    Raises as `spend_limits_from_wire` does, and if their currencies differ.
    """
    wires = [orjson.loads(body) for body in bodies]
    limits = [group_spend_from_wire(wire) for wire in wires]
    balances = [group_balance_from_wire(wire) for wire in wires]
    own = () if key is None else key.limits
    check_currency(chain(own, *limits, [balance for balance in balances if balance is not None]))
    return spend_plan(path, enforcement, limits, balances, key)


def decoded(kind: str, id: str, body: bytes, compile: Callable[[str, Any], Compiled]) -> Compiled | None:
    """The compiled row; None for a row of a newer version that this one does not understand."""
    try:
        return compile(id, orjson.loads(body))
    except (KeyError, ValueError, TypeError) as error:
        name = type(error).__name__
        log.warning("Skipped a %s row that this version cannot read (%s). Update this proxy.", kind, name)
        return None


def decoded_key(digest: str, body: bytes) -> KeyRow:
    """Decode a key. Raises if this version does not understand it: without its settings it could do more."""
    try:
        return KeyRow.from_wire(digest, orjson.loads(body))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise PolicyUnavailableError(unreadable("a key", error)) from None


def holder_of(key: KeyRow, workspace: WorkspaceRow | None, group: CallingGroup | None) -> KeyHolder:
    try:
        return KeyHolder(key, workspace, group)
    except (ValueError, TypeError) as error:
        raise PolicyUnavailableError(unreadable("a key", error)) from None


def unreadable(what: str, error: Exception) -> str:
    return f"{what} that this version cannot read ({type(error).__name__}: {error}). Update this proxy"


@lru_cache(_ENTRIES_KEPT)
def entry_limits(body: str) -> LimitSet:
    """The limits of a group's entry for a slug: the same value for the same text, and contracts repeat.

    One that this version does not understand raises: it would drop limits.
    """
    try:
        rates, usages = limits_from_wire(orjson.loads(body))
        return limit_set(rates + usages)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise PolicyUnavailableError(unreadable("a limit", error)) from None


@lru_cache(_PATHS_KEPT)
def path_limits(bodies: str) -> tuple[LimitSet | None, ...]:
    """The limits of each group of a path by its entry for a slug, as `entry_limits`. None if its line is empty."""
    return tuple([entry_limits(body) if body else None for body in bodies.split("\n")])
