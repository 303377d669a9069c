"""Processes join and leave a running job: its counts stay exact, and a process that dies while joining harms no other.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.job_file import process_start
from tests.cluster.counts import check_counts, check_numbered, write_numbered
from tests.cluster.processes import ROOT, STOP_SECONDS, WORDCOUNT, Run, lives, wait_until
from tests.results import check_equal, comparing
from tests.words import says

pytestmark = pytest.mark.cluster

LINES = 300_000  # more than any test here reads
RATE = "800"

COUNT = """
def count(word, n, total):
    total = (total or 0) + n
    return total, [(word, total)]

def dataflow(flow):
    words = flow.lines().flat_map(lambda line: [(word, 1) for word in line.split()])
    return words.stateful_state_machine(count, bins=32)
"""

# Slow until there is a file `fast` beside it. Even on a slow machine, the reader needs more than half a minute for all
# lines: commands must not take longer. A batch takes a twelfth of a second.
SLOW_LINES = 60_000
SLOW = """
import pathlib, time

gate = pathlib.Path(__file__).with_name("fast")

def wait(line):
    if not gate.exists():
        time.sleep(0.0007)
    return line
""" + COUNT.replace("flow.lines()", "flow.lines().map(wait)")

# A process that starts while there is a file `step` beside the app fails at the step that the file names.
FRAIL = (
    """
import os, pathlib, signal, time
from megaflow.timely.rescale.joiner import Joiner
from megaflow.timely.rescale.member import Member

def die(*words):
    os.kill(os.getpid(), signal.SIGKILL)

step = pathlib.Path(__file__).with_name("step")
if step.exists():
    at = step.read_text()
    if at == "load":
        die()
    elif at == "sleep":
        step.with_name("asleep").touch()
        time.sleep(600)
    elif at == "raise":
        raise LookupError("this file is not for you")
    elif at == "after the commit":
        Joiner._fill = die
    elif at:
        setattr(Joiner, at, die)
