"""S32: rate at which one StatefulProcessor counts words, on Spark's transformWithState and on megaflow's.

Both run in one warm session with the same batches, and write nowhere. The time is from the start of the query to its
end. For megaflow it includes the start of the job, and each batch waits for a checkpoint of its store.
"""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from apps.bench.report import Found, Goal
from apps.bench.spark_results import RATE, write_words
from apps.bench.workload import Absent, Setting, Step, Workload, check_count, one
from megaflow.errors import SourceError
from megaflow.spark.preflight import find_java
from megaflow.spark.results_spec import ARROW

SPARK, MEGAFLOW = "Spark's transformWithState", "megaflow's transformWithState"
WORDS, WORDS_QUICK = 1_000_000, 20_000
FILES = 10  # each is a batch
PARTITIONS = 2  # of Spark's states
KILO = 1e3
SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.master": "local[3]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}  # fmt: skip


def count_words() -> Any:
    """Return a processor that emits the count of a word once for each batch with the word."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counts(StatefulProcessor):
        """Counts of words."""

        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n LONG")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            before = self.count.get() or (0,)
            count = before[0] + sum(1 for _ in rows)
            self.count.update((count,))
            yield Row(word=key[0], n=count)

        def close(self) -> None:
            pass

    return Counts()


def run(name: str, session: Any, words: str, number: int, folder: Path) -> Found:
    """Run the query; return the rate."""
    import megaflow

    lines = session.readStream.option("maxFilesPerTrigger", 1).text(words)
    grouped = lines.selectExpr("explode(split(value, ' ')) AS word").groupBy("word")
    transform = grouped.transformWithState if name == SPARK else partial(megaflow.spark.transformWithState, grouped)
    counts = transform(count_words(), "word STRING, n LONG", "update", "None")
    totals = dict[str, int]()

    def note(frame: Any, batch: int) -> None:
        totals.update((row.word, row.n) for row in frame.collect())

    where = folder / f"checkpoint-{time.monotonic_ns()}"
    writer = counts.writeStream.foreachBatch(note).outputMode("update" if name == SPARK else "append")
    began = time.monotonic()
    writer.option("checkpointLocation", str(where)).trigger(availableNow=True).start().awaitTermination()
    seconds = time.monotonic() - began
    check_count(name, sum(totals.values()), number)
    return one(name, {RATE: number / seconds / KILO})


def open_processors(setting: Setting) -> Sequence[Step]:
    """Start Spark, write the words, warm up. Raises Absent without a Java that can run Spark, or without Arrow."""
    try:
        find_java()
    except SourceError as error:
        raise Absent(str(error)) from error
    if None in map(importlib.util.find_spec, (*ARROW, "google")):
        raise Absent("pandas, pyarrow or protobuf is not installed (pip install 'megaflow[arrow]' protobuf)")
    from pyspark.sql import SparkSession

    number = setting.size(WORDS, WORDS_QUICK)
    (words := setting.folder / "words").mkdir()
    for file in range(FILES):
        write_words(words / str(file), number // FILES)
    session = SparkSession.builder.config(map=SETTINGS).getOrCreate()
    setting.stack.callback(session.stop)
    return [
        Step(name, partial(run, name, session, str(words), number, setting.folder)) for name in (SPARK, MEGAFLOW)
    ]


S32 = Workload(
    "S32",
    "a StatefulProcessor that counts words: Spark's transformWithState beside megaflow's, one process",
    open_processors,
    (Goal(MEGAFLOW, RATE, 20, at_least=True),),
    base=SPARK,
    repeat_max=3,
    notes=("from the start of the query to its end, in a warm session; megaflow's time includes the start of the job",),
)
