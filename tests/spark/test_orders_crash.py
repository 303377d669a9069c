"""Orders between Spark's DataFrames on a cluster of two machines: results are exact after the loss of an executor."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import PATIENT, ROOT, Process, spark_environment, wait_until
from tests.spark.standalone import Standalone
from tests.spark.test_spark_submit import SUBMIT, check_totals, make_orders
from tests.spark.test_workers_on_executors import WAIT_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]

PROGRAM = """
import sys

from pyspark.sql import SparkSession

import megaflow
from apps.spark_orders import ORDERS, TOTALS, customers


def dataflow(flow):
    def spend(customer, amount, state):
        orders, total = state or (0, 0)
        state = orders + 1, total + amount
        return state, [(customer, *state)]

    return flow.rows("orders").stateful_state_machine(spend)


if __name__ == "__main__":
    orders, out, kept = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    files = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 2).json(orders)
    paid = {"orders": files.where("paid").select("customer", "amount")}
    with megaflow.spark.run(paid, dataflow, TOTALS, processes=2, state=kept) as run:
        joined = run.results.join(customers(spark), "customer").writeStream
        writer = joined.option("checkpointLocation", f"{out}-checkpoint").trigger(availableNow=True)
        run.start_query(lambda: writer.start(out)).awaitTermination()
    run.job.wait()
"""


def written(out: Path) -> list[dict[str, Any]]:
    """Return what Spark has committed, according to its own list of files."""
    from pyarrow import parquet

    log, found = out / "_spark_metadata", list[dict[str, Any]]()
    entries = [entry for entry in log.iterdir() if not entry.name.startswith(".")] if log.is_dir() else []
    lines = [line for entry in entries for line in entry.read_text().splitlines()[1:]]
    for name in {Path(json.loads(line)["path"]).name for line in lines}:
        found += parquet.ParquetFile(out / name).read().to_pylist()
    return found


def test_orders_are_exact_though_a_process_is_added_bins_move_and_an_executor_is_killed(
    tmp_path: Path, cluster: Standalone
) -> None:
    pytest.importorskip("pyarrow")
    orders, out = tmp_path / "in", tmp_path / "out"
    environment = spark_environment(tmp_path, SPARK_LOCAL_IP=cluster.here.address, **PATIENT)
    made = make_orders(orders, 1)
    (tmp_path / "program.py").write_text(PROGRAM)
    program = Process(
        [SUBMIT, "--master", cluster.url, "--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=900m",
         str(tmp_path / "program.py"), str(orders), str(out), str(tmp_path / "kept")],
        env=environment,
    )  # fmt: skip

    def said() -> str:
        return "".join([*program.output, *program.errors])

    def await_written() -> None:
        count = sum(paid for _, _, paid in made)
        wait_until(lambda: len(written(out)) >= count or program.poll() is not None, WAIT_SECONDS)
        assert program.poll() is None, said()

    def control(*words: str) -> None:
        command = [sys.executable, "-m", "megaflow", "control", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done, said())

    try:
        await_written()
        control("add-workers", "1", "--balance")
        made += make_orders(orders, 2)
        control("move-bins", "--bins", "0-127", "--to", "1")
        os.kill(cluster.executors()[0], signal.SIGKILL)
        made += make_orders(orders, 3)
        await_written()
        assert list((tmp_path / "kept").glob("i2-*.seg")), "the job has not gone on in a second attempt"
        control("stop")
        ended = program.end(WAIT_SECONDS)
        assert ended.code == 0, ended
    finally:
        program.finish()
    check_totals(written(out), made)
