"""The agent of a remote process against the launcher's door, with a line of Python as the worker."""

import contextlib
import errno
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import ClusterError, ProtocolError
from megaflow.job import process_agent
from megaflow.job.agent_messages import (
    AGENT_ROLE,
    TO_AGENT,
    AgentTask,
    Begin,
    Dismiss,
    Kill,
    Over,
    Probe,
    Probed,
    check_word,
    read_hello,
)
from megaflow.job.exit_report import ExitReport
from megaflow.job.launcher.processes import remote_process, spark_provisioner, spark_slots
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.remote_process import RemoteProcess
from megaflow.job.launcher.processes.spark_provisioner import SparkProvisioner
from megaflow.job.launcher.processes.spark_slots import choose_hosts
from megaflow.job.process_agent import ProcessAgent, TaskSlot, find_app_here, missing, run_agent
from megaflow.job.profile.report import WITNESS, check_profile
from megaflow.job.spec import AppFile, ChildSpec, Founder, JobSpec, JoiningProcess, PickledFunction, ProfileSpec
from megaflow.spark import slots
from megaflow.spark.slots import Slots
from megaflow.timely.communication import client
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.role_handlers import Connection
from tests.words import says

WAIT_SECONDS = 180.0
SECRET = b"a secret"
JOB = JobSpec(AppFile("app.py", "dataflow"), on="local[2]")
DRAFT = ChildSpec(JOB, "", Founder(0, (("", 0),)), ("", 0), -1, SECRET)
READ = (
    "import os, pickle, sys; n = int.from_bytes(os.read(0, 8), 'big'); data = b''\n"
    "while len(data) < n: data += os.read(0, n - len(data))\n"
    "spec = pickle.loads(data)\n"
)
SLEEPS = "import time; time.sleep(600)"


class Jobs:
    """The part of Spark that a place uses. Tasks are threads that run an agent."""

    is_local, driver_host = True, "127.0.0.1"

    def __init__(self) -> None:
        self.free = 10  # slots
        self.is_elastic = self.is_fixed = False
        self.running = 0  # tasks
        self.others = 0  # tasks of other jobs
        self.codes: dict[int, str] = {}  # the code that each process runs
        self.queued: list[tuple[int, Any, Callable[[str | None], None]]] = []
        self.cancelled: list[int] = []
        self.avoided: list[str] = []
        self.results: dict[int, list[str | None]] = {}
        self.ended: str | None = None  # the part of Spark that has ended
        self.ends: dict[int, Callable[[str | None], None]] = {}  # job number -> callback for its end
        self.threads: list[threading.Thread] = []
        self.tasks: list[AgentTask] = []

    def slots(self) -> Slots:
        now = self.free + self.running
        return Slots(now, now if self.is_fixed else None, self.is_elastic)

    def taken(self) -> int:
        return self.running + len(self.queued) + self.others

    def taken_by_others(self) -> int:
        return self.others

    def submit(self, number: int, title: str, payload: bytes, ended: Callable[[str | None], None]) -> None:
        self.ends[number] = ended
        self.tasks.append(pickle.loads(payload).args[0])
        self.queued.append((number, self.tasks[-1], ended))
        self.run()

    def run(self) -> None:
        """Run queued tasks as long as there are slots."""
        while self.queued and self.free:
            self.free, self.running = self.free - 1, self.running + 1
            self.attempt(*self.queued.pop(0))

    def attempt(self, number: int, task: AgentTask, ended: Callable[[str | None], None] = lambda text: None) -> None:
        command = (sys.executable, "-c", READ + self.codes.get(number, SLEEPS))
        slot = TaskSlot("7", "host", "http://host/log", "/nowhere", command)

        def run() -> None:
            answer = run_agent(task, slot)
            self.free, self.running = self.free + 1, self.running - 1
            self.results.setdefault(number, []).append(answer)
            ended(None if answer == "done" else answer)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        for queued in [each for each in self.queued if each[0] == number]:
            self.queued.remove(queued)
            queued[2]("it was cancelled")

    def avoid(self, executor: str) -> None:
        self.avoided.append(executor)

    def why_lost(self, executor: str) -> str | None:
        return self.ended


