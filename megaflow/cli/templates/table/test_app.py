"""Each row is written once, even if processes die before, during and after a commit."""

import sqlite3
from pathlib import Path

import pytest
from megaflow.testing import Crash, Kill, SimulatedCluster, seeds

import app

LINES = ["number,customer,cents", *(f"{number},{'ann' if number % 3 else 'bob'},100" for number in range(60))]


@seeds(3)  # seeds 0, 1 and 2; each decides another order of steps
def test_each_row_is_written_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "DATABASE", f"sqlite:{tmp_path}/shop-{seed}.db")
    cluster = SimulatedCluster(seed, processes=2, durable=True)  # as with --state
    cluster.at(record=20, do=Kill())  # a process dies, and the job resumes from its last checkpoint
    cluster.at(commit="totals", do=Kill())
    cluster.at(record=40, do=Crash())  # all processes die, and the same command runs again
    cluster.run(app.dataflow, lines=LINES)
    with sqlite3.connect(tmp_path / f"shop-{seed}.db") as shop:
        assert shop.execute("SELECT count(*), count(DISTINCT number) FROM orders").fetchall() == [(60, 60)]
        totals = shop.execute("SELECT * FROM totals ORDER BY customer").fetchall()
        assert totals == [("ann", 40, 4000), ("bob", 20, 2000)]
