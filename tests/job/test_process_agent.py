"""The agent of a process elsewhere, against the launcher's door, with a line of Python for a worker."""

import contextlib
import errno
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import ClusterError, ProtocolError
from megaflow.job import process_agent
from megaflow.job.agent_messages import AGENT_ROLE, TO_AGENT, AgentTask, Dismiss, Kill, check_word, read_hello
from megaflow.job.exit_report import ExitReport
from megaflow.job.launcher import on_spark, remote_process
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.on_spark import OnSpark, choose_hosts
from megaflow.job.launcher.remote_process import RemoteProcess
from megaflow.job.process_agent import TaskSeat, find_app_here, missing, run_agent
from megaflow.job.profile.report import WITNESS, check_profile
from megaflow.job.spec import AppFile, ChildSpec, Founder, JobSpec, JoiningProcess, PickledFunction, ProfileSpec
from megaflow.timely.communication import client
from megaflow.timely.communication.client import Client

WAIT_SECONDS = 60.0
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
    """Spark, as far as a place asks it: tasks are threads that run an agent."""

    is_local, is_elastic, driver_host = True, False, "127.0.0.1"

    def __init__(self) -> None:
        self.free = 10  # slots
        self.codes: dict[int, str] = {}  # what a process runs
        self.queued: list[tuple[int, Any, Callable[[str | None], None]]] = []
        self.cancelled: list[int] = []
        self.avoided: list[str] = []
        self.results: dict[int, list[str | None]] = {}
        self.ended: str | None = None  # what of Spark's has
        self.attempts = 0
        self.ends: dict[int, Callable[[str | None], None]] = {}  # number -> who is told that its job has ended
        self.threads: list[threading.Thread] = []

    def slots(self) -> int:
        return self.free

    def submit(self, number: int, payload: bytes, ended: Callable[[str | None], None]) -> None:
        self.ends[number] = ended
        self.queued.append((number, pickle.loads(payload).args[0], ended))
        self.run()

    def run(self) -> None:
        """Run what is queued, as long as there are slots."""
        while self.queued and self.free:
            self.free -= 1
            self.attempt(*self.queued.pop(0))

    def attempt(self, number: int, task: AgentTask, ended: Callable[[str | None], None] = lambda text: None) -> None:
        command = (sys.executable, "-c", READ + self.codes.get(number, SLEEPS))
        seat = TaskSeat(self.attempts, "7", "host", "http://host/log", "/nowhere", command)
        self.attempts += 1

        def run() -> None:
            answer = run_agent(task, seat)
            self.free += 1
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


class Bench:
    """A place whose Spark is `Jobs`."""

    def __init__(self, place: OnSpark, jobs: Jobs) -> None:
        self.place, self.jobs = place, jobs
        self.children = Children(place)

    def seats(self, count: int, draft: ChildSpec = DRAFT) -> list[Any]:
        """So many, when they are found."""
        search = self.place.find(count, draft, lambda: None)
        seats: list[Any] = []
        wait_until(lambda: seats.extend(search.found()) or len(seats) == count)
        return seats

    def start(self, *codes: str) -> list[Child]:
        """Processes that found a job."""
        first = len(self.place._processes)
        self.jobs.codes.update(enumerate(codes, first))
        seats = self.seats(len(codes))
        addresses = tuple(seat.address for seat in seats)
        parts = [Founder(number, addresses) for number in range(len(codes))]
        return self.children.start(seats, [replace(DRAFT, name="job", part=part) for part in parts])


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    jobs = Jobs()
    monkeypatch.setattr(on_spark, "worker_jobs", lambda *_: contextlib.nullcontext(jobs))
    with OnSpark(DRAFT.job, SECRET, False, [], lambda text: None) as place:
        yield Bench(place, jobs)
    for thread in jobs.threads:
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
    [seat] = bench.seats(1, draft)
    bench.children.start([seat], [replace(draft, name="job", part=Founder(0, (seat.address,)))])
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
    printed = ""

    def has_printed() -> bool:
        nonlocal printed
        printed += capfd.readouterr().err
        return printed.count("\n") == 2

    wait_until(has_printed)
    assert printed == "[worker 0, executor 7 on host] one\n[worker 0, executor 7 on host] two\n"


