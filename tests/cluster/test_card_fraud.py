"""Fraud rules on real processes, with all payments in one file: the alerts of a plain loop, despite moves and kills."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.fraud import Payments
from tests.cluster.processes import ROOT, Run
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

APP = str(ROOT / "apps" / "card_fraud.py")


def test_bins_move_a_worker_is_added_and_the_launcher_is_killed(start: Callable[..., Run], tmp_path: Path) -> None:
    payments, out = Payments(tmp_path / "payments.csv", 20_000, cards=200), tmp_path / "out.jsonl"
    words = [APP, "--lines", str(tmp_path / "payments.csv"), "--output", f"jsonl:{out}"]
    words += ["--state", str(tmp_path / "store"), "--checkpoint-every", "0.1"]
    run = start(*words, "--processes", "2", "--rate", "300")  # it would take a minute to the end
    run.reading()
    for command in ("move-bins --drain 1 --strategy batched --batch 9", "add-workers 1 --balance", "checkpoint"):
        done = run.control(*command.split())
        assert done.returncode == 0, (command, done.stderr, run.said)
    run.process.kill()
    run.end()
    code, _, said = start(*words).end()
    assert code == 0, said
    found = Counter(tuple(json.loads(line)["record"]) for line in out.read_text().splitlines())
    check_equal(found, payments.wanted)
    assert "resumes from checkpoint" in "".join(said), said
