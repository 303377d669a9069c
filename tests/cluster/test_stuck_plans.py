"""Commands that move bins and are killed or suspended, on real processes: other commands continue and finish their
work.

Also clients whose coordinator leaves before they have asked it anything.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from megaflow.control.client.commands import ask_status
from megaflow.control.client.conversation import Conversation
from megaflow.timely.communication.client import Client
from tests.cluster.processes import WORDCOUNT, Process, Run

pytestmark = pytest.mark.cluster

# Makes the first step of `remove-workers --id 1` and reports it; makes the second one on request.
REMOVES = """
import sys
from megaflow.control.client.commands import ask_status, run_plan
from megaflow.control.client.move_request import plan_removal
from megaflow.job.contact import conversation

with conversation(None, None, 60.0) as talk:
    steps = run_plan(talk, plan_removal(ask_status(talk), 1), lambda seconds: None)
    print(next(steps).bins, flush=True)
    sys.stdin.readline()
    print(next(steps).bins, flush=True)
"""


@pytest.fixture
def runner(start: Callable[..., Run]) -> Iterator[tuple[Run, Process]]:
    """Yield a job of two processes, and a command that pauses between two steps of a removal."""
    run = start(WORDCOUNT, "--lines", "-", "--processes", "2", "--output", "none", stdin=subprocess.PIPE)
    run.process.write_line("a b c d e f g h")
    run.status_when(lambda record: len(record["workers"]) == 2)
    with ExitStack() as ends:
        command = Process([sys.executable, "-c", REMOVES], env=run.environment, stdin=subprocess.PIPE)
        ends.callback(command.finish)
        assert command.read_line() == "1\n"
        yield run, command


def end_well(run: Run) -> None:
    assert run.process.stdin is not None
    run.process.stdin.close()
    code, _, said = run.end()
    assert code == 0, said


@pytest.mark.slow
def test_a_removal_whose_command_was_killed_is_resumed_to_its_end(runner: tuple[Run, Process]) -> None:
    run, command = runner
    assert run.status()["plan"]["removes"] == 1
    command.kill()
    run.status_when(lambda record: not record["plan"]["running"])
    assert "127 of 128 bins left, then worker 1 leaves" in run.control("status").stdout
    resumed = run.control("resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    account = json.loads(resumed.stdout)
    assert account["workers"] == [1] and account["moved"]["bins"] == 127
    record = run.status()
    assert [each["id"] for each in record["workers"]] == [0] and record["plan"] is None
    end_well(run)


@pytest.mark.slow
def test_a_suspended_runner_keeps_nobody_out_and_is_refused_when_it_wakes_up(runner: tuple[Run, Process]) -> None:
    run, command = runner
    os.kill(command.pid, signal.SIGSTOP)
    kept_out = run.control("move-bins", "--bins", "0", "--to", "1")
    if kept_out.returncode:  # it was kept out, for ten seconds
        assert "is being carried out" in kept_out.stderr
        run.status_when(lambda record: record["plan"] is None or not record["plan"]["running"])
        assert "has ended or hangs" in run.control("status").stdout
        moved = run.control("move-bins", "--bins", "0", "--to", "1")
        assert moved.returncode == 0, moved.stderr
    os.kill(command.pid, signal.SIGCONT)
    command.write_line("go on")
    ended = command.end()
    assert ended.code == 1 and "another command has since started a plan" in ended.errors, ended.errors
    assert sorted(each["id"] for each in run.status()["workers"]) == [0, 1]
    end_well(run)


@pytest.mark.slow
def test_a_client_whose_coordinator_left_before_its_first_question_is_told_where_the_next_one_is(
    start: Callable[..., Run],
) -> None:
    run = start(WORDCOUNT, "--lines", "-", "--processes", "2", "--output", "none", stdin=subprocess.PIPE)
    run.process.write_line("a b c d e f g h")
    run.status_when(lambda record: len(record["workers"]) == 2)
    [job] = [json.loads(file.read_text()) for file in run.files()]

    def connect(host: str, port: int) -> Client:
        return Client.connect(host, port, job["secret"].encode(), "control", {})

    with closing(Conversation(connect(job["host"], job["port"]), 60.0, connect)) as talk:
        removed = run.control("remove-workers", "--id", "0")
        assert removed.returncode == 0, removed.stderr
        assert [each.id for each in ask_status(talk).workers] == [1]
    end_well(run)
