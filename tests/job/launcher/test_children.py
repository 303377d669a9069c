"""Processes to blame for the end of a job, and the messages about them."""

import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from megaflow.errors import ClusterError, LimitReached, PeerFailed, notes_of
from megaflow.job.exit_report import ExitReport, KeptBins, ReportPipe, say_stays, write_report
from megaflow.job.launcher.processes import children as children_module
from megaflow.job.launcher.processes import provisioner as provisioner_module
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.print_reader import PrintReader
from megaflow.job.launcher.processes.printed_lines import PrintedLines
from megaflow.job.launcher.processes.provisioner import LocalSlot
from megaflow.job.spec import AppFile, ChildSpec, Founder, JobSpec
from tests.open_files import open_files
from tests.uncollected import uncollected
from tests.words import says

ADDRESSES = [("127.0.0.1", 2101 + index) for index in range(4)]


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as children:
        yield children


def start(
    children: Children, code: str, *workers: int, word: ExitReport | None = None, kept: KeptBins | None = None
) -> Child:
    """A process that runs a line of Python and has sent a message."""
    pipe = ReportPipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    child = Child(ADDRESSES[len(children.all)], process, pipe)
    if word is not None:
        write_report(pipe.writing, word)
    if kept is not None:
        say_stays(pipe.writing, kept)
        assert pipe.wait(180.0)
    pipe.close_writing()
    if workers:
        child.join(workers)
    children.all.append(child)
    return child


def dies(number: int) -> str:
    return f"import os; os.kill(os.getpid(), {number})"


def fails(code: int) -> str:
    return f"import sys; sys.exit({code})"


def blame(children: Children, *failures: str) -> str:
    for child in children.all:
        if child.process is not None:
            child.process.wait()
    error = children.blame(list(map(PeerFailed, failures)))
    return "" if error is None else str(error)


def test_a_killed_member_is_blamed_with_the_bins_that_another_says_it_had(children: Children) -> None:
    start(children, fails(1), 0, word=ExitReport("lost", "lost process 1", (1,), "65 of 256 bins of 'f' (0-63,128)"))
    killed = start(children, dies(9), 1)
    start(children, fails(1), 2, word=ExitReport("lost", "lost process 1", (1,)))
    assert killed.process is not None
    said = blame(children, "PeerFailed: whatever")
    who = f"worker 1 (127.0.0.1:2102, pid {killed.process.pid}) was killed by SIGKILL"
    assert says(said, who, "65 of 256 bins of 'f' (0-63,128)", "all other workers have been stopped", "run the job")


@pytest.mark.parametrize("other", ["none", "left", "by hand"])
def test_no_other_workers_are_said_to_be_stopped_if_none_were(children: Children, other: str) -> None:
    start(children, dies(9), 0)
    if other == "left":
        start(children, fails(0), 1).running.clear()
    if other == "by hand":
        by_hand = Child(("10.0.0.7", 4711))
        by_hand.join((1,))
        children.all.append(by_hand)
    said = blame(children)
    assert "worker 0 " in said and "was killed by SIGKILL" in said and "stopped" not in said, said


def test_one_that_never_was_a_member_is_not_to_blame(children: Children) -> None:
    start(children, fails(0), 0).running.clear()
    start(children, dies(9))
    assert blame(children) == ""


def test_a_newcomer_that_was_lost_as_a_member_is_named_by_those_who_lost_it(children: Children) -> None:
    start(children, fails(1), 0, word=ExitReport("lost", "lost process 2 at 127.0.0.1:2102 (worker 7): killed", (7,)))
    start(children, dies(9))
    assert blame(children) == "lost process 2 at 127.0.0.1:2102 (worker 7): killed"


def test_a_lost_process_that_was_started_by_hand_is_named_with_its_bins(children: Children) -> None:
    start(children, fails(1), 0, word=ExitReport("lost", "…", (7, 8), "1 of 8 bins of 'f' (5)"))
    by_hand = Child(("10.0.0.7", 4711))
    by_hand.join((7, 8))
    children.all.append(by_hand)
    who = "workers 7 to 8 (10.0.0.7:4711) closed its connection"
    assert says(blame(children), who, "1 of 8 bins of 'f' (5)", "run the job again")


