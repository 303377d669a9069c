"""The front door: `example`, `execute` and `execute_from_args` with the fluent scope."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import megaflow.timely
from megaflow.errors import UsageError
from megaflow.program import Worker, example, execute, execute_from_args
from megaflow.scope import Scope
from megaflow.timely import Config


def test_example_returns_what_build_returned_with_captures_opened() -> None:
    def build(scope: Scope) -> Any:
        stream = scope.to_stream([2, 1])
        captured = stream.capture()
        return {"list": [captured, 7], "tuple": (captured, "x"), "dict": {"in": captured}, "none": None}

    opened = [(0, [1, 2])]
    assert example(build) == {"list": [opened, 7], "tuple": (opened, "x"), "dict": {"in": opened}, "none": None}


def test_example_runs_to_completion() -> None:
    def build(scope: Scope) -> Any:
        handle, back = scope.feedback(1)
        grown = scope.to_stream([0]).concat(back).map(lambda x: x + 1)
        grown.filter(lambda x: x < 1000).connect_loop(handle)
        return grown.filter(lambda x: x == 1000).capture()

    assert example(build) == [(999, [1000])]


def test_example_raises_what_the_program_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        example(lambda scope: scope.to_stream([0]).map(lambda x: 1 // x))


def test_a_program_gets_a_worker_whose_dataflows_are_fluent_scopes() -> None:
    def main(worker: Worker) -> str:
        with worker.dataflow("mine") as scope:
            assert isinstance(scope, Scope)
            return scope.name

    assert execute(Config.process(2), main) == ["mine", "mine"]


def test_the_command_line_says_how_many_workers_and_leaves_the_rest_to_the_program() -> None:
    def main(worker: Worker) -> Any:
        return worker.index, worker.peers, worker.args

    words = ["20", "200"]
    assert execute_from_args(main, ["-w2", *words]) == [(0, 2, words), (1, 2, words)]
    assert execute_from_args(main, []) == [(0, 1, [])]
    assert execute_from_args(main, ["--", "-w2"]) == [(0, 1, ["-w2"])]


def test_without_arguments_those_of_the_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hello.py", "-w3", "7"])
    assert execute_from_args(lambda worker: (worker.peers, worker.args)) == [(3, ["7"])] * 3


def test_an_unknown_option_runs_nothing() -> None:
    with pytest.raises(UsageError, match="--fast"):
        execute_from_args(lambda worker: pytest.fail("it ran"), ["--fast"])


@pytest.mark.parametrize("name", megaflow.timely.__all__)
def test_every_name_of_the_front_door_is_there(name: str) -> None:
    assert getattr(megaflow.timely, name) is not None


PROGRAM = """
from megaflow.timely import execute_from_args

def main(worker):
    with worker.dataflow() as scope:
        scope.to_stream([1]).map(lambda x: x / 0)

execute_from_args(main)
"""


@pytest.mark.parametrize(("options", "engine_frames"), [([], False), (["--debug"], True)])
def test_an_uncaught_exception_shows_the_users_frames_and_the_engines_only_on_request(
    tmp_path: Path, options: list[str], engine_frames: bool
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run([sys.executable, program, *options], capture_output=True, text=True, timeout=840)
    assert ran.returncode == 1 and ran.stdout == ""
    assert ("dataflow/fusion/stage.py" in ran.stderr) == engine_frames
    *_, error, note = ran.stderr.splitlines()
    assert error == "ZeroDivisionError: division by zero"
    assert note == f"in operator 'Map' ({program}:6), worker 0, time 0, record 1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p5"], "program.py: -p 5: with -n 1, processes are numbered 0 to 0"),
        (["-p", "x"], "program.py: argument -p/--process: invalid int value: 'x'. usage: program"),
        (["-p"], "expected one argument"),
        (["-h", "/nope"], "program.py: -h /nope: No such file or directory"),
        (["-n2", "-h", "HOSTS"], "'localhost' is not an address; write host:port"),
    ],
)
def test_a_wrong_option_is_answered_in_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    program, hosts = tmp_path / "program.py", tmp_path / "hosts"
    program.write_text(PROGRAM)
    hosts.write_text("localhost\nlocalhost:1\n")
    given = [str(hosts) if option == "HOSTS" else option for option in options]
    ran = subprocess.run([sys.executable, program, *given], capture_output=True, text=True, timeout=840)
    assert ran.returncode == 1 and ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert words in line


def test_an_error_that_the_program_raises_keeps_its_traceback(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("    with", "    raise megaflow.errors.UsageError('none')\n    with"))
    program.write_text("import megaflow.errors\n" + program.read_text())
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=840)
    assert ran.returncode == 1 and "line 6, in main" in ran.stderr and "UsageError: none" in ran.stderr
