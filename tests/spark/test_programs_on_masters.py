"""The Spark programs of `apps/` on each kind of master: they grow, move bins and lose processes, and stay exact.

Each program compares its rows with a batch aggregation of Spark and says that they are equal. `make test-slow` runs the
cases of OFTEN, and `make test-spark` and `make soak` run all.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import PATIENT, ROOT, Process, spark_environment, wait_until
from tests.results import comparing
from tests.spark.standalone import Standalone, standalone
from tests.spark.test_spark_crashes import children_of, command_of
from tests.spark.test_workers_on_executors import WAIT_SECONDS, environment, has_worker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

assert environment, "a fixture"
MASTERS = ("local[4]", "local-cluster[2,2,1024]", "standalone")
PROGRAMS = ("sessions", "orders", "cards")
OFTEN = {("orders", "local-cluster[2,2,1024]"), ("cards", "standalone")}
CASES = [
    pytest.param(name, master, marks=[] if (name, master) in OFTEN else [pytest.mark.faults], id=f"{name}-{master}")
    for name in PROGRAMS
    for master in MASTERS
]
PROCESSES = 2  # at the start
TRIES = 5  # for a step, if the program ends before it
SETTINGS = """
spark.driver.memory 800m
spark.executor.memory 900m
spark.ui.enabled false
"""


def make_orders(folder: Path, files: int) -> None:
    dice = random.Random(7)
    for number in range(files):
        made = ((dice.randrange(100), dice.randrange(1000), dice.random() < 0.8) for _ in range(50))
        lines = [json.dumps(dict(zip(("customer", "amount", "paid"), each))) for each in made]
        (folder / f"{number}.json").write_text("\n".join(lines))


def make_input(name: str, folder: Path, files: int) -> None:
    """Write files of input whose numbers are their order."""
    folder.mkdir()
    match name:
        case "sessions":
            from apps.spark_sessions import make_clicks

            make_clicks(folder, files, 5000 // files)
        case "cards":
            from apps.spark_cards import make_payments

            make_payments(folder, files, 5000 // files)
        case _:
            make_orders(folder, files)


@dataclass
class Program:
    """A program of `apps/`, started again and again with the same command."""

    name: str
    folder: Path
    master: str
    address: str = "127.0.0.1"
    processes: int = PROCESSES
    files: int = 400

    def __post_init__(self) -> None:
        make_input(self.name, self.folder / "made", self.files)
        (self.folder / "in").mkdir()
        (self.folder / "conf").mkdir()
        (self.folder / "conf" / "spark-defaults.conf").write_text(SETTINGS)
        addressed = {"SPARK_LOCAL_IP": self.address, "SPARK_CONF_DIR": str(self.folder / "conf")}
        self.environment = spark_environment(self.folder, **addressed, **PATIENT)
        self.arrived = 0
        self.process: Process | None = None

    def arrive(self, files: int) -> None:
        """Add files, in their order. Spark goes by their times."""
        for number in range(self.arrived, self.arrived + files):
            (path,) = [each for each in (self.folder / "made").iterdir() if int(each.stem) == number]
            os.utime(path, (1_000_000 + number, 1_000_000 + number))
            path.rename(self.folder / "in" / path.name)
        self.arrived += files

    def start(self, files: int) -> None:
        """Start the program once these files more have arrived."""
        self.finish()
        self.arrive(files)
        more = ["--format", "json"] if self.name == "orders" else []
        command = [
            sys.executable, str(ROOT / "apps" / f"spark_{self.name}.py"), "in", "--out", "out", "--checkpoint", "kept",
            "--master", self.master, "--processes", str(self.processes), *more,
        ]  # fmt: skip
        self.process = Process(command, env=self.environment, cwd=self.folder)

    def finish(self) -> None:
        if self.process is not None:
            self.process.finish()

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    def said(self) -> str:
        return "".join([*self.running.output, *self.running.errors])

    def check_end(self) -> None:
        """Wait until the program has compared its rows."""
        ended = self.running.end(WAIT_SECONDS)
        with comparing():
            assert "not equal" not in ended.errors, ended.errors
        assert ended.code == 0 and "equal to" in ended.output.splitlines()[-1], self.said()

    def control(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "megaflow", "control", *words]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
        )

    def status(self) -> dict[str, Any]:
        """Wait until all workers run, and return the job's status; an empty one if the program has ended."""
        found = dict[str, Any]()

        def as_wanted() -> bool:
            time.sleep(0.5)  # each command starts a Python
            done = self.control("status", "--json")
            record = json.loads(done.stdout) if done.returncode == 0 else {"state": "", "workers": []}
            found.update(record)
            runs = record["state"] == "running" and len(record["workers"]) >= self.processes and not record["silent"]
            return runs or self.running.poll() is not None

        wait_until(as_wanted, WAIT_SECONDS)
        return {} if self.running.poll() is not None else found

    def step(self, act: Callable[[], bool]) -> None:
        """Do something to the running program. If it ends before that, start it again with more files."""
        for _ in range(TRIES):
            if act():
                return
            self.check_end()
            self.start(40)
        raise AssertionError("the program ended too soon each time")

    def command(self, *words: str) -> None:
        """Change the job by a command."""

        def act() -> bool:
            if not self.status():
                return False
            wait_until(lambda: self.has_moved() or self.running.poll() is not None, WAIT_SECONDS)
            done = self.control(*words)
            if done.returncode and self.running.poll() is None:
                assert "has ended" in done.stderr or "no running job" in done.stderr, (done, self.said())
                self.running.wait(WAIT_SECONDS)
            return done.returncode == 0

        self.step(act)

    def lose(self, pick: Callable[[], int], mend: Callable[[], None] = lambda: None) -> None:
        """Kill a process by which the job loses some of its workers, and wait until the job goes on."""

        def act() -> bool:
            if not self.status():
                return False
            before = self.restarts()
            os.kill(pick(), signal.SIGKILL)
            mend()
            wait_until(lambda: self.restarts() > before or self.running.poll() is not None, WAIT_SECONDS)
            return self.restarts() > before

        self.step(act)

    def has_moved(self) -> bool:
        """Tell whether the program's own plan is over: no command may move bins beside it. Only orders has one."""
        return self.name != "orders" or any("bins have moved" in line for line in self.running.output)

    def restarts(self) -> int:
        return sum(" of 3" in line and "restart " in line for line in self.running.errors)

    def below(self, what: str) -> list[int]:
        """Return the processes of the program with a word in their command."""
        found, all_below = [self.running.pid], list[int]()
        while found:
            all_below += (found := [child for each in found for child in children_of(each)])
        return [pid for pid in all_below if what in command_of(pid)]

    def worker(self) -> int:
        """Return a worker process other than the first."""
        return int(json.loads(self.control("status", "--json").stdout)["workers"][-1]["pid"])


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("name", "master"), CASES)
def test_a_program_is_exact_whatever_it_loses(tmp_path: Path, name: str, master: str) -> None:
    pytest.importorskip("pyarrow")
    with ExitStack() as stack:
        cluster: Standalone | None = None
        if master == "standalone":
            (tmp_path / "cluster").mkdir()
            cluster = stack.enter_context(standalone(tmp_path / "cluster"))
        address = cluster.here.address if cluster else "127.0.0.1"
        program = Program(name, tmp_path, cluster.url if cluster else master, address)
        stack.callback(program.finish)
        program.start(160)
        program.command("add-workers", "1", "--balance")
        program.command("move-bins", "--bins", "0-99", "--to", "1")
        program.lose(program.worker)
        if cluster:
            program.lose(lambda: cluster.executors()[0])
        elif master != "local[4]":
            program.lose(lambda: next(filter(has_worker, program.below("CoarseGrainedExecutorBackend"))))
        program.step(lambda: bool(program.status()))
        program.start(80)  # after a kill of the driver
        if cluster:
            program.lose(lambda: worker_of_spark(cluster), lambda: replace_worker(cluster))
        program.command("add-workers", "1", "--balance")
        program.check_end()


def worker_of_spark(cluster: Standalone) -> int:
    """Return the Worker of Spark on the machine of a worker process of the job."""
    return cluster.workers[cluster.machine_of(cluster.worker_processes()[0])].pid


def replace_worker(cluster: Standalone) -> None:
    """Start the Worker of Spark that was killed again."""
    wait_until(lambda: any(each.poll() is not None for each in cluster.workers.values()))
    cluster.restore()


@pytest.mark.usefixtures("environment")
def test_growth_beyond_the_slots_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    program = Program("sessions", tmp_path, "local[2]", processes=1)
    try:
        program.start(160)
        assert program.status(), program.said()
        done = program.control("add-workers", "1")
        assert done.returncode == 1, (done, program.said())
        assert "2 worker processes and Spark's own source need 3 slots, but Spark has 2" in done.stderr, done
        program.check_end()
    finally:
        program.finish()
