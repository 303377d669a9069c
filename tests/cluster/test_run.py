"""`megaflow run` and `megaflow control` with real processes: results, steering, and every way to end."""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import PeerFailed, UsageError
from megaflow.job.job_file import process_start
from megaflow.job.launcher.run.python_function import run
from tests.cluster.counts import check_counts, check_numbered, words_of, write_numbered
from tests.cluster.processes import ROOT, STOP_SECONDS, WORDCOUNT, Run, fall_asleep, lives, wait_until
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster

FAILING = """
def count(word, n, total):
    if word == "poison":
        raise ValueError("no such word")
    return (total or 0) + n, []

def dataflow(flow):
    print("hello from a worker")
    return flow.lines().flat_map(lambda line: [(w, 1) for w in line.split()]).stateful_state_machine(count)
"""


def test_a_file_is_counted_and_nothing_is_left(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a b a")
    run = start(WORDCOUNT, "--lines", str(tmp_path / "one.txt"))
    code, output, said = run.end()
    assert code == 0, said
    check_equal(sorted(output.splitlines()), ["('a', 1)", "('a', 2)", "('b', 1)"])
    assert said[0].startswith("megaflow: job 'wordcount' on 1 worker; steer it with: megaflow control status")
    assert said[1].startswith("megaflow: 1 line, 3 records, ") and len(said) == 2
    assert run.files() == []


def test_the_first_command_of_the_readme_works_in_the_clone(start: Callable[..., Run]) -> None:
    command = re.search(r"^megaflow (run .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert command is not None
    _, *words = shlex.split(command[1])
    code, output, said = start(*words, cwd=ROOT).end()
    counts = Counter(word for path in ROOT.glob("apps/data/*.txt") for word in path.read_text("utf-8").split())
    assert code == 0, said
    check_equal(dict(map(ast.literal_eval, output.splitlines())), counts, said)
    assert len(counts) > 100


def test_a_function_is_run_by_the_name_of_its_module(start: Callable[..., Run], tmp_path: Path) -> None:
    package = tmp_path / "shop" / "rules"
    package.mkdir(parents=True)
    (tmp_path / "shop" / "kinds.py").write_text("class Order:\n    def __init__(self, n):\n        self.n = n\n")
    (package / "app.py").write_text(
        "from ..kinds import Order\n"
        "def add(word, order, before):\n"
        "    total = Order(order.n + (before.n if before else 0))\n"
        "    return total, [(word, total.n)]\n"
        "def dataflow(flow):\n"
        "    return flow.lines().map(lambda word: (word, Order(1))).stateful_state_machine(add)\n"
    )
    (tmp_path / "in.txt").write_text("a\nb\na\n")
    code, output, said = start("shop.rules.app", "--lines", "in.txt", "--processes", "2", cwd=tmp_path).end()
    assert code == 0, said
    check_equal(sorted(output.splitlines()), ["('a', 1)", "('a', 2)", "('b', 1)"], said)
    assert said[0].startswith("megaflow: job 'rules' on 2 workers"), said


@pytest.mark.parametrize(
    "shape", [("2", "2"), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ["11", "21", "12"])]
)
def test_every_shape_of_cluster_counts_the_same(
    start: Callable[..., Run], tmp_path: Path, text: Path, shape: tuple[str, str]
) -> None:
    out = tmp_path / "out.jsonl"
    processes, workers = shape
    cluster = ("--processes", processes, "--workers", workers)
    run = start(WORDCOUNT, "--lines", str(text), "--output", f"jsonl:{out}", *cluster)
    code, output, said = run.end()
    assert (code, output) == (0, ""), said
    check_counts(out, words_of(text))


def test_bins_move_while_the_lines_flow(start: Callable[..., Run], tmp_path: Path) -> None:
    text, out = write_numbered(tmp_path / "text.txt", 100_000), tmp_path / "out.jsonl"
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "400", "--processes", "2", "--output", f"jsonl:{out}")
    before = run.reading()
    assert before["state"] == "running" and [w["bins"] for w in before["workers"]] == [128, 128]
    assert {w["id"] for w in before["workers"]} == {0, 1} and len({w["pid"] for w in before["workers"]}) == 2
    moved = run.control("move-bins", "--bins", "0-127", "--to", "1", "--json")
    assert moved.returncode == 0, moved.stderr
    account = json.loads(moved.stdout)
    assert (account["steps"], account["bins"]) == (64, 64) and account["bytes"] > 0 and account["keys"] > 0
    after = run.status()
    assert [w["bins"] for w in after["workers"]] == [64, 192]
    assert after["operators"][0]["table"][:128] == [1] * 128
    assert len(after["ledger"]) == 64 and {(e["from"], e["to"]) for e in after["ledger"]} == {(0, 1)}
    back = run.control("move-bins", "--balance", "--strategy", "all-at-once")
    assert back.returncode == 0 and back.stdout.startswith("moved 64 bins"), back.stderr
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said
    check_numbered(out, text, said)


