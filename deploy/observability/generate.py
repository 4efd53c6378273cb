"""Makes the dashboards and alerts from table.toml: `python deploy/observability/generate.py [--check]`."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FRONTEND = "dynamo_frontend"
QUANTILES = {"half": 0.5, "95 %": 0.95, "99 %": 0.99}
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${source}"}
ENDINGS = ("_total", "_bucket", "_sum", "_count")


def table() -> dict[str, Any]:
    return tomllib.loads((HERE / "table.toml").read_text())


def files() -> dict[Path, str]:
    """What is generated, by path."""
    made = {
        HERE / "grafana" / f"{one['name']}.json": json.dumps(dashboard(one), indent=1, ensure_ascii=False) + "\n"
        for one in table()["dashboard"]
    }
    return made | {HERE / "rules.yml": rules(table()["alert"])}


def queries(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The legend and the query of each line, as Grafana gets them."""
    for legend, query in panel.get("query", {}).items():
        yield legend, written(query)
    if "quantiles" in panel:
        metric, labels = panel["quantiles"]["metric"], panel["quantiles"].get("labels", "")
        for legend, share in QUANTILES.items():
            rate = f"rate({metric}_bucket{{{labels}}}[RATE])" if labels else f"rate({metric}_bucket[RATE])"
            yield legend, written(f"histogram_quantile({share}, sum by (le) ({rate}))")


def written(query: str, rate: str = "$__rate_interval") -> str:
    query = re.sub(r"\bF_", f"{FRONTEND}_", query)
    return query.replace("MODEL", 'model=~"$model"').replace("RATE", rate)


def metric_names(query: str) -> set[str]:
    """The families that a query reads; the endings of histograms and counters are left out."""
    names = set()
    for name in re.findall(r"\b(?:dynamo|kvbm)_[a-z0-9_]+", re.sub(r"by \([^)]*\)|\{[^}]*\}", "", query)):
        for ending in ENDINGS:
            name = name.removesuffix(ending)
        names.add(name)
    return names


def dashboard(one: dict[str, Any]) -> dict[str, Any]:
    panels = []
    for number, panel in enumerate(one["panel"]):
        unit = panel.get("unit", "short")
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel["title"],
                "datasource": SOURCE,
                "gridPos": {
                    "x": number % COLUMNS * WIDTH,
                    "y": number // COLUMNS * HEIGHT,
                    "w": WIDTH,
                    "h": HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
                "targets": [
                    {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
                    for index, (legend, expression) in enumerate(queries(panel))
                ],
            }
        )
    return {
        "uid": f"dynamo-{one['name']}",
        "title": one["title"],
        "description": one["about"],
        "tags": ["dynamo"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables()},
        "panels": panels,
    }


def variables() -> list[dict[str, Any]]:
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": SOURCE,
            "query": f"label_values({FRONTEND}_model_ready, model)",
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def rules(alerts: list[dict[str, Any]]) -> str:
    lines = ["# Made by generate.py from table.toml.", "groups:", "  - name: dynamo", "    rules:"]
    for alert in alerts:
        lines += [f"      - alert: {alert['name']}", f"        expr: {json.dumps(written(alert['query']))}"]
        if "for" in alert:
            lines.append(f"        for: {alert['for']}")
        lines += [
            f"        labels: {{severity: {alert['severity']}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert['summary'], ensure_ascii=False)}",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    wanted = files()
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
        if stale:
            sys.exit(f"not current: {', '.join(stale)}; run python deploy/observability/generate.py")
        return
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