"""
    + COUNT
)


class Job:
    """Word count under constant load."""

    def __init__(self, start: Callable[..., Run], folder: Path, app: str, *words: str, processes: int = 2) -> None:
        self.text = write_numbered(folder / "text.txt", LINES)
        self.out = folder / "out.jsonl"
        self.app = folder / "app.py"
        self.app.write_text(app)
        self.run = start(
            str(self.app), "--lines", str(self.text), "--rate", RATE, "--processes", str(processes),
            "--output", f"jsonl:{self.out}", *words,
        )  # fmt: skip
        self.run.reading()

    def control(self, *words: str) -> Any:
        """Run a command that must succeed; return its report."""
        done = self.run.control(*words, "--json")
        assert done.returncode == 0, (words, done.stderr, self.run.said)
        return json.loads(done.stdout)

    def bins(self) -> dict[int, int]:
        """Return the number of bins that each worker owns."""
        return {worker["id"]: worker["bins"] for worker in self.run.status()["workers"]}

    def worker(self, id: int) -> dict[str, Any]:
        return next(worker for worker in self.run.status()["workers"] if worker["id"] == id)

    def end_well(self) -> None:
        """Stop it, and check its counts."""
        assert self.run.control("stop").returncode == 0
        code, _, said = self.run.end()
        assert code == 0, said
        check_numbered(self.out, self.text, said)


@pytest.fixture
def job(start: Callable[..., Run], tmp_path: Path) -> Callable[..., Job]:
    return lambda app=COUNT, *words, **more: Job(start, tmp_path, app, *words, **more)


def test_counts_stay_exact_while_processes_come_and_go(job: Callable[..., Job]) -> None:
    count = job()
    starts = {worker["pid"]: process_start(worker["pid"]) for worker in count.run.status()["workers"]}
    for new in (2, 3):  # 2 -> 3 -> 4 processes
        added = count.control("add-workers", "1", "--balance")
        [join] = added["joins"]
        assert join["workers"] == [new] and join["bytes"] > 0
        assert {"start", "connect", "snapshot", "routing"} <= join["seconds"].keys()
        starts[count.worker(new)["pid"]] = process_start(count.worker(new)["pid"])
    assert count.bins() == dict.fromkeys(range(4), 8)
    for old in (1, 2):  # -> 3 -> 2: a founder, and one that joined
        count.control("remove-workers", "--id", str(old))
    assert count.bins() == {0: 16, 3: 16}
    wait_until(lambda: sum(lives(pid, begin) for pid, begin in starts.items()) == 2)
    [join] = count.control("add-workers", "1", "--balance")["joins"]  # -> 3
    assert join["workers"] == [4], "ids are never used again"
    assert sorted(count.bins()) == [0, 3, 4] and set(count.bins().values()) <= {10, 11}
    before = count.worker(4)["records"]
    wait_until(lambda: count.worker(4)["records"] > before)
    count.end_well()
    joined = [line for line in count.run.said if line.endswith("has joined\n")]
    assert [line.split()[2] for line in joined] == ["2", "3", "4"]
    left = [line for line in count.run.said if line.endswith("has left\n")]
    assert left == ["megaflow: worker 1 has left\n", "megaflow: worker 2 has left\n"], "and none at the end of the job"


@pytest.mark.slow
def test_processes_have_as_many_workers_as_the_others_and_leave_together(job: Callable[..., Job]) -> None:
    count = job(COUNT, "--workers", "2", processes=1)
    [join] = count.control("add-workers", "1", "--balance")["joins"]
    assert join["workers"] == [2, 3] and count.bins() == dict.fromkeys(range(4), 8)
    count.control("remove-workers", "--id", "3")
    assert count.bins() == {0: 16, 1: 16}
    refused = count.run.control("remove-workers", "--id", "0")
    assert refused.returncode == 1 and "only process" in refused.stderr
    count.control("add-workers", "1", "--balance")
    assert count.control("remove-workers", "--id", "1")["workers"] == [0, 1], "one of them coordinates"
    assert count.bins() == {4: 16, 5: 16}
    assert any("workers 4 to 5 (" in line and line.endswith(") have joined\n") for line in count.run.said)
    count.end_well()


@pytest.mark.slow
def test_several_processes_join_at_one_command(job: Callable[..., Job]) -> None:
    count = job(processes=1)
    added = count.control("add-workers", "2", "--balance")
    assert sorted(worker for join in added["joins"] for worker in join["workers"]) == [1, 2]
    assert set(count.bins().values()) <= {10, 11}
    count.end_well()


@pytest.mark.slow
def test_the_lines_of_a_job_end_also_when_those_who_had_them_have_left(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    text, out, app = write_numbered(tmp_path / "text.txt", SLOW_LINES), tmp_path / "out.jsonl", tmp_path / "slow.py"
    app.write_text(SLOW)
    run = start(str(app), "--lines", str(text), "--processes", "3", "--output", f"jsonl:{out}")
    run.reading()
    for old in ("1", "0"):  # the second one is the coordinator
        done = run.control("move-bins", "--drain", old, "--strategy", "all-at-once")
        assert done.returncode == 0, done.stderr
        done = run.control("remove-workers", "--id", old)
        assert done.returncode == 0, done.stderr
    (tmp_path / "fast").touch()
    code, _, said = run.end()
    assert code == 0, said
    with comparing():
        assert said[-1].startswith(f"megaflow: {SLOW_LINES} lines, {SLOW_LINES * 8} records"), said
    check_numbered(out, text, said)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["load", "begin", "hear", "_catch_up"])
def test_a_joiner_that_is_killed_before_it_takes_part_harms_nobody(job: Callable[..., Job], step: str) -> None:
    count = job(FRAIL)
    flag = count.app.with_name("step")
    flag.write_text(step)
    refused = count.run.control("add-workers", "1")
    assert refused.returncode == 1 and "was killed by SIGKILL" in refused.stderr, refused
    assert sorted(count.bins()) == [0, 1]
    flag.unlink()
    [join] = count.control("add-workers", "1", "--balance")["joins"]
    assert len(join["workers"]) == 1 and len(count.bins()) == 3
    count.end_well()


@pytest.mark.slow
def test_a_joiner_whose_program_fails_says_why_and_harms_nobody(job: Callable[..., Job]) -> None:
    count = job(FRAIL)
    count.app.with_name("step").write_text("raise")
    refused = count.run.control("add-workers", "1")
    assert refused.returncode == 1 and "LookupError: this file is not for you" in refused.stderr, refused
    assert sorted(count.bins()) == [0, 1]
    count.end_well()


@pytest.mark.slow
def test_a_job_that_is_told_to_stop_does_not_wait_for_a_joiner_that_is_not_ready(job: Callable[..., Job]) -> None:
    count = job(FRAIL)
    count.app.with_name("step").write_text("sleep")
    command = [sys.executable, "-m", "megaflow", "control", "add-workers", "1"]
    with subprocess.Popen(command, cwd=ROOT, env=count.run.environment, stderr=subprocess.PIPE, text=True) as adding:
        wait_until(count.app.with_name("asleep").exists)
        assert count.run.control("stop").returncode == 0
        _, errors = adding.communicate(timeout=180)
        assert adding.returncode == 1 and "is stopping" in errors
    code, _, said = count.run.end()
    assert code == 0
    check_numbered(count.out, count.text, said)


@pytest.mark.slow
def test_a_joiner_that_is_killed_once_it_takes_part_stops_the_job(job: Callable[..., Job]) -> None:
    count = job(FRAIL)
    count.app.with_name("step").write_text("after the commit")
    begun = time.monotonic()
    refused = count.run.control("add-workers", "1")
    code, _, said = count.run.end()
    assert refused.returncode == 1 and code == 1
    assert time.monotonic() - begun < 4 * STOP_SECONDS, "it had to start first"
    assert "worker 2" in said[-1] and "127.0.0.1:" in said[-1], said
    assert count.run.files() == []


@pytest.mark.slow
def test_a_killed_member_stops_all_with_its_name_and_bins(job: Callable[..., Job]) -> None:
    count = job()
    count.control("add-workers", "1", "--balance")
    status = count.run.status()
    starts = {worker["pid"]: process_start(worker["pid"]) for worker in status["workers"]}
    worker = next(worker for worker in status["workers"] if worker["id"] == 2)
    os.kill(worker["pid"], signal.SIGKILL)
    begun = time.monotonic()
    code, _, said = count.run.end()
    assert time.monotonic() - begun < STOP_SECONDS and code == 1
    named = f"megaflow: worker 2 ({worker['address']}, pid {worker['pid']}) was killed by SIGKILL, and with it the "
    assert said[-1].startswith(f"{named}state of {worker['bins']} of 32 bins of 'count' ("), said
    assert "; no other worker has that state: run the job again from its first line; " in said[-1], said
    assert not any(lives(pid, begin) for pid, begin in starts.items()) and count.run.files() == []


@pytest.mark.slow
def test_a_stopped_member_stalls_the_job_and_breaks_nothing(job: Callable[..., Job]) -> None:
    count = job()
    count.control("add-workers", "1", "--balance")
    pid = count.worker(2)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(5)  # longer than any timeout of a member
    finally:
        os.kill(pid, signal.SIGCONT)
    before = count.worker(2)["records"]
    wait_until(lambda: count.worker(2)["records"] > before)
    count.control("remove-workers", "--id", "2")
    count.end_well()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_spark_stages_its_lines_with_whoever_is_there(start: Callable[..., Run], tmp_path: Path) -> None:
    folder, out = tmp_path / "books", tmp_path / "out.jsonl"
    folder.mkdir()
    expected: Counter[str] = Counter()

    def add_files(round: int, meanwhile: Callable[[], Any] | None = None) -> None:
        """Give Spark eight more files, and wait until their words are counted."""
        for number in range(8):
            aside = tmp_path / f"{round}-{number}.txt"
            aside.write_text(f"all round{round} file{round}-{number}\n" * 100)
            aside.rename(folder / aside.name)
            expected.update({"all": 100, f"round{round}": 100, f"file{round}-{number}": 100})
        if meanwhile is not None:
            done = meanwhile()
            assert done.returncode == 0, done.stderr
        wait_until(lambda: out.exists() and len(out.read_text().splitlines()) == expected.total(), 250)

    run = start(WORDCOUNT, "--lines", f"spark:text:{folder}", "--processes", "2", "--output", f"jsonl:{out}")
    add_files(0)
    assert run.control("add-workers", "1", "--balance").returncode == 0
    add_files(1)
    lines = {worker["id"]: worker["lines"] for worker in run.status()["workers"]}
    check_equal(sum(lines.values()), 1600)
    assert lines[2] > 0, "the new worker has a port of its own"
    done = run.control("remove-workers", "--id", "1")
    assert done.returncode == 0, done.stderr
    add_files(2)
    add_files(3, lambda: run.control("remove-workers", "--id", "0"))  # the coordinator
    add_files(4)
    assert [worker["id"] for worker in run.status()["workers"]] == [2]
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said
    check_counts(out, expected)
    assert said[-1].startswith("megaflow: 4000 lines, 12000 records"), said


@pytest.mark.slow
def test_processes_that_coordinate_come_and_go_like_others(job: Callable[..., Job]) -> None:
    count = job(COUNT, "--name", "counting")
    count.control("add-workers", "1", "--balance")
    for old, bins in ((0, {1, 2}), (1, {2, 3})):  # the coordinator, and then its successor
        before = count.run.files()[0].read_text()
        assert count.control("remove-workers", "--id", str(old))["workers"] == [old]
        assert json.loads(before)["port"] != json.loads(count.run.files()[0].read_text())["port"]
        assert count.bins() == dict.fromkeys(bins, 16), "the job's name leads to the new one"
        count.control("move-bins", "--bins", "0-9", "--to", str(max(bins)))
        count.control("move-bins", "--balance", "--strategy", "optimized")
        count.control("add-workers", "1", "--balance")
    assert sorted(count.bins()) == [2, 3, 4]
    before = count.worker(4)["records"]
    wait_until(lambda: count.worker(4)["records"] > before)
    count.end_well()


@pytest.mark.slow
def test_whoever_watches_a_job_goes_on_when_its_coordinator_has_left(job: Callable[..., Job]) -> None:
    count = job(COUNT, "--name", "counting")
    command = [sys.executable, "-m", "megaflow", "control", "status", "--watch", "--json", "--job", "counting"]
    with subprocess.Popen(
        command, cwd=ROOT, env=count.run.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        seen = json.loads(watch.stdout.readline())
        assert [worker["id"] for worker in seen["workers"]] == [0, 1]
        count.control("remove-workers", "--id", "0")
        while len(seen["workers"]) > 1:
            seen = json.loads(watch.stdout.readline())
        lines = seen["workers"][0]["lines"]
        seen = json.loads(watch.stdout.readline())
        assert seen["workers"][0]["id"] == 1 and seen["workers"][0]["lines"] > lines
        count.end_well()
        assert watch.wait(180) == 0


@pytest.mark.slow
def test_ctrl_c_finds_the_coordinator_wherever_it_is(job: Callable[..., Job]) -> None:
    count = job()
    count.control("remove-workers", "--id", "0")
    count.run.process.send_signal(signal.SIGINT)
    code, _, said = count.run.end()
    assert code == 130 and not any("Traceback" in line for line in said), said
    check_numbered(count.out, count.text, said)


@pytest.mark.slow
def test_a_coordinator_that_has_taken_over_and_is_killed_stops_all_with_its_name(job: Callable[..., Job]) -> None:
    count = job()
    count.control("add-workers", "1", "--balance")
    count.control("remove-workers", "--id", "0")
    status = count.run.status()
    starts = {worker["pid"]: process_start(worker["pid"]) for worker in status["workers"]}
    killed = status["workers"][0]
    assert killed["id"] == 1
    os.kill(killed["pid"], signal.SIGKILL)
    begun = time.monotonic()
    code, _, said = count.run.end()
    assert time.monotonic() - begun < STOP_SECONDS and code == 1
    named = f"megaflow: worker 1 ({killed['address']}, pid {killed['pid']}) was killed by SIGKILL"
    assert said[-1].startswith(named), said
    assert "; all other workers have been stopped" in said[-1], said
    assert not any(lives(pid, begin) for pid, begin in starts.items()) and count.run.files() == []


def by_hand(count: Job, app: Path, *words: str) -> "subprocess.Popen[str]":
    """Start a process that asks to join."""
    command = [sys.executable, "-m", "megaflow", "run", str(app), *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=count.run.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_process_started_by_hand_joins_works_and_leaves(job: Callable[..., Job]) -> None:
    count = job(COUNT, "--name", "counting")
    with by_hand(count, count.app, "--join", "counting", "--server", "1") as other:
        try:
            assert other.stderr is not None
            told = other.stderr.readline()
            assert says(told, "worker 2 of job 'counting'", "megaflow control move-bins --job counting --balance")
            assert says(told, "megaflow control remove-workers --job counting --id 2\n")
            assert count.control("move-bins", "--balance")["bins"] == 10, "it is counted at once"
            again = count.run.control("bootstrap", "--server", "0", "--worker", "2")
            assert (again.returncode, again.stdout) == (0, "worker 2 already has its routing table\n"), again
            assert set(count.bins().values()) <= {10, 11} and count.worker(2)["pid"] == other.pid
            before = count.worker(2)["records"]
            wait_until(lambda: count.worker(2)["records"] > before)
            count.control("remove-workers", "--id", "2")
            output, errors = other.communicate(timeout=180)
            assert (other.returncode, output, errors) == (0, "", "")
        finally:
            other.kill()
    count.end_well()


NEIGHBOUR = "SCALE = 1\n"
SCALED = "from neighbour import SCALE\n" + COUNT.replace("[(word, total)]", "[(word, total * SCALE)]")


@pytest.mark.slow
def test_a_process_whose_code_or_arguments_are_not_the_jobs_does_not_join(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    neighbour = tmp_path / "neighbour.py"
    neighbour.write_text(NEIGHBOUR)
    count = job(SCALED, "--name", "counting", "--", "some", "words")
    neighbour.write_text("SCALE = 10  # the same shape\n")
    refused = count.run.control("add-workers", "1")
    assert refused.returncode == 1 and "its code differs from the job's: neighbour.py" in refused.stderr, refused
    with by_hand(count, count.app, "--join", "counting") as other:
        _, errors = other.communicate(timeout=180)
    assert other.returncode == 1 and errors.count("\n") == 1, errors
    assert errors.startswith(
        "megaflow: This process cannot join: its code differs from the job's: neighbour.py differs; "
        "the arguments are [], the job's are ['some', 'words']. "
    )
    assert sorted(count.bins()) == [0, 1], "nothing has changed"
    neighbour.write_text(NEIGHBOUR)
    count.control("add-workers", "1")
    neighbour.write_text(NEIGHBOUR + "# for an upgrade\n")
    count.control("add-workers", "1", "--allow-other-code")
    assert len(count.bins()) == 4
    count.end_well()


# Of two processes, the first imports a neighbour and then changes it; the other one waits for that.
CHANGING = """
import os, pathlib, time