class Place(SparkProvisioner):
    """A place that notes the connections of agents."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: list[Connection] = []

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        super().connected(connection, hello)
        self.connections.append(connection)


class Bench:
    """A place whose Spark is `Jobs`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.jobs = Jobs()
        self.said: list[str] = []
        self.open()

    def open(self, spec: JobSpec = JOB, feeds: bool = False, files: Sequence[str] = ()) -> None:
        """Replace the place by one with these settings."""
        self.place = self._stack.enter_context(Place(spec, SECRET, feeds, list(files), self.said.append))
        self.children = Children(self.place)

    def close(self) -> None:
        """End the places, which then have shown all that was printed."""
        self._stack.close()

    def slots(self, count: int, draft: ChildSpec = DRAFT) -> list[Any]:
        """Wait until `count` slots are found; return them."""
        search = self.place.find(count, draft, lambda: True)
        slots: list[Any] = []
        wait_until(lambda: slots.extend(search.found()) or len(slots) == count)
        return slots

    def start(self, *codes: str) -> list[Child]:
        """Return processes that found a job."""
        self.jobs.codes.update(enumerate(codes, len(self.jobs.tasks)))
        slots = self.slots(len(codes))
        addresses = tuple(slot.address for slot in slots)
        parts = [Founder(number, addresses) for number in range(len(codes))]
        return self.children.start(slots, [replace(DRAFT, name="job", part=part) for part in parts])


def remote(child: Child) -> RemoteProcess:
    assert isinstance(child.process, RemoteProcess)
    return child.process


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        here = Bench(stack)
        monkeypatch.setattr(spark_provisioner, "worker_jobs", lambda *_: contextlib.nullcontext(here.jobs))
        yield here
    for thread in here.jobs.threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "an agent ends with its connection"


def test_a_process_is_told_its_part_its_seat_and_what_came_with_the_task(bench: Bench, tmp_path: Path) -> None:
    word = tmp_path / "word"
    code = f"open({str(word)!r}, 'w').write(repr((spec.name, spec.part, spec.address, spec.secret)))"
    [child] = bench.start(code)
    assert child.process is not None and child.process.wait(WAIT_SECONDS) == 0
    assert word.read_text() == repr(("job", Founder(0, (child.address,)), child.address, SECRET))
    assert child.workers == (0,) and "executor 7 on host" in str(child)
    wait_until(lambda: bench.jobs.results == {0: ["done"]})


def test_a_function_finds_beside_it_what_was_sent_with_it(bench: Bench, tmp_path: Path) -> None:
    told = tmp_path / "told"
    draft = replace(DRAFT, job=replace(JOB, app=PickledFunction(b"", ("/only/there",), "count", "/only/there/app.py")))
    bench.jobs.codes[0] = f"open({str(told)!r}, 'w').write(repr(spec.job.app)); import time; time.sleep(600)"
    [slot] = bench.slots(1, draft)
    bench.children.start([slot], [replace(draft, name="job", part=Founder(0, (slot.address,)))])
    wait_until(lambda: told.exists() and told.read_text())
    assert "path=('/nowhere/app',)" in told.read_text() and "elsewhere=True" in told.read_text()


def test_a_last_word_an_exit_code_and_the_end_are_seen_as_of_a_process_of_this_machine(bench: Bench) -> None:
    report = "from megaflow.job.exit_report import *; write_report(spec.report_fd, ExitReport('lost', 'lost 1', (1,)))"
    [child, other] = bench.start(f"{report}; sys.exit(3)", "os.kill(os.getpid(), 9)")
    for each in (child, other):
        assert each.process is not None and each.pipe is not None
        each.process.wait(WAIT_SECONDS)
        wait_until(each.pipe.read)
    assert child.report == ExitReport("lost", "lost 1", (1,)) and child.exit_code == 3
    assert other.how_it_ended() == "was killed by SIGKILL"


