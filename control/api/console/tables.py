"""`/console/tables.json`: tables of policy that pages read, so that no script has a list of its own.

See docs/reference/console.md#pages.
"""

from collections.abc import Sequence
from typing import Any

from policy.endpoints import UNRESTRICTED, ProviderNames
from policy.limits.kinds import KINDS, RATE_UNITS, USAGE_UNITS, LimitType
from policy.limits.limit import MIN_THRESHOLD

_LIMITS: dict[str, Any] = {
    "kinds": [{"type": type, "unit": unit} for type, unit in KINDS],
    "types": {
        type: {
            "noun": type.noun,
            "parts": type.parts and type.parts._asdict(),
            "is_concurrent": type.is_concurrent,
        }
        for type in LimitType
    },
    "rate_units": RATE_UNITS,
    "usage_units": USAGE_UNITS,
    "min_threshold": MIN_THRESHOLD,
}


def tables(names: ProviderNames, regions: Sequence[str], has_login: bool) -> dict[str, Any]:
    """All tables. `names`: what targets may call their providers; each name has a row. `regions`: the setting's.

    `has_login`: people may log in at an identity provider.
    """
    providers = [
        {
            "name": one.name,
            "provider": one.provider,
            "title": one.title,
            "fields": sorted(one.required | one.optional),
        }
        for one in names.values()
    ]
    return {
        "limits": _LIMITS,
        "providers": providers,
        "regions": [UNRESTRICTED, *regions],
        "organisation_login": has_login,
    }
