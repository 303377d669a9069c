"""Slots of a real Spark: processes that do not fit beside Spark's own tasks are refused, and the job continues."""

import threading
import time
from typing import Any

import pytest

import megaflow
from megaflow.errors import ClusterError, CommandRefused
from megaflow.spark.slots import GRACE_SECONDS, Slots, slots_seen
from tests.cluster.processes import wait_until

WAIT_SECONDS = 300.0


def test_a_request_waits_a_while_for_processes_that_end() -> None:
    slots = Slots(2, 2)
    assert [slots.never_fits(1, 1, True, seconds) for seconds in (0.0, GRACE_SECONDS)] == [False, True]
    assert not Slots(2).never_fits(9, 9, True, GRACE_SECONDS)


def test_spark_in_one_process_has_all_its_slots_from_the_start() -> None:
    dynamic = {"spark.dynamicAllocation.enabled": "true"}
    assert slots_seen("local[*,4]", dynamic, 2) == Slots(2, 2)
    assert slots_seen("local-cluster[2,2,1024]", {"spark.task.cpus": "2"}, 1) == Slots(1, 2)
    assert slots_seen("yarn", dynamic, 3) == Slots(3, None, elastic=True)


@pytest.mark.spark
@pytest.mark.slow
def test_what_does_not_fit_is_refused_and_the_job_reads_on(spark: Any) -> None:
    slots = spark.sparkContext.defaultParallelism
    began = time.monotonic()
    with pytest.raises(ClusterError, match=rf"need {slots + 1} slots, but Spark has {slots}: lower"):
        megaflow.spark.run(spark.range(3), lambda flow: flow.rows(), processes=slots)
    assert time.monotonic() - began < 100, "not after --start-timeout"
    frame = spark.readStream.format("rate").option("rowsPerSecond", 100).load().select("value")
    with megaflow.spark.run(frame, lambda flow: flow.rows(), processes=slots - 1) as run:
        refused: list[CommandRefused] = []

        def add() -> None:
            with pytest.raises(CommandRefused) as caught:
                run.job.control.add_workers(1)
            refused.append(caught.value)

        adds = threading.Thread(target=add)
        adds.start()
        lack = f"{slots} worker processes and Spark's own source need {slots + 1} slots, but Spark has {slots}"
        wait_until(lambda: any(lack in each.waits for each in run.job.status().joining) or refused, WAIT_SECONDS)
        adds.join(WAIT_SECONDS)
        assert lack in str(refused[0])
        before = sum(worker.lines for worker in run.job.status().workers)
        wait_until(lambda: sum(worker.lines for worker in run.job.status().workers) > before, WAIT_SECONDS)
