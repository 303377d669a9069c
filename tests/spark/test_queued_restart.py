"""A job whose restart waits for slots of Spark can be asked and stopped, and resumes exactly, on real processes."""

import re
import shutil
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.cluster.processes import Run, wait_until
from tests.spark.standalone import Standalone
from tests.spark.test_standalone import FedOnExecutors, lose_a_machine
from tests.spark.test_workers_on_executors import WAIT_SECONDS
from tests.words import says

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(2700),  # the job starts three times, and Spark has six Java processes
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java on PATH, and Spark needs one"),
]

LACK = "3 queued: no free slot: 3 worker processes and Spark's own source need 4 slots, but Spark has 2"
COMMAND_SECONDS = 200.0  # less than the timeout of the commands in `Run`, for which a stop waited in vain


def queued(fed: FedOnExecutors, cluster: Standalone) -> Run:
    """Start the job, and make it lose a machine. Return when it waits for slots."""
    cluster.mend()
    run, before = fed.run(), fed.newest()
    try:
        with fed.arriving():
            wait_until(lambda: fed.newest() > before or run.process.poll() is not None, WAIT_SECONDS)
            assert run.process.poll() is None, run.end()
            lose_a_machine(cluster)
            status = run.status_when(lambda record: LACK in (record.get("restart") or ""))
        assert status["state"] == "recovering", status
        assert "remove-workers" not in status["restart"], "this job has no workers to remove"
    except BaseException:
        run.process.finish()
        raise
    return run


def test_a_restart_that_waits_for_slots_can_be_stopped(tmp_path: Path, cluster: Standalone) -> None:
    fed = FedOnExecutors(tmp_path, Random(1))
    fed.master, fed.processes = cluster.url, "3"
    run = queued(fed, cluster)
    try:
        refused = run.control("add-workers", "1", "--timeout", "1")
        assert refused.returncode == 1 and says(refused.stderr, LACK, "the request was not sent"), refused
        began = time.monotonic()
        stopped = run.control("stop")
        assert stopped.returncode == 0, stopped
        at = re.search(r"stopped (at checkpoint \d+); run the same command again to resume", stopped.stdout)
        assert at is not None, stopped
        code, _, said = run.end()
        assert time.monotonic() < began + COMMAND_SECONDS
        assert code == 0 and says(said[-1], f"stopped {at[1]}", "run the same command again to resume"), said
    finally:
        run.process.finish()
    run = queued(fed, cluster)
    try:
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGTERM)
        code, _, said = run.end()
        assert code == 128 + signal.SIGTERM and says(said[-2], "is kept in", "run the same command to resume"), said
    finally:
        run.process.finish()
    cluster.mend()
    run = fed.run()
    try:
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()
