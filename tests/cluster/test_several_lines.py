"""Records of several lines on real processes: each is read once and whole, through kills, rotations and resumes."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import STATUS_SECONDS, Run, records_of, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

APP = """
def dataflow(flow):
    records = flow.lines(start="^#", with_source=True).map(lambda line: (line.text[:2], (line.number, line.text)))
    return records.stateful_state_machine(lambda key, value, count: ((count or 0) + 1, [(key, count, *value)]))
"""


def test_records_of_a_log_are_whole_through_kills_and_rotations(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    log, out, lines = tmp_path / "a.log", tmp_path / "out.jsonl", 0
    words = [
        str(tmp_path / "app.py"), "--lines", f"{tmp_path}/*.log*", "--follow", "--state", str(tmp_path / "store"),
        "--checkpoint-every", "0.1", "--output", f"jsonl:{out}", "--processes", "2",
    ]  # fmt: skip
    wanted = list[tuple[int, str]]()

    def write(count: int) -> None:
        nonlocal lines
        with log.open("a") as file:
            for number in range(count):
                text = f"#{number % 7}\n  at {number}\n\n  {'x' * (number % 50)}"
                wanted.append((lines + 1, text))
                lines += 4
                file.write(text + "\n")

    def is_read() -> bool:
        return len(records_of(out)) == len(wanted) - 1  # the last one waits

    job = start(*words)
    write(500)
    wait_until(is_read, STATUS_SECONDS)
    os.kill(job.process.pid, signal.SIGKILL)
    job.end()
    write(500)
    job = start(*words)
    wait_until(is_read, STATUS_SECONDS)
    with log.open("a") as file:
        file.write("  one line more")  # of the last record, without a newline
    wanted[-1] = wanted[-1][0], wanted[-1][1] + "\n  one line more"
    job.control("stop")
    assert job.end()[0] == 0
    check_equal(len(records_of(out)), len(wanted) - 1)
    log.rename(tmp_path / "a.log.1")
    with (tmp_path / "a.log.1").open("a") as file:
        file.write("\n# the last one begins\n")
    job = start(*words)
    wait_until(lambda: len(records_of(out)) == len(wanted), STATUS_SECONDS)
    job.control("stop")
    assert job.end()[0] == 0
    check_equal(sorted((number, text) for _, _, number, text in records_of(out)), wanted)


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_exact_after_a_kill(start: Callable[..., Run], tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "app.py").write_text(
        "def dataflow(flow):\n"
        "    values = flow.json().map(lambda value: (value['k'], value['n']))\n"
        "    return values.stateful_state_machine(lambda key, value, count: (value, [(key, value, count)]))\n"
    )
    values = [{"k": f"é{number % 7}", "n": number} for number in range(4_000)]
    path, out = tmp_path / "values.json", tmp_path / "out.jsonl"
    path.write_text(json.dumps(values, indent=indent, ensure_ascii=False), encoding="utf-8")
    words = [
        str(tmp_path / "app.py"), "--lines", str(path), "--state", str(tmp_path / "store"), "--checkpoint-every", "0.1",
        "--output", f"jsonl:{out}", "--processes", "2",
    ]  # fmt: skip
    job = start(*words, "--rate", "4000")
    wait_until(lambda: len(records_of(out)) > 300, STATUS_SECONDS)
    os.kill(job.process.pid, signal.SIGKILL)
    job.end()
    assert len(records_of(out)) < len(values)
    code, _, said = start(*words).end()
    assert code == 0, said
    check_equal(sorted(number for _, number, _ in records_of(out)), [*range(4_000)])
    for _, number, before in records_of(out):
        check_equal(before, number - 7 if number >= 7 else None, "the values of a key come in order")


@pytest.mark.parametrize("way", ["files", "stdin"])
def test_several_inputs_have_records_of_their_own(start: Callable[..., Run], tmp_path: Path, way: str) -> None:
    (tmp_path / "app.py").write_text(
        "def dataflow(flow):\n"
        "    a = flow.lines('a', start='^#')\n"
        "    b = flow.lines('b', with_source=True).map(lambda line: (line.number, line.text))\n"
        "    return a.concat(b)\n"
    )
    (tmp_path / "a.log").write_text("#1\n x\n#2\n")
    (tmp_path / "b.log").write_text("#1\n x\n")
    with (tmp_path / "a.log").open() as file:
        a = "a=-" if way == "stdin" else f"a={tmp_path}/a.log"
        job = start(str(tmp_path / "app.py"), "--lines", a, "--lines", f"b={tmp_path}/b.log", stdin=file)
    code, output, said = job.end()
    assert code == 0, said
    check_equal(sorted(output.splitlines()), sorted(["#1", " x", "#2", "(1, '#1')", "(2, ' x')"]))