@pytest.mark.slow
def test_commands_that_cannot_be_change_nothing(start: Callable[..., Run], text: Path) -> None:
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "10", "--processes", "2", "--output", "none")
    table = run.reading()["operators"][0]["table"]
    for words, code in (
        (["--bins", "256", "--to", "1"], 1), (["--bins", "0", "--to", "2"], 1), (["--bins", "x", "--to", "1"], 2),
        (["--drain", "9"], 1), (["--bins", "0"], 2), (["--balance", "--strategy", "slow"], 2), ([], 2),
    ):  # fmt: skip
        done = run.control("move-bins", *words)
        assert done.returncode == code and done.stderr and not done.stdout, words
    stranger = subprocess.run(
        [sys.executable, "-m", "megaflow", "control", "stop", "--connect", run.status()["workers"][0]["address"]],
        cwd=ROOT, env={**run.environment, "MEGAFLOW_SECRET": "wrong"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert stranger.returncode == 1 and stranger.stderr
    assert run.status()["operators"][0]["table"] == table
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said


def test_lines_come_from_standard_input_as_they_come(start: Callable[..., Run]) -> None:
    run = start(WORDCOUNT, "--lines", "-", "--processes", "2", stdin=subprocess.PIPE)
    for count in (1, 2, 3):  # each answer comes before the next line is sent
        run.process.write_line("word")
        answer = run.process.read_line()
        assert answer, run.said
        check_equal(answer, f"('word', {count})\n")
    assert run.process.stdin is not None
    run.process.stdin.write("end")
    run.process.stdin.close()
    code, _, said = run.end()
    assert code == 0, said
    check_equal((run.process.read_line(), run.process.read_line()), ("('end', 1)\n", ""), said)


CASES = ROOT / "tests" / "cases"
ROWS = "def dataflow(flow):\n    return flow.csv()\n"
VALUES = "def dataflow(flow):\n    return flow.json_lines()\n"
LINES = "def dataflow(flow):\n    return flow.lines()\n"


@pytest.mark.parametrize(
    ("program", "spec", "right"),
    [
        (ROWS, "latin1.csv?encoding=latin-1", [{"name": "José", "city": "München"}]),
        (ROWS, "utf16.csv", [{"a": "1", "b": "2"}]),
        (VALUES, "utf16.json", [{"a": 1}, {"a": 2}]),
    ],
)
def test_text_in_other_encodings_is_read(
    start: Callable[..., Run], tmp_path: Path, program: str, spec: str, right: list[Any]
) -> None:
    (tmp_path / "app.py").write_text(program)
    code, output, said = start(str(tmp_path / "app.py"), "--lines", str(CASES / spec)).end()
    assert code == 0, said
    check_equal([ast.literal_eval(line) for line in output.splitlines()], right, said)


def test_bytes_that_are_not_text_end_the_job_or_are_counted(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(LINES)
    words = [str(tmp_path / "app.py"), "--lines", str(CASES / "latin1.csv")]
    code, _, said = start(*words).end()
    assert code == 1 and f"Line 2 of '{CASES}/latin1.csv' is not UTF-8: byte 13 is 0xe9" in "\n".join(said), said
    assert f"--lines '{CASES}/latin1.csv?encoding=latin-1'" in "\n".join(said), said
    code, output, said = start(*words, "--encoding-errors", "replace").end()
    assert code == 0, said
    check_equal(output, "name,city\nJos\ufffd,M\ufffdnchen\n", said)
    assert said[-1].endswith("; 2 sequences of bytes replaced by U+FFFD"), said
    assert any(f"'{CASES}/latin1.csv' has bytes that are not text" in line for line in said), said


def test_a_binary_file_is_refused_before_anything_is_written(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(LINES)
    (tmp_path / "out").write_text("old\n")
    with zipfile.ZipFile(tmp_path / "data.csv", "w") as file:
        file.writestr("data.csv", "a,b\n1,2\n")
    words = ["--lines", str(tmp_path / "data.csv"), "--output", f"jsonl:{tmp_path}/out", "--overwrite"]
    code, _, said = start(str(tmp_path / "app.py"), *words).end()
    assert code == 1 and "data.csv' as lines: it is a ZIP archive. Unpack it" in said[-1], said
    check_equal((tmp_path / "out").read_text(), "old\n")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("flag", [[], ["--append"], ["--overwrite"]])
def test_a_second_job_with_the_same_output_is_refused(
    start: Callable[..., Run], tmp_path: Path, kind: str, flag: list[str]
) -> None:
    out = tmp_path / "out"
    app = tmp_path / "app.py"
    app.write_text("def dataflow(flow):\n    return flow.lines().map(lambda line: {'line': line})\n")
    words = [str(app), "--lines", "-", "--output", f"{kind}:{out}", *flag]
    first = start(*words, stdin=subprocess.PIPE)
    wait_until(lambda: len(first.files()) == 1)  # it runs
    code, _, said = start(*words).end()
    assert code == 1 and f"{kind}:{out}: Another job writes to this file" in said[-1], said
    first.process.write_line("word")
    assert first.process.stdin is not None
    first.process.stdin.close()
    code, _, said = first.end()
    assert code == 0, said
    with comparing():
        assert "word" in out.read_text(), said


@pytest.mark.slow
def test_a_large_input_may_be_pushed_from_a_file_or_a_pipe(start: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text("".join(f"line{number % 10} {'x' * 90}\n" for number in range(60_000)))  # thrice the credit
    with path.open() as file:
        code, _, said = start(WORDCOUNT, "--lines", "-", "--output", "none", stdin=file).end()
    assert code == 0, said
    with comparing():
        assert said[-1].startswith("megaflow: 60000 lines, 120000 records"), said
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:
        code, _, said = start(WORDCOUNT, "--lines", "-", "--output", "none", stdin=cat.stdout).end()
    assert code == 0, said
    with comparing():
        assert said[-1].startswith("megaflow: 60000 lines, 120000 records"), said


def test_an_empty_input_is_an_empty_output(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    for lines in ("-", str(tmp_path / "empty.txt")):
        code, output, said = start(WORDCOUNT, "--lines", lines).end()
        assert code == 0, said
        check_equal(output, "", said)
        assert said[-1].startswith("megaflow: 0 lines, 0 records"), said


# Records of several types; a line "bad" becomes one without a form in JSON.
TYPES = """
import datetime
from typing import NamedTuple

class Point(NamedTuple):
    x: int
    y: object

class Stranger:
    pass

def record(line):
    if line == "bad":
        return Stranger()
    return Point(len(line), {"nan": float("nan"), 1: {line, datetime.date(2026, 1, 2)}})

def dataflow(flow):
    return flow.lines().map(record)
"""


def test_jsonl_is_json_by_rule_and_keeps_what_a_file_has_until_there_is_something_new(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app, lines, out = tmp_path / "shapes.py", tmp_path / "lines.txt", tmp_path / "out.jsonl"
    app.write_text(TYPES)
    out.write_text("old\n")

    def run(*lines_read: str) -> tuple[int, str, list[str]]:
        lines.write_text("\n".join(lines_read))
        words = ("--lines", str(lines), "--output", f"jsonl:{out}", "--overwrite", "--processes", "2")
        return start(str(app), *words).end()

    code, _, said = run("bad")
    assert code == 1
    check_equal(out.read_text(), "old\n")
    assert "JSON has no form for <shapes.Stranger object" in said[-2] and "of type shapes.Stranger" in said[-2], said
    assert "in operator 'Output'" in said[-1] and ", record <shapes.Stranger" in said[-1], said
    code, _, said = run("a")
    assert code == 0, said
    check_equal(json.loads(out.read_text())["record"], {"x": 1, "y": {"nan": None, "1": ["2026-01-02", "a"]}})
    app.write_text("import nowhere_at_all\n" + TYPES)
    before = out.read_text()
    code, _, said = run("a")
    assert code == 1, said
    check_equal(out.read_text(), before)
    assert "nowhere_at_all" in said[-1], said


def test_an_exception_ends_the_job_with_the_users_traceback_last(start: Callable[..., Run], tmp_path: Path) -> None:
    app, lines = tmp_path / "failing.py", tmp_path / "lines.txt"
    app.write_text(FAILING)
    lines.write_text("good words\n" * 5000 + "poison\n" + "good words\n" * 5000)
    run = start(str(app), "--lines", str(lines), "--processes", "2")
    code, output, said = run.end()
    assert (code, output) == (1, ""), said
    text = "\n".join(said)
    assert text.count("hello from a worker") == 2  # what workers print is not part of the output
    trace = said[said.index("Traceback (most recent call last):") :]
    assert any("failing.py" in line and "in count" in line for line in trace) and "ValueError: no such word" in trace
    assert "poison" in text and "megaflow/timely" not in text and text.count("Traceback") == 1
    assert run.files() == []


def test_a_killed_worker_stops_the_job_with_its_name(start: Callable[..., Run], text: Path) -> None:
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "20", "--processes", "3", "--output", "none")
    workers = {worker["id"]: worker for worker in run.reading()["workers"]}
    starts = {worker["pid"]: process_start(worker["pid"]) for worker in workers.values()}
    os.kill(workers[1]["pid"], signal.SIGKILL)
    begun = time.monotonic()
    code, _, said = run.end()
    assert time.monotonic() - begun < STOP_SECONDS and code == 1
    named = f"worker 1 ({workers[1]['address']}, pid {workers[1]['pid']}) was killed by SIGKILL"
    state = "the state of 85 of 256 bins of 'count' (1,4,7,10,13,16,19,…,253)"
    todo = "all other workers have been stopped; no other worker has that state: run the job again from its first line"
    todo += "; with --state DIR, a job goes on by itself"
    assert said[-1] == f"megaflow: {named}, and with it {state}; {todo}", said
    assert not any(lives(pid, begin) for pid, begin in starts.items()) and run.files() == []


@pytest.mark.slow
def test_no_worker_survives_its_launcher(start: Callable[..., Run], text: Path) -> None:
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "20", "--processes", "2", "--output", "none")
    starts = {worker["pid"]: process_start(worker["pid"]) for worker in run.reading()["workers"]}
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not any(lives(pid, begin) for pid, begin in starts.items()), STOP_SECONDS)
    left = run.files()
    done = run.control("status")
    assert left and done.returncode == 1 and "no job is running" in done.stderr and run.files() == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow)]
)
def test_the_first_signal_drains_and_stops(start: Callable[..., Run], text: Path, number: int, code: int) -> None:
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "50", "--processes", "2", "--output", "-")
    read = sum(worker["lines"] for worker in run.reading()["workers"])
    run.process.send_signal(number)
    ended, output, said = run.end()
    assert ended == code, said
    lines, records = (int(word) for word in said[-1].split()[1::2][:2])
    assert read <= lines < 4000, said
    check_equal((records, len(output.splitlines())), (lines * 8, lines * 8), said)