def test_what_a_process_prints_bears_its_name(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    [child] = bench.start("print('one'); print('two', end='', file=sys.stderr)")
    assert child.process is not None and child.process.wait(WAIT_SECONDS) == 0
    bench.close()
    printed = capfd.readouterr().err.splitlines(keepends=True)  # once: while others write, it loses what they write
    assert [line for line in printed if "[worker" in line] == [
        "[worker 0, executor 7 on host] one\n", "[worker 0, executor 7 on host] two\n",
    ]  # fmt: skip


def test_signs_of_life_arrive_in_the_clock_of_the_launcher(bench: Bench) -> None:
    sign = "Heartbeat(5.0, (LongStep(0, 4.0),))"
    [child] = bench.start(f"from megaflow.job.heartbeat import *; write_sign(spec.sign_fd, {sign}); " + SLEEPS)
    assert child.sign is not None
    wait_until(lambda: child.sign is not None and child.sign.read().busy)
    seen = child.sign.read()
    assert seen.now - seen.busy[0].since == pytest.approx(1.0)


def test_a_process_that_is_killed_ends_and_with_it_its_agent(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    child.kill()
    child.release()
    assert child.exit_code == -signal.SIGKILL
    wait_until(lambda: bench.jobs.results == {0: ["done"]})


def test_the_end_of_the_launcher_s_connection_ends_agent_and_process(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    process = remote(child)
    wait_until(lambda: process.pid)
    bench.place._door.call(bench.place.connections[0].close)  # type: ignore[union-attr]
    wait_until(lambda: bench.jobs.results)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_another_attempt_waits_until_the_first_has_ended_and_then_ends_well(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    [task] = bench.jobs.tasks
    bench.jobs.attempt(0, task)
    wait_until(lambda: len(bench.place.connections) == 2)
    assert bench.jobs.results == {}
    child.kill()
    wait_until(lambda: bench.jobs.results.get(0) == ["done", "done"])
    bench.jobs.attempt(0, task)
    wait_until(lambda: bench.jobs.results[0] == ["done"] * 3)


@pytest.mark.slow
def test_one_whose_agent_does_not_answer_is_cancelled_and_then_given_up_by_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "CANCEL_SECONDS", 0.05)
    monkeypatch.setattr(remote_process, "LOST_SECONDS", 0.2)
    bench.jobs.run = lambda: None  # type: ignore[method-assign]
    search = bench.place.find(1, DRAFT, lambda: True)
    bench.jobs.queued.clear()
    hello = {"number": 0, "executor": "7", "host": "h", "log_url": "http://log", "hosts": ["127.0.0.1"],
             "port": 1, "probe_port": 2}  # fmt: skip
    [task] = bench.jobs.tasks
    with Client.connect(*task.launchers[0], SECRET, AGENT_ROLE, hello, WAIT_SECONDS) as agent:
        slots: list[Any] = []
        wait_until(lambda: slots.extend(search.found()) or slots)
        [child] = bench.children.start(slots, [replace(DRAFT, name="job")])
        child.kill()
        assert remote(child).wait(WAIT_SECONDS) == -9 and bench.jobs.cancelled == [0]
        assert bench.jobs.avoided == ["7"]
        words = [type(agent.receive(WAIT_SECONDS)).__name__ for _ in range(3)]
    assert words == ["Probe", "Begin", "Kill"]
    assert says(child.how_it_ended(), "did not end within 0.2 s", "executor 7 on h does not answer", "http://log")


def test_one_that_is_lost_is_said_to_be_with_what_has_ended(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    process = remote(child)
    wait_until(lambda: process.pid)
    bench.jobs.ended = "its executor has ended"
    bench.place.lost(bench.place.connections[0])
    assert process.wait(WAIT_SECONDS) == -9
    assert says(child.how_it_ended(), "its executor has ended", "http://host/log")


def test_one_whose_machine_does_not_answer_is_said_to_be_lost_so_and_nothing_more_is_begun_there(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    process = remote(child)
    wait_until(lambda: process.pid)
    bench.place.connections[0].trouble = os.strerror(errno.ETIMEDOUT)
    bench.place.lost(bench.place.connections[0])
    assert process.wait(WAIT_SECONDS) == -9
    assert says(child.how_it_ended(), "its machine does not answer", "http://host/log")
    assert bench.jobs.cancelled == [0] and bench.jobs.avoided == ["7"]


def test_one_that_its_peers_have_lost_and_that_has_not_ended_does_not_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "NOTICED_SECONDS", 0.01)
    [child] = bench.start(SLEEPS)
    assert says(child.how_it_ended(), "does not answer", "http://host/log")


def test_an_agent_to_which_the_launcher_s_machine_does_not_answer_ends_its_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    [child] = bench.start(SLEEPS)
    process = remote(child)
    wait_until(lambda: process.pid)
    monkeypatch.setattr(client, "hears_nothing", lambda connection: True)
    wait_until(lambda: bench.jobs.results == {0: ["done"]})
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_one_whose_job_has_failed_is_said_to_be_lost_with_the_reason(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    bench.jobs.ends[0]("Spark's Java process has ended unexpectedly")
    assert says(child.how_it_ended(), "was lost", "Spark's Java process has ended")


def test_those_that_join_are_seated_one_by_one_and_say_what_they_wait_for(bench: Bench) -> None:
    bench.jobs.free = 1
    draft = replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711)))
    search = bench.place.find(2, draft, lambda: True)
    slots: list[Any] = []
    wait_until(lambda: slots.extend(search.found()) or slots)
    lack = "2 worker processes need 2 slots, but Spark has 1"
    assert says(search.waits_for(), f"1 queued: no free slot: {lack}", "remove-workers")
    slots[0].close()
    wait_until(lambda: bench.jobs.free)
    bench.jobs.run()
    wait_until(lambda: slots.extend(search.found()) or len(slots) == 2)


def test_a_canceled_search_submits_no_process(bench: Bench) -> None:
    bench.jobs.free = 0
    search = bench.place.find(1, replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711))), lambda: True)
    search.close()
    bench.jobs.free = 1
    assert search.found() == [] and bench.jobs.free == 1


