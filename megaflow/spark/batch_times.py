"""Times of a query's batches, as Spark records them, for jobs whose batches are whole.

1. Spark writes the times of a batch to its checkpoint before the batch runs. So a batch that is repeated has the same
   times, also after a crash.
2. Spark fixes the watermark for a batch before it reads the batch, from the rows of earlier batches. A row is late if
   the watermark of the batch before has reached it. A batch without data counts. The job's store has the watermark of
   the last one. So a query that resumes finds the same rows late as before.
3. Spark runs a batch without data if the watermark has risen and there is no data; by processing time, it does at each
   trigger. The query that feeds a job has no operators with state, so it runs no such batches. `waiting_time` returns
   the time that one of them would have. Spark sets this time when a trigger begins, and then decides whether there is a
   batch. So the time counts if the trigger is over afterwards, and no batch has run meanwhile. The caller keeps
   batches from running.
"""

import json
from pathlib import Path
from typing import Any, Final

from megaflow.rows.packed_rows import BatchTimes
from megaflow.spark.query_spec import TimeMode

INITIAL: Final = -1
"""Number of the batch that has the rows of an initial state."""


def recorded_times(offsets: Path, batch: int, raised: int) -> BatchTimes:
    """Return the times of a batch that runs or has run. `offsets` is the folder in the query's checkpoint.

    `raised`: the last watermark that was given, in milliseconds.
    """
    times = _metadata(offsets, batch)
    late = _metadata(offsets, batch - 1)["batchWatermarkMs"] if batch else 0
    return BatchTimes(batch, times["batchTimestampMs"], times["batchWatermarkMs"], max(late, raised))


def initial_times(now: float) -> BatchTimes:
    """Return the times of the rows of an initial state, which come before the first batch. `now`: seconds since 1970.

    >>> initial_times(1.5)
    BatchTimes(number=-1, processing_ms=1500, watermark_ms=0, late_ms=0)
    """
    return BatchTimes(INITIAL, round(now * 1000), 0, 0)


def time_of(mode: TimeMode, times: BatchTimes) -> int | None:
    """Return the time up to which timers are due, in milliseconds; None if there are none.

    >>> times = BatchTimes(7, 2000, 1000, 500)
    >>> time_of("ProcessingTime", times), time_of("EventTime", times), time_of("None", times)
    (2000, 1000, None)
    """
    return {"ProcessingTime": times.processing_ms, "EventTime": times.watermark_ms}.get(mode)


def waiting_time(query: Any, mode: TimeMode) -> int | None:
    """Return the time of the batch that a query would run now without data; None if it may have data, or has no timers.

    No batch may run meanwhile: see rule 3.
    """
    execution = query._jsq.streamingQuery()
    context = execution.getLatestExecutionContext()
    if context is None or context.isCurrentBatchConstructed():
        return None
    now = context.offsetSeqMetadata()
    if query.status["isTriggerActive"] or query.status["isDataAvailable"]:
        return None
    return time_of(mode, BatchTimes(context.batchId(), now.batchTimestampMs(), now.batchWatermarkMs(), 0))


def _metadata(offsets: Path, batch: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((offsets / str(batch)).read_text().splitlines()[1])
    return found
