"""The alert rules fire when they should and only then, and each has a runbook."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.exported_metrics import faults

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yaml"))
SCENARIOS = Path(__file__).with_name("alert_scenarios.yaml")
RUNBOOKS = ROOT / "docs/runbooks"
ALERTS: list[dict[str, Any]] = [
    rule for file in RULES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
]
each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def promtool(*words: str | Path) -> str:
    """Return what promtool prints. The test skips without it."""
    return output_of("promtool", "prometheus", *words)


def output_of(name: str, package: str, *words: str | Path) -> str:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} (Debian: apt-get install {package})")
    result = subprocess.run([program, *words], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_rules_are_valid() -> None:
    assert promtool("check", "rules", *RULES).count("SUCCESS") == len(RULES)


def test_alerts_fire_on_their_figures_and_on_no_others() -> None:
    promtool("test", "rules", SCENARIOS)


def test_each_alert_is_shown_firing_and_not_firing() -> None:
    outcomes: set[tuple[str, bool]] = set()
    for world in yaml.safe_load(SCENARIOS.read_text())["tests"]:
        for case in world["promql_expr_test"]:
            (name,) = re.findall(r'alertname="(\w+)"', case["expr"])
            outcomes.add((name, bool(case["exp_samples"])))
    assert outcomes == {(alert["alert"], fires) for alert in ALERTS for fires in (True, False)}


@each_alert
def test_alert_asks_only_for_what_the_product_exports(alert: dict[str, Any]) -> None:
    assert not list(faults(alert["expr"]))


@each_alert
def test_alert_says_how_urgent_it_is_and_where_its_runbook_is(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert {*alert["annotations"]} == {"summary", "description", "runbook_url"}
    page = ROOT / alert["annotations"]["runbook_url"]
    assert page.parent == RUNBOOKS
    assert page.read_text().startswith(f"# {alert['alert']}\n")


@each_alert
def test_runbook_says_what_it_means_what_to_look_at_what_to_do_and_what_was_tried(alert: dict[str, Any]) -> None:
    text = (ROOT / alert["annotations"]["runbook_url"]).read_text()
    assert re.findall("^## (.+)$", text, re.MULTILINE) == ["What it means", "Look at", "Do"]
    assert text.rstrip().rpartition("\n")[2].startswith("Tried: ")


def test_each_runbook_belongs_to_one_alert_and_is_in_the_index() -> None:
    pages = {str(page.relative_to(ROOT)) for page in RUNBOOKS.glob("*.md")} - {"docs/runbooks/README.md"}
    links = Counter(alert["annotations"]["runbook_url"] for alert in ALERTS)
    assert links == Counter(pages)
    index = (RUNBOOKS / "README.md").read_text()
    rows = set(re.findall(r"^\| (page|ticket) \| \[(\w+)\]\(([\w-]+\.md)\) \|", index, re.MULTILINE))
    assert rows == {
        (alert["labels"]["severity"], alert["alert"], Path(alert["annotations"]["runbook_url"]).name)
        for alert in ALERTS
    }


@pytest.mark.parametrize(
    "expression",
    [
        "rate(tollgate_no_such_total[5m])",
        "tollgate_request_duration_seconds",
        'tollgate_limit_decisions_total{result="x"}',
        "sum by (slug) (rate(platform_model_api_inference_requests_total[5m]))",
    ],
)
def test_expression_that_asks_for_something_else_is_reported(expression: str) -> None:
    assert list(faults(expression))


@pytest.mark.parametrize("severity", sorted({alert["labels"]["severity"] for alert in ALERTS}))
def test_alertmanager_sends_each_severity_to_a_receiver_of_its_own(severity: str) -> None:
    config = ROOT / "deploy/alertmanager/alertmanager.yaml"
    words = ("config", "routes", "test", f"--config.file={config}", f"severity={severity}")
    assert output_of("amtool", "prometheus-alertmanager", *words).strip() == severity


def test_prometheus_knows_the_alertmanager_of_compose() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    (alertmanager,) = prometheus["alerting"]["alertmanagers"]
    (target,) = alertmanager["static_configs"][0]["targets"]
    service = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["alertmanager"]
    assert target == f"alertmanager:{service['ports'][0].rpartition(':')[2]}"
