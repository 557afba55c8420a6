"""The committed dashboards are what the program writes, and each query names metrics that the product exports."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.grafana.generate import DASHBOARDS, FOLDER, text_of
from deploy.grafana.panels import Dashboard
from tests.deploy.exported_metrics import exported, faults
from tests.deploy.test_alert_rules import promtool

each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)


def expressions(dashboard: Dashboard) -> Iterator[str]:
    for _title, panels in dashboard.rows:
        for panel in panels:
            yield from (query.expr for query in panel.queries)


@each_dashboard
def test_committed_dashboard_is_the_programs_output(dashboard: Dashboard) -> None:
    assert (FOLDER / f"{dashboard.uid}.json").read_text() == text_of(dashboard), "python -m deploy.grafana.generate"


def test_no_other_dashboard_is_committed() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {dashboard.uid for dashboard in DASHBOARDS}


@each_dashboard
def test_queries_name_metrics_and_labels_that_the_product_exports(dashboard: Dashboard) -> None:
    assert [fault for expression in expressions(dashboard) for fault in faults(expression)] == []
    series = exported()
    assert [one for one in dashboard.variables if one.name not in series[one.metric]] == []


def test_queries_are_valid_promql(tmp_path: Path) -> None:
    all_expressions = [expression for dashboard in DASHBOARDS for expression in expressions(dashboard)]
    rules = [
        {"record": f"query:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(all_expressions)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def test_every_metric_is_on_a_dashboard() -> None:
    text = " ".join(text_of(dashboard) for dashboard in DASHBOARDS)
    bases = {name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket") for name in exported()}
    assert [name for name in sorted(bases) if name not in text] == []


@each_dashboard
def test_panels_lie_beside_and_below_each_other(dashboard: Dashboard) -> None:
    panels = json.loads(text_of(dashboard))["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
