"""The progress of a job in the classes of Spark's streaming queries, for listeners and tools that know those.

1. A listener hears of a job as of a query: that it has started, its progress once a second, and its end. The functions
   of the listener run on a thread of this process. An error in one of them is logged, and the listener goes on, as in
   Spark.
2. Spark's batches are our epochs: `batchId` is the first epoch whose output is not complete. Rates and counts are those
   of the whole job. A value that the job does not have is 0 or absent.
3. Accumulators cannot show progress: Spark passes on those of a Python task when the task ends, and the task of a
   worker process ends with the job.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.streaming import listener as spark

from megaflow.control.reports import JobStatus, OperatorStatus
from megaflow.rows.row_values import EPOCH_UTC, MICROSECOND, spark_time

log = logging.getLogger("megaflow.spark")

NAMESPACE: Final = uuid.UUID("a8a4c1de-0b5e-4a4f-9d0e-6d5b3f0e9c11")  # of the ids of jobs


def id_of(job: str) -> uuid.UUID:
    """Return the id of a job, the same for each run under its name."""
    return uuid.uuid5(NAMESPACE, job)


def progress_of(status: JobStatus, run_id: uuid.UUID, now: datetime) -> spark.StreamingQueryProgress:
    """Return a job's status as the progress of a query."""
    workers, checkpoint, watermark = status.workers, status.checkpoint, status.watermark
    rate = sum(worker.records_per_second for worker in workers)
    read = sum(worker.lines for worker in workers)
    event_time = {}
    if watermark is not None and watermark.micros is not None and not watermark.is_infinite:
        event_time["watermark"] = spark_time(EPOCH_UTC + watermark.micros * MICROSECOND)
    written = sum(count for worker in workers for count in worker.outputs.values())
    source = {
        "description": f"the inputs of job {status.job}", "startOffset": "", "endOffset": str(read), "latestOffset": "",
        "numInputRows": read, "inputRowsPerSecond": rate, "processedRowsPerSecond": rate,
    }  # fmt: skip
    progress: spark.StreamingQueryProgress = spark.StreamingQueryProgress.fromJson({
        "id": str(id_of(status.job)), "runId": str(run_id), "name": status.job, "timestamp": spark_time(now),
        "batchId": -1 if status.frontier is None else status.frontier, "batchDuration": 0,
        "durationMs": {
            "latencyP50": round(max((worker.latency_ms.p50 for worker in workers), default=0.0)),
            "latencyP99": round(max((worker.latency_ms.p99 for worker in workers), default=0.0)),
        },
        "eventTime": event_time,
        "stateOperators": [
            operator_record(status, operator, 0 if checkpoint is None else round(checkpoint.seconds * 1000))
            for operator in status.operators
        ],
        "sources": [source],
        "sink": {"description": f"the outputs of job {status.job}", "numOutputRows": written},
        "numInputRows": read, "inputRowsPerSecond": rate, "processedRowsPerSecond": rate,
    })  # fmt: skip
    return progress


def operator_record(status: JobStatus, operator: OperatorStatus, commit_ms: int) -> dict[str, Any]:
    """Return a stateful operator as Spark describes one."""
    used = [worker.useful[operator.name] for worker in status.workers if operator.name in worker.useful]
    load = operator.load
    return {
        "operatorName": operator.name,
        "numRowsTotal": 0 if load is None else sum(load.keys),
        "numRowsUpdated": sum(each.records for each in used),
        "numRowsRemoved": 0,
        "allUpdatesTimeMs": round(sum(each.useful_seconds for each in used) * 1000),
        "allRemovalsTimeMs": 0,
        "commitTimeMs": commit_ms,
        "memoryUsedBytes": 0 if load is None else sum(load.bytes),
        "numRowsDroppedByWatermark": sum(each.late for each in used),
        "numShufflePartitions": len(status.workers),
        "numStateStoreInstances": operator.bins,
        "customMetrics": {},
    }


def listen(
    listener: spark.StreamingQueryListener, job: str, statuses: Callable[[], Iterator[JobStatus]],
    failure: Callable[[], str | None],
) -> None:  # fmt: skip
    """Tell a listener of a job until the job ends, from a thread of its own. `failure` returns why it has failed."""
    run_id = uuid.uuid4()

    def call(function: Callable[[Any], None], event: object) -> None:
        try:
            function(event)
        except Exception:  # the listener is the user's; the job must go on
            log.exception("a listener of job %r has raised an error", job)

    def work() -> None:
        began = spark_time(datetime.now(UTC))
        call(listener.onQueryStarted, spark.QueryStartedEvent(id_of(job), run_id, job, began, set()))
        for status in statuses():
            if status.workers:
                call(listener.onQueryProgress, spark.QueryProgressEvent(progress_of(status, run_id, datetime.now(UTC))))
        call(listener.onQueryTerminated, spark.QueryTerminatedEvent(id_of(job), run_id, failure(), None))

    threading.Thread(target=work, name="megaflow-listener", daemon=True).start()