here = pathlib.Path(__file__).parent
try:
    os.close(os.open(here / "first", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    while not (here / "changed").exists():
        time.sleep(0.01)
    import neighbour
else:
    import neighbour
    (here / "neighbour.py").write_text("SCALE = 10")
    (here / "changed").touch()
"""


def test_founders_that_have_loaded_different_code_end_the_job(start: Callable[..., Run], tmp_path: Path) -> None:
    app, text = tmp_path / "app.py", write_numbered(tmp_path / "text.txt", 10)
    app.write_text(CHANGING + COUNT)
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    code, _, said = start(str(app), "--lines", str(text), "--processes", "2", "--output", "none").end()
    assert code == 1 and "neighbour.py differs. A file changed while the job started" in said[-1], said


@pytest.mark.slow
def test_a_process_started_by_hand_finds_the_job_and_may_coordinate_it(job: Callable[..., Job]) -> None:
    count = job(COUNT, "--name", "counting")
    count.control("remove-workers", "--id", "0")
    with by_hand(count, count.app, "--join", "counting", "--no-bootstrap") as other:
        try:
            assert other.stderr is not None
            bootstrap = "megaflow control bootstrap --job counting --server 1 --worker 2\n"
            assert other.stderr.readline().endswith(f"to give it its routing table: {bootstrap}")
            wait_until(lambda: 2 in count.bins())
            left_out = count.run.control("move-bins", "--balance")
            assert left_out.returncode == 0 and "worker 2 has no routing table, so it gets no bins" in left_out.stderr
            refused = count.run.control("remove-workers", "--id", "1")
            assert refused.returncode == 1 and "worker 2, which would become the coordinator" in refused.stderr, refused
            count.control("bootstrap", "--server", "1", "--worker", "2")
            count.control("remove-workers", "--id", "1")
            assert count.bins() == {2: 32} and count.worker(2)["pid"] == other.pid
            [join] = count.control("add-workers", "1", "--balance")["joins"]
            assert join["workers"] == [3] and count.bins() == {2: 16, 3: 16}
            count.control("remove-workers", "--id", "2")
            output, errors = other.communicate(timeout=180)
            assert (other.returncode, output, errors) == (0, "", "")
        finally:
            other.kill()
    count.end_well()


@pytest.mark.slow
def test_a_process_started_by_hand_that_builds_something_else_is_sent_away(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    count = job()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(COUNT.replace("flow.lines()", "flow.lines().filter(bool)"))
    address = count.worker(1)["address"]
    count.run.environment["MEGAFLOW_SECRET"] = json.loads(count.run.files()[0].read_text())["secret"]
    with by_hand(count, wrong, "--join", address, "--allow-other-code") as other:
        try:
            _, errors = other.communicate(timeout=180)
        finally:
            other.kill()
    assert other.returncode == 1 and re.match(r"megaflow: dataflow 0 \('\w+'\) differs", errors), errors
    assert sorted(count.bins()) == [0, 1]
    count.end_well()


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--join", "nobody"], 1, "there is no job named 'nobody'"),
        (["--join", "127.0.0.1:x"], 2, "must be HOST:PORT"),
        (["--join", "nobody", "--lines", "-"], 2, "--lines does not go with --join nobody: the running job sets it"),
        (["--join", "nobody", "--rate", "5"], 2, "--rate does not go with --join nobody: the running job sets it"),
        (["--server", "1", "--lines", "-"], 2, "--server 1 is only for a process that joins"),
        (["--no-bootstrap", "--lines", "-"], 2, "--no-bootstrap is only for a process that joins"),
        (["--allow-other-code", "--lines", "-"], 2, "--allow-other-code is only for a process that joins"),
    ],
)
def test_words_that_make_no_sense_are_refused(tmp_path: Path, words: list[str], code: int, complaint: str) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "megaflow", "run", WORDCOUNT, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code and complaint in done.stderr, done.stderr
