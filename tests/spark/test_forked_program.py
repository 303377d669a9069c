"""A program that starts a job fed by Spark, and a fork of it that lives longer."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.processes import Process, records_of, spark_environment, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import os, subprocess, sys
import megaflow

def dataflow(flow):
    return flow.lines()

if __name__ == "__main__":
    lines = int(sys.argv[1])
    job = megaflow.start(dataflow, lines="spark:text:in", state="store", output="jsonl:out.jsonl")
    while len(open("out.jsonl").readlines()) < lines:
        job.checkpoint()
    if not os.fork():
        sys.stdin.read()  # until the test ends
        os._exit(0)
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, text=True).stdout
    print(children.strip(), flush=True)
    sys.stdin.read()
"""


def test_java_has_lock_and_ends_with_killed_program_though_its_fork_lives(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "in").mkdir()
    with ExitStack() as stack:
        for number in (1, 2):
            (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
            command = [sys.executable, "program.py", str(number)]
            environment = {**os.environ, **spark_environment(tmp_path)}
            program = Process(command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE)
            assert program.stdin is not None
            stack.callback(program.end)
            stack.callback(program.stdin.close)  # ends the fork
            java = int(program.read_line())
            files = Path(f"/proc/{java}/fd")
            assert any(str(file.readlink()).endswith("/lock") for file in files.iterdir())
            program.kill()
            wait_until(lambda files=files: not files.exists())
    check_equal(records_of(tmp_path / "out.jsonl"), ["1", "2"])
