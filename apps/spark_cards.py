"""Hourly statements of payment cards, by a `StatefulProcessor` that runs on Spark and, unchanged, on megaflow.

    python apps/spark_cards.py [PAYMENTS] [--engine spark] [--out FOLDER] [--checkpoint FOLDER]   # on this machine
    python apps/spark_cards.py /shared/payments --out … --master spark://host:7077                # on a cluster

PAYMENTS is a folder of JSON files of lines such as {"card": "c07", "at": "2026-06-01T10:00:00", "amount": 12}; by
default the program makes some. Payments may come OUT_OF_ORDER behind later ones. A card gets a statement for each hour
with payments, once the watermark has passed the hour. With `--checkpoint` the same command continues when there are
more payments. At the end the program compares the statements with a batch aggregation of Spark over all payments.
"""

import json
import os
import random
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import click
from pyspark.sql import Row, SparkSession, Window, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import megaflow

PAYMENTS = "card STRING, at TIMESTAMP, amount LONG"
STATEMENTS = "card STRING, hour LONG, payments LONG, total LONG, largest LONG, spent LONG"  # spent: since the first
OUT_OF_ORDER, HOUR_MS = timedelta(minutes=5), 3_600_000
HOUR = f"unix_millis(at) div {HOUR_MS} AS hour"  # since 1970
BY_HOUR = ("count(*) AS payments", "sum(amount) AS total", "max(amount) AS largest")
BY_CARD = ("count(*) AS statements", "sum(payments) AS payments", "max(spent) AS spent", "max(largest) AS largest")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Statements(StatefulProcessor):
    """The open hours of each card, and what it has spent in the hours before."""

    def init(self, handle):
        self.handle = handle
        self.hours = handle.getMapState("hours", "hour LONG", "payments LONG, total LONG, largest LONG")
        self.spent = handle.getValueState("spent", "total LONG")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            payments, total, largest = self.hours.getValue((row.hour,)) or (0, 0, 0)
            if not payments:
                self.handle.registerTimer((row.hour + 1) * HOUR_MS)
            self.hours.updateValue((row.hour,), (payments + 1, total + row.amount, max(largest, row.amount)))
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        hour = expiredTimerInfo.getExpiryTimeInMs() // HOUR_MS - 1
        payments, total, largest = self.hours.getValue((hour,))
        self.hours.removeKey((hour,))
        (before,) = self.spent.get() or (0,)
        self.spent.update((before + total,))
        yield Row(card=key[0], hour=hour, payments=payments, total=total, largest=largest, spent=before + total)


def make_payments(folder, files=20, payments=250, cards=30):
    """Write files of payments of two days; within OUT_OF_ORDER they come in any order."""
    dice, at = random.Random(7), datetime(2026, 6, 1)
    for number in range(files):
        lines = []
        for _ in range(payments):
            at += timedelta(seconds=dice.randrange(60))
            late = timedelta(seconds=dice.randrange(OUT_OF_ORDER.seconds))
            card, amount = f"c{dice.randrange(cards):02}", dice.randrange(1, 1000)
            lines.append({"card": card, "at": (at - late).isoformat(), "amount": amount})
        Path(folder, f"{number:02}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(spark, payments, out, checkpoint, processes, engine):
    """Write the statements of the payments that exist now."""
    stream = spark.readStream.schema(PAYMENTS).option("maxFilesPerTrigger", 4).json(payments)
    timed = stream.withWatermark("at", f"{OUT_OF_ORDER.seconds} seconds")
    by_card = timed.selectExpr("card", "at", "amount", HOUR).groupBy("card")
    given = Statements(), STATEMENTS, "append", "EventTime"
    if engine == "spark":
        statements = by_card.transformWithState(*given)
    else:
        statements = megaflow.spark.transformWithState(by_card, *given, processes=processes)
    writer = statements.writeStream.queryName("cards").option("checkpointLocation", checkpoint)
    if engine == "spark":
        query = writer.trigger(availableNow=True).start(out)
    else:
        query = statements.megaflow.start_query(lambda: writer.trigger(availableNow=True).start(out))
        click.echo(f"meanwhile, megaflow control status --job {statements.megaflow.name} shows the job of the query")
    query.awaitTermination()


def own_statements(spark, payments):
    """Return the statements by Spark's aggregation, of the hours whose ends are not after the watermark."""
    read = spark.read.schema(PAYMENTS).json(payments)
    hours = read.selectExpr("card", "amount", HOUR).groupBy("card", "hour").agg(*map(functions.expr, BY_HOUR))
    spent = functions.sum("total").over(Window.partitionBy("card").orderBy("hour"))
    latest = read.agg(functions.max(functions.unix_millis("at"))).first()[0]
    watermark = latest - OUT_OF_ORDER // timedelta(milliseconds=1)
    return hours.withColumn("spent", spent).where((hours.hour + 1) * HOUR_MS <= watermark)


@click.command()
@click.argument("payments", required=False)
@click.option("--engine", type=click.Choice(["megaflow", "spark"]), default="megaflow", show_default=True)
@click.option("--out", metavar="FOLDER", help="Where the statements go, as Parquet; a temporary folder if not given.")
@click.option("--checkpoint", metavar="FOLDER", help="Keep open hours there, for the next run with the same engine.")
@click.option("--master", default="local[2]", show_default=True, help="Spark's master, if spark-submit names none.")
@click.option("--processes", type=int, default=1, show_default=True, help="Worker processes. Spark needs a slot more.")
def main(payments, engine, out, checkpoint, master, processes):
    """Write the hourly statements of cards, and compare them with a batch aggregation."""
    if checkpoint and not (payments and out):
        raise click.UsageError("with --checkpoint, name also PAYMENTS and --out: all three belong together")
    if out and os.path.exists(out) and not checkpoint:
        raise click.UsageError(f"{out} is there already: name another folder, or remove it")
    click.echo("Spark starts (some seconds)")
    builder = SparkSession.builder.appName("cards").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)  # for --engine spark
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has said where
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master).config(map={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 4})
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="cards-") as folder:
        if payments is None:
            os.mkdir(payments := f"{folder}/payments")
            make_payments(payments)
        out = out or f"{folder}/statements"
        run(spark, payments, out, checkpoint or f"{folder}/checkpoint", processes, engine)
        found, own = spark.read.schema(STATEMENTS).parquet(out), own_statements(spark, payments)
        if found.exceptAll(own).count() or own.exceptAll(found).count():
            raise click.ClickException("the statements are not equal to Spark's: payments come later than OUT_OF_ORDER")
        by_card = found.groupBy("card").agg(*map(functions.expr, BY_CARD)).orderBy("card")
        by_card.show(5)
        total = by_card.selectExpr("sum(statements)", "sum(payments)", "count(*)").collect()[0]
        click.echo("{:,} statements of {:,} payments by {} cards: equal to Spark's aggregation".format(*total))
    spark.stop()


if __name__ == "__main__":
    main()
