"""Running totals per customer, with a table of customers: megaflow folds orders between two DataFrames of Spark.

    python apps/spark_orders.py [ORDERS] [--out FOLDER] [--checkpoint FOLDER]   # on this machine
    spark-submit --master spark://host:7077 apps/spark_orders.py …              # on a cluster

ORDERS is a folder of Parquet (or, with `--format json`, JSON) files with the columns customer LONG, amount LONG and
paid BOOLEAN; by default the program makes some. During the fold every other bin moves to the next worker. With
`--checkpoint` the same command continues the totals when there are more orders, and resumes after a crash. At the end
the program compares its totals with a batch aggregation of Spark over all orders.
"""

import os
import sys
import tempfile
import time

import click
from pyspark.sql import SparkSession, functions

import megaflow
from megaflow.errors import MegaflowError

ORDERS = "customer LONG, amount LONG, paid BOOLEAN"
TOTALS = "customer LONG, orders LONG, total LONG"
CUSTOMERS = 1000
REGION = "element_at(array('north', 'east', 'south', 'west'), int(id % 4) + 1) AS region"
BY_CUSTOMER = ("count(*) AS orders", "count(*) AS written", "sum(amount) AS total")  # a total is written for each order
LATEST = ("count(DISTINCT orders) AS orders", "count(*) AS written", "max_by(total, orders) AS total")
BY_REGION = ("sum(orders) AS orders", "sum(total) AS total")


def spend(customer, order, state):
    """Add an order. The state is how many orders a customer has, and their total."""
    orders, total = state or (0, 0)
    state = orders + 1, total + order.amount
    return state, [(customer, *state)]


def customers(spark):
    """Return the table of customers."""
    return spark.range(CUSTOMERS).selectExpr("id AS customer", REGION)


def fold(spark, orders, kind, out, processes, checkpoint):
    """Write the totals after each paid order that exists now, with the customer's region."""
    files = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 2).format(kind).load(orders)
    paid = files.where("paid").select("customer", "amount")
    totals = megaflow.spark.stateful(paid.groupBy("customer"), spend, TOTALS, processes=processes)
    joined = totals.join(customers(spark), "customer").writeStream.queryName("orders")
    writer = joined.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = totals.megaflow.start_query(lambda: writer.start(out))
    click.echo(f"meanwhile, megaflow control status --job {totals.megaflow.name} shows the job of the query")
    try:
        await_orders(totals.megaflow, query, 1)
        move_half(totals.megaflow)
    except MegaflowError as error:  # the query has ended, or a process was lost
        click.echo(f"not all bins have moved: {error}")
    query.awaitTermination()


def own_totals(spark, orders, kind):
    """Return how many orders each customer has, and their total, by Spark's aggregation."""
    paid = spark.read.schema(ORDERS).format(kind).load(orders).where("paid")
    return paid.groupBy("customer").agg(*map(functions.expr, BY_CUSTOMER)).join(customers(spark), "customer")


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
@click.option("--checkpoint", metavar="FOLDER", help="Keep the totals there, for the next run with more orders.")
@click.option("--master", default="local[4]", show_default=True, help="Spark's master, if spark-submit names none.")
@click.option("--processes", type=int, help="Worker processes; by default two, if Spark has slots for them.")
def main(orders, kind, out, checkpoint, master, processes):
    """Fold the paid orders per customer; write the totals, with each customer's region."""
    if checkpoint and not (orders and out):
        raise click.UsageError("with --checkpoint, name also ORDERS and --out: all three belong together")
    if out and os.path.exists(out) and not checkpoint:
        raise click.UsageError(f"{out} is there already: name another folder, or remove it")
    click.echo("Spark starts (some seconds)")
    began = time.monotonic()
    builder = SparkSession.builder.appName("orders").config("spark.ui.showConsoleProgress", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has said where
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master).config(map={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 4})
    spark = builder.getOrCreate()
    processes = processes or max(1, min(2, spark.sparkContext.defaultParallelism - 1))  # Spark reads with one slot
    with tempfile.TemporaryDirectory(prefix="orders-") as folder:
        if orders is None:
            customer = f"id * 7 % {CUSTOMERS} AS customer"
            made = spark.range(250_000).selectExpr(customer, "id % 999 AS amount", "id % 10 < 8 AS paid")
            made.repartition(20).write.parquet(orders := f"{folder}/orders")
        out = out or f"{folder}/totals"
        fold(spark, orders, kind, out, processes, checkpoint or f"{folder}/checkpoint")
        found, own = spark.read.parquet(out), own_totals(spark, orders, kind)
        latest = found.groupBy("customer", "region").agg(*map(functions.expr, LATEST)).select(own.columns)
        if latest.exceptAll(own).count() or own.exceptAll(latest).count():
            raise click.ClickException("the totals are not equal to Spark's")
        by_region = own.groupBy("region").agg(*map(functions.expr, BY_REGION)).orderBy("region")
        by_region.show()
        seconds, folded = time.monotonic() - began, by_region.agg({"orders": "sum"}).first()[0]
        click.echo(f"{folded:,} paid orders folded, joined and written; {seconds:.0f} s with Spark's start")
        click.echo("the totals are equal to those of Spark's aggregation")
    spark.stop()


if __name__ == "__main__":
    main()
