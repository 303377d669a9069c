"""Apps of event time on real processes, with lines out of order: the results of plain Python, despite moves and kills.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.bench.clicks import faults, write_clicks
from tests.apps.timed_payments import TimedPayments
from tests.cluster.processes import ROOT, STATUS_SECONDS, Run, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

APPS = ["click_sessions", "top_ten", "card_fraud_timed"]
CHANGES = (
    "move-bins --drain 1 --strategy batched --batch 16",
    "add-workers 1",
    "move-bins --balance --strategy batched --batch 16",
)
PAYMENTS_OF_CARD = 50


def records(path: Path) -> list[Any]:
    return [json.loads(line)["record"] for line in path.read_text().splitlines()]


class Lines:
    """Random lines for an app, and the command that runs it with them."""

    def __init__(self, app: str, folder: Path, lines: int) -> None:
        self._app = app
        self._count = lines
        self._out = folder / "out.jsonl"
        self._late = folder / "late.jsonl"
        self.words = [str(ROOT / "apps" / f"{app}.py"), "--lines", f"{folder}/lines/*"]
        self.words += ["--output", f"jsonl:{self._out}"]
        if app == "card_fraud_timed":
            self._payments = TimedPayments(folder / "lines", lines, lines // PAYMENTS_OF_CARD)
        else:
            self._clicks = write_clicks(folder / "lines", lines, late_share=0.01)
            self.words += ["--output", f"late=jsonl:{self._late}"]

    def check(self) -> set[int]:
        """Check the outputs, and that nothing written in time is late; return the late records."""
        found = records(self._out)
        if self._app == "card_fraud_timed":
            late = [id for id, _, rule in found if rule == "late"]
            check_equal(Counter(map(tuple, found)), self._payments.wanted(late))
            check_equal(self._payments.in_time.intersection(late), set())
        else:
            late = [click["id"] for click in records(self._late)]
            check_equal(faults(self._clicks, self._app, self._count, found, late), [])
        return set(late)

    def are_late(self) -> bool:
        """Return whether the outputs so far contain late records."""
        if self._app == "card_fraud_timed":
            return '"late"' in self._out.read_text()
        return self._late.exists() and self._late.stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_results_are_those_of_all_that_is_not_called_late(
    start: Callable[..., Run], tmp_path: Path, app: str, processes: str
) -> None:
    lines = Lines(app, tmp_path, 2000)
    code, _, said = start(*lines.words, "--processes", processes).end()
    assert code == 0, said
    lines.check()


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS)
def test_bins_move_a_worker_is_added_one_is_killed_and_then_the_launcher(
    start: Callable[..., Run], tmp_path: Path, app: str
) -> None:
    lines = Lines(app, tmp_path, 20_000)
    words = [*lines.words, "--state", str(tmp_path / "store"), "--checkpoint-every", "0.1"]
    run = start(*words, "--processes", "2", "--rate", "300")  # it would take a minute to the end
    run.reading()
    for command in CHANGES:
        done = run.control(*command.split())
        assert done.returncode == 0, (command, done.stderr, run.said)
    os.kill(run.status()["workers"][1]["pid"], signal.SIGKILL)
    wait_until(lambda: any("; restart " in line for line in run.said), STATUS_SECONDS)
    wait_until(lines.are_late, STATUS_SECONDS)
    run.process.kill()
    run.end()
    code, _, said = start(*words, "--close-windows").end()
    assert code == 0, said
    assert lines.check()
    assert "resumes from checkpoint" in "".join(said), said