def test_the_first_failure_counts_if_nobody_was_killed(children: Children) -> None:
    start(children, fails(1), 0)
    start(children, fails(1), 1, word=ExitReport("lost", "…", (0,)))
    for child in children.all:
        assert child.process is not None
        child.process.wait()
    error = children.blame([PeerFailed("ValueError: first"), PeerFailed("ValueError: second")])
    assert isinstance(error, PeerFailed) and str(error) == "ValueError: first"


def test_an_end_without_a_word_is_said_to_be_one(children: Children) -> None:
    start(children, fails(0), 0).running.clear()
    start(children, fails(3), 4, 5)
    assert "workers 4 to 5" in blame(children) and "exited with code 3 without giving a reason" in blame(children)


def test_a_limit_that_a_process_has_reached_is_no_loss(children: Children) -> None:
    start(children, fails(1), 0, word=ExitReport("lost", "lost process 1", (1,)))
    limited = start(children, fails(1), 1, word=ExitReport("limit", "Cannot start another thread. Raise it."))
    for child in children.all:
        child.wait(180.0)
    error = children.blame([])
    assert isinstance(error, LimitReached) and str(error) == f"{limited}: Cannot start another thread. Raise it."


def test_a_kill_names_the_memory_that_was_exhausted(children: Children) -> None:
    killed = start(children, dies(9), 0)
    killed.out_of_memory = lambda: "because memory was exhausted"
    assert "was killed by SIGKILL because memory was exhausted" in blame(children)
    assert killed.ended_by_itself and children.blamed_itself


@pytest.mark.parametrize(("code", "how"), [(dies(9), "was killed by SIGKILL"), (fails(3), "exited with code 3")])
def test_a_process_that_ends_before_it_answers_is_noticed_at_once(children: Children, code: str, how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:  # as the launcher holds those of a durable job
        other, ended = (start(children, line, worker) for worker, line in enumerate(("input()", code)))
        other.address = ended.address = held.getsockname()[:2]
        began = time.monotonic()
        with pytest.raises(ClusterError, match=f"{how}.* before it began"):
            ended.connect(b"", 600.0)
        with pytest.raises(ClusterError, match="waits for a process that has ended"):
            other.connect(b"", 600.0, is_over=children.have_lost)
        assert time.monotonic() - began < 300.0


def test_a_newcomer_says_why_it_never_joined(children: Children) -> None:
    silent = start(children, dies(15))
    telling = start(children, fails(1), word=ExitReport("failed", "this process may not join: full"))
    assert "was killed by SIGTERM" in silent.why_it_never_joined()
    assert telling.why_it_never_joined().endswith("this process may not join: full")
    assert all(str(child).startswith("a new process (127.0.0.1:") for child in children.all)


def test_an_address_that_is_used_again_means_the_newest_process(children: Children) -> None:
    first, second = Child(ADDRESSES[0]), Child(ADDRESSES[0])
    children.all += [first, second]
    assert children.at(ADDRESSES[0]) is second
    assert children.at(ADDRESSES[1]) is None


def test_the_error_about_a_killed_process_has_its_last_lines(children: Children) -> None:
    prints = PrintReader(os.open(os.devnull, os.O_WRONLY))
    killed = start(children, "pass", 0)
    killed.printed = prints.open(PrintedLines(killed.label), 1)
    code = "import os; print('saw a\\nlast words', flush=True); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", code]
    killed.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=killed.printed.writing)
    killed.printed.close_writing()
    killed.process.wait(180.0)
    error = children.blame([])
    assert notes_of(error) == [f"the last lines that {killed} printed:\n  | saw a\n  | last words"]
    prints.close()


@pytest.mark.parametrize("members", [True, False])
def test_processes_that_came_and_went_leave_nothing_behind(children: Children, members: bool) -> None:
    prints = PrintReader(os.open(os.devnull, os.O_WRONLY))
    spec = ChildSpec(JobSpec(AppFile("a.py", "dataflow")), "a", Founder(0, ()), ("", 0), -1, b"")
    came = []
    with uncollected():
        for number in range(4):
            child = start(children, "pass")
            child.address = "127.0.0.1", number
            if members:
                child.join([number])
                child.running.clear()
            child.printed = prints.open(child.printed_lines(spec), 1)
            child.printed.close_writing()
            child.printed.last()  # reads the end
            came.append(weakref.ref(child))
            child.wait(180.0)
        del child
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(children_module, "ENDED_KEPT", 1)
            children.forget_ended()
        assert [each() for each in came] == ([None] * 4 if members else [None] * 3 + children.all)
    prints.close()