def test_one_that_joins_waits_for_a_slot_beside_spark_s_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_slots, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(spark_slots, "FIRST_TOLD_SECONDS", 0.0)
    bench.open(feeds=True)
    bench.jobs.free = 2
    bench.start(SLEEPS)
    woken = threading.Event()
    search = bench.place.find(1, replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711))), lambda: woken.set() is None)
    assert bench.jobs.free == 1, "Spark reads with it"
    lack = "2 worker processes and Spark's own source need 3 slots"
    assert says(search.waits_for(), f"1 queued: no free slot: {lack}", "has 2")
    assert woken.wait(WAIT_SECONDS) and search.found() == []
    assert bench.said[-1] == f"waiting for slots of Spark: {search.waits_for()}"
    bench.jobs.free += 1  # an executor comes
    slots: list[Any] = []

    def is_seated() -> bool:
        assert woken.wait(WAIT_SECONDS)
        woken.clear()
        slots.extend(search.found())
        return bool(slots)

    wait_until(is_seated)
    assert bench.jobs.free == 1


def test_a_joiner_that_never_fits_is_refused_with_both_numbers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "GRACE_SECONDS", 0.02)
    bench.open(feeds=True)
    bench.jobs.is_fixed = True
    bench.jobs.free = 2
    bench.start(SLEEPS)
    draft = replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711)))
    with pytest.raises(ClusterError, match=r"3 worker processes and .* source need 4 slots, but Spark has 2: remove"):
        bench.place.find(2, draft, lambda: True)
    search = bench.place.find(1, draft, lambda: True)

    def is_refused() -> bool:
        try:
            return bool(search.found())
        except ClusterError as error:
            return "2 worker processes and Spark's own source need 3 slots, but Spark has 2" in str(error)

    wait_until(is_refused)
    assert len(bench.jobs.ends) == 1


def test_spark_without_a_slot_for_its_own_tasks_is_reported(bench: Bench) -> None:
    bench.open(feeds=True)
    bench.jobs.free = 3
    assert bench.place.waits_text() == ""
    bench.start(SLEEPS, SLEEPS)
    assert bench.place.waits_text() == ""
    bench.jobs.free -= 1  # an executor is lost
    assert bench.place.waits_text().startswith("Spark's own source waits for a slot: 2 worker processes and ")


