"""The files in deploy/: alerts that are raised when they should be, and queries of metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.web.deployed import DEPLOY, METRICS, dashboard, dashboard_queries, names_in

ROOT = DEPLOY.parent
ALERTS = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt install prometheus")


def run(*words: str) -> str:
    """Run promtool; return what it prints. Its exit code must be 0."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_alert_rules_are_valid() -> None:
    assert "SUCCESS" in run("check", "rules", str(DEPLOY / "alerts.yml"))


@needs_promtool
def test_each_alert_is_raised_by_its_fault_alone() -> None:
    run("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))


def test_each_alert_has_a_test_and_a_row_in_the_documentation() -> None:
    names = re.findall(r"alert: (\w+)", ALERTS)
    tested = Path(__file__).with_name("alerts_test.yml").read_text(encoding="utf-8")
    documented = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    assert len(names) > 5
    for name in names:
        assert re.search(rf"alertname: {name}\n +exp_alerts", tested), name
        assert f"`{name}`" in documented, name


def test_queries_name_metrics_that_exist_and_all_metrics_are_shown() -> None:
    shown = {name for query in dashboard_queries() for name in names_in(query)}
    assert shown == set(METRICS)
    assert set(names_in(ALERTS)) <= set(METRICS)


def test_panels_have_descriptions_and_do_not_overlap() -> None:
    places = set[tuple[int, int]]()
    for panel in dashboard()["panels"]:
        assert panel["type"] == "row" or panel["description"].endswith(".")
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places and max(x for x, _ in cells) < 24
        places |= cells
