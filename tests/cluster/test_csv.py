"""CSV on real processes: every way to read a file gives the same rows, through kills, resumes and moves."""

import csv
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import STATUS_SECONDS, Run, records_of, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CASES = Path(__file__).parent.parent / "cases"
BAD = CASES / "blanks_and_bad.csv"
APP = """
def dataflow(flow):
    multiline = flow.args == []
    return flow.csv(header=False, as_=tuple, multiline=multiline, on_error="skip").map(list)
"""
COUNTED = """
def dataflow(flow):
    return flow.csv().map(lambda row: (row["k"], row["v"])).stateful_state_machine(
        lambda key, value, state: (value, [(key, value)])
    )
"""


@pytest.mark.parametrize("way", ["1", "2", "stdin", "follow", "unordered"])
def test_blanks_and_bad_rows_are_the_same_in_every_job(start: Callable[..., Run], tmp_path: Path, way: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    out = tmp_path / "out.jsonl"
    words = [str(tmp_path / "app.py"), "--output", f"jsonl:{out}"]
    wanted = sorted(row for row in csv.reader(BAD.read_text().splitlines()) if len(row) == 2)
    if way == "stdin":
        with BAD.open() as file:
            job = start(*words, "--lines", "-", stdin=file)
    elif way == "unordered":
        job = start(*words, "--lines", f"{BAD}?unordered", "--processes", "2", "--", "by lines")
    else:
        follow = ["--follow"] if way == "follow" else []
        job = start(*words, "--lines", str(BAD), "--processes", "2" if way == "2" else "1", *follow)
    if way == "follow":
        wait_until(lambda: len(records_of(out)) == len(wanted), STATUS_SECONDS)
        job.control("stop")
    code, _, said = job.end()
    assert code == 0, said
    check_equal(sorted(records_of(out)), wanted)
    assert len(wanted) == 876
    assert "24 faults skipped" in said[-1]


def test_rows_over_lines_are_exact_after_a_kill(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTED)
    rows = [(f"k{number % 7}", f"{number}\r\n\"quoted\",\n{'x' * (number % 50)}") for number in range(4_000)]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("k", "v"), *rows])
    out = tmp_path / "out.jsonl"
    words = [
        str(tmp_path / "app.py"), "--lines", str(tmp_path / "rows.csv"), "--state", str(tmp_path / "store"),
        "--checkpoint-every", "0.1", "--output", f"jsonl:{out}", "--processes", "2",
    ]  # fmt: skip
    job = start(*words, "--rate", "4000")
    wait_until(lambda: len(records_of(out)) > 300, STATUS_SECONDS)
    os.kill(job.process.pid, signal.SIGKILL)
    job.end()
    assert len(records_of(out)) < len(rows)
    code, _, said = start(*words).end()
    assert code == 0, said
    check_equal(sorted(map(tuple, records_of(out))), sorted(rows))


def test_standard_input_goes_to_another_process_within_a_row(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTED)
    reading, writing = os.pipe()
    job = start(str(tmp_path / "app.py"), "--lines", "-", "--processes", "2", stdin=reading)
    os.close(reading)
    os.write(writing, b'k,v\na,1\nb,"2\r\n')
    job.status_when(lambda status: sum(worker["lines"] for worker in status["workers"]) == 3)
    assert "removed worker 0" in job.control("remove-workers", "--id", "0").stdout
    os.write(writing, b'3"\nc,4\n')
    os.close(writing)
    code, output, said = job.end()
    assert code == 0, said
    check_equal(sorted(output.splitlines()), ["('a', '1')", "('b', '2\\r\\n3')", "('c', '4')"])


TYPED = """
from typing import NamedTuple

class Row(NamedTuple):
    id: int
    cents: int

def total(id, cents, state):
    return (state or 0) + cents, [(id, (state or 0) + cents)]

def dataflow(flow):
    rows = flow.csv(as_=Row, types=TYPES)
    return rows.map(lambda row: (row.id, int(row.cents))).stateful_state_machine(total)
"""


def test_a_store_of_text_goes_on_as_text_alone(start: Callable[..., Run], tmp_path: Path) -> None:
    app, out = tmp_path / "app.py", tmp_path / "out.jsonl"
    words = [str(app), "--lines", str(tmp_path / "in" / "*.csv"), "--state", str(tmp_path / "store")]
    words += ["--output", f"jsonl:{out}", "--processes", "2"]
    (tmp_path / "in").mkdir()
    for number, types in enumerate(["str", "None", "str"]):
        app.write_text(TYPED.replace("TYPES", types))
        (tmp_path / "in" / f"{number}.csv").write_text("id,cents\n7,10\n")
        code, _, said = start(*words).end()
        if types == "None":
            assert code == 1 and "Give flow.csv types=str" in said[-1] and "column 'cents'" in said[-1], said
    assert code == 0, said
    check_equal(records_of(out), [["7", 10], ["7", 20], ["7", 30]])


def test_a_row_in_which_the_file_ends_waits_for_the_next_run(start: Callable[..., Run], tmp_path: Path) -> None:
    app, path, out = tmp_path / "app.py", tmp_path / "a.csv", tmp_path / "out.jsonl"
    app.write_text(APP.replace("header=False, ", ""))
    path.write_bytes((CASES / "open_quote_end.csv").read_bytes())
    words = [str(app), "--lines", str(path), "--state", str(tmp_path / "store"), "--output", f"jsonl:{out}"]
    for _ in range(2):  # the second time it has not grown
        code, _, said = start(*words).end()
        assert code == 0 and "1 unfinished record left to the next run" in said[-1], said
        assert any("line 3 of" in each and "The next run reads it again" in each for each in said), said
        check_equal(records_of(out), [["1", "x"]])
    with path.open("ab") as file:
        file.write((CASES / "open_quote_rest.txt").read_bytes())
    code, _, said = start(*words).end()
    assert code == 0 and "unfinished" not in said[-1] and "skipped" not in said[-1], said
    check_equal(records_of(out), [["1", "x"], ["2", "open\n7,8\n9,9\nclose"], ["3", "w"]])
    with path.open("a") as file:
        file.write('4,"y\n')
    code, _, said = start(*words).end()
    path.unlink()
    (tmp_path / "b.csv").write_text("a,b\n5,z\n")
    words[2] = str(tmp_path / "*.csv")
    code, _, said = start(*words).end()
    assert code == 0 and "1 fault skipped" in said[-1], said
    assert any("the unfinished record at the end of" in each for each in said), said
    check_equal(records_of(out)[-1], ["5", "z"])


def test_the_end_says_how_many_lines_a_quote_has_swallowed(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace("header=False, ", ""))
    job = start(str(tmp_path / "app.py"), "--lines", str(CASES / "swallowed.csv"), "--processes", "2")
    code, output, said = job.end()
    assert code == 0 and "1 fault skipped; 39 further lines skipped" in said[-1] and "multiline=False" in said[-1], said
    check_equal(len(output.splitlines()), 20)
