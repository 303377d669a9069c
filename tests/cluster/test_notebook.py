"""A notebook: Python values in, results as they come; moves, stops and interrupts lose no result."""

import subprocess
import sys
from pathlib import Path

import pytest

from megaflow.errors import PeerFailed
from tests.cluster.processes import ROOT
from tests.results import check_equal, comparing
from tests.test_programs_of_the_docs import code_with

pytestmark = pytest.mark.cluster

SECONDS = 300.0

CELLS = '''
import itertools, os, queue, signal, sys, threading
from collections import Counter
from dataclasses import dataclass

import megaflow

processes, folder = int(sys.argv[1]), sys.argv[2]

@dataclass
class Click:                                     # nothing of the dataflow refers to it
    user: str
    page: str

def count(user, n, total):
    total = (total or 0) + n
    return total, [(user, total)]

def dataflow(flow):
    return flow.items().map(lambda click: (click.user, 1)).stateful_state_machine(count, bins=16)

def exact(records, users):
    totals, expected = Counter(), []
    for user in users:
        totals[user] += 1
        expected.append((user, totals[user]))
    assert sorted(records) == sorted(expected), f"wrong result: {len(records)} records of {len(expected)}"
    for user in totals:                          # in order, too
        assert [n for name, n in records if name == user] == [*range(1, totals[user] + 1)], f"wrong result: {user}"

def clicks(pulled, interrupts=False):
    for number in itertools.count():
        pulled.append("abcdefg"[number * number % 7])
        if interrupts and number >= 2000 and waits_for_outputs():
            interrupts = False
            os.kill(os.getpid(), signal.SIGINT)  # as the stop button of a notebook does
        yield Click(pulled[-1], "/")

def waits_for_outputs():                         # the job has been started
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None:
        if frame.f_code.co_name in ("__next__", "wait") and "megaflow" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False

# In [1]: results as they come, bins moved, a stop
pulled, seen = [], []
with megaflow.start(dataflow, items=clicks(pulled), processes=processes) as job:
    for record in job.outputs():
        seen.append(record)
        if len(seen) == 500 and processes > 1:
            assert job.control.move_bins(drain=0).bins == 8
        elif len(seen) == 1000 and processes > 1:
            job.control.move_bins(balance=True)
        elif len(seen) == 1500:
            assert job.control.get("count", "a") > 0 and len(job.status().workers) == processes
        elif len(seen) == 2000:
            break
seen += job.outputs()
exact(seen, pulled)

# In [2]: interrupted
pulled, seen = [], []
job = megaflow.start(dataflow, items=clicks(pulled, interrupts=True), processes=processes)
try:
    with job:
        for record in job.outputs():
            seen.append(record)
    raise SystemExit("it was not interrupted")
except KeyboardInterrupt:
    seen += job.outputs()
exact(seen, pulled)

# In [3]: so is a run, which has what came until then
pulled = []
try:
    megaflow.run(dataflow, items=clicks(pulled, interrupts=True), processes=processes)
except KeyboardInterrupt as interrupt:
    exact(interrupt.records, pulled)
else:
    raise SystemExit("it was not interrupted")

# In [4]: a queue that is fed cell by cell, and two jobs at once
sources = queue.Queue(), queue.Queue()
jobs = [megaflow.start(dataflow, items=source, processes=processes) for source in sources]
for job, source in zip(jobs, sources):
    outputs = job.outputs()
    for n in range(1, 4):
        source.put(Click("ada", "/"))
        assert next(outputs) == ("ada", n), "wrong result"
for job in jobs:
    job.stop()
    assert job.wait().records == 3, "wrong result"

# In [5]: kept state; a worker is killed, and each result comes once
def lines(flow):
    return flow.lines().map(lambda user: (user, 1)).stateful_state_machine(count, bins=16)

users = ["abcdefg"[number * number % 7] for number in range(3000)]
with open(f"{folder}/users", "w") as file:
    file.write("\\n".join(users))
seen, killed = [], False
with megaflow.start(lines, lines=f"{folder}/users", processes=processes, state=f"{folder}/kept", rate=1500,
                    checkpoint_every=0.1) as job:
    for record in job.outputs():
        seen.append(record)
        if len(seen) >= 300 and not killed:
            killed = True
            os.kill(job.status().workers[-1].pid, signal.SIGKILL)
        if len(seen) == len(users):
            break
assert not [*job.outputs()], "wrong result"
exact(seen, users)
print("all exact")
'''


@pytest.mark.slow  # another interpreter, with eight jobs in it
@pytest.mark.parametrize("processes", [1, 2])
def test_a_notebook_is_exact_through_moves_stops_interrupts_and_a_kill(processes: int, tmp_path: Path) -> None:
    program = tmp_path / "cells.py"  # a script without `if __name__ == "__main__"`
    program.write_text(CELLS)
    words = [sys.executable, str(program), str(processes), str(tmp_path)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    with comparing():
        assert "AssertionError: wrong result" not in ended.stderr, ended.stderr
    assert ended.returncode == 0 and ended.stdout == "all exact\n", ended.stderr


def test_the_job_of_the_readme_gives_each_total_once() -> None:
    names = {"__name__": "__main__"}
    exec(compile(code_with("def clicks():"), "docs", "exec"), names)
    records, rest = names["job"].wait().records, names["rest"]  # type: ignore[attr-defined]
    check_equal([*rest], [("ada", total) for total in range(5001, records + 1)])


def test_a_notebook_shows_the_traceback_of_the_program_alone() -> None:
    assert PeerFailed("Traceback …\nValueError: mine\n")._render_traceback_() == ["Traceback …", "ValueError: mine"]
