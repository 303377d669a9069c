"""Processes that hang while they join a job: the status names them, they time out, and they delay neither end nor
others.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.processes import Process, Run, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

# If there is a file `hold` beside the app, a starting process writes its id to `pid` and waits until `hold` is gone. It
# waits while it loads the program (`load`), or while it builds the dataflow after admission (`build`). With `member`,
# it suspends itself once it is a member and before it takes its capabilities.
HELD = """
import os, pathlib, signal, time
from megaflow.timely.rescale.joiner import Joiner

hold, pid = (pathlib.Path(__file__).with_name(name) for name in ("hold", "pid"))

def wait(where):
    if hold.exists() and hold.read_text() == where:
        pid.write_text(str(os.getpid()))
        while hold.exists():
            time.sleep(0.05)

def suspend(joiner, graph, granted):
    pid.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    fill(joiner, graph, granted)

wait("load")
if hold.exists() and hold.read_text() == "member":
    fill, Joiner._fill = Joiner._fill, suspend

def dataflow(flow):
    wait("build")
    pairs = flow.lines().map(lambda word: (word, 1))
    return pairs.stateful_state_machine(lambda word, n, total: ((total or 0) + n, [(word, (total or 0) + n)]), bins=8)
"""
PATIENT = ("--join-timeout", "1000")


class Job:
    """Job that reads what the test writes, and the file that holds its joiners."""

    def __init__(self, start: Callable[..., Run], folder: Path, ends: ExitStack, *options: str) -> None:
        self._ends = ends  # end its processes after the test
        self.app = folder / "held.py"
        self.app.write_text(HELD)
        self.hold, self.pid = folder / "hold", folder / "pid"
        self.run = start(str(self.app), "--lines", "-", *options, stdin=subprocess.PIPE)
        self.run.process.write_line("a")
        self.run.reading()

    def beside(self, *words: str) -> Process:
        """Start another command while the test runs."""
        process = self.run.megaflow(*words)
        self._ends.callback(process.finish)
        return process

    def add_one_that_hangs(self, where: str = "load") -> Process:
        """Start `add-workers 1`, whose process hangs."""
        self.pid.unlink(missing_ok=True)
        self.hold.write_text(where)
        command = self.beside("control", "add-workers", "1", "--timeout", "100")
        wait_until(lambda: self.pid.exists() and self.pid.read_text() != "")
        return command

    def end_input(self) -> None:
        """End the input."""
        assert self.run.process.stdin is not None
        self.run.process.stdin.close()


@pytest.fixture
def job(start: Callable[..., Run], tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with ExitStack() as ends:
        yield lambda *options: Job(start, tmp_path, ends, *options)


def joining(run: Run) -> list[str]:
    """Return what each joining process waits for, according to the status."""
    return [each["waits"] for each in run.status()["joining"]]


@pytest.mark.parametrize("where", [pytest.param("load", marks=pytest.mark.slow), "build"])
def test_a_joiner_that_hangs_is_named_and_the_end_of_the_lines_does_not_wait_for_it(
    job: Callable[..., Job], where: str
) -> None:
    held = job(*PATIENT)
    command = held.add_one_that_hangs(where)
    pid = held.pid.read_text()
    begun = "it is loading its program" if where == "load" else "no answer from worker 1 (admitted)"
    held.run.status_when(lambda record: [each for each in record["joining"] if begun in each["waits"]])
    why = " s ago, has not joined: " + ("" if where == "load" else f"{begun}; ") + "it has been in "
    for question in ("status", "explain"):
        wait_until(lambda question=question: why in held.run.control(question).stdout)
        said = held.run.control(question).stdout
        assert f"(pid {pid}), requested " in said and "held.py:" in said and why in said, said
    held.end_input()
    code, output, said = held.run.end()
    assert code == 0, said
    check_equal(output, "('a', 1)\n", said)
    assert command.wait(180) == 1
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_member_that_is_suspended_before_it_takes_part_is_named_as_a_member_and_waited_for(
    job: Callable[..., Job],
) -> None:
    held = job(*PATIENT)
    command = held.add_one_that_hangs("member")
    pid = int(held.pid.read_text())
    wait_until(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text())
    why = f"(pid {pid}), requested "
    held.run.status_when(lambda record: [each for each in record["joining"] if each["workers"]])
    for question in ("status", "explain"):
        said = held.run.control(question).stdout
        assert why in said and " s ago, joins as worker 1: no answer from worker 1 (settling)" in said, said
    os.kill(pid, signal.SIGCONT)
    assert command.wait(180) == 0
    held.end_input()
    code, output, said = held.run.end()
    assert code == 0, said
    check_equal(output, "('a', 1)\n", said)


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_joiner_that_hangs(job: Callable[..., Job]) -> None:
    held = job(*PATIENT)
    held.add_one_that_hangs("build")
    stopped = held.run.control("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert held.run.end()[0] == 0


@pytest.mark.slow
def test_others_join_and_leave_beside_a_joiner_that_loads_its_program(job: Callable[..., Job]) -> None:
    held = job(*PATIENT)
    held.add_one_that_hangs("load")
    held.hold.write_text("no other worker")
    added = held.run.control("add-workers", "1", "--balance", "--timeout", "100")
    assert added.returncode == 0, added.stderr
    removed = held.run.control("remove-workers", "--id", "1", "--timeout", "100")
    assert removed.returncode == 0, removed.stderr
    assert len(joining(held.run)) == 1
    held.hold.unlink()
    held.run.status_when(lambda record: [each["id"] for each in record["workers"]] == [0, 2])
    held.end_input()
    assert held.run.end()[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", ["suspended", "build"])
def test_a_joiner_that_hangs_is_given_up_in_time_and_others_go_on(job: Callable[..., Job], where: str) -> None:
    held = job("--join-timeout", "12")
    command = held.add_one_that_hangs("load" if where == "suspended" else "build")
    pid = int(held.pid.read_text())
    if where == "suspended":
        os.kill(pid, signal.SIGSTOP)
    held.hold.write_text("no other worker")
    if where == "suspended":
        held.hold.unlink()
    added = held.run.control("add-workers", "1", "--timeout", "150")
    assert added.returncode == 0, added.stderr
    ended = command.end()
    cause = "it is loading its program, is suspended" if where == "suspended" else "no answer from worker 1 (admitted)"
    assert ended.code == 1 and f"did not join within 12 s (--join-timeout): {cause}" in ended.errors, ended.errors
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    wait_until(lambda: any("did not join within 12 s" in line for line in held.run.said))
    record = held.run.status()
    assert record["joining"] == [] and len(record["workers"]) == 2
    held.run.process.write_line("a")
    held.end_input()
    code, output, said = held.run.end()
    assert code == 0, said
    check_equal(output, "('a', 1)\n('a', 2)\n", said)


@pytest.mark.slow
def test_a_process_by_hand_that_hangs_is_let_go_and_says_why(job: Callable[..., Job]) -> None:
    held = job("--join-timeout", "5")
    held.hold.write_text("build")
    by_hand = held.beside("run", str(held.app), "--join", "held")
    wait_until(held.pid.exists)
    wait_until(lambda: bool(joining(held.run)))
    wait_until(lambda: not joining(held.run))
    held.hold.unlink()
    ended = by_hand.end()
    assert ended.code == 1 and "did not join" in ended.errors, ended.errors
    assert len(held.run.status()["workers"]) == 1
    held.end_input()
    assert held.run.end()[0] == 0
