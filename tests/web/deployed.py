"""The metrics that megaflow has, and the queries of the files in deploy/."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"

METRICS: Final = {
    "megaflow_records_total": "counter",
    "megaflow_source_lag_records": "gauge",
    "megaflow_watermark_lag_seconds": "gauge",
    "megaflow_late_records_total": "counter",
    "megaflow_latency_seconds": "histogram",
    "megaflow_checkpoint_age_seconds": "gauge",
    "megaflow_checkpoint_duration_seconds": "gauge",
    "megaflow_checkpoint_bytes_total": "counter",
    "megaflow_restarts_total": "counter",
    "megaflow_backpressure_seconds_total": "counter",
    "megaflow_bins": "gauge",
    "megaflow_bin_moves_total": "counter",
    "megaflow_bin_move_duration_seconds": "gauge",
    "megaflow_bin_pause_seconds": "histogram",
    "megaflow_workers": "gauge",
    "megaflow_memory_bytes": "gauge",
    "megaflow_output_records_total": "counter",
    "megaflow_dead_letters_total": "counter",
}  # name -> kind


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    found: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    return found


def dashboard_queries() -> list[str]:
    """Return the queries of panels and annotations, and what variables ask for, as queries."""
    found = dashboard()
    panels = [target["expr"] for panel in found["panels"] for target in panel.get("targets", ())]
    notes = [note["expr"] for note in found["annotations"]["list"]]
    asked = [each["definition"] for each in found["templating"]["list"] if each["type"] == "query"]
    variables = [re.sub(r"label_values\((.*), \w+\)", r"\1", each) for each in asked]
    return [*panels, *notes, *variables]


def names_in(query: str) -> Iterator[str]:
    """Yield the names of metrics in a query, without what a histogram adds to its name."""
    for name in re.findall(r"megaflow_\w+", query):
        yield name if name in METRICS else re.sub("_(bucket|sum|count)$", "", name)