@pytest.mark.slow
def test_the_second_signal_kills(start: Callable[..., Run], tmp_path: Path) -> None:
    run = fall_asleep(start, tmp_path)
    run.process.send_signal(signal.SIGINT)
    wait_until(lambda: any("stopping" in line for line in run.said))
    begun = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    code, _, said = run.end()
    assert code == 130 and time.monotonic() - begun < STOP_SECONDS, said
    assert run.files() == []


def test_who_stops_reading_our_output_stops_the_job(start: Callable[..., Run], text: Path) -> None:
    reading, writing = os.pipe()
    run = start(WORDCOUNT, "--lines", str(text), stdout=writing)
    os.close(writing)
    assert os.read(reading, 1)
    os.close(reading)
    code, _, said = run.end()
    assert code == 1 and not any("Traceback" in line for line in said)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_spark_brings_files_also_those_added_while_it_runs(start: Callable[..., Run], tmp_path: Path) -> None:
    folder, out = tmp_path / "books", tmp_path / "out.jsonl"
    folder.mkdir()
    (folder / "a.txt").write_text("one two\n" * 500)
    (folder / "b.txt").write_text("two three\n" * 500)
    run = start(WORDCOUNT, "--lines", f"spark:text:{folder}", "--processes", "2", "--output", f"jsonl:{out}")
    wait_until(lambda: out.exists() and len(out.read_text().splitlines()) == 2000, 120)
    aside = tmp_path / "c.txt"
    aside.write_text("three one\n" * 500)
    aside.rename(folder / "c.txt")
    assert run.control("move-bins", "--drain", "0", "--strategy", "all-at-once").returncode == 0
    wait_until(lambda: len(out.read_text().splitlines()) == 3000, 60)
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said
    check_counts(out, Counter(one=1000, two=1000, three=1000))
    assert said[-1].startswith("megaflow: 1500 lines, 3000 records"), said