def test_a_java_process_that_hangs_does_not_block_the_admin_socket(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_provisioner, "LOOK_SECONDS", 0.01)
    bench.open(feeds=True)
    bench.jobs.free = 2
    bench.start(SLEEPS)
    goes_on = threading.Event()
    known = bench.jobs.slots

    def slots() -> Slots:
        goes_on.wait(WAIT_SECONDS)
        return known()

    monkeypatch.setattr(bench.jobs, "slots", slots)
    began = time.monotonic()
    assert bench.place.waits_text() == bench.place.waits_text() == ""
    assert time.monotonic() - began < WAIT_SECONDS
    goes_on.set()
    bench.jobs.free -= 1  # an executor is lost
    wait_until(bench.place.waits_text)


def test_two_that_ask_for_one_slot_do_not_take_spark_s_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_slots, "LOOK_SECONDS", 0.01)
    bench.open(feeds=True)
    bench.jobs.free = 2
    bench.start(SLEEPS)
    draft = replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711)))
    searches = [bench.place.find(1, draft, lambda: True) for _ in range(2)]
    bench.jobs.free += 1  # an executor comes
    woken = [threading.Event() for _ in searches]
    for search, event in zip(searches, woken, strict=True):
        search.wake = event.set  # both see it before the launcher reads either result
    assert all(event.wait(WAIT_SECONDS) for event in woken)
    wait_until(lambda: [slot for search in searches for slot in search.found()])
    assert len(bench.jobs.ends) == 2 and bench.jobs.free == 1, "Spark reads with it"


def test_too_few_slots_are_said_with_both_numbers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_slots, "FIRST_TOLD_SECONDS", 0.0)
    bench.open(replace(JOB, start_timeout_seconds=0.05))
    bench.jobs.free = 1
    search = bench.place.find(2, DRAFT, lambda: True)
    assert bench.said == [f"waiting for slots of Spark: {search.waits_for()}"]

    def is_refused() -> bool:
        try:
            return bool(search.found())
        except ClusterError as error:
            assert "2 worker processes need 2 slots, but Spark has 1: lower --processes" in str(error)
            assert "--start-timeout" in str(error)
            return True

    wait_until(is_refused)
    assert not bench.jobs.ends, "they begin together"


def test_too_few_slots_of_a_fixed_number_are_refused_at_once(bench: Bench) -> None:
    bench.open(feeds=True)
    bench.jobs.free, bench.jobs.is_fixed = 2, True
    with pytest.raises(ClusterError, match=r"2 worker processes and .* need 3 slots, but Spark has 2: lower"):
        bench.place.find(2, DRAFT, lambda: True)


def test_a_restart_waits_for_the_slots_of_its_former_processes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "GRACE_SECONDS", 0.0)
    bench.open(feeds=True)
    bench.jobs.free, bench.jobs.is_fixed = 3, True
    before = bench.start(SLEEPS, SLEEPS)
    search = bench.place.find(2, DRAFT, lambda: True)
    assert search.found() == [] and len(bench.jobs.ends) == 2
    for child in before:
        child.process.kill()
    found: list[Any] = []
    wait_until(lambda: found.extend(search.found()) or len(found) == 2)
    bench.jobs.others = 1
    with pytest.raises(ClusterError, match="but Spark has 3: lower"):
        bench.place.find(2, DRAFT, lambda: True)


def test_a_restart_waits_for_slots_longer_than_a_start_takes(bench: Bench) -> None:
    bench.open(feeds=True)
    bench.jobs.free = 2
    search = bench.place.find(2, DRAFT, lambda: False, [("127.0.0.1", 4711)] * 2)
    search.deadline = 0.0  # it has waited for long
    assert search.found() == []
    assert says(search.waits_for(), "2 queued: no free slot", "need 3 slots, but Spark has 2")
    assert bench.place.room(2) == 1 and bench.place.room(1) == 1
    bench.jobs.free = 3
    assert bench.place.room(2) == 2
    found: list[Any] = []
    wait_until(lambda: found.extend(search.found()) or len(found) == 2)