def test_signs_of_life_arrive_in_the_clock_of_the_launcher(bench: Bench) -> None:
    sign = "SignOfLife(5.0, (LongStep(0, 4.0),))"
    [child] = bench.start(f"from megaflow.job.sign_of_life import *; write_sign(spec.sign_fd, {sign}); " + SLEEPS)
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
    bench.start(SLEEPS)
    process = bench.place._processes[0]
    wait_until(lambda: process.pid)
    bench.place._door.call(lambda: process._connection.close())  # type: ignore[union-attr]
    wait_until(lambda: bench.jobs.results)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_another_attempt_waits_until_the_first_has_ended_and_then_ends_well(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    task = AgentTask(0, bench.place._launchers, SECRET, DRAFT, ())
    bench.jobs.attempt(0, task)
    wait_until(lambda: bench.place._processes[0]._others)
    assert bench.jobs.results == {}
    child.kill()
    wait_until(lambda: bench.jobs.results.get(0) == ["done", "done"])
    bench.jobs.attempt(0, task)
    wait_until(lambda: bench.jobs.results[0] == ["done"] * 3)


def test_one_whose_agent_does_not_answer_is_cancelled_and_then_given_up_by_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "CANCEL_SECONDS", 0.05)
    monkeypatch.setattr(remote_process, "LOST_SECONDS", 0.2)
    bench.place.find(0, DRAFT, lambda: None)
    process = RemoteProcess(0, bench.place._door, lambda: None, lambda: bench.jobs.cancel(0),  # type: ignore[arg-type]
                            avoid=bench.jobs.avoid)  # fmt: skip
    bench.place._processes[0] = process
    hello = {"number": 0, "attempt": 1, "executor": "7", "host": "h", "log_url": "http://log", "hosts": ["127.0.0.1"],
             "port": 1, "probe_port": 2, "pid": 3}  # fmt: skip
    with Client.connect(*bench.place._launchers[0], SECRET, AGENT_ROLE, hello, WAIT_SECONDS) as agent:
        child = process.begin("job", "127.0.0.1", 0, ())
        child.kill()
        assert process.wait(WAIT_SECONDS) == -9 and bench.jobs.cancelled == [0]
        assert bench.jobs.avoided == ["7"]
        words = [type(agent.receive(WAIT_SECONDS)).__name__ for _ in range(2)]
    assert words == ["Begin", "Kill"]
    assert child.how_it_ended() == "did not end within 0.2 s: executor 7 on h does not answer; its log: http://log"


def test_one_that_is_lost_is_said_to_be_with_what_has_ended(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    process = bench.place._processes[0]
    wait_until(lambda: process.pid)
    bench.jobs.ended = "its executor has ended"
    bench.place._door.call(lambda: process.lose(process._connection))  # type: ignore[union-attr, arg-type]
    assert process.wait(WAIT_SECONDS) == -9
    assert child.how_it_ended() == "was lost: its executor has ended; its log: http://host/log"


def test_one_whose_machine_does_not_answer_is_said_to_be_lost_so_and_nothing_more_is_begun_there(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    process = bench.place._processes[0]
    wait_until(lambda: process.pid)
    assert process._connection is not None
    process._connection.trouble = os.strerror(errno.ETIMEDOUT)
    bench.place._door.call(lambda: process.lose(process._connection))  # type: ignore[union-attr, arg-type]
    assert process.wait(WAIT_SECONDS) == -9
    assert child.how_it_ended() == "was lost: its machine does not answer; its log: http://host/log"
    assert bench.jobs.cancelled == [0] and bench.jobs.avoided == ["7"]


def test_one_that_its_peers_have_lost_and_that_has_not_ended_does_not_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "NOTICED_SECONDS", 0.01)
    [child] = bench.start(SLEEPS)
    assert child.how_it_ended() == "does not answer; its log: http://host/log"


def test_an_agent_to_which_the_launcher_s_machine_does_not_answer_ends_its_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start(SLEEPS)
    process = bench.place._processes[0]
    wait_until(lambda: process.pid)
    monkeypatch.setattr(client, "hears_nothing", lambda connection: True)
    wait_until(lambda: bench.jobs.results == {0: ["done"]})
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_one_whose_job_has_failed_is_said_to_be_lost_with_the_reason(bench: Bench) -> None:
    [child] = bench.start(SLEEPS)
    bench.jobs.ends[0]("Spark's Java process has ended unexpectedly")
    assert child.how_it_ended() == "was lost: Spark's Java process has ended unexpectedly"


def test_those_that_join_are_seated_one_by_one_and_say_what_they_wait_for(bench: Bench) -> None:
    bench.jobs.free = 1
    draft = replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711)))
    search = bench.place.find(2, draft, lambda: None)
    seats: list[Any] = []
    wait_until(lambda: seats.extend(search.found()) or seats)
    assert search.waits_for() == (
        "1 queued: no free slot of 0; remove-workers, the end of another job on these executors, or more executors "
        "would free one"
    )
    seats[0].close()
    wait_until(lambda: bench.jobs.free)
    bench.jobs.run()
    wait_until(lambda: seats.extend(search.found()) or len(seats) == 2)


