"""The documentation's recipe for DuckDB, and its promise after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks

duckdb = pytest.importorskip("duckdb", reason="needs DuckDB: pip install duckdb")
pytestmark = pytest.mark.slow
ORDERS = 3000


def run(folder: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "megaflow", "run", "to_duckdb.py", "--lines", "orders.csv", "--output", "none"]
    return subprocess.Popen(
        [*command, *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_the_recipe_for_duckdb_writes_each_total_once(tmp_path: Path) -> None:
    """Each row is written once, although the job is killed in between and DuckDB is in autocommit."""
    (recipe,) = (each.text for each in blocks(ROOT / "docs/databases.md") if each.text.startswith("# to_duckdb.py"))
    (tmp_path / "to_duckdb.py").write_text(recipe)
    rows = [f"{number},c{number % 7},{number}" for number in range(ORDERS)]
    (tmp_path / "orders.csv").write_text("\n".join(["number,customer,cents", *rows, ""]))
    options = ["--state", "state", "--checkpoint-every", "0.1"]
    killed = run(tmp_path, *options, "--rate", "1500")
    until = time.monotonic() + 180
    while not [*(tmp_path / "state").glob("**/*")] and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.7)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL, "it had not ended"
    done = run(tmp_path, *options)
    said, _ = done.communicate(timeout=360)
    assert done.returncode == 0, said
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        found = connection.sql("SELECT customer, cents FROM totals ORDER BY 1").fetchall()
    assert found == [(f"c{each}", sum(range(each, ORDERS, 7))) for each in range(7)]
