"""Any words on a command line or in its environment give at most one line of error and change nothing.

The commands run in this process, up to where a job's processes would start or a client would ask its coordinator. A
fake client takes the requests, describes a small job, and refuses to change it.
"""

import contextlib
import os
import random
import sys
import tempfile
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from megaflow import web
from megaflow.cli.main import cli, control
from megaflow.control import messages
from megaflow.control.reports import Explanation
from megaflow.control.shapes import conforms
from megaflow.errors import MegaflowError, PeerLost
from megaflow.job import contact
from megaflow.job.job_file import Job, process_namespace, process_start, publish
from megaflow.job.launcher import processes
from megaflow.job.launcher.run import launch
from megaflow.job.launcher.run.live_page import LivePage
from megaflow.job.worker.control.connection_handlers import is_sound
from megaflow.job.worker.process import child, join_by_hand
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.cli.test_main import status
from tests.control.status_records import status_of

CASES = 12  # of each command
CASES_IF_SLOW = 60
QUESTIONS_MAX = 12  # then the job is over, since some commands keep asking
READ_ONLY = (messages.StatusQuery, messages.ExplainQuery, messages.TryBins)

NUMBERS = ["0", "1", "2", "3", "-1", "1.5", "17", "65", "1000000", "9" * 19, "9" * 5000, "1_0", "１", "0x1"]
FLOATS = ["nan", "inf", "-inf", "1e300", "-0.0", "1e-300", "0.1", "86400", "86401", "1e6"]
TEXTS = ["", " ", "-", "--", "a", "a b", "ä", "\udc80", "\x1b[31m", "\n", "%s{0}", "x" * 3000, "../..", "/", "\u202e"]
BINS = ["0-3", "0-99999999999", "3-0", "0,0", "0-", "-", ",", "1,2,a", "0-3-4", "0" * 5000, "+1", "1 2"]
PLACES = ["127.0.0.1:1", "127.0.0.1", "[::1]:0", "[::1", "127.0..1", "a..b:80", ":", "h:-1", "h:99999999"]
FILES = [
    "APP", "APP:count", "APP:", ":", "FOLDER", "FOLDER/nothing", "TEXT", "BYTES", "BYTES?unordered", "TEXT?",
    "FOLDER/*.txt", "FOLDER/[", "jsonl:", "jsonl:TEXT", "jsonl:FOLDER", "jsonl:FOLDER/new", "jsonl:FOLDER/no/new",
    "jsonl:/dev/full", "none", "/dev/null", "kafka:topic", "/proc/self/mem", "FOLDER\udc80/x",
]  # fmt: skip
WORDS = [*NUMBERS, *FLOATS, *TEXTS, *BINS, *PLACES, *FILES, "job", "spark", "fluid", "batched", "mermaid", "strict"]

APP = "def dataflow(flow):\n    return flow.lines()\ndef count(word, n): pass\n"


def commands() -> dict[tuple[str, ...], click.Command]:
    """Return all commands by their words."""
    found: dict[tuple[str, ...], click.Command] = {}
    groups: tuple[tuple[tuple[str, ...], Any, Any], ...] = (
        ((), cli, ("run", "graph", "check", "new", "doctor", "completion")),
        (("control",), control, control.list_commands(click.Context(control, **control.context_settings))),
    )
    for words, group, names in groups:
        for name in names:
            command = group.get_command(click.Context(group, **group.context_settings), name)
            assert command is not None
            found[*words, name] = command
    return found


class NoJob:
    """Stands in for a connection to a job of two workers with four bins that refuses all changes."""

    address = "127.0.0.1:1"

    def __init__(self, asked: list[Any]) -> None:
        self._asked = asked
        self._answers: deque[Any] = deque()

    def send(self, request: messages.Request) -> None:
        """Take a request."""
        assert decode(encode(request)) == request and conforms(request, messages.Request), request
        self._asked.append(request.body)
        if len(self._asked) > QUESTIONS_MAX:
            raise PeerLost("the job is over")
        match request.body:
            case body if not is_sound(body):  # such as a number of more than 64 bits
                self._answers.append(messages.Refused(request.id, "does not know the request"))
                return
            case messages.StatusQuery():
                result: Any = status_of(status([0, 1, 0, 1]))
            case messages.ExplainQuery():
                result = Explanation("job", 9, 8, True, (), ())
            case _:
                self._answers.append(messages.Refused(request.id, "not now"))
                return
        self._answers.append(messages.Done(request.id, result))

    def receive(self, timeout_seconds: float | None) -> Any:
        """Return the next answer."""
        assert timeout_seconds is None or 0 < timeout_seconds <= contact.TIMEOUT_SECONDS_MAX
        return self._answers.popleft()

    def receive_available(self) -> list[Any]:
        """Report that the job is over: there is no other place to ask."""
        raise PeerLost("the job is over")

    def close(self) -> None:
        """Do nothing: nothing was opened."""


def rest(seconds: float) -> None:
    """Do not sleep, but check that the time is one for which a process can sleep."""
    assert 0 <= seconds <= 10**7, seconds


