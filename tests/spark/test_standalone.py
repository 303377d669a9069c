"""A job fed by Spark on a standalone cluster of two machines grows, moves bins and loses an executor; it is exact."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.cluster.processes import WORDCOUNT, Run, wait_until
from tests.spark.standalone import Standalone
from tests.spark.test_spark_crashes import Fed
from tests.spark.test_workers_on_executors import WAIT_SECONDS
from tests.words import says

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class FedOnExecutors(Fed):
    """Count words that arrive, on Spark's executors."""

    master, processes, start_timeout = "", "2", "400"

    def run(self, *more: str) -> Run:
        lines = f"spark:text:{self.input}?maxFilesPerTrigger=3&trigger=0.05"
        return Run(
            self.folder, WORDCOUNT, "--lines", lines, "--output", f"jsonl:{self.out}", "--state", str(self.store),
            "--processes", self.processes, "--checkpoint-every", "0.3", "--on", f"spark:{self.master}",
            "--conf", "spark.executor.memory=900m", "--start-timeout", self.start_timeout, *more,
        )  # fmt: skip


def check_cancel(run: Run) -> None:
    """Check that a process without a slot is shown as queued with both numbers, and can be canceled."""
    with ThreadPoolExecutor(1) as aside:
        adding = aside.submit(run.control, "add-workers", "1")
        status = run.status_when(lambda record: any("queued" in each["waits"] for each in record["joining"]))
        [waits] = [each["waits"] for each in status["joining"]]
        assert says(waits, "1 queued: no free slot", "need 5 slots", "Spark has 4"), waits
        assert waits in run.control("explain").stdout
        canceled = run.control("remove-workers", "--queued")
        assert says(canceled.stdout, "1 process canceled"), canceled
        done = adding.result(WAIT_SECONDS)
    assert done.returncode == 1 and says(done.stderr, "no process was added", "canceled"), done


def test_a_job_of_two_machines_is_exact_though_it_grows_moves_bins_and_loses_an_executor(
    tmp_path: Path, cluster: Standalone
) -> None:
    random = Random(1)
    fed = FedOnExecutors(tmp_path, random)
    fed.master = cluster.url
    run = fed.run()
    try:
        with fed.arriving():
            wait_until(lambda: fed.newest() > 0 or run.process.poll() is not None, WAIT_SECONDS)
            assert run.process.poll() is None, run.end()
            for words in (("add-workers", "1", "--balance"), ("move-bins", "--bins", "0-127", "--to", "1")):
                done = run.control(*words)
                assert done.returncode == 0, (done, run.said)
            check_cancel(run)
            fed.await_more(run)
            os.kill(random.choice(cluster.executors()), signal.SIGKILL)
            goes_on = lambda: any("restart 1 of 3" in line for line in run.said)  # noqa: E731
            wait_until(lambda: goes_on() or run.process.poll() is not None, WAIT_SECONDS)
            assert goes_on(), run.end()
            fed.await_more(run)
            status = run.status_when(lambda record: record["state"] == "running")
            assert len(status["workers"]) == 3, status
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()


def lose_a_machine(cluster: Standalone) -> None:
    """Kill what runs on the machine with fewer worker processes. The other machine has two slots."""
    on = [cluster.machine_of(pid) for pid in cluster.worker_processes()]
    lost = min(cluster.machines, key=on.count)
    gone = [pid for pid in cluster.executors() if cluster.machine_of(pid) == lost]
    cluster.workers[lost].kill()  # first, or it would start another executor
    for pid in gone:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_restart_without_slots_is_queued_or_goes_on_with_those_that_fit(
    tmp_path: Path, cluster: Standalone, shrinks: bool
) -> None:
    fed = FedOnExecutors(tmp_path, Random(1))
    fed.master, fed.processes = cluster.url, "3"
    run = fed.run(*["--shrink"] * shrinks)
    try:
        with fed.arriving():
            wait_until(lambda: fed.newest() > 0 or run.process.poll() is not None, WAIT_SECONDS)
            assert run.process.poll() is None, run.end()
            lose_a_machine(cluster)
            if not shrinks:
                queued = "restart 1 of 3.*; 3 queued: no free slot: .* need 4 slots, but Spark has 2"
                status = run.status_when(lambda record: bool(re.search(queued, record.get("restart") or "")))
                assert status["state"] == "recovering", status
                cluster.restore()
            wait_until(lambda: any("restart 1 of 3" in line for line in run.said), WAIT_SECONDS)
            fed.await_more(run)
            status = run.status_when(lambda record: record["state"] == "running")
            assert len(status["workers"]) == (1 if shrinks else 3), (status, run.said)
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()