def test_too_few_slots_are_said_with_both_numbers(bench: Bench) -> None:
    bench.jobs.free = 1
    bench.place._spec = replace(DRAFT.job, start_timeout_seconds=0.01)
    with pytest.raises(ClusterError, match=r"2 worker processes need 2 slots, but Spark has 1: .*--start-timeout"):
        bench.place.find(2, DRAFT, lambda: None)


def test_where_executors_come_as_tasks_wait_nobody_waits_for_slots_and_what_is_queued_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "is_elastic", True)
    bench.jobs.free = 0
    search = bench.place.find(2, DRAFT, lambda: None)
    assert search.waits_for() == "2 queued: no free slot of 0; Spark starts executors when it can"
    bench.jobs.free = 2
    bench.jobs.run()
    seats: list[Any] = []
    wait_until(lambda: seats.extend(search.found()) or len(seats) == 2)


def test_one_that_leaves_returns_from_its_task_and_its_slot_is_free_for_another(bench: Bench) -> None:
    bench.jobs.free = 1
    [child] = bench.start("time = __import__('time'); time.sleep(0.1)")
    search = bench.place.find(1, replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711))), lambda: None)
    assert "1 queued" in search.waits_for()
    assert child.process is not None and child.process.wait(WAIT_SECONDS) == 0
    wait_until(lambda: bench.jobs.results == {0: ["done"]})
    bench.jobs.run()
    wait_until(search.found)


def test_a_start_that_takes_too_long_says_how_far_it_has_come(bench: Bench) -> None:
    bench.jobs.free = 2
    bench.jobs.run = lambda: None  # type: ignore[method-assign]
    draft = replace(DRAFT, job=replace(DRAFT.job, start_timeout_seconds=0.0))
    search = bench.place.find(2, draft, lambda: None)
    search.deadline = 0.0
    with pytest.raises(ClusterError, match=r"0 of 2 processes started within 0 s .*; Spark has 2 slots"):
        search.found()


def test_files_that_executors_do_not_see_are_refused_with_the_path(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("to be")
    bench.place._files = [str(file)]
    real = bench.jobs.run
    bench.jobs.run = lambda: None  # type: ignore[method-assign]
    search = bench.place.find(1, DRAFT, lambda: None)
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
    bench.place._spec = replace(DRAFT.job, state=str(store), profile=ProfileSpec(str(profile)))
    bench.place.find(0, DRAFT, lambda: None)
    assert [len(list(folder.iterdir())) for folder in (store, profile)] == [1, 1]
    check_profile(ProfileSpec(str(profile)), 1)
    assert missing(bench.place._witnesses) is None
    [seen] = profile.iterdir()
    seen.unlink()
    assert f"{seen} cannot be read on an executor" in str(missing(bench.place._witnesses))


@pytest.mark.parametrize("reaches", [True, False])
def test_one_that_joins_is_begun_when_all_others_have_reached_it_and_is_refused_if_one_cannot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reaches: bool
) -> None:
    bench.start(SLEEPS)
    founder = bench.place._processes[0]
    wait_until(lambda: founder.pid)
    woken = threading.Event()
    if not reaches:
        monkeypatch.setattr(on_spark, "PROBE_SECONDS", 0.01)
        monkeypatch.setattr(process_agent, "probe", lambda places: [])
    search = bench.place.find(1, replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711))), woken.set)
    wait_until(lambda: bench.place._processes[1].hello is not None)
    seats: list[Any] = []

    def is_settled() -> bool:
        assert woken.wait(WAIT_SECONDS), "who has changed something says so"
        woken.clear()
        seats.extend(search.found())
        assert seats or search.waits_for() == "other processes are checking whether they can reach it"
        return bool(seats)

    if reaches:
        wait_until(is_settled)
        assert founder.reached is not None
        assert ("127.0.0.1", bench.place._processes[1].hello.probe_port) in founder.reached  # type: ignore[union-attr]
        seats[0].close()
    else:
        with pytest.raises(ClusterError, match=r"executor 7 .* cannot reach the process on .* \(tried 127.0.0.1\)"):
            wait_until(is_settled)


def test_who_has_ended_and_cannot_be_woken_any_more_ends_nothing(bench: Bench) -> None:
    def wake() -> None:
        raise OSError("closed")

    bench.start(SLEEPS)
    joins = replace(DRAFT, part=JoiningProcess(("127.0.0.1", 4711)))
    for search in [bench.place.find(1, joins, wake) for _ in range(2)]:
        wait_until(search.found)


def test_the_door_is_for_agents_that_know_the_secret_and_their_number(bench: Bench) -> None:
    bench.start("")
    place = bench.place._launchers[0]
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
