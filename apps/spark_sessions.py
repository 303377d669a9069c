"""Sessions of a website's users, as a DataFrame operation: Spark reads clicks, and timers end the sessions.

    python apps/spark_sessions.py [CLICKS] [--out FOLDER] [--checkpoint FOLDER]       # on this machine
    python apps/spark_sessions.py /shared/clicks --out … --master spark://host:7077   # on a cluster

CLICKS is a folder of JSON files of lines such as {"user": "ann", "at": "2026-06-01T10:00:00"}; by default the program
makes some. Clicks may come OUT_OF_ORDER behind later ones. A session ends when a user has not clicked for GAP. With
`--checkpoint` the last sessions stay open, and the same command continues them when there are more clicks. At the end
the program compares its sessions with those of Spark's `session_window` over all clicks.
"""

import json
import os
import random
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import click
from pyspark.sql import SparkSession, functions

import megaflow

CLICKS = "user STRING, at TIMESTAMP"
SESSIONS = "user STRING, first TIMESTAMP, last TIMESTAMP, clicks LONG"
GAP, OUT_OF_ORDER = timedelta(minutes=30), timedelta(minutes=5)
BY_SESSION = ("min(at) AS first", "max(at) AS last", "count(*) AS clicks")
LONGEST = "CAST(max(unix_seconds(last) - unix_seconds(first)) / 60 AS INT) AS `longest, minutes`"
BY_USER = ("count(*) AS sessions", "sum(clicks) AS clicks", LONGEST)


class Sessions:
    """The sessions of each user. The state is a list of the open ones, each (first click, last click, clicks)."""

    def on_row(self, user, row, sessions, timers):
        """Add a click, which may connect two sessions, and look at the session again when it may be over."""
        near = [each for each in sessions or () if each[0] - GAP < row.at < each[1] + GAP]
        others = [each for each in sessions or () if each not in near]
        firsts, lasts, clicks = zip((row.at, row.at, 1), *near)
        timers.at_event(max(lasts) + GAP, None)
        return [*others, (min(firsts), max(lasts), sum(clicks))], []

    def on_timer(self, user, payload, sessions, timers):
        """Emit the sessions that no later click can continue. Return None as state if no other is left."""
        over = [each for each in sessions or () if each[1] + GAP <= timers.watermark]
        return [each for each in sessions or () if each not in over] or None, [(user, *each) for each in over]


def make_clicks(folder, files=20, clicks=250, users=30):
    """Write files of clicks of two days; within OUT_OF_ORDER they come in any order."""
    dice, at = random.Random(7), datetime(2026, 6, 1)
    for number in range(files):
        lines = []
        for _ in range(clicks):
            at += timedelta(seconds=dice.randrange(60))
            late = timedelta(seconds=dice.randrange(OUT_OF_ORDER.seconds))
            lines.append({"user": f"user {dice.randrange(users):02}", "at": (at - late).isoformat()})
        Path(folder, f"{number:02}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def fold(spark, clicks, out, checkpoint, processes, closes):
    """Write the sessions of the clicks that exist now."""
    stream = spark.readStream.schema(CLICKS).option("maxFilesPerTrigger", 4).json(clicks)
    timed = stream.withWatermark("at", f"{OUT_OF_ORDER.seconds} seconds")
    options = {"processes": processes, "close_windows": closes}
    sessions = megaflow.spark.stateful(timed.groupBy("user"), Sessions(), SESSIONS, **options)
    writer = sessions.writeStream.queryName("sessions").option("checkpointLocation", checkpoint)
    query = sessions.megaflow.start_query(lambda: writer.trigger(availableNow=True).start(out))
    click.echo(f"meanwhile, megaflow control status --job {sessions.megaflow.name} shows the job behind the query")
    query.awaitTermination()


def own_sessions(spark, clicks, closes):
    """Return the sessions by Spark's own operator, those that are over: their ends are not after the watermark."""
    read = spark.read.schema(CLICKS).json(clicks).where("at IS NOT NULL")
    spans = read.groupBy("user", functions.session_window("at", f"{GAP.seconds} seconds"))
    sessions = spans.agg(*map(functions.expr, BY_SESSION)).select("user", "first", "last", "clicks")
    latest = read.agg({"at": "max"}).first()[0]
    return sessions if closes else sessions.where(sessions.last + GAP <= functions.lit(latest - OUT_OF_ORDER))


@click.command()
@click.argument("clicks", required=False)
@click.option("--out", metavar="FOLDER", help="Where the sessions go, as Parquet; a temporary folder if not given.")
@click.option("--checkpoint", metavar="FOLDER", help="Keep open sessions there, for the next run with more clicks.")
@click.option("--master", default="local[2]", show_default=True, help="Spark's master, if spark-submit names none.")
@click.option("--processes", type=int, default=1, show_default=True, help="Worker processes. Spark needs a slot more.")
def main(clicks, out, checkpoint, master, processes):
    """Write the sessions of users, and compare them with Spark's own."""
    if checkpoint and not (clicks and out):
        raise click.UsageError("with --checkpoint, name also CLICKS and --out: all three belong together")
    if out and os.path.exists(out) and not checkpoint:
        raise click.UsageError(f"{out} is there already: name another folder, or remove it")
    click.echo("Spark starts (some seconds)")
    builder = SparkSession.builder.appName("sessions").config("spark.ui.showConsoleProgress", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has said where
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master).config(map={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 4})
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="sessions-") as folder:
        if clicks is None:
            os.mkdir(clicks := f"{folder}/clicks")
            make_clicks(clicks)
        out, closes = out or f"{folder}/sessions", checkpoint is None
        fold(spark, clicks, out, checkpoint or f"{folder}/checkpoint", processes, closes)
        found, own = spark.read.parquet(out), own_sessions(spark, clicks, closes)
        if found.exceptAll(own).count() or own.exceptAll(found).count():
            raise click.ClickException("the sessions are not equal to Spark's: clicks come later than OUT_OF_ORDER")
        by_user = found.groupBy("user").agg(*map(functions.expr, BY_USER)).orderBy("user")
        by_user.show(5)
        total = by_user.selectExpr("sum(sessions)", "sum(clicks)", "count(*)").collect()[0]
        click.echo("{:,} sessions of {:,} clicks by {} users: equal to Spark's session_window".format(*total))
    spark.stop()


if __name__ == "__main__":
    main()
