"""Programs run by spark-submit whose jobs have their processes on Spark's executors."""

import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.results import check_equal, comparing
from tests.spark.test_workers_on_executors import environment
from tests.test_floor_plan import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 600.0
SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
ORDERS = str(ROOT / "apps" / "spark_orders.py")
SHOWN_LINES = 40  # of Spark's output when a program has failed
CLUSTER = ("--master", "local-cluster[2,2,1024]", "--conf", "spark.executor.memory=900m")
FAULTY = """
from pyspark.sql import SparkSession

import megaflow


def dataflow(flow):
    return flow.rows().map(lambda row: row[0] // 0)


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    megaflow.spark.run(session.range(10), dataflow).job.wait()
"""

LATE_PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*)
    if [ ! -e {late} ]; then
        touch {late}
        sleep 15  # Spark waits for ten
    fi
esac
exec {python} "$@"
"""

assert environment, "a fixture"


def submit(*arguments: str, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
    """Run spark-submit to its end."""
    more = {"PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [SUBMIT, "--conf", "spark.ui.enabled=false", *arguments],
        capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **more}, check=False,
    )  # fmt: skip


def said(ended: "subprocess.CompletedProcess[str]") -> str:
    """Return the program's output with its traceback, without Spark's other messages."""
    steps = [line for line in ended.stderr.splitlines() if " INFO " not in line and not line.startswith("\tat ")]
    return "\n".join([f"exit code {ended.returncode}", ended.stdout, *steps[-SHOWN_LINES:]])


def make_orders(folder: Path, number: int) -> list[tuple[int, int, bool]]:
    """Write orders into JSON files, each atomically; return them."""
    dice = random.Random(number)
    made = [(dice.randrange(100), dice.randrange(1000), dice.random() < 0.8) for _ in range(3000)]
    folder.mkdir(exist_ok=True)
    for place in range(4):
        lines = [json.dumps(dict(zip(("customer", "amount", "paid"), each))) for each in made[place::4]]
        hidden = folder / f".{number}-{place}"
        hidden.write_text("\n".join(lines))
        hidden.rename(folder / f"{number}-{place}.json")
    return made


def check_totals(rows: list[dict[str, Any]], made: list[tuple[int, int, bool]]) -> None:
    """Compare with plain Python: each paid order counts once, and its total is written once."""
    regions = ("north", "east", "south", "west")
    with comparing():
        assert all(row["region"] == regions[row["customer"] % 4] for row in rows)
    check_equal(len(rows), sum(paid for _, _, paid in made))
    for customer in range(100):
        spent = [amount for who, amount, paid in made if paid and who == customer]
        got = sorted((row["orders"], row["total"]) for row in rows if row["customer"] == customer)
        check_equal([orders for orders, _ in got], [*range(1, len(spent) + 1)])
        totals = [0, *(total for _, total in got)]
        check_equal(sorted(after - before for before, after in pairwise(totals)), sorted(spent))


@pytest.mark.usefixtures("environment")
def test_orders_are_folded_on_executors_and_written_by_spark_as_plain_python_does_it(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    orders, out = tmp_path / "in", tmp_path / "out"
    made = make_orders(orders, 7)
    ended = submit(*CLUSTER, ORDERS, str(orders), "--format", "json", "--out", str(out), "--processes", "2")
    assert ended.returncode == 0, said(ended)
    assert "bins have moved" in ended.stdout, said(ended)
    check_totals(parquet.read_table(out).to_pylist(), made)


@pytest.mark.usefixtures("environment")
def test_orders_are_written_though_the_python_of_the_query_takes_longer_to_start_than_spark_waits(
    tmp_path: Path,
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    late, python = tmp_path / "late", tmp_path / "python3"
    python.write_text(LATE_PYTHON.format(late=late, python=sys.executable))
    python.chmod(0o755)
    orders, out = tmp_path / "in", tmp_path / "out"
    made = make_orders(orders, 7)
    words = (ORDERS, str(orders), "--format", "json", "--out", str(out), "--processes", "1")
    ended = submit("--master", "local[4]", *words, python=str(python))
    assert ended.returncode == 0, said(ended)
    assert late.exists(), said(ended)
    assert "failed to connect back" in ended.stderr, said(ended)
    check_totals(parquet.read_table(out).to_pylist(), made)


def test_an_error_of_the_program_ends_it_with_1_and_its_traceback_last_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    ended = submit("--master", "local[2]", str(path))
    assert ended.returncode == 1, said(ended)
    # spark-submit sends all of Python's output there; on a busy machine, a notice of a slow worker may come first
    first, place, *_, error, where = ended.stdout[ended.stdout.index("Traceback") :].splitlines()
    assert first.startswith("Traceback") and str(path) in place, ended.stdout
    assert error.startswith("ZeroDivisionError") and "record" in where, ended.stdout
