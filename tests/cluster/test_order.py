"""Records of a key arrive in the order of their partition, while bins move and processes join and leave."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster

RATE = "20000"
LINES = 4_000_000  # more than a test reads

# Reports numbers that came too early or too late: each key's grow by 100.
FOLLOW = """
def follow(key, number, last):
    due = key if last is None else last + 100
    return number, [] if number == due else [(key, due, number)]

def dataflow(flow):
    numbers = flow.lines().map(int).map(lambda number: (number % 100, number))
    return numbers.stateful_state_machine(follow, bins=32)
"""


def rescale(run: Run, leaver: int) -> None:
    """Move bins, let a process join and take its share, let another one leave, move bins again."""
    for words in (
        ("move-bins", "--bins", "0-15", "--to", "1", "--strategy", "batched", "--batch", "4"),
        ("add-workers", "1", "--balance"),
        ("remove-workers", "--id", str(leaver)),
        ("move-bins", "--drain", "2", "--strategy", "all-at-once"),
    ):
        done = run.control(*words)
        assert done.returncode == 0, (words, done.stderr, run.said)


@pytest.mark.slow
def test_a_file_is_applied_in_its_order_and_another_worker_reads_on_when_its_reader_leaves(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app, numbers = tmp_path / "follow.py", tmp_path / "numbers.txt"
    app.write_text(FOLLOW)
    numbers.write_text("\n".join(map(str, range(LINES))))
    run = start(str(app), "--lines", str(numbers), "--processes", "2", "--rate", RATE)
    before = {worker["id"]: worker["lines"] for worker in run.reading()["workers"]}
    assert before[0] and not before[1], "one worker reads it"
    rescale(run, leaver=0)
    run.status_when(lambda record: sum(worker["lines"] > 1000 for worker in record["workers"]) == 1)
    assert run.control("stop").returncode == 0
    code, output, said = run.end()
    assert code == 0, said
    check_equal(output, "", said)


@pytest.mark.slow
def test_what_is_piped_in_is_applied_in_its_order_and_another_worker_reads_on_when_its_reader_leaves(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app, enough = tmp_path / "follow.py", threading.Event()
    app.write_text(FOLLOW)
    run = start(str(app), "--lines", "-", "--processes", "2", "--rate", RATE, stdin=subprocess.PIPE)
    written = 0

    def write() -> None:
        nonlocal written
        assert run.process.stdin is not None
        with run.process.stdin as pipe:
            while not enough.is_set():
                pipe.writelines(f"{number:200}\n" for number in range(written, written + 1000))  # few are under way
                written += 1000

    writer = threading.Thread(target=write)
    writer.start()
    try:
        run.reading()
        rescale(run, leaver=0)
    finally:
        enough.set()
        writer.join()
    code, output, said = run.end()
    assert code == 0, said
    check_equal(output, "", said)
    with comparing():
        assert said[-1].startswith(f"megaflow: {written} lines, 0 records"), said
