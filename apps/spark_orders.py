"""Running totals per customer: Spark prepares orders, megaflow's workers on its executors fold them, Spark writes them.

    python apps/spark_orders.py [ORDERS] [--out FOLDER]               # on this machine
    spark-submit --master spark://host:7077 apps/spark_orders.py …    # on a cluster

ORDERS is a folder of Parquet (or, with `--format json`, JSON) files with the columns customer LONG, amount LONG and
paid BOOLEAN; by default the program makes some. During the fold every other bin moves to the next worker. With `--state
DIR` the job also folds files that arrive later, until `megaflow control stop`. The same command then resumes, as it
does after a crash.
"""

import contextlib
import os
import sys
import tempfile
import time

import click
from pyspark.sql import SparkSession

import megaflow
from megaflow.errors import CommandRefused, JobNotFound

ORDERS = "customer LONG, amount LONG, paid BOOLEAN"
TOTALS = "customer LONG, orders LONG, total LONG"
CUSTOMERS = 1000
REGION = "element_at(array('north', 'east', 'south', 'west'), int(id % 4) + 1) AS region"


def dataflow(flow):
    def spend(customer, amount, state):  # state: how many orders, and their total
        orders, total = state or (0, 0)
        state = orders + 1, total + amount
        return state, [(customer, *state)]

    return flow.rows("orders").stateful_state_machine(spend)  # each row is a tuple: (customer, amount)


def fold(spark, orders, kind, out, processes, state, checkpoint):
    """Write the totals after each paid order, with the customer's region; return the job's summary."""
    files = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 2).format(kind).load(orders)
    known = spark.read.schema(ORDERS).format(kind).load(orders).where("paid").count()
    customers = spark.range(CUSTOMERS).selectExpr("id AS customer", REGION)
    paid = {"orders": files.where("paid").select("customer", "amount")}
    click.echo(f"Spark runs, and has prepared {known:,} paid orders; {processes} processes start on its executors")
    with megaflow.spark.run(paid, dataflow, TOTALS, processes=processes, state=state) as run:
        click.echo("they fold the orders: while they do, `megaflow control status` shows how")
        totals = run.results.join(customers, "customer").writeStream.option("checkpointLocation", checkpoint)
        query = run.start_query(lambda: totals.trigger(availableNow=True).start(out))  # it ends with the job
        with contextlib.suppress(JobNotFound, CommandRefused):  # the job was stopped
            await_orders(run.job, query, min(known, 1))
            move_half(run.job)
            if not state:
                await_orders(run.job, query, known)
                run.job.stop()
        query.awaitTermination()
    return run.job.wait()


def await_orders(job, query, number):
    """Wait until so many are folded."""
    while query.isActive and sum(worker.records for worker in job.status().workers) < number:
        time.sleep(0.2)


def move_half(job):
    """Give every other bin to the next worker that owns some, even if a worker is too busy to answer."""
    table = job.status().operators[0].table
    workers = sorted(set(table))
    after = dict(zip(workers, [*workers[1:], workers[0]]))
    owners = [after[owner] if bin % 2 else owner for bin, owner in enumerate(table)]
    moved = job.move_bins(map=" ".join(map(str, owners)), strategy="batched", batch=16)
    click.echo(f"meanwhile {moved.bins} bins have moved, with {moved.keys} customers, in {moved.steps} steps")


@click.command()
@click.argument("orders", required=False)
@click.option("--format", "kind", type=click.Choice(["parquet", "json"]), default="parquet", help="What ORDERS holds.")
@click.option("--out", metavar="FOLDER", help="Where the totals go, as Parquet; a temporary folder if not given.")
@click.option("--processes", type=int, help="Worker processes; by default two, if Spark has slots for them.")
@click.option("--state", metavar="DIR", help="Keep the state there, which all machines see, and wait for more orders.")
def main(orders, kind, out, processes, state):
    """Fold the paid orders per customer; write the totals, with each customer's region."""
    if out and os.path.exists(out) and not state:
        raise click.UsageError(f"{out} is there already: name another folder, or remove it")
    click.echo("Spark starts (some seconds)")
    began = time.monotonic()
    builder = SparkSession.builder.appName("orders").config("spark.ui.showConsoleProgress", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has said where
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master("local[4]").config(map={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 4})
    spark = builder.getOrCreate()
    processes = processes or max(1, min(2, spark.sparkContext.defaultParallelism - 1))  # Spark reads with one slot
    with tempfile.TemporaryDirectory(prefix="orders-") as folder:
        if orders is None:
            customer = f"id * 7 % {CUSTOMERS} AS customer"
            made = spark.range(250_000).selectExpr(customer, "id % 999 AS amount", "id % 10 < 8 AS paid")
            made.repartition(20).write.parquet(orders := f"{folder}/orders")
        checkpoint = f"{out}-checkpoint" if out and state else f"{folder}/checkpoint"
        summary = fold(spark, orders, kind, out := out or f"{folder}/totals", processes, state, checkpoint)
        seconds = time.monotonic() - began
        click.echo(f"{summary.records:,} paid orders folded, joined and written; {seconds:.0f} s with Spark's start")
        last = spark.read.parquet(out).groupBy("region", "customer").agg({"orders": "max", "total": "max"})  # they grow
        sums = last.groupBy("region").agg({"max(orders)": "sum", "max(total)": "sum"}).toDF("region", "orders", "total")
        sums.orderBy("region").show()
    spark.stop()


if __name__ == "__main__":
    main()
