"""Messages of a job that cannot continue: one line with the name and the remedy, or the user's own traceback."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, WORDCOUNT, Run
from tests.ports import free_ports
from tests.results import check_equal

pytestmark = pytest.mark.cluster

# Raises what a line says: in the operator, or in the repr of an output.
RAISING = """
import os, sys

if "LEAVE" in os.environ:
    sys.exit("I leave")

class Shown:
    def __init__(self, line):
        self.line = line

    def __repr__(self):
        return obey(self.line)

class Own(BaseException):
    pass

def obey(line):
    match line:
        case "exit":
            sys.exit()
        case "own":
            raise Own("\\N{GRINNING FACE}" * 9000)
    return line

def dataflow(flow):
    if flow.args:
        return flow.lines().map(Shown)
    return flow.lines().map(obey)
"""


def ended(run: Run, *lines: str) -> tuple[int, list[str]]:
    """Send the last lines; return the exit code and the messages, without the hint on how to steer it."""
    for line in lines:
        run.process.write_line(line)
    assert run.process.stdin is not None
    run.process.stdin.close()
    code, _, said = run.end()
    return code, [each for each in said if "steer it" not in each]


def no_internals(said: list[str]) -> bool:
    text = "\n".join(said)
    return "Traceback" not in text and "Error:" not in text and "megaflow/" not in text


@pytest.mark.parametrize("word", ["exit", "own"])
def test_what_is_no_exception_names_operator_worker_time_and_record(
    start: Callable[..., Run], tmp_path: Path, word: str
) -> None:
    app = tmp_path / "raising.py"
    app.write_text(RAISING)
    code, said = ended(start(str(app), "--lines", "-", stdin=subprocess.PIPE), "first", word)
    assert code == 1 and any(line.startswith(("SystemExit", "raising.Own: \N{GRINNING FACE}")) for line in said), said
    assert said[-1].startswith(f"in operator 'Map' ({app}:{len(RAISING.splitlines())}), worker 0, time "), said
    assert said[-1].endswith(f", record {word!r}")


def test_what_fails_while_output_is_shown_names_the_line_of_the_output(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app = tmp_path / "raising.py"
    app.write_text(RAISING)
    code, said = ended(start(str(app), "--lines", "-", "--", "shown", stdin=subprocess.PIPE), "exit")
    line = len(RAISING.splitlines()) - 1
    assert code == 1 and said[-1].startswith(f"in operator 'Output' (the output of 'Map', {app}:{line}), worker "), said
    assert said[-1].endswith(", record <Shown whose repr raises SystemExit>")


def test_a_process_that_joins_and_ends_itself_says_where(start: Callable[..., Run], tmp_path: Path) -> None:
    app = tmp_path / "raising.py"
    app.write_text(RAISING)
    run = start(str(app), "--lines", "-", stdin=subprocess.PIPE)
    assert len(run.status_when(lambda record: True)["workers"]) == 1
    joiner = run.megaflow("run", str(app), "--join", "raising", env={**run.environment, "LEAVE": "1"}).end()
    assert joiner.code == 1 and joiner.errors.splitlines()[-1] == "SystemExit: I leave", joiner
    assert f'File "{app}", line 5, in <module>' in joiner.errors and "megaflow/" not in joiner.errors
    assert ended(run)[0] == 0


def through_a_shell(folder: Path, words: str) -> tuple[int, str, str]:
    """Run `megaflow` with redirections; return exit code, output and errors."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHON": sys.executable, "APP": WORDCOUNT}
    environment |= {"LINES": str(folder / "lines.txt")}
    (folder / "lines.txt").write_text("a b\nb\n")
    command = words.replace("megaflow", '"$PYTHON" -m megaflow', 1)
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run $APP --lines $LINES --output jsonl:/dev/full", "Cannot write the job's output to /dev/full: No space"),
        ("run $APP --lines $LINES > /dev/full", "Cannot write the job's output to standard output: No space"),
        ("run $APP --lines $LINES >&-", "--output -: Standard output is closed. Give --output jsonl:PATH or none"),
        ("run $APP --lines - --output none <&-", "Cannot read standard input: "),
        ("graph $APP > /dev/full", "Cannot write the answer to standard output: No space"),
        ("graph $APP >&-", "Cannot print the answer: standard output is closed"),
        ("run $APP --lines kafka:words", ". Did you mean 'spark:kafka:?kafka.bootstrap.servers=HOST:PORT&subscribe="),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line(tmp_path: Path, words: str, said: str) -> None:
    code, output, errors = through_a_shell(tmp_path, f"megaflow {words}")
    last = errors.splitlines()[-1]
    assert code in (1, 2) and last.startswith("megaflow: ") and said in last and output == "", errors
    assert no_internals(errors.splitlines())