def test_a_process_that_cannot_be_started_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **more: object) -> None:
        raise OSError(24, "Too many open files")

    spec = ChildSpec(JobSpec(AppFile("a.py", "dataflow")), "a", Founder(0, ()), ("", 0), -1, b"")

    def refused() -> int:
        """Run the block; return the number of open files after it."""
        prints = PrintReader()
        with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(LimitReached, match="ulimit -n"):
            LocalSlot(listener, prints).start(spec)
        prints.close()
        return open_files()

    before = open_files()
    for place, name in ((subprocess, "Popen"), (provisioner_module, "HeartbeatFile")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fail)
            assert refused() <= before


def test_one_that_could_not_be_connected_to_is_blamed_with_the_reason_and_last(children: Children) -> None:
    start(children, "import time; time.sleep(60)", 0)
    unreached = ClusterError("worker 0 did not answer within 30 s")
    assert children.blame([], unreached) is unreached
    dead = start(children, fails(3), 1)
    assert dead.process is not None and dead.process.wait() == 3
    assert "worker 1 " in str(children.blame([], unreached))


def test_of_the_members_that_stay_those_are_kept_that_are_to_be(children: Children) -> None:
    sleeps = "import time; time.sleep(600)"
    kept: list[KeptBins | None] = [((0, 3),), ((1, 4),), None]
    stays, ends, idle = (start(children, sleeps, worker, kept=has) for worker, has in enumerate(kept))
    children.coordinator = ends.address
    assert ends.process is not None
    ends.process.kill()
    ends.process.wait()
    assert children.begin_anew(keeping=True) == [ends.address, stays.address, idle.address]
    assert [child.exit_code for child in (stays, ends, idle)] == [None, -9, -9] and not children.all
    assert children.kept([ends.address, stays.address, idle.address], 1) == (None, (0, 3), None)
    assert children.places([stays.address, ends.address]) == {0: 0, 1: 1}
    assert [children.take_staying(child.address) for child in (stays, stays, ends)] == [stays, None, None]
    children.all = [stays]
    assert children.begin_anew(keeping=False) == [stays.address] and stays.exit_code == -9
    assert children.kept([stays.address], 2) == (None, None)


SLEEPS = "import time; time.sleep(600)"
LOST = ExitReport("lost", "lost process 1", (1,))


@pytest.mark.parametrize("how", ["was killed", "says nothing", "exited", "cannot go on", "all"])
def test_a_job_that_shrinks_goes_on_with_those_that_were_not_lost(children: Children, how: str) -> None:
    codes = {"was killed": dies(9), "says nothing": SLEEPS, "exited": fails(3), "cannot go on": fails(1)}
    if how == "all":
        ours = [start(children, dies(9), worker) for worker in range(3)]
    else:
        kept = (0, 3), (6,)
        first = start(children, SLEEPS, 0, word=LOST, kept=kept)
        word = ExitReport("anew", "a new one can") if how == "cannot go on" else None
        lost = start(children, codes[how], 1, word=word)
        slow = start(children, SLEEPS, 2)
        ours = [first, lost, slow]
    for child in ours if how == "all" else ours[1:2] if codes[how] != SLEEPS else []:
        child.wait(180.0)
    assert str(children.blame([])).startswith("worker 0" if how == "all" else "worker 1"), "it is blamed"
    addresses = children.begin_anew(keeping=True, shrinking=True)
    if how in ("all", "cannot go on"):
        assert addresses == [child.address for child in ours], "new processes take their places"
        return
    assert addresses == [first.address, slow.address] and first.exit_code is None and slow.exit_code == -9
    assert children.kept(addresses, 2) == (*kept, None, None)
    assert children.take_staying(first.address) is first
    children.all = [first]
