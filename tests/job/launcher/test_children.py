"""Who is blamed for the end of a job, and what is said of them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from megaflow.errors import ClusterError, PeerFailed
from megaflow.job.exit_report import ExitReport, KeptBins, ReportPipe, say_stays, write_report
from megaflow.job.launcher import place as place_module
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.place import SeatHere
from megaflow.job.spec import AppFile, ChildSpec, Founder, JobSpec

ADDRESSES = [("127.0.0.1", 2101 + index) for index in range(4)]


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as children:
        yield children


def start(
    children: Children, code: str, *workers: int, word: ExitReport | None = None, kept: KeptBins | None = None
) -> Child:
    """A process that runs a line of Python, and has said something."""
    pipe = ReportPipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    child = Child(ADDRESSES[len(children.all)], process, pipe)
    if word is not None:
        write_report(pipe.writing, word)
    if kept is not None:
        say_stays(pipe.writing, kept)
        assert pipe.wait(60.0)
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
    assert blame(children, "PeerFailed: whatever") == (
        f"worker 1 (127.0.0.1:2102, pid {killed.process.pid}) was killed by SIGKILL, and with it the state of "
        "65 of 256 bins of 'f' (0-63,128); all other workers have been stopped; "
        "no other worker has that state: run the job again from its first line"
    )


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
    assert blame(children) == (
        "workers 7 to 8 (10.0.0.7:4711) closed its connection without giving a reason, and with it the state of "
        "1 of 8 bins of 'f' (5); all other workers have been stopped; "
        "no other worker has that state: run the job again from its first line"
    )


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


def test_a_process_that_cannot_be_started_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **more: object) -> None:
        raise OSError(24, "Too many open files")

    spec = ChildSpec(JobSpec(AppFile("a.py", "dataflow")), "a", Founder(0, ()), ("", 0), -1, b"")

    def refused() -> int:
        """Try it; return how many files are open after that."""
        with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(OSError, match="Too many"):
            SeatHere(listener).start(spec)
        return len(os.listdir("/dev/fd"))

    before = len(os.listdir("/dev/fd"))
    for place, name in ((subprocess, "Popen"), (place_module, "SignFile")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fail)
            assert refused() == before


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
        child.wait(60.0)
    assert str(children.blame([])).startswith("worker 0" if how == "all" else "worker 1"), "it is blamed"
    addresses = children.begin_anew(keeping=True, shrinking=True)
    if how in ("all", "cannot go on"):
        assert addresses == [child.address for child in ours], "new processes take their places"
        return
    assert addresses == [first.address, slow.address] and first.exit_code is None and slow.exit_code == -9
    assert children.kept(addresses, 2) == (*kept, None, None)
    assert children.take_staying(first.address) is first
    children.all = [first]
