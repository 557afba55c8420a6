"""The table of kinds and the counter layout as Lua constants. They come before `policy/limits/log.lua`.

See docs/reference/limits.md#counter-layout.
"""

from collections.abc import Iterable

from policy.limits.counter_layout import AHEAD, COUNT, DAY_PAIR, HASH_EXPIRY_S, MARGIN, MASK_PAGE, PLACES_SUFFIX
from policy.limits.in_flight.places import FORGOTTEN_MS, RETRY_MS, SILENT_MS
from policy.limits.kinds import KIND_NUMBER, KINDS, Calendar, Rolling
from policy.limits.windows import EXACT_UP_TO, granule_ms


def kind_constants() -> str:
    """The constants of log.lua. The tables are by the kinds' numbers.

    Unlike the other kinds', a usage limit's WINDOW is false: reservations have a lease, and the calendar ends the rest.
    So is that of calls in flight, which have none.
    """
    windows = [None if type.is_concurrent else unit.window for type, unit in KINDS]
    tables = {
        "GRANULE": [str(granule_ms(unit, False)) for _, unit in KINDS],
        "WINDOW": [str(one.window_ms) if isinstance(one, Rolling) else "false" for one in windows],
        "REQUESTS": _members("true" if type.parts is None else "" for type, _ in KINDS),
        "MONTHLY": _members("true" if one is Calendar.MONTH else "" for one in windows),
        "CONCURRENT": _members("true" if type.is_concurrent else "" for type, _ in KINDS),
        "COUNT_AT": [f"[{KIND_NUMBER[kind]}]={place}" for place, kind in enumerate(DAY_PAIR, 3)],
    }
    lines = [f"local {name} = {{{','.join(values)}}}" for name, values in tables.items()]
    numbers = (
        f"local AHEAD, MARGIN, COUNT, MASK_PAGE, EXACT_UP_TO = {AHEAD}, {MARGIN}, {COUNT}, {MASK_PAGE}, {EXACT_UP_TO}\n"
        f"local EXPIRY_S = {HASH_EXPIRY_S}\n"
        f"local PLACES, SILENT_MS, FORGOTTEN_MS, RETRY_MS = '{PLACES_SUFFIX}', {SILENT_MS}, {FORGOTTEN_MS}, {RETRY_MS}"
    )
    return "\n".join((*lines, numbers, ""))


def _members(values: Iterable[str]) -> list[str]:
    return [f"[{number}]={value}" for number, value in enumerate(values, 1) if value]