def test_where_executors_come_as_tasks_wait_nobody_waits_for_slots_and_what_is_queued_says_so(bench: Bench) -> None:
    bench.jobs.is_elastic = True
    bench.jobs.free = 0
    search = bench.place.find(2, DRAFT, lambda: True)
    assert says(search.waits_for(), "2 queued: no free slot of 0", "Spark starts executors")
    bench.jobs.free = 2
    bench.jobs.run()
    slots: list[Any] = []
    wait_until(lambda: slots.extend(search.found()) or len(slots) == 2)


def test_one_that_leaves_returns_from_its_task_and_its_slot_is_free_for_another(bench: Bench) -> None:
    bench.jobs.free = 1
    [child] = bench.start("time = __import__('time'); time.sleep(0.1)")
    search = bench.place.find(1, replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711))), lambda: None)
    assert "1 queued" in search.waits_for()
    assert child.process is not None and child.process.wait(WAIT_SECONDS) == 0
    wait_until(lambda: bench.jobs.results == {0: ["done"]})
    bench.jobs.run()
    wait_until(search.found)


@pytest.mark.parametrize("free, slots", [(2, "2 slots"), (1, "1 slot")])
def test_a_start_that_takes_too_long_says_how_far_it_has_come(bench: Bench, free: int, slots: str) -> None:
    bench.jobs.free = free
    bench.jobs.run = lambda: None  # type: ignore[method-assign]
    draft = replace(DRAFT, job=replace(DRAFT.job, start_timeout_seconds=0.0))
    search = bench.place.find(free, draft, lambda: True)
    search.deadline = 0.0
    with pytest.raises(ClusterError, match=rf"0 of {free} processes started within 0 s .*; Spark has {slots}\."):
        search.found()


def test_files_that_executors_do_not_see_are_refused_with_the_path(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("to be")
    bench.open(files=[str(file)])
    real = bench.jobs.run
    bench.jobs.run = lambda: None  # type: ignore[method-assign]
    search = bench.place.find(1, DRAFT, lambda: True)
    file.unlink()
    real()

    def fails() -> bool:
        try:
            return bool(search.found())
        except ClusterError as error:
            assert f"{file} cannot be read on an executor (No such file or directory)" in str(error)
            return True

    wait_until(fails)


def test_a_folder_that_executors_are_to_write_to_must_be_theirs_too_and_what_was_left_there_goes(
    bench: Bench, tmp_path: Path
) -> None:
    store, profile = tmp_path / "store", tmp_path / "profile"
    for folder in (store, profile):
        folder.mkdir()
        (folder / f"{WITNESS}-of-one-that-was-killed").touch()
    bench.open(replace(JOB, state=str(store), profile=ProfileSpec(str(profile))))
    bench.start(SLEEPS)
    [task] = bench.jobs.tasks
    assert [len(list(folder.iterdir())) for folder in (store, profile)] == [1, 1]
    check_profile(ProfileSpec(str(profile)), 1)
    assert missing(task.witnesses) is None
    [seen] = profile.iterdir()
    seen.unlink()
    assert f"{seen} cannot be read on an executor" in str(missing(task.witnesses))


@pytest.mark.parametrize("reaches", [True, False])
def test_one_that_joins_is_begun_when_all_others_have_reached_it_and_is_refused_if_one_cannot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reaches: bool
) -> None:
    [child] = bench.start(SLEEPS)
    founder = remote(child)
    wait_until(lambda: founder.pid)
    woken = threading.Event()
    if not reaches:
        monkeypatch.setattr(spark_slots, "PROBE_SECONDS", 0.01)
        monkeypatch.setattr(process_agent, "probe", lambda places: [])
    search = bench.place.find(1, replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711))), lambda: woken.set() is None)
    [joiner] = search.waiting
    wait_until(lambda: joiner.hello is not None)
    slots: list[Any] = []

    def is_settled() -> bool:
        assert woken.wait(WAIT_SECONDS), "who has changed something says so"
        woken.clear()
        slots.extend(search.found())
        assert slots or search.waits_for() == "other processes are checking whether they can reach it"
        return bool(slots)

    if reaches:
        wait_until(is_settled)
        assert founder.reached is not None
        assert joiner.hello is not None and ("127.0.0.1", joiner.hello.probe_port) in founder.reached
        slots[0].close()
    else:
        with pytest.raises(ClusterError, match=r"executor 7 .* cannot reach the process on .* \(tried 127.0.0.1\)"):
            wait_until(is_settled)