def test_an_answer_without_an_output_is_one_line(start: Callable[..., Run], tmp_path: Path) -> None:
    state = str(tmp_path / "kept")
    run = start(WORDCOUNT, "--lines", str(tmp_path), "--follow", "--state", state)
    assert run.status_when(lambda record: record["checkpoint"] is not None)
    for words in (f"state export {state}", "control status --watch"):
        command = f'"$PYTHON" -m megaflow {words} >&-'
        environment = {**run.environment, "PYTHON": sys.executable}
        done = subprocess.run(
            ["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stderr
        assert done.stderr == "megaflow: Cannot print the answer: standard output is closed.\n"


def test_a_job_whose_standard_files_are_closed_does_its_work(tmp_path: Path) -> None:
    words = "run $APP --lines $LINES --processes 2 --output jsonl:$XDG_RUNTIME_DIR/out.jsonl <&- >&- 2>&-"
    code, output, errors = through_a_shell(tmp_path, f"megaflow {words}")
    assert (code, output, errors) == (0, "", "")
    check_equal(len((tmp_path / "out.jsonl").read_text().splitlines()), 3)


@pytest.mark.parametrize("limit", [5, 12, 16])
def test_too_few_descriptors_are_said_before_anything_starts(tmp_path: Path, limit: int) -> None:
    code, output, errors = through_a_shell(tmp_path, f"ulimit -n {limit}; megaflow run $APP --lines $LINES")
    [said] = errors.splitlines()
    assert said.startswith("megaflow: Too few file descriptors: --processes 1 needs 23, and a process here may open ")
    assert (code, output) == (1, "") and said.endswith(f"{limit}. Raise the limit: ulimit -n 1024")


def test_a_worker_that_a_signal_ended_is_named(start: Callable[..., Run]) -> None:
    run = start(WORDCOUNT, "--lines", "-", "--processes", "2", stdin=subprocess.PIPE)
    worker = run.status_when(lambda record: len(record["workers"]) == 2)["workers"][1]
    os.kill(worker["pid"], signal.SIGUSR1)
    code, _, said = run.end()
    named = f"worker 1 ({worker['address']}, pid {worker['pid']}) was killed by SIGUSR1"
    lost = "the state of 128 of 256 bins of 'count' (1,3,5,7,9,11,13,…,255)"
    assert code == 1 and said[-1].startswith(f"megaflow: {named}, and with it {lost}; all other"), said
    assert no_internals(said)


def test_processes_listen_at_a_port_and_the_following_ones(start: Callable[..., Run]) -> None:
    port = next(port for port in free_ports(50) if can_listen(port, port + 1))
    words = (WORDCOUNT, "--lines", "-", "--processes", "2", "--output", "none", "--listen", f"127.0.0.1:{port}")
    run = start(*words, stdin=subprocess.PIPE)
    workers = run.status_when(lambda record: len(record["workers"]) == 2)["workers"]
    assert [worker["address"] for worker in workers] == [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    other = start(*words).process.end()
    assert other.code == 2 and f"--listen 127.0.0.1:{port}: Address already in use" in other.errors
    added = run.control("add-workers", "1")
    assert added.returncode == 0, added.stderr
    place = run.status()["workers"][2]["address"].removeprefix("127.0.0.1:")
    assert port + 2 <= int(place) <= port + 100, "the next one that is free"
    crowd = run.control("add-workers", "256")
    assert crowd.returncode == 1 and "add-workers: 259 is more than " in crowd.stderr
    assert ended(run)[0] == 0


def can_listen(*ports: int) -> bool:
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        return True
    return False