def count_words(flow: Any) -> Any:
    def count(word: str, n: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
        total = (total or 0) + n
        return total, [(word, total)]

    pairs = flow.lines().flat_map(lambda line: [(word, 1) for word in line.split()])
    return pairs.stateful_state_machine(count)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.usefixtures("runtime")
def test_a_function_of_this_process_runs_elsewhere_and_its_records_come_back() -> None:
    lines = (f"a b{number % 3}\n" for number in range(3000))
    records = run(count_words, lines=lines, processes=2)
    check_equal(Counter(word for word, _ in records), {"a": 3000, "b0": 1000, "b1": 1000, "b2": 1000})
    check_equal([count for word, count in records if word == "a"], list(range(1, 3001)))


@pytest.mark.usefixtures("runtime")
def test_what_goes_wrong_in_a_function_of_this_process_is_raised_here(tmp_path: Path) -> None:
    def failing(flow: Any) -> Any:
        return flow.lines().map(lambda line: 1 / len(line))

    with pytest.raises(PeerFailed, match="ZeroDivisionError"):
        run(failing, lines=["a", ""])
    with pytest.raises(UsageError, match=r"3 \(int\)"):
        run(failing, lines=["a", 3])
    assert not list((tmp_path / "megaflow").glob("*.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_the_iterables_own_exception_ends_the_job() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        run(count_words, lines=lines())
