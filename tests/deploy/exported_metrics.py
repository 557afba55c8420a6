"""The metrics that the product exports, by docs/reference/metrics.md (tests/test_reference.py holds that to the code),
and what a PromQL expression asks for."""

import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/metrics.md"
_ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \|([^|]*)\|", re.MULTILINE)
_METRIC = re.compile(r"\b((?:tollgate|platform_model_api)_\w+|up)\b(?:\{([^}]*)\})?(?!\w)")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
SCRAPED = frozenset(("instance", "job"))
"""Labels that Prometheus adds."""


def exported() -> dict[str, frozenset[str]]:
    """The names of all series, and their labels."""
    series = {"up": SCRAPED}
    for name, kind, cell in _ROW.findall(PAGE.read_text()):
        labels = SCRAPED | set(re.findall("`(.+?)`", cell))
        if kind == "histogram":
            series |= {f"{name}_sum": labels, f"{name}_count": labels, f"{name}_bucket": labels | {"le"}}
        else:
            series[name] = labels
    return series


def faults(expression: str) -> Iterator[str]:
    """Yield what an expression names that the product does not export."""
    series = exported()
    text = re.sub(r'"[^"]*"', lambda match: match.group().replace("{", "(").replace("}", ")"), expression)
    text = re.sub(r"#[^\n]*", "", text)
    labels: set[str] = set()
    for metric, selector in _METRIC.findall(text):
        if metric not in series:
            yield f"{metric} is not exported"
            continue
        labels |= series[metric]
        for label in sorted(set(_MATCHER.findall(selector)) - series[metric]):
            yield f"{metric} has no label {label}"
    for grouped in _GROUPED.findall(text):
        for label in sorted({name.strip() for name in grouped.split(",") if name.strip()} - labels):
            yield f"no metric of the expression has the label {label}"