def test_who_has_ended_and_cannot_be_woken_any_more_ends_nothing(bench: Bench) -> None:
    bench.start(SLEEPS)
    joins = replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711)))
    for search in [bench.place.find(1, joins, lambda: False) for _ in range(2)]:
        wait_until(search.found)


def test_messages_that_came_together_with_begin_are_obeyed(tmp_path: Path) -> None:
    """The agent reads them all at once. It must not wait for a further message before it obeys them."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        launcher = Client(socket.create_connection(server.getsockname()), "the agent")
        client = stack.enter_context(Client(server.accept()[0], "the launcher"))
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        for value in (Begin("job", "127.0.0.1", 0, (("127.0.0.1", 1),)), Probe(((("127.0.0.1", 1),),)), Kill()):
            launcher.send(value)
        assert select.select([client], [], [], WAIT_SECONDS)[0]
        slot = TaskSlot("7", "host", "", str(tmp_path), (sys.executable, "-c", READ + SLEEPS))
        agent = ProcessAgent(AgentTask(0, (), SECRET, DRAFT, ()), slot, client, *sockets)
        with ThreadPoolExecutor() as pool, launcher:
            running = pool.submit(agent.run)
            found = [launcher.receive(WAIT_SECONDS)]
            while not isinstance(found[-1], Over):
                found.append(launcher.receive(WAIT_SECONDS))
            assert Probed(()) in found and found[-1] == Over(-signal.SIGKILL, b"")
            launcher.close()
            assert running.result(WAIT_SECONDS) is None


def test_executors_run_their_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_PYTHON", "/of/the/launcher")
    monkeypatch.setenv("MEGAFLOW_FUSION", "off")
    given = dict(spark_provisioner.environment())
    assert "MEGAFLOW_PYTHON" not in given and given["MEGAFLOW_FUSION"] == "off"


def test_the_door_is_for_agents_that_know_the_secret_and_their_number(bench: Bench) -> None:
    bench.start("")
    place = bench.jobs.tasks[0].launchers[0]
    for secret, role, hello, trouble in (
        (b"no", AGENT_ROLE, {}, "secrets differ"), (SECRET, "control", {}, "not the role"),
        (SECRET, AGENT_ROLE, {"number": 0}, "unknown fields"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=trouble):
            Client.connect(*place, secret, role, hello, WAIT_SECONDS)


def test_words_are_checked() -> None:
    assert check_word(Kill(), TO_AGENT) == Kill()
    for wrong in (Dismiss(5), "kill", None):  # type: ignore[arg-type]
        with pytest.raises(ProtocolError):
            check_word(wrong, TO_AGENT)
    with pytest.raises(ProtocolError):
        read_hello({"number": "0"})


def test_an_app_is_taken_where_it_is_the_same_and_else_as_it_was_sent(tmp_path: Path) -> None:
    own, sent = tmp_path / "own", tmp_path / "shipped" / "app"
    own.mkdir()
    sent.mkdir(parents=True)
    for folder in (own, sent):
        (folder / "app.py").write_text("pass")
    assert find_app_here(AppFile(str(own / "app.py"), "dataflow"), str(tmp_path / "shipped")) == str(own / "app.py")
    (sent / "more.py").write_text("pass")
    assert find_app_here(AppFile(str(own / "app.py"), "dataflow"), str(tmp_path / "shipped")) == str(sent / "app.py")


def test_who_cannot_be_reached_is_named_with_what_was_tried() -> None:
    one, two = [("10.0.0.1", 5)], [("10.0.0.2", 6)]
    with pytest.raises(ClusterError, match=r"executor 1 cannot reach the process on executor 0 \(tried 10.0.0.1\)"):
        choose_hosts([one, two], [frozenset(two), frozenset()], ["executor 0", "executor 1"])
