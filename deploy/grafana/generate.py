"""Writes the dashboards as JSON: `python -m deploy.grafana.generate`.

A test holds the committed files to the output. The members are those of Grafana's dashboard JSON model; Grafana 10
and later read it (schema version 39).
"""

import json
from pathlib import Path
from typing import Any

from deploy.grafana.control_dashboards import CONTROL, MODELS
from deploy.grafana.panels import Dashboard, Panel, Variable
from deploy.grafana.proxy_dashboards import PROXY, TENANTS

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = (PROXY, TENANTS, CONTROL, MODELS)
_SCHEMA_VERSION = 39
_COLUMNS = 24
_WIDTH = 12
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def text_of(dashboard: Dashboard) -> str:
    """The file of one dashboard."""
    return json.dumps(_dashboard(dashboard), indent=2) + "\n"


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["tollgate"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": _SCHEMA_VERSION,
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_data_source(), *map(_variable, dashboard.variables)]},
        "panels": _panels(dashboard),
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({variable.metric}, {variable.name})", "refId": variable.name},
        "refresh": 2,  # whenever the time range changes
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    drawing: list[dict[str, Any]] = []
    y = 0
    for title, panels in dashboard.rows:
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        drawing.append({"id": len(drawing) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place})
        y += 1
        for number, panel in enumerate(panels):
            line, column = divmod(number * _WIDTH, _COLUMNS)
            place = {"x": column, "y": y + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            drawing.append({"id": len(drawing) + 1, **_graph(panel), "gridPos": place})
        y += -(-len(panels) * _WIDTH // _COLUMNS) * _HEIGHT
    return drawing


def _graph(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.uid}.json").write_text(text_of(dashboard))


if __name__ == "__main__":
    main()
