"""The screen of `tollgate top`: for a terminal, as a line for a log, or as JSON. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from commands.output import Column, cell_text, cut, table
from commands.top.proxies import View
from commands.top.rates import Traffic, busiest

_CLEAR = "\x1b[H\x1b[J"
"""The escape sequence that goes to the upper left corner and clears from there."""
_AROUND_TABLES = 5
"""Lines beside head and rows: two headers, two blank lines, and the cursor's."""


def screen(view: View, rows: int) -> str:
    """The whole, then the busiest groups and slugs, at most `rows` of each."""
    lines = _head(view)
    for name, traffic in (("GROUP", view.rates.groups), ("SLUG", view.rates.slugs)):
        lines += ["", *table(_columns(name), [_row(*item) for item in busiest(traffic)[:rows]]).split("\n")]
    return "\n".join(lines)


def in_place(view: View, rows: int, width: int, height: int) -> str:
    """The screen on a terminal of so many columns and lines, from its upper left corner."""
    fitting = max(1, (height - len(_head(view)) - _AROUND_TABLES) // 2)
    lines = screen(view, min(rows, fitting)).split("\n")[: max(1, height - 1)]
    return _CLEAR + "".join(cut(line, width - 1) + "\n" for line in lines)


def log_line(view: View, timestamp: str) -> str:
    """One line: the whole, the busiest group and slug, and which proxies are away or new."""
    parts = [timestamp, _figures(view)]
    for name, traffic in (("group", view.rates.groups), ("slug", view.rates.slugs)):
        for key, rate in busiest(traffic)[:1]:
            parts.append(f"busiest {name} {cell_text(key[1])} {_rate(rate.calls)} calls/s")
    return "   ".join((*parts, *_troubles(view)))


def json_line(view: View, timestamp: str) -> str:
    """One line of JSON in ASCII, so that no text from users reaches a terminal as it is."""
    members: dict[str, Any] = {"timestamp": timestamp} | view.rates.to_json()
    return json.dumps(members | {"proxies": [proxy.to_json() for proxy in view.proxies]})


def _head(view: View) -> list[str]:
    statuses = [f"{cell_text(status)}: {_rate(calls)}/s" for status, calls in sorted(view.rates.statuses.items())]
    return [_figures(view), "statuses   " + ("   ".join(statuses) or "no calls"), *_troubles(view)]


def _figures(view: View) -> str:
    whole = view.rates.whole
    rates = view.rates
    first = f"{_rate(whole.calls)} calls/s   {_rate(whole.errors)} errors/s   {_rate(whole.refused)} refused/s"
    return f"{first}   {_rate(whole.tokens)} tokens/s   {rates.in_flight} in flight   {rates.parked} parked"


def _troubles(view: View) -> list[str]:
    """A line per proxy that is not simply up."""
    lines = []
    for proxy in view.proxies:
        if proxy.state == "away":
            lines.append(f"away: {cell_text(proxy.reason)}")
        elif proxy.state == "restarted":
            lines.append(f"restarted: {cell_text(proxy.url)}")
    return lines


def _columns(name: str) -> tuple[Column, ...]:
    return (
        Column(name, lambda row: row["name"]),
        Column("CALLS/S", lambda row: row["calls"]),
        Column("ERRORS/S", lambda row: row["errors"]),
        Column("REFUSED/S", lambda row: row["refused"]),
        Column("TOKENS/S", lambda row: row["tokens"]),
        Column("WORKSPACE", lambda row: row["workspace"]),
    )


def _row(key: tuple[str, str], traffic: Traffic) -> Mapping[str, str]:
    figures = {"calls": traffic.calls, "errors": traffic.errors, "refused": traffic.refused, "tokens": traffic.tokens}
    return {"workspace": key[0], "name": key[1]} | {name: _rate(value) for name, value in figures.items()}


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
