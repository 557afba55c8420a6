"""`/console/tables.json`: tables of policy that pages read, so that no script has a list of its own.

See docs/reference/console.md#pages.
"""

from typing import Any

from policy.endpoints import PROVIDERS
from policy.limits.kinds import KINDS, RATE_UNITS, USAGE_UNITS, LimitType
from policy.limits.limit import MIN_THRESHOLD

TABLES: dict[str, Any] = {
    "limits": {
        "kinds": [{"type": type, "unit": unit} for type, unit in KINDS],
        "types": {type: {"noun": type.noun, "parts": type.parts and type.parts._asdict()} for type in LimitType},
        "rate_units": RATE_UNITS,
        "usage_units": USAGE_UNITS,
        "min_threshold": MIN_THRESHOLD,
    },
    "providers": [
        {"name": name, "title": provider.title, "fields": sorted(provider.required | provider.optional)}
        for name, provider in PROVIDERS.items()
    ],
}
