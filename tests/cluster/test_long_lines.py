"""A line that is too long ends a job of real processes. A job with a store continues there with another limit."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import megaflow
from megaflow.errors import MegaflowError
from tests.cluster.processes import Run, wait_until
from tests.results import check_equal
from tests.words import says

pytestmark = pytest.mark.cluster

SIZES = "def dataflow(flow):\n    return flow.lines().map(len)\n"
FIELDS = "def dataflow(flow):\n    return flow.csv(as_=tuple).map(lambda row: [len(each) for each in row])\n"
LONG = 3_000_000


def test_a_resumed_job_reads_on_with_a_larger_limit(start: Callable[..., Run], tmp_path: Path) -> None:
    app, lines, out = tmp_path / "app.py", tmp_path / "lines.txt", tmp_path / "out.jsonl"
    app.write_text(SIZES)
    words = [str(app), "--lines", str(lines), "--output", f"jsonl:{out}", "--state", str(tmp_path / "kept")]
    lines.write_text("a\n" * 1000)
    assert start(*words, "--line-size-max", "1MiB").end()[0] == 0
    lines.write_text("a\n" * 1000 + "x" * LONG + "\nbb\n")
    code, _, said = start(*words, "--line-size-max", "1MiB").end()
    assert code == 1 and says("\n".join(said), "a line of more than 1 MiB at byte 2000", "--line-size-max"), said
    code, _, said = start(*words, "--line-size-max", "4MB", "--processes", "2").end()
    assert code == 0 and says("\n".join(said), "resumes from checkpoint"), said
    check_equal([json.loads(line)["record"] for line in out.read_text().splitlines()], [1] * 1000 + [LONG, 2], said)


@pytest.mark.parametrize(("program", "text"), [
    pytest.param(SIZES, "x" * LONG, id="lines"),
    pytest.param(FIELDS, 'k\n"' + "x\n" * (LONG // 2) + '"', id="csv", marks=pytest.mark.slow),
])  # fmt: skip
def test_standard_input_has_the_same_limit(start: Callable[..., Run], tmp_path: Path, program: str, text: str) -> None:
    app, lines = tmp_path / "app.py", tmp_path / "lines.txt"
    app.write_text(program)
    lines.write_text(text + "\n")
    for limit, right in (("1MiB", 1), ("4MiB", 0)):
        for words in ([str(lines)], ["-"]):
            with lines.open() as file:
                run = start(str(app), "--lines", *words, "--line-size-max", limit, stdin=file)
                code, output, said = run.end()
            assert code == right, said
            check_equal(output, "" if right else f"{LONG}\n" if program == SIZES else f"[{LONG}]\n", said)
            assert not right or "--line-size-max" in "\n".join(said), said


def test_python_has_the_same_option(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("x" * 100_000 + "\n")

    def dataflow(flow: megaflow.Flow) -> megaflow.Stream[int]:
        return flow.lines().map(len)

    lines = str(tmp_path / "lines.txt")
    assert megaflow.run(dataflow, lines=lines) == [100_000]
    with pytest.raises(MegaflowError, match=r"has a line of more than .* --line-size-max allows a longer line"):
        megaflow.run(dataflow, lines=lines, line_size_max=1 << 16)
    with pytest.raises(MegaflowError, match=r"line_size_max must be from 65536 to 268435456 bytes .*, not '1MB'"):
        megaflow.run(dataflow, lines=lines, line_size_max="1MB")  # type: ignore[arg-type]


def test_a_process_that_joins_by_hand_gets_the_limit(start: Callable[..., Run], tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(FIELDS)
    run = start(str(app), "--lines", "-", "--name", "long", "--line-size-max", "64KiB", stdin=subprocess.PIPE)
    wait_until(lambda: len(run.files()) == 1)
    joiner = run.megaflow("run", str(app), "--join", "long")
    try:
        run.status_when(lambda status: len(status["workers"]) == 2)
        done = run.control("remove-workers", "--id", "0")  # so the joiner parses the lines
        assert done.returncode == 0, done.stderr
        assert run.process.stdin is not None
        run.process.stdin.write('k\n"' + "x\n" * 40_000)
        run.process.stdin.close()
        code, _, said = run.end()
        assert code == 1 and says("\n".join(said), "a row of CSV", "more than 16,384 characters"), said
    finally:
        joiner.finish()
