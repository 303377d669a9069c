"""The run of windows at size, made small: bins move, a worker is added and one is killed while clicks are read."""

from pathlib import Path

import pytest

from apps.bench.clicks import write_clicks
from apps.bench.event_time_run import DATAFLOWS, run
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CLICKS = 100_000
RATE = 2000.0  # lines a second: reading takes most of a minute


@pytest.mark.parametrize("app", DATAFLOWS)
def test_results_are_a_loops_over_all_clicks_that_are_not_called_late(tmp_path: Path, app: str) -> None:
    found = run(app, write_clicks(tmp_path / "clicks", CLICKS), tmp_path / app, CLICKS, RATE, seed=0)
    check_equal(found.wrong, [])
    assert found.late and found.results > 1000
