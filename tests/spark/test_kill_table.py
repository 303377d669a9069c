"""If any part of a job on executors is killed, it continues exactly, blames that part, and leaves nothing behind.

Only `make test-spark` and `make soak` run these cases: each starts a session and two executors, and many do so twice.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from megaflow.job.job_file import process_start
from tests.cluster.processes import WORDCOUNT, Run, committed, lives, wait_until
from tests.spark.standalone import Standalone, standalone
from tests.spark.test_spark_crashes import victims
from tests.spark.test_workers_on_executors import WAIT_SECONDS, check

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]

GONE_SECONDS = 30.0  # 5 are promised; the machine may be busy
CUT_SECONDS = 35.0  # until a kernel gives up a machine that does not answer
TEXT = [f"w{number % 50} w{number % 7}" for number in range(10_000)]
LOG = r"; its log: http://\S+"
EXECUTOR = r"worker \d \([\d.:]+, pid \d+, executor \d+ on [\d.]+\)"
BLAME = {
    "process": rf"{EXECUTOR} was killed by SIGKILL",
    "agent": rf"{EXECUTOR} was lost: its agent was killed, and it with that{LOG}",
    "executor": rf"{EXECUTOR} was lost: its executor has ended{LOG}",
    "machine": rf"{EXECUTOR} was lost: its executor has ended{LOG}",
    "network": rf"{EXECUTOR} was lost: its machine does not answer{LOG}",
    "daemon": "",
    "java": "Spark's Java process has ended unexpectedly",
    "launcher": "",
}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def cluster(standing: Standalone) -> Standalone:
    standing.mend()
    return standing


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def strike(cluster: Standalone, run: Run, killed: str) -> None:
    """Kill the given part, near one of the job's processes."""
    process = cluster.worker_processes()[0]
    agent = parent_of(process)
    daemon = parent_of(agent)
    executor = parent_of(daemon)
    machine = cluster.machine_of(process)
    if killed == "network":
        machine.connect(False)
        return
    found = {
        "process": process, "agent": agent, "daemon": daemon, "executor": executor, "launcher": run.process.pid,
        "machine": cluster.workers[machine].pid, "java": victims(run, "java")[0],
    }  # fmt: skip
    os.kill(found[killed], signal.SIGKILL)


class Counted:
    """Count the words of one file in a job."""

    def __init__(self, folder: Path, cluster: Standalone) -> None:
        self.folder, self.cluster = folder, cluster
        self.lines, self.out, self.store = folder / "lines.txt", folder / "out.jsonl", folder / "store"
        self.lines.write_text("\n".join(TEXT))

    def run(self, *more: str) -> Run:
        return Run(
            self.folder, WORDCOUNT, "--lines", str(self.lines), "--output", f"jsonl:{self.out}",
            "--state", str(self.store), "--rate", "1000", "--processes", "2", "--checkpoint-every", "0.3",
            "--on", f"spark:{self.cluster.url}", "--conf", "spark.executor.memory=900m", "--start-timeout", "400",
            *more,
        )  # fmt: skip

    def await_checkpoint(self, run: Run) -> list[tuple[int, str | None]]:
        """Wait until some lines are committed; return the worker processes."""
        wait_until(lambda: committed(self.store) > 1 or run.process.poll() is not None, WAIT_SECONDS)
        assert run.process.poll() is None, run.end()
        found = [(pid, process_start(pid)) for pid in self.cluster.worker_processes()]
        assert len(found) == 2, found
        return found

    def check(self) -> None:
        """Compare with a plain count, and check that nothing is left behind."""
        check(self.out, Counter(word for line in TEXT for word in line.split()))
        wait_until(lambda: not self.cluster.worker_processes(), GONE_SECONDS)


@pytest.mark.parametrize("killed", BLAME)
def test_a_job_on_executors_is_exact_whatever_of_it_is_killed_and_says_what_it_was(
    tmp_path: Path, cluster: Standalone, killed: str
) -> None:
    if killed == "network" and not cluster.machines[0].space:
        pytest.skip("the machines are loopback addresses, whose network cannot be cut")
    counted = Counted(tmp_path, cluster)
    run = counted.run()
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{killed}: {what} after {time.monotonic() - began:.2f} s")

    try:
        processes = counted.await_checkpoint(run)
        tell("checkpoint")
        strike(cluster, run, killed)
        began = time.monotonic()
        if killed != "daemon":  # without the daemon Spark starts no other Python; existing processes live on
            bound = CUT_SECONDS + GONE_SECONDS if killed == "network" else GONE_SECONDS
            wait_until(lambda: not any(lives(*each) for each in processes), bound)
            tell("gone")
        if killed in ("launcher", "java"):
            code, _, said = run.end()
            tell("ended")
            assert killed == "launcher" or (code and re.search(BLAME[killed], said[-1])), said
            cluster.mend()
            run = counted.run()
        elif killed != "daemon":
            wait_until(lambda: any("restart 1 of 3" in line for line in run.said), WAIT_SECONDS)
            tell("restart")
        run.process.wait(WAIT_SECONDS)
        tell("done")
        code, _, said = run.end()
        assert code == 0, said
        restarts = [line for line in said if "restart" in line]
        assert len(restarts) == (killed not in ("launcher", "java", "daemon")), said
        assert all(re.search(BLAME[killed], line) for line in restarts), said
    finally:
        run.process.finish()
    counted.check()


def test_the_others_go_on_without_a_process_that_is_killed_if_they_are_to(tmp_path: Path, cluster: Standalone) -> None:
    counted = Counted(tmp_path, cluster)
    run = counted.run("--shrink")
    try:
        counted.await_checkpoint(run)
        strike(cluster, run, "process")
        run.process.wait(WAIT_SECONDS)
        code, _, said = run.end()
        assert code == 0 and any("restart 1 of 3 with 1 process" in line for line in said), said
    finally:
        run.process.finish()
    counted.check()
