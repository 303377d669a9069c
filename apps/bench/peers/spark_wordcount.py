"""Running counts on Spark Structured Streaming, in the best way that the installed packages allow.

    python apps/bench/peers/spark_wordcount.py FILE words|numbers

With pandas, pyarrow and protobuf this is `transformWithState` with a fold in Python: every record yields its key's new
count. State is in RocksDB, as Spark requires. Plain pyspark refuses both this and applyInPandasWithState. Then it is
`groupBy().count()` in update mode, which counts in Java with one output per key and batch. It calls no user's fold, so
the comparison is not like for like. `way` names the way used.

The time is that of the query from its start to its end, without the start of Java and after a warm-up query over a few
lines.
Prints one line of JSON: {"records": …, "seconds": …, "way": …}.
"""

import functools
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

OPTIONS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}  # fmt: skip
WARM_UP_LINES = 100
NEEDED = ("pandas", "pyarrow", "google.protobuf.descriptor")  # Spark needs these for a fold in Python
FOLD, GROUP = "transformWithState in Python", "groupBy.count in Java"


class Count(StatefulProcessor):
    """The running count of one key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Yield the new count for each record, as the fold of apps/wordcount.py does."""
        held = self._total.get() if self._total.exists() else None
        total: int = held[0] if held is not None else 0
        for _ in rows:
            total += 1
            yield Row(key=key[0], total=total)
        self._total.update((total,))

    def close(self) -> None:
        """Do nothing, as nothing is open."""


@functools.cache
def way() -> str:
    """Return the way in which keys are counted here."""
    try:
        for name in NEEDED:
            importlib.import_module(name)
    except ImportError:
        return GROUP
    return FOLD


def count(session: SparkSession, folder: Path, kind: str) -> float:
    """Run the query over the files of a folder; return the seconds."""
    lines = session.readStream.text(str(folder))
    keys = lines.select(f.explode(f.split("value", r"\s+")).alias("key")).where("key <> ''")
    if kind == "numbers":
        keys = keys.select(f.col("key").cast("long"))
    shape = f"key {'long' if kind == 'numbers' else 'string'}, total long"
    counts = keys.groupBy("key").count()
    if way() == FOLD:
        counts = keys.groupBy("key").transformWithState(Count(), shape, "Update", "None")
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as checkpoint:
        began = time.perf_counter()
        writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - began


def main(path: Path, kind: str) -> None:
    """Count some lines to warm up, then all."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("wordcount")
    for name, value in OPTIONS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
            few, everything = Path(name, "few"), Path(name, "all")
            few.mkdir()
            everything.mkdir()
            text = path.read_text(encoding="utf-8", errors="replace")
            (few / "lines.txt").write_text("\n".join(text.splitlines()[:WARM_UP_LINES]) + "\n", encoding="utf-8")
            (everything / "lines.txt").write_text(text, encoding="utf-8")
            count(session, few, kind)
            seconds = count(session, everything, kind)
    finally:
        session.stop()
    print(json.dumps({"records": len(text.split()), "seconds": seconds, "way": way()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
