"""Several outputs on real processes: each is exact with a store, through moves and kills of workers and launcher."""

import csv
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from megaflow.errors import PeerFailed, UsageError
from megaflow.job.launcher.run.python_function import run
from tests.cluster.counts import check_counts, words_of, write_numbered
from tests.cluster.processes import STATUS_SECONDS, Run, committed, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

APP = '''
def count(word, n, total):
    total = (total or 0) + n
    return total, [(word, total)]


def dataflow(flow):
    lines = flow.lines()
    flow.output("first", lines.map(lambda line: {"line": line.split()[0], "rest": line.replace(" ", "\\n", 3)}))
    return lines.flat_map(str.split).map(lambda word: (word, 1)).stateful_state_machine(count)
'''


def test_each_output_is_exact_though_bins_move_and_workers_and_launcher_are_killed(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    text, store, out, first = (tmp_path / name for name in ("text", "store", "out.jsonl", "first.csv"))
    write_numbered(text, 4000)  # more than a job reads at this rate, on any machine
    app = tmp_path / "app.py"
    app.write_text(APP)
    job_words = ["--lines", f"{text}?unordered", "--state", str(store), "--checkpoint-every", "0.1"]
    outputs = ["--output", f"jsonl:{out}", "--output", f"first=csv:{first}"]

    def await_more() -> None:
        before = committed(store)
        wait_until(lambda: committed(store) > before, STATUS_SECONDS)

    for worker in (1, 0):
        job = start(str(app), *job_words, *outputs, "--processes", "2", "--rate", "10")  # it would take minutes
        await_more()
        job.control("move-bins", "--bins", "0-9", "--to", "1")
        os.kill(job.status()["workers"][worker]["pid"], signal.SIGKILL)
        await_more()
        job.process.kill()
        job.end()
    code, _, said = start(str(app), *job_words, *outputs[:2], "--output", f"first=csv:{tmp_path}/other").end()
    assert code == 1 and f"belongs to --output first=csv:{first}, not first=csv:{tmp_path}/other" in said[-1], said
    code, _, said = start(str(app), *job_words, *reversed(outputs[:2]), *outputs[2:]).end()
    assert code == 2, said
    code, _, said = start(str(app), *job_words, *outputs[2:], *outputs[:2], "--processes", "2").end()
    assert code == 0, said
    check_counts(out, words_of(text))
    with first.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    wanted = [{"line": line.split()[0], "rest": line.replace(" ", "\n", 3)} for line in text.read_text().splitlines()]
    check_equal(Counter(row["line"] for row in rows), Counter(row["line"] for row in wanted))
    check_equal(sorted(row["rest"] for row in rows), sorted(row["rest"] for row in wanted))
    assert "resumes from checkpoint" in "".join(said), said


def split(flow):  # type: ignore[no-untyped-def]
    lines = flow.lines()
    flow.output("odd", lines.filter(lambda line: int(line) % 2 == 1))
    flow.output("rows", lines.map(lambda line: (line, "a\nb")))
    return lines.filter(lambda line: int(line) % 2 == 0)


def test_from_python_an_output_is_a_list_or_a_file_and_names_agree(tmp_path: Path) -> None:
    odd: list[str] = ["before"]
    rows, lines = tmp_path / "rows.csv", [str(number) for number in range(1000)]
    outputs: dict[str, str | list[str]] = {"odd": odd, "rows": f"csv:{rows}?columns=line,text"}
    check_equal(run(split, lines=lines, outputs=outputs, processes=2), lines[::2])
    check_equal(odd, ["before", *lines[1::2]])
    with rows.open(newline="") as file:
        check_equal([*csv.reader(file)], [["line", "text"], *([line, "a\nb"] for line in lines)])
    with pytest.raises(UsageError, match=r"rows.csv: the file is not empty; overwrite= ?replaces its content"):
        run(split, lines=lines, outputs=outputs)
    with pytest.raises(PeerFailed, match="writes the output 'rows', but the job was given the outputs 'odd'"):
        run(split, lines=["1"], outputs={"odd": []})
    with pytest.raises(PeerFailed, match=r"--output csv: The record '0' does not fit: its type, str, names no columns"):
        run(split, lines=["0"], outputs={"odd": [], "rows": "none"}, output=f"csv:{tmp_path}/new.csv")
    assert not (tmp_path / "new.csv").exists()


def test_a_process_that_joins_by_hand_sends_all_outputs(start: Callable[..., Run], tmp_path: Path) -> None:
    app, text = tmp_path / "app.py", write_numbered(tmp_path / "text", 3000)
    app.write_text(APP)
    out, first = tmp_path / "out.jsonl", tmp_path / "first.csv"
    outputs = ["--output", f"jsonl:{out}", "--output", f"first=csv:{first}"]
    job = start(str(app), "--lines", f"{text}?unordered", "--rate", "10", "--name", "named", *outputs)
    job.status_when(lambda status: status["state"] == "running")
    command = [sys.executable, "-m", "megaflow", "run", str(app), "--join", "named"]
    joined = subprocess.Popen(command, env=job.environment, stderr=subprocess.PIPE, text=True)
    job.status_when(lambda status: len(status["workers"]) == 2)
    assert job.control("move-bins", "--bins", "0-99", "--to", "1", "--strategy", "all-at-once").returncode == 0
    job.control("stop")
    code, _, said = job.end()
    assert code == 0 and joined.wait(STATUS_SECONDS) == 0, said
    with first.open(newline="") as file:
        read = [row["line"] for row in csv.DictReader(file)]
    lines = [line.split() for line in text.read_text().splitlines()]
    check_equal(sorted(read), sorted(set(read)), "a joiner may have read others than those that follow, but each once")
    check_counts(out, Counter(word for words in lines if words[0] in read for word in words))
    assert joined.stderr is not None
    joined.stderr.close()
