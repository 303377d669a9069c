"""Sessions through Spark: the app's fold in plain Python, and the whole app on this machine."""

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cluster.processes import Process
from tests.results import comparing

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 6, 1, 12)


def test_a_click_between_two_sessions_joins_them() -> None:
    pytest.importorskip("pyspark")
    from apps.spark_sessions import Sessions

    due, state = list[datetime](), None
    timers: Any = SimpleNamespace(at_event=lambda at, payload: due.append(at), watermark=NOON + timedelta(minutes=50))
    for minutes in (0, 40, 20):
        row = SimpleNamespace(at=NOON + timedelta(minutes=minutes))
        state, outputs = Sessions().on_row("ann", row, state, timers)
        assert outputs == []
    assert state == [(NOON, NOON + timedelta(minutes=40), 3)]
    assert due == [NOON + timedelta(minutes=minutes) for minutes in (30, 70, 70)]
    assert Sessions().on_timer("ann", None, state, timers) == (state, [])
    timers.watermark = due[-1]
    assert Sessions().on_timer("ann", None, state, timers) == (None, [("ann", *state[0])])


def test_folders_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from apps.spark_sessions import main

    alone = CliRunner().invoke(main, ["--checkpoint", "kept"])
    assert alone.exit_code == 2 and "name also CLICKS and --out" in alone.output
    used = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert used.exit_code == 2 and "is there already" in used.output


@pytest.mark.spark
@pytest.mark.slow
def test_the_sessions_of_the_app_are_those_of_spark(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    app = Process([sys.executable, str(ROOT / "apps" / "spark_sessions.py")], env=environment, cwd=tmp_path)
    try:
        ended = app.end(800.0)
    finally:
        app.finish()
    with comparing():  # the app compares its rows
        assert "not equal" not in ended.errors, ended.errors
    assert ended.code == 0, ended.errors
    assert ended.output.splitlines()[-1].endswith("of 5,000 clicks by 30 users: equal to Spark's session_window")
