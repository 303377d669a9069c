"""Newcomers: a process that dies before the coordinator accepts it does not end the job."""

import errno
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.control.launcher_messages import (
    EndProcess,
    ProcessJoined,
    Reached,
    Started,
    StartFailed,
    StartProcesses,
    StartWaits,
)
from megaflow.errors import ClusterError, LimitReached, UsageError
from megaflow.job.exit_report import ExitReport, ReportPipe, write_report
from megaflow.job.launcher.processes import children
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.provisioner import LocalProvisioner
from megaflow.job.launcher.run.newcomers import STEP_SECONDS, Newcomers
from megaflow.job.spec import Address, AppFile, ChildSpec, JobSpec, JoiningProcess
from megaflow.testing.simulated_launch import AllStarted
from megaflow.timely.communication.client import Client
from tests.open_files import open_files
from tests.words import says

WAIT_SECONDS = 180.0


class Bench:
    """The launcher's side, with children that run a line of Python. `connect` connects them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children = Children()
        self.selector = selectors.DefaultSelector()
        self.codes: list[str] = []  # what the next processes run
        self.report: ExitReport | None = None  # their first message
        self.told: list[Any] = []
        self.contacts: list[Address] = []
        self.other_code: bool | None = None  # whether the last processes may run different code
        self.connect: Callable[[Child], None] = lambda child: None
        self.newcomers = Newcomers(
            self.children, self.start_all, self.selector, self.told.append, self.told.append, self.told.append
        )
        monkeypatch.setattr(Child, "connect", lambda child, secret, seconds: self.connect(child))

    def start_all(self, *words: Any) -> AllStarted:
        return AllStarted(self.begin(*words))

    def begin(self, count: int, contact: Address, other_code: bool, *_: Any) -> list[Child]:
        self.contacts.append(contact)
        self.other_code = other_code
        started = []
        for code in self.codes[:count]:
            pipe = ReportPipe()
            process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[pipe.writing])
            if self.report is not None:
                write_report(pipe.writing, self.report)
            pipe.close_writing()
            started.append(Child(("127.0.0.1", 5000 + len(self.children.all) + len(started)), process, pipe))
        self.children.all += started
        return started

    def start(self, code: str, workers: tuple[int, ...]) -> Child:
        """Start a member."""
        self.codes = [code]
        [child] = self.begin(1, ("127.0.0.1", 1), False)
        child.join(workers)
        return child

    def wait_for(self, count: int) -> list[Any]:
        """Run the loop until `count` messages were sent."""
        self.run_until(lambda: len(self.told) >= count)
        return self.told

    def run_until(self, true: Callable[[], bool]) -> None:
        """Run the loop."""
        while not true():
            self.attend()

    def attend(self) -> None:
        events = self.selector.select(WAIT_SECONDS)
        assert events, f"told only {self.told}"
        for key, _ in events:
            key.data()

    def close(self) -> None:
        self.children.kill(self.children.all)
        self.newcomers.close()
        self.selector.close()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(monkeypatch)
    yield bench
    bench.close()


SLEEPS = "import time; time.sleep(600)"
REQUEST = StartProcesses(3, "127.0.0.1", 4711)
REQUEST_PART = JoiningProcess(("127.0.0.1", 4711))


def test_what_is_started_is_told_with_its_addresses(bench: Bench) -> None:
    bench.codes = [SLEEPS, SLEEPS]
    bench.newcomers.start(StartProcesses(2, "127.0.0.1", 4711, other_code=True))
    pids = tuple(child.process.pid for child in bench.children.all if child.process is not None)
    assert bench.told == [Started((("127.0.0.1", 5000), ("127.0.0.1", 5001)), pids=pids)]
    assert bench.contacts == [("127.0.0.1", 4711)] and bench.other_code is True
    assert bench.children.members == []


def test_what_cannot_be_started_is_told_with_the_reason(bench: Bench) -> None:
    def fail(*_: Any) -> AllStarted:
        raise UsageError("--listen 10.9.9.9: no such address")

    bench.newcomers.start_processes = fail
    bench.newcomers.start(REQUEST)
    [failed] = bench.told
    assert isinstance(failed, StartFailed) and says(failed.reason, "--listen 10.9.9.9: no such address")


@pytest.mark.parametrize("word", [None, ExitReport("failed", "this process may not join: full")])
def test_a_death_before_the_join_is_told_to_the_coordinator(bench: Bench, word: ExitReport | None) -> None:
    bench.codes, bench.report = ["import os; os.kill(os.getpid(), 9)"], word
    bench.newcomers.start(REQUEST)
    _, failed = bench.wait_for(2)
    assert isinstance(failed, StartFailed)
    assert failed.reason.endswith("was killed by SIGKILL" if word is None else word.text)
    assert bench.children.blame([]) is None


def test_one_that_is_waited_for_no_longer_is_killed_and_that_is_told_and_one_that_has_joined_is_not(
    bench: Bench,
) -> None:
    bench.codes = ["import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", SLEEPS]
    bench.newcomers.start(REQUEST)
    bench.newcomers.joined(ProcessJoined("127.0.0.1", 5001, (7,)), b"secret", 1.0)
    bench.wait_for(2)
    for port in (5000, 5001, 5002):
        bench.newcomers.end(EndProcess("127.0.0.1", port, "it hangs"))
    failed = bench.wait_for(3)[2]
    assert isinstance(failed, StartFailed) and failed.address == ("127.0.0.1", 5000)
    assert failed.reason.endswith("was killed: it hangs")
    stopped, member = bench.children.all
    assert stopped.exit_code == -signal.SIGKILL and member.exit_code is None


def test_who_has_joined_is_counted_first_and_then_connected_to(bench: Bench) -> None:
    bench.codes = [SLEEPS]
    bench.newcomers.start(REQUEST)
    child = bench.newcomers.joined(ProcessJoined("127.0.0.1", 5000, (7, 8)), b"secret", 1.0)
    assert bench.children.all == [child] and child.running == {7, 8}
    assert bench.newcomers.connecting or len(bench.told) == 1
    assert bench.wait_for(2)[1] is child
    assert not bench.newcomers.connecting


def test_one_that_is_in_a_long_step_is_waited_for_as_its_end_would_be_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: dict[int, float] = {}
    monkeypatch.setattr(Child, "connect", lambda child, secret, seconds: patience.update({child.workers[0]: seconds}))
    bench.codes = [SLEEPS]
    bench.newcomers.start(REQUEST)
    bench.newcomers.joined(ProcessJoined("127.0.0.1", 5000, (7,)), b"secret", 1.0)
    bench.newcomers.joined(ProcessJoined("10.0.0.7", 80, (8,)), b"secret", 1.0)
    bench.wait_for(3)
    assert patience[7] == STEP_SECONDS and patience[8] == 1.0


def test_launcher_connects_to_a_process_that_asks_to_join(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        bench.newcomers.reach(place)
        assert bench.told == [] and bench.wait_for(1) == [Reached(*place)]
    bench.newcomers.reach(place)
    failed = bench.wait_for(2)[1]
    assert isinstance(failed, Reached) and (failed.host, failed.port) == place
    assert says(failed.trouble, socket.gethostname(), f"127.0.0.1:{place[1]}", "Connection refused", "--listen"), failed


def test_launcher_reaches_the_processes_that_it_has_started(bench: Bench) -> None:
    bench.codes = [SLEEPS, ""]
    bench.newcomers.start(REQUEST)  # nothing listens at their addresses
    bench.newcomers.reach(("127.0.0.1", 5000))
    assert bench.told[1:] == [Reached("127.0.0.1", 5000)]
    bench.wait_for(3)  # the other one has ended
    bench.newcomers.reach(("127.0.0.1", 5001))
    assert bench.wait_for(4)[3].trouble


def test_a_process_that_was_started_by_hand_is_first_heard_of_when_it_has_joined(bench: Bench) -> None:
    child = bench.newcomers.joined(ProcessJoined("10.0.0.7", 80, (7,)), b"secret", 1.0)
    assert bench.children.members == [child] and str(child) == "worker 7 (10.0.0.7:80)"
    assert bench.wait_for(1) == [child]


def test_an_address_can_be_used_again(bench: Bench) -> None:
    first = bench.newcomers.joined(ProcessJoined("10.0.0.7", 80, (7,)), b"secret", 1.0)
    second = bench.newcomers.joined(ProcessJoined("10.0.0.7", 80, (9,)), b"secret", 1.0)
    assert second is not first and bench.children.members == [first, second]
    assert set(bench.wait_for(2)) == {first, second}


def test_a_member_that_cannot_be_reached_is_an_error(bench: Bench) -> None:
    def refuse(child: Child) -> Client:
        raise ClusterError(f"{child} did not answer")

    bench.connect = refuse  # type: ignore[assignment]
    bench.newcomers.joined(ProcessJoined("10.0.0.7", 80, (7,)), b"secret", 1.0)
    [error] = bench.wait_for(1)
    assert isinstance(error, ClusterError) and str(error) == "worker 7 (10.0.0.7:80) did not answer"


def test_nothing_is_left_of_those_that_never_join_or_leave_but_a_few_names(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "ENDED_KEPT", 3)
    bench.newcomers.watch(stays := bench.start(SLEEPS, (0,)))
    before = open_files()
    for _ in range(2):
        bench.codes = ["raise SystemExit(1)"] * 3
        bench.newcomers.start(REQUEST)
    bench.wait_for(8)
    kept = [child for child in bench.children.all if child is not stays]
    assert len(kept) == 3 and open_files() <= before and not any(child.is_member for child in kept)
    leaver = bench.start("", (1,))
    leaver.running.clear()
    bench.newcomers.watch(leaver)
    bench.run_until(lambda: leaver not in bench.children.all)
    assert leaver.process is not None and leaver.process.returncode == 0  # it was waited for
    failed = bench.start("raise SystemExit(3)", (2,))
    failed.running.clear()
    bench.newcomers.watch(failed)
    bench.run_until(lambda: failed.process is not None and failed.process.returncode is not None)
    assert open_files() <= before and "exited with code 3" in str(bench.children.blame([]))


def test_of_processes_that_cannot_all_be_started_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ChildSpec(JobSpec(AppFile("a.py", "dataflow")), "a", REQUEST_PART, ("127.0.0.1", 1), 3, b"secret")
    before = open_files()
    with pytest.raises(LimitReached), LocalProvisioner("127.0.0.1", 2) as here, Children(here) as family:
        popen = subprocess.Popen
        started = []

        def start(*args: Any, **options: Any) -> "subprocess.Popen[bytes]":
            if started:
                raise OSError(errno.EMFILE, "Too many open files")
            started.append(popen(*args, **options))
            return started[0]

        monkeypatch.setattr(subprocess, "Popen", start)
        family.start(here.find(2, spec, lambda: None).found(), [spec] * 2)
    assert family.all == [] and open_files() <= before and started[0].returncode == -signal.SIGKILL


class TwoLater(AllStarted):
    """Processes that start one by one."""

    def started(self) -> list[Child]:
        ready, self.children = self.children[: 2 - self.left], self.children[2 - self.left :]
        return ready

    def waits_for(self) -> str:
        return f"no room for {self.left}"


def test_processes_that_wait_for_a_slot_can_be_canceled(bench: Bench) -> None:
    bench.codes = [SLEEPS, SLEEPS, SLEEPS]
    later = TwoLater(bench.begin(2, ("127.0.0.1", 4711), False), left=1)
    bench.newcomers.start_processes = lambda *words: later
    bench.newcomers.start(StartProcesses(2, "127.0.0.1", 4711, 5))
    assert [type(each) for each in bench.told] == [Started, StartWaits]
    bench.newcomers.cancel_waiting("nobody needs it")
    assert bench.told[2:] == [StartFailed("nobody needs it", 5)]
    bench.newcomers.cancel_waiting("again")
    assert len(bench.told) == 3


def test_those_that_must_wait_to_be_started_are_told_one_by_one_and_what_they_wait_for_once(bench: Bench) -> None:
    bench.codes = [SLEEPS, SLEEPS]
    later = TwoLater(bench.begin(2, ("127.0.0.1", 4711), False), left=2)
    wakes: list[Callable[[], object]] = []
    bench.newcomers.start_processes = lambda *words: wakes.append(words[-1]) or later  # type: ignore[func-returns-value]
    bench.newcomers.start(StartProcesses(2, "127.0.0.1", 4711, 5))
    [wake] = wakes
    assert bench.told == [StartWaits(5, 2, "no room for 2")]
    later.left = 1
    wake()
    bench.attend()
    assert [type(each) for each in bench.told] == [StartWaits, Started, StartWaits]
    later.left = 0
    for _ in range(2):
        wake()
        bench.attend()
    assert [each.addresses for each in bench.told if isinstance(each, Started)] == [
        (("127.0.0.1", 5000),), (("127.0.0.1", 5001),)
    ]  # fmt: skip
    assert len(bench.told) == 4


def test_one_that_has_joined_and_died_before_it_was_known_is_a_member_that_died(bench: Bench) -> None:
    bench.codes = ["import os; os.kill(os.getpid(), 9)"]
    bench.newcomers.start(REQUEST)
    bench.wait_for(2)
    bench.newcomers.joined(ProcessJoined("127.0.0.1", 5000, (7,)), b"secret", 1.0)
    bench.wait_for(3)
    assert "worker 7 (127.0.0.1:5000" in str(bench.children.blame([]))