class NoChildren(launch.Children):
    """Starts nothing."""

    def start(self, *_: Any) -> Any:
        """Refuse to start a process."""
        raise MegaflowError("nothing is started here")


class Bench:
    """A folder with a program, a text and a binary file, and what the commands find there."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (self.folder / "app.py").write_text(APP)
        (self.folder / "text.txt").write_text("to be\n")
        (self.folder / "bytes").write_bytes(b"\xff\0\xfe")
        self.asked: list[Any] = []
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in [name for name in os.environ if name.startswith("MEGAFLOW_")]:
            patch.delenv(name)
        patch.setenv("XDG_RUNTIME_DIR", str(self.folder))
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setattr(time, "sleep", rest)
        patch.setattr(launch, "Children", NoChildren)
        patch.setattr(processes, "SparkProvisioner", NoChildren().start, raising=False)  # loaded with its first use
        patch.setattr(join_by_hand, "join_job", lambda *_: self.asked.append("join"))
        patch.setattr(child, "empty_standard_input", lambda: None)
        patch.setattr(LivePage, "await_end", lambda *_: web.ENDED)
        patch.setattr(contact.Client, "connect", lambda *_: NoJob(self.asked))
        pid = os.getpid()
        publish(Job("job", pid, process_start(pid), "127.0.0.1", 1, "s", process_namespace()))
        patch.chdir(self.folder)

    def word(self, text: str) -> str:
        """Replace the placeholders in a word with the names of files here."""
        names = {"APP": "app.py", "TEXT": "text.txt", "BYTES": "bytes", "FOLDER": str(self.folder)}
        for name, path in names.items():
            text = text.replace(name, path)
        return text

    def inventory(self) -> dict[str, tuple[int, int]]:
        """Return path -> size and modification time."""
        found = {path: path.lstat() for path in self.folder.rglob("*")}
        return {str(path): (each.st_size, not path.is_dir() and each.st_mtime_ns) for path, each in found.items()}


def value_for(parameter: click.Parameter, rng: random.Random) -> str:
    """Return a value that fits the parameter, or any value."""
    fitting: list[str] = ["a"]
    match parameter.type:
        case click.Choice(choices=choices):
            fitting = list(choices)
        case kind if kind.name.startswith("int"):
            fitting = NUMBERS
        case kind if kind.name == "float":
            fitting = [*FLOATS, *NUMBERS]
        case click.File():
            fitting = ["TEXT", "BYTES"]
        case _:
            name = str(parameter.name)
            fitting = BINS if name == "bins" else PLACES if name in ("listen", "connect") else FILES
    return rng.choice(fitting if rng.random() < 0.8 else WORDS)


def case_for(path: tuple[str, ...], rng: random.Random) -> tuple[list[str], dict[str, str]]:
    """Return the words of a command and its environment."""
    command = commands()[path]
    words, environment = [], {"MEGAFLOW_SECRET": rng.choice(["s", "", "\udc80", "x" * 5000])}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            is_app = not isinstance(parameter.type, click.Choice) and rng.random() >= 0.3
            words += ["1"] if path[0] == "control" else ["APP"] if is_app else [value_for(parameter, rng)]
            continue
        if rng.random() > (0.9 if parameter.required or parameter.name == "lines" else 0.25):
            continue
        assert isinstance(parameter, click.Option)
        value = "1" if parameter.is_flag else value_for(parameter, rng)
        if rng.random() < 0.2:
            environment[str(parameter.envvar)] = value
        elif parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            words += [f"{parameter.opts[0]}={value}"] if rng.random() < 0.5 else [parameter.opts[0], value]
    if rng.random() < 0.3:
        words.insert(rng.randrange(len(words) + 1), rng.choice([*WORDS, "--help", "--nothing", "-x", "--"]))
    return words, environment


def attack_command(path: tuple[str, ...], rng: random.Random) -> None:
    """Run one command with right or wrong words."""
    words, environment = case_for(path, rng)
    with contextlib.ExitStack() as stack:
        bench = Bench(stack)
        words = [*path, *map(bench.word, words)]
        environment = {name: bench.word(value) for name, value in environment.items()}
        before = bench.inventory()
        done = CliRunner().invoke(cli, words, env=environment, prog_name="megaflow")
        after, asked = bench.inventory(), list(bench.asked)
    story = f"{words} {environment}\n{done.output[-3000:]}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(story + "".join(traceback.format_exception(done.exception)))
    assert done.exit_code in (0, 1, 2) and "Traceback" not in done.output, story
    assert done.exit_code == 0 or done.stderr.strip(), story
    if done.exit_code == 2:
        assert after == before and all(isinstance(each, READ_ONLY) for each in asked), (story, asked)
    assert not any(path.endswith((".new", "app.json")) for path in after), story


def attack_command_line(rng: random.Random) -> None:
    """Run any of the commands."""
    attack_command(rng.choice(list(commands())), rng)


@pytest.mark.parametrize("cases", [CASES, pytest.param(CASES_IF_SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_a_command_says_in_a_line_what_is_wrong_and_changes_nothing(command: tuple[str, ...], cases: int) -> None:
    for number in range(cases):
        attack_command(command, random.Random(f"{command} {cases} {number}"))
