"""The command line: refusals with their exit codes, and the text of help. These tests start no process."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from megaflow.__main__ import leave_out_current_directory
from megaflow.cli import inspecting, steering
from megaflow.cli import main as entry
from megaflow.cli.json_records import plain
from megaflow.cli.main import cli
from megaflow.cli.text import NOTHING, bytes_text, status_text
from megaflow.control.client.commands import run_plan, total
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Plan
from megaflow.control.coordinator.moves.plans import Plans
from megaflow.control.messages import (
    Accepted,
    AddProcesses,
    BeginPlan,
    BootstrapWorker,
    CommandProgress,
    Done,
    KeptPlan,
    RemoveWorker,
    ResumePlan,
    StatusQuery,
    TryBins,
)
from megaflow.control.reports import BootstrapReport, JoinedProcess, JoinReport, MoveReport, RemovalReport, StepReport
from megaflow.errors import CommandRefused, EndedBySignal, MegaflowError, PeerFailed, PeerLost, UsageError
from megaflow.job import watching
from megaflow.job.job_file import Job, process_namespace, process_start, publish
from megaflow.job.launcher.run.launch import LaunchOptions
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.spec import ProfileSpec
from megaflow.timely.dataflow.picture import LANGUAGES
from tests.control.status_records import status_of
from tests.words import says

MAP_OF_BYTES = sys.executable  # a file that is no text


@pytest.fixture(autouse=True)
def nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("MEGAFLOW_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "app.py"
    path.write_text("def dataflow(flow): pass\ndef count(word, n): pass\n")
    return str(path)


def megaflow(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, words, env=environment, prog_name="megaflow")


def options_of(*command: str) -> dict[str, Any]:
    found: Any = cli
    for name in command:
        found = found.get_command(None, name)
    return {option.opts[0]: option for option in found.params if option.param_type_name == "option"}


COMMANDS = [("run",), *(("control", name) for name in entry.control.list_commands(None))]  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [(), ("control",), ("graph",), *COMMANDS])
def test_h_is_help(command: tuple[str, ...]) -> None:
    assert megaflow(*command, "-h").stdout == megaflow(*command, "--help").stdout != ""


def test_no_mistake_leads_to_a_command_that_ends_a_job() -> None:
    said = megaflow("control", "stpo").stderr
    assert "No such command 'stpo'" in said and "'stop'" not in said


def test_no_environment_variable_means_two_things() -> None:
    meant: dict[str, str] = {}
    for command in COMMANDS:
        for name, option in options_of(*command).items():
            assert meant.setdefault(option.envvar, name) == name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rn"], "Did you mean 'run'"),
        (["control", "--job", "a", "status"], "follow the command, as in 'megaflow control COMMAND --job'"),
        (["run"], "FILE|MODULE[:FUNCTION]"),
        (["run", "APP", "--lins", "x"], "--lines"),
        (["run", "APP", "--lines", "APP", "--encoding-errors", "ignore"], "'strict', 'replace'"),
        (["run", "APP:dataflov", "--lines", "APP"], "did you mean 'dataflow'"),
        (["run", "APP:count", "--lines", "APP"], "app.py:count takes (word, n), not only the flow"),
        (["run", "APP:count", "--lines", "APP"], "app.py:dataflow?"),
        (["run", "nowhere.py", "--lines", "APP"], "no file 'nowhere.py'"),
        (["run", "APP", "--lines", "APP", "--processes", "0"], "--processes must be at least 1"),
        (["run", "APP", "--lines", "APP", "--line-size-max", "1.5MB"], "a number of bytes, kB, MB, KiB or MiB"),
        (["run", "APP", "--lines", "APP", "--line-size-max", "64 kB"], "from 65536 to 268435456 bytes (256 MiB)"),
        (["run", "APP", "--lines", "APP", "--line-size-max", "257MiB"], "a message between processes must hold a line"),
        (["run", "APP", "--lines", "APP", "--rate", "0"], "--rate"),
        (["run", "APP", "--lines", "APP", "--rate", "nan"], "--rate"),
        (["run", "APP", "--lines", "APP", "--name", "a/b"], "--name a/b"),
        (["run", "APP", "--lines", "APP", "--output", "x.txt"], "--output x.txt"),
        (["run", "APP", "--lines", "APP", "--output", "jsonl:APP"], "The job would read its own output as input"),
        (["run", "APP", "--lines", "APP", "--output", "jsonl:x", "--append", "--overwrite"], "Give one of them"),
        (["run", "APP", "--lines", "APP", "--checkpoints-kept", "2"], "only for jobs that save their state. Add"),
        (["run", "APP", "--lines", "APP", "--state", "x", "--checkpoints-kept", "0"], "must be at least 1, not 0"),
        (["run", "APP", "--lines", "APP", "--state", "x", "--follow", "--close-windows"], "followed lines never end"),
        (["run", "APP", "--lines", "APP", "--take-over"], "--take-over is only for jobs that save"),
        (["run", "APP", "--lines", "APP", "--drop-state", "a"], "--drop-state is only for jobs that save"),
        (["run", "APP", "--lines", "APP", "--state", "x", "--rename-state", "a"], "--rename-state a: must be OLD=NEW"),
        (["run", "APP", "--lines", "APP", "--state", "x", "--same-file", "a"], "--same-file a: must be OLD=NEW"),
        (["run", "APP", "--lines", "APP", "--follow", "--state", "x", "--forget-missing"], "For --follow, use --allow"),
        (["run", "APP", "--lines", "APP", "--follow", "--state", "x", "--same-file", "a=b"], "For --follow, use --rel"),
        (["run", "APP", "--lines", "APP", "--forget-missing"], "--forget-missing is only for jobs that save their"),
        (["run", "APP", "--lines", "APP", "--state", "x", "--checkpoint-every", "0"], "--checkpoint-every must be a"),
        (["run", "APP", "--lines", "-", "--state", "x"], "Standard input and iterables cannot be read again"),
        (["run", "APP", "--lines", "APP", "--append"], "--append says what to do with an existing file"),
        (["run", "APP", "--lines", "a", "--lines", "b c"], "--lines a and --lines b c: Give only one of them."),
        (["run", "APP", "--lines", "x=APP", "--lines", "APP"], "--lines APP and --lines x=APP: Give only one of them"),
        (["run", "APP", "--lines", "x=APP", "--lines", "x=b"], "The lines 'x' are given twice. To read several files"),
        (["run", "APP", "--lines", "x-y=1/2"], "'x-y' cannot name an input. Use an identifier, as in --lines orders="),
        (["run", "APP", "--lines", "x=-", "--lines", "y=-"], "'x' and 'y' all read standard input. Only one of"),
        (["run", "APP", "--lines", "x=spark:text:a", "--lines", "y=-"], "'x' come from Spark, whose named inputs"),
        (["run", "APP", "--lines", "x=", "--lines", "y=-"], "--lines x=: The path is missing. Give x=PATH"),
        (["run", "APP", "--lines", "x=-", "--rows", "y=spark:rate:"], "--lines and --rows do not go together"),
        (["run", "APP", "--lines", "APP", "--output", "none", "--output", "-"], "--output none and --output -: Give"),
        (["run", "APP", "--lines", "-", "--rate", "5", "--rate", "6"], "--rate is given twice: --rate 5 and --rate 6"),
        (["run", "APP", "--lines", "-", "--name", "a", "--name=b"], "--name is given twice: --name a and --name b."),
        (["control", "move-bins", "--bins", "1", "--bins", "2", "--to", "1"], "is given twice: --bins 1 and --bins 2"),
        (["control", "status", "--timeout", "1", "--timeout", "2"], "--timeout is given twice: --timeout 1 and"),
        (["run", "APP", "--lines", "-", "--profile", "--profile", "x"], "given twice: --profile and --profile x."),
        (["run", "APP", "--lines", "APP", "APP"], "quote the glob: --lines 'FOLDER/*.txt'"),
        (["run", "--lines", "APP", "APP", "APP", "APP", "APP"], "Unexpected arguments: 'APP', 'APP' and 1 more. If"),
        (["run", "APP", "--lines", "APP", "17", "--", "x"], "Unexpected arguments: '17'. The program's own"),
        (["run", "--lines", "APP", "LICENSE", "pkg.app"], "Unexpected arguments: 'pkg.app'. If the shell expand"),
        (["graph", "APP", "17"], "own arguments go after --."),
        (["run", "--", "APP", "--lines", "APP"], "FILE|MODULE[:FUNCTION]"),
        (["run", "APP", "--lines", "APP", "--listen", "no such host"], "--listen"),
        (["run", "APP", "--lines", "spark:txt:x"], "did you mean 'text'"),
        (["run", "--profile", "APP", "--lines", "APP"], "is a file"),
        (["run", "APP", "--lines", "APP", "--profile", "APP/x"], "Not a directory"),
        (["run", "APP", "--lines", "APP", "--profile-calls"], "add --profile"),
        (["control", "statu"], "Did you mean 'status'"),
        (["control", "top"], "Did you mean 'megaflow top'"),
        (["status"], "Did you mean 'megaflow control status'"),
        (["control", "move-bins"], "--bins, --balance, --drain, --map"),
        (["control", "move-bins", "--bins", "1"], "--bins and --to go together"),
        (["control", "move-bins", "--balance", "--to", "1"], "--bins and --to go together"),
        (["control", "move-bins", "--balance", "--drain", "1"], "--balance and --drain"),
        (["control", "move-bins", "--balance", "--strategy", "flui"], "'fluid'"),
        (["control", "move-bins", "--balance", "--strategy", "batched"], "--batch N requires"),
        (["control", "move-bins", "--balance", "--batch", "3"], "--batch N requires"),
        (["control", "move-bins", "--drain", "1", "--by", "load"], "--by load requires --balance"),
        (["control", "move-bins", "--balance", "--by", "size"], "'number', 'load'"),
        (["control", "move-bins", "--balance", "--gap", "-1"], "--gap must be from 0 to 86400 seconds"),
        (["control", "move-bins", "--balance", "--gap", "inf"], "--gap must be from 0 to 86400 seconds"),
        (["control", "move-bins", "--balance", "--gap", "1e300"], "--gap must be from 0 to 86400 seconds"),
        (["control", "move-bins", "--map", MAP_OF_BYTES], f"--map {MAP_OF_BYTES}: not a text file"),
        (["control", "status", "--timeout", "nan"], "--timeout must be more than 0 seconds and at most 1000000"),
        (["control", "status", "--timeout", "inf"], "--timeout must be more than 0 seconds and at most 1000000"),
        (["control", "status", "--timeout", "1e300"], "--timeout must be more than 0 seconds and at most 1000000"),
        (["control", "status", "--connect", "a..b:80"], "--connect a..b:80: must be HOST:PORT"),
        (["run", "APP", "--join", "a..b:80"], "--join a..b:80: must be HOST:PORT"),
        (["run", "APP", "--lines", "-", "--listen", "127.0..1"], "--listen 127.0..1: must be HOST or HOST:PORT"),
        (["run", "APP", "--lines", "-", "--listen", "17556"], "must be HOST or HOST:PORT, such as 127.0.0.1:17556"),
        (["run", "APP", "--lines", "-", "--listen", "127.0.0.1:0"], "--listen 127.0.0.1:0: must be HOST or HOST:PORT"),
        (["run", "APP", "--lines", "-", "--listen", "a:65535", "--processes", "2"], "--listen a:65535: "),
        (["run", "APP", "--lines", "-", "--drain-timeout", "0"], "--drain-timeout must be a number of seconds above 0"),
        (["run", "APP", "--lines", "-", "--max-skew", "-1"], "--max-skew must be a number of seconds above 0"),
        (["run", "APP", "--lines", "-", "--drain-timeout", "nan"], "--drain-timeout must be a number of seconds above"),
        (["run", "APP", "--join", "x", "--drain-timeout", "1"], "--drain-timeout does not go with --join"),
        (["run", "APP", "--lines", "-", "--processes", "1000"], "To lift the limit, give --oversubscribe"),
        (["run", "APP", "--lines", "-", "--workers", "1000"], "--workers: 1000 is more than"),
        (["control", "add-worker"], "Did you mean 'add-workers'"),
        (["control", "add-workers"], "N"),
        (["control", "add-workers", "0"], "0"),
        (["control", "add-workers", "two"], "two"),
        (["control", "add-workers", "--id", "2"], "--id"),
        (["control", "remove-workers", "2"], "--id"),
        (["control", "remove-workers", "--id", "1", "2"], "(2)"),
        (["control", "remove-workers", "--id", "x"], "'x'"),
        (["control", "bootstrap", "--worker", "2"], "--server"),
        (["control", "bootstrap", "--server", "0"], "--worker"),
        (["control", "status", "--job", "a", "--connect", "h:1"], "Give only one of them"),
        (["control", "status", "--connect", "h"], "HOST:PORT"),
        (["control", "status", "--connect", "h:70000"], "HOST:PORT"),
        (["control", "status", "--connect", "h:1"], "MEGAFLOW_SECRET"),
        (["control", "status", "--timeout", "0"], "--timeout"),
    ],
)
def test_wrong_words_are_explained_with_exit_code_2(app: str, words: list[str], said: str) -> None:
    result = megaflow(*(word.replace("APP", app) for word in words))
    assert result.exit_code == 2, result.output
    assert said.replace("APP", app) in result.stderr and result.stdout == ""


def test_a_folder_of_an_output_that_is_not_there_is_named(app: str, tmp_path: Path) -> None:
    result = megaflow("run", app, "--lines", app, "--output", f"jsonl:{tmp_path}/no such folder/out.jsonl")
    assert result.exit_code == 2
    assert f"there is no folder '{tmp_path}/no such folder'" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_a_command_line_ends_it_quietly(tmp_path: Path, number: int) -> None:
    (tmp_path / "click.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "megaflow", "--help"]
    ran = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + number, "", "")


def test_missing_lines_are_refused_before_the_output_is_touched(app: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    result = megaflow("run", app, "--lines", str(tmp_path / "nothing.txt"), "--output", f"jsonl:{out}")
    assert result.exit_code == 1 and "no such file" in result.stderr
    assert out.read_text() == "precious"


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="only Linux has it")
def test_a_file_that_hides_its_size_is_refused_with_the_remedy(app: str) -> None:
    result = megaflow("run", app, "--lines", "/proc/cpuinfo")
    assert result.exit_code == 1 and "cat /proc/cpuinfo | megaflow run … --lines -" in result.stderr


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        ("--lines APP", {"MEGAFLOW_GC_THRESHOLD": "abc"}, "MEGAFLOW_GC_THRESHOLD=abc: must be a number of allocations"),
        ("--lines APP", {"MEGAFLOW_GC_THRESHOLD": "-1"}, "MEGAFLOW_GC_THRESHOLD=-1: must be a number"),
        ("--lines APP", {"MEGAFLOW_SECRET": "caf\udce9"}, "MEGAFLOW_SECRET is not UTF-8: give it a long random"),
        ("--join h:1", {"MEGAFLOW_SECRET": "caf\udce9"}, "MEGAFLOW_SECRET is not UTF-8"),
    ],
)
def test_what_the_environment_says_wrong_is_said_before_anything_starts(
    app: str, words: str, environment: dict[str, str], said: str
) -> None:
    result = megaflow("run", app, *words.replace("APP", app).split(), **environment)
    assert result.exit_code == 2 and said in result.stderr and "steer it with" not in result.stderr, result.stderr


def test_the_variable_for_lines_is_one_path_or_several_with_names(app: str, tmp_path: Path) -> None:
    (tmp_path / "a b").touch()
    for words, missing in ((f"{tmp_path}/no such x=1", "no such x=1"), (f"x={tmp_path}/a b y={tmp_path}/no c", "no c")):
        result = megaflow("run", app, MEGAFLOW_LINES=words)
        assert result.exit_code == 1 and f"Cannot read lines from '{tmp_path}/{missing}'" in result.stderr


def test_lines_from_the_environment_may_have_spaces(app: str, tmp_path: Path) -> None:
    result = megaflow("run", app, MEGAFLOW_LINES=str(tmp_path / "no such file"))
    assert result.exit_code == 1 and "no such file'" in result.stderr


def test_options_and_arguments_reach_the_launcher(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def launched(options: LaunchOptions, report: Any, started: Any, signals: bool) -> RunSummary:
        seen.append((options.spec, options.lines))
        started(Job("app", 1, None, "h", 1, "s"))
        return RunSummary(lines=7, records=9, seconds=1.5, since=4 if len(seen) == 2 else None)

    monkeypatch.setattr("megaflow.job.launcher.run.launch.launch", launched)
    words = ["run", app, "--lines", "x", "--processes", "2", "--workers", "3", "--profile", "--", "--lines", "y"]
    result = megaflow(*words, MEGAFLOW_RATE="50", MEGAFLOW_DEBUG="1")
    assert result.exit_code == 0
    [(spec, lines)] = seen
    assert (lines, spec.processes, spec.workers, spec.rate) == ("x", 2, 3, 50.0)
    assert spec.profile == ProfileSpec(os.path.abspath("profile"))
    assert spec.args == ("--lines", "y") and spec.debug and spec.encoding_errors == "strict"
    assert result.stderr.splitlines() == [
        "megaflow: job 'app' on 6 workers; steer it with: megaflow control status --job app",
        "megaflow: 7 lines, 9 records, 1.50 seconds",
    ]
    restarted = megaflow("run", app, "--lines", "x").stderr.splitlines()[-1]
    assert says(restarted, "7 lines", "9 records since checkpoint 4")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (PeerFailed("Traceback (most recent call last):\n  …\nValueError: no\n"), 1, "Traceback"),
        (KeyboardInterrupt(), 130, "megaflow: interrupted"),
        (EndedBySignal(signal.SIGINT), 130, "megaflow: interrupted"),
        (EndedBySignal(signal.SIGTERM), 143, "megaflow: ended by SIGTERM"),
        (CommandRefused("no"), 1, "megaflow: no"),
        (UsageError("no"), 2, "megaflow: no"),
    ],
)
def test_what_a_run_raises_becomes_an_exit_code(
    app: str, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, said: str
) -> None:
    def failing(*_: Any, **__: Any) -> RunSummary:
        raise raised

    monkeypatch.setattr("megaflow.job.launcher.run.launch.launch", failing)
    result = megaflow("run", app, "--lines", "x")
    assert result.exit_code == code and result.stderr.startswith(said)


def test_a_drained_job_says_its_account_and_130_after_ctrl_c(app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = RunSummary(1, 2, 3.0, interrupted=True)
    monkeypatch.setattr("megaflow.job.launcher.run.launch.launch", lambda *_, **__: stopped)
    result = megaflow("run", app, "--lines", "x")
    assert result.exit_code == 130 and says(result.stderr, "megaflow: 1 line, 2 records")


def test_a_job_is_needed_and_several_are_listed() -> None:
    result = megaflow("control", "status")
    assert result.exit_code == 1 and "no job is running" in result.stderr
    for name in ("one", "two"):
        publish(Job(name, os.getpid(), process_start(os.getpid()), "127.0.0.1", 1, "s", process_namespace()))
    result = megaflow("control", "stop")
    assert result.exit_code == 1 and "one, two" in result.stderr
    result = megaflow("control", "stop", "--job", "three")
    assert result.exit_code == 1 and "'three'" in result.stderr


def test_a_port_where_nobody_listens_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = megaflow("control", "status", "--connect", f"127.0.0.1:{port}", MEGAFLOW_SECRET="s")
    assert result.exit_code == 1 and f"127.0.0.1:{port}" in result.stderr


def status(table: list[int], workers: tuple[int, ...] = (0, 1), **more: Any) -> dict[str, Any]:
    """A status record, as the coordinator makes them."""
    return {
        "job": "app", "state": "running", "epoch": 9, "frontier": 8,
        "workers": [
            {"id": worker, "state": "running", "pid": 7, "address": f"h:{worker}", "lines": 3, "records": 4,
             "records_per_s": 5.0, "latency_ms": {"p50": 1.0, "p99": 2.0, "max": 3.0}, "bins": table.count(worker),
             "keys": 10 * table.count(worker)}
            for worker in workers
        ],
        "operators": [{"name": "count", "bins": len(table), "table": table}] if table else [],
        "pending": [], "plan": None, "changes": [], "ledger": [], **more,
    }  # fmt: skip


def load_rows(table: list[int], *busy: float) -> list[dict[str, Any]]:
    """Return the loads of one operator's bins, 10 keys and 1024 bytes each, busiest first."""
    rows = [
        {"bin": bin, "owner": table[bin], "records_per_s": 7 * ms, "busy_ms_per_s": ms, "keys": 10, "bytes": 1024}
        for bin, ms in enumerate(busy)
    ]
    return sorted(rows, key=lambda row: -float(str(row["busy_ms_per_s"])))


class FakeConversation:
    """Answers like a job whose table changes on request. Refuses all requests from `last` on."""

    def __init__(self, record: dict[str, Any], last: int = 1000) -> None:
        self.record = record
        self.last = last
        self.moved: list[list[tuple[int, int]]] = []
        self.changed: list[Any] = []  # requests about the membership
        self.failed: list[str] = []  # processes that do not start
        self.plans = Plans()
        self.tried: list[tuple[int, ...]] = []
        self.refused = ""  # why bins cannot move
        self.with_loads = 0  # how often loads were requested

    def ask(self, body: Any, show: Any = None) -> Any:
        if isinstance(body, StatusQuery):
            self.with_loads += body.loads
            return status_of(self.record)
        if isinstance(body, TryBins):
            self.tried.append(body.bins)
            if self.refused:
                raise CommandRefused(self.refused)
            return None
        if isinstance(body, BeginPlan):
            return self.plans.keep(self.plans.begun("cli", body, tuple(self.record["operators"][0]["table"])), "cli")
        if isinstance(body, ResumePlan):
            return self.plans.keep(self.plans.resumed("cli", body.runner), "cli")
        if isinstance(body, AddProcesses | RemoveWorker | BootstrapWorker):
            self.changed.append(body)
        match body:
            case AddProcesses(count):
                ids = range(2, 2 + count - len(self.failed))
                more = status([], tuple(ids))["workers"]
                self.record["workers"] = [*self.record["workers"], *more]
                seconds = {"start": 0.5, "connect": 0.25, "routing": 0.125}
                joins = tuple(JoinedProcess((id,), seconds, 900, 0.0) for id in ids)
                return JoinReport(joins, tuple(self.failed))
            case RemoveWorker(worker, ask_only):
                if worker == 0:
                    raise CommandRefused("worker 0 cannot be removed")
                return None if ask_only else RemovalReport((worker,), 0.5)
            case BootstrapWorker(server, worker):
                return BootstrapReport(worker, server, 9, 0.25, 0.125)
        if len(self.moved) >= self.last:
            raise CommandRefused("too late")
        assert self.plans.kept is not None and body.plan == self.plans.kept.number
        self.moved.append([(move.bin, move.worker) for move in body.commands])
        return StepReport(9, len(body.commands), 1024, 10, 0.25)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeConversation]:
    fake = FakeConversation(status([0, 1, 0, 1]))

    class Opened:
        def __init__(self, *_: Any, **more: bool) -> None:
            pass

        def __enter__(self) -> FakeConversation:
            return fake

        def __exit__(self, *_: Any) -> None:
            pass

    for module in (inspecting, steering, watching):
        monkeypatch.setattr(module, "conversation", Opened)
    yield fake


def test_moves_are_made_step_by_step_and_accounted_for(job: FakeConversation) -> None:
    result = megaflow("control", "move-bins", "--bins", "0,2", "--to", "1")
    assert result.exit_code == 0
    assert result.stdout == "moved 2 bins (20 keys, 2.0 KiB) in 2 steps that took 0.50 seconds\n"
    assert job.moved == [[(0, 1)], [(2, 1)]] and result.stderr == ""


def test_moves_that_are_interrupted_are_said_to_wait_for_resume(
    job: FakeConversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.last = 1
    monkeypatch.setitem(globals(), "CommandRefused", lambda _: KeyboardInterrupt())
    result = megaflow("control", "move-bins", "--bins", "0,2", "--to", "1")
    assert result.exit_code == 130 and len(job.moved) == 1
    hint = "megaflow: To move the bins that are left, run megaflow control resume.\n"
    assert result.stderr == f"{hint}megaflow: interrupted\n"


def test_a_worker_that_is_not_there_gets_no_bins(job: FakeConversation) -> None:
    result = megaflow("control", "move-bins", "--bins", "0,2", "--to", "9")
    assert (result.exit_code, result.stdout, job.moved) == (1, "", [])
    assert says(result.stderr, "megaflow: ", "no worker 9", "the workers are 0, 1\n")
    result = megaflow("control", "move-bins", "--drain", "0", "--strategy", "all-at-once", "--json")
    assert json.loads(result.stdout) == {
        "steps": 1, "bins": 2, "bytes": 1024, "keys": 10, "seconds": 0.25, "epochs": [9], "operators": 1
    }  # fmt: skip


def test_a_map_is_read_from_its_file(job: FakeConversation, tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("1 1 0 0")
    assert megaflow("control", "move-bins", "--map", str(path), "--strategy", "all-at-once").exit_code == 0
    assert job.moved == [[(0, 1), (3, 0)]]


def test_a_dry_run_shows_the_plan_and_changes_nothing(job: FakeConversation) -> None:
    job.record["operators"][0]["loads"] = load_rows([0, 1, 0, 1], 1.0, 2.0, 3.0, 4.0)
    shown = megaflow("control", "move-bins", "--bins", "0-3", "--to", "1", "--gap", "0.5", "--dry-run").stdout
    assert shown == (
        "would move 2 bins (about 20 keys, 2.0 KiB) in 2 steps, 0.5 seconds apart:\n"
        "  step 1: 0 from 0 to 1\n  step 2: 2 from 0 to 1\n"
    )
    words = ("--drain", "0", "--strategy", "hottest-first", "--dry-run", "--json")
    shown = megaflow("control", "move-bins", *words).stdout
    assert json.loads(shown) == {
        "moves": [{"bin": 0, "from": 0, "to": 1}, {"bin": 2, "from": 0, "to": 1}],
        "steps": [[2], [0]], "gap_s": 0.0, "keys": 20, "bytes": 2048,
    }  # fmt: skip
    assert job.moved == [] and job.plans.kept is None and job.with_loads == 2


def test_loads_are_asked_for_where_the_plan_goes_by_them_and_only_there(job: FakeConversation) -> None:
    job.record["operators"][0]["loads"] = load_rows([0, 1, 0, 1], 9.0, 1.0, 5.0, 1.0)
    assert megaflow("control", "move-bins", "--bins", "0", "--to", "1").exit_code == 0 and job.with_loads == 0
    assert megaflow("control", "move-bins", "--drain", "0", "--strategy", "hottest-first").exit_code == 0
    assert job.with_loads == 1
    assert megaflow("control", "move-bins", "--balance", "--by", "load").exit_code == 0 and job.with_loads == 2
    assert job.moved == [[(0, 1)], [(0, 1)], [(2, 1)], [(2, 1)]]


def test_the_gap_is_waited_for_between_steps(job: FakeConversation, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():  # not a thread of another test
            pauses.append(seconds)

    monkeypatch.setattr(steering.time, "sleep", sleep)
    assert megaflow("control", "move-bins", "--map", os.devnull, "--gap", "2.5").exit_code == 1
    assert megaflow("control", "move-bins", "--bins", "0-3", "--to", "1", "--gap", "2.5").exit_code == 0
    assert pauses == [2.5] and len(job.moved) == 2


def test_resume_does_what_is_left_of_the_plan(job: FakeConversation) -> None:
    result = megaflow("control", "resume")
    assert result.exit_code == 1 and "no plan to resume: no plan was started" in result.stderr
    job.plans = Plans(KeptPlan(4, (1, 1, 1, 0), "batched", 2, 900.0, 7, "pid 1"))
    result = megaflow("control", "resume", "--gap", "0", "--json")
    assert json.loads(result.stdout)["steps"] == 2, result.stderr
    assert job.moved == [[(0, 1), (2, 1)], [(3, 0)]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bins", "4", "--to", "1"], "no bin 4"),
        (["--bins", "0", "--to", "7"], "no worker 7"),
        (["--bins", "1", "--to", "7"], "no worker 7"),
        (["--bins", "", "--to", "1"], "names no bin"),
        (["--drain", "7"], "no such worker"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_move_that_cannot_be_is_refused_and_nothing_is_asked(
    job: FakeConversation, words: list[str], said: str, dry: list[str]
) -> None:
    result = megaflow("control", "move-bins", *words, *dry)
    assert result.exit_code == 1 and said in result.stderr and result.stdout == ""
    assert job.moved == []


def test_bins_that_are_there_already_are_no_error(job: FakeConversation) -> None:
    result = megaflow("control", "move-bins", "--balance")
    assert result.exit_code == 0 and result.stdout == NOTHING + "\n" and job.moved == []


def test_a_refusal_on_the_way_says_how_far_it_came(job: FakeConversation) -> None:
    job.last = 1
    result = megaflow("control", "move-bins", "--bins", "0-3", "--to", "0")
    assert result.exit_code == 1 and "step 2 of 2: too late (the earlier steps are done)" in result.stderr
    assert job.moved == [[(1, 0)]]


def test_the_status_is_a_table_or_one_line_of_json(job: FakeConversation) -> None:
    lines = megaflow("control", "status", "--bins").stdout.splitlines()
    assert lines[0] == "job app: running, epoch 9, output complete before 8"
    assert lines[1].split()[:3] == ["worker", "pid", "address"] and lines[2].split()[-2:] == ["2", "20"]
    assert lines[-2:] == ["  worker 0: 0,2", "  worker 1: 1,3"]
    assert json.loads(megaflow("control", "status", "--json").stdout) == plain(status_of(job.record))


def test_watching_ends_with_the_job(job: FakeConversation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STATUS_SECONDS", 0.0)
    answers = iter([status_of(job.record)] * 2)

    def ask(body: Any) -> Any:
        try:
            return next(answers)
        except StopIteration:
            raise PeerLost("gone") from None

    monkeypatch.setattr(job, "ask", ask)
    result = megaflow("control", "status", "--watch", "--json")
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 2


def test_the_status_shows_loads_keys_the_ledger_and_a_plan_that_was_left(job: FakeConversation) -> None:
    entry = {"operator": "count", "bin": 1, "epoch": 2, "from": 0, "to": 1, "bytes": 900, "keys": 9, "seconds": 0.1}
    plan = plain(Plans(KeptPlan(4, (1, 1, 1, 1), "fluid", None, 0.0, 2, "pid 1")).status((0, 1, 0, 1)))
    job.record = status([0, 1, 0, 1], ledger=[entry], plan=plan)
    operator = job.record["operators"][0]
    operator["loads"] = load_rows([0, 1, 0, 1], 1.0, 2.0, 3.0, 4.5)
    operator["hot_keys"] = [{"key": "'the'", "bin": 3, "records_per_s": 30.0, "error_per_s": 2.0}]
    text = megaflow("control", "status", "--bins").stdout
    rows = [line.split() for line in text.splitlines()]
    assert ["3", "1", "32", "4.5", "10", "1.0", "KiB"] in rows and ["'the'", "3", "30", "2"] in rows
    assert ["count", "1", "2", "0", "1", "900", "9", "100.0"] in rows and "moved so far: 1 bin, 900 bytes" in text
    assert "plan: fluid, 2 of 2 bins left; pid 1 has ended or hangs: megaflow control resume" in text
    assert json.loads(megaflow("control", "status", "--bins", "--json").stdout) == plain(status_of(job.record))
    assert job.with_loads == 2


def test_added_workers_are_shown_with_the_time_of_their_join(job: FakeConversation) -> None:
    result = megaflow("control", "add-workers", "2")
    assert result.exit_code == 0 and result.stdout.splitlines() == [
        "added worker 2 in 0.88 seconds",
        "added worker 3 in 0.88 seconds",
    ]
    assert job.changed == [AddProcesses(2)] and job.moved == []


def test_added_workers_are_given_their_share_one_bin_after_another(job: FakeConversation) -> None:
    result = megaflow("control", "add-workers", "2", "--balance", "--json")
    record = json.loads(result.stdout)
    assert [join["workers"] for join in record["joins"]] == [[2], [3]] and record["moved"]["bins"] == 2
    assert [len(step) for step in job.moved] == [1, 1]
    assert sorted(worker for ((_, worker),) in job.moved) == [2, 3]


def test_nothing_is_added_if_the_bins_that_it_was_to_get_cannot_move(job: FakeConversation) -> None:
    job.record = status([0, 1, 0, 1] * 3)
    job.refused = "no bin was moved: worker 0 reports: count: the state of key 'a'"
    result = megaflow("control", "add-workers", "1", "--balance")
    assert (result.exit_code, result.stderr) == (1, f"megaflow: {job.refused}\n")
    assert [len(bins) for bins in job.tried] == [4] and job.changed == [] and job.moved == []
    job.refused = ""
    assert megaflow("control", "add-workers", "1", "--balance").exit_code == 0
    assert {bin for step in job.moved for bin, _ in step} == set(job.tried[-1])


def test_without_bins_nothing_is_added_that_was_to_be_given_its_share(job: FakeConversation) -> None:
    job.record = status([])
    result = megaflow("control", "add-workers", "1", "--balance")
    assert result.exit_code == 1 and "no stateful operator" in result.stderr and job.changed == []


def test_while_a_plan_is_carried_out_nothing_is_added_that_was_to_be_given_its_share(job: FakeConversation) -> None:
    plan = {"number": 0, "strategy": "fluid", "bins": 9, "left": 3, "runner": "pid 7 on a", "running": True}
    job.record = status([0, 1], plan=plan)
    result = megaflow("control", "add-workers", "1", "--balance")
    assert result.exit_code == 1 and "pid 7 on a is carrying out a plan" in result.stderr and job.changed == []
    assert "plan: fluid, 3 of 9 bins left; pid 7 on a is carrying it out" in megaflow("control", "status").stdout


def test_what_could_not_be_added_is_said_after_what_was(job: FakeConversation) -> None:
    job.failed = ["no file 'app.py'"]
    result = megaflow("control", "add-workers", "2")
    assert result.exit_code == 1 and result.stdout.startswith("added worker 2")
    assert says(result.stderr, "1 of 2 processes did not join", "no file 'app.py'")


def test_a_worker_is_drained_before_it_is_removed(job: FakeConversation) -> None:
    result = megaflow("control", "remove-workers", "--id", "1")
    assert result.exit_code == 0 and result.stdout.splitlines() == [
        "moved 2 bins (20 keys, 2.0 KiB) in 2 steps that took 0.50 seconds", "removed worker 1 in 0.50 seconds"
    ]  # fmt: skip
    assert job.moved == [[(1, 0)], [(3, 0)]]
    assert job.changed == [RemoveWorker(1, True), RemoveWorker(1)]


def test_a_worker_that_may_not_be_removed_keeps_its_bins(job: FakeConversation) -> None:
    result = megaflow("control", "remove-workers", "--id", "0", "--json")
    assert result.exit_code == 1 and "cannot be removed" in result.stderr and result.stdout == ""
    assert job.moved == [] and job.changed == [RemoveWorker(0, True)]


def test_a_bootstrap_says_how_long_it_took(job: FakeConversation) -> None:
    result = megaflow("control", "bootstrap", "--server", "0", "--worker", "2")
    assert says(result.stdout, "worker 2", "worker 0", "0.250 seconds", "0.125 seconds")
    assert job.changed == [BootstrapWorker(0, 2)]


def test_a_worker_that_is_being_given_its_table_is_waited_for_when_bins_are_balanced(
    job: FakeConversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = status([0, 1, 0, 1], (0, 1, 2))
    three["workers"][2]["state"] = "joined"
    job.record = {**three, "changes": [{"change": "bootstrap", "server": 0, "worker": 2, "done": 0, "steps": 1}]}
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            job.record = status([0, 1, 0, 1], (0, 1, 2))

    monkeypatch.setattr(steering.time, "sleep", pause)
    result = megaflow("control", "move-bins", "--balance")
    assert result.exit_code == 0 and [worker for ((_, worker),) in job.moved] == [2], result.stderr
    assert len(pauses) == 2


def test_a_worker_that_takes_too_long_for_its_table_is_no_reason_to_leave_it_out(
    job: FakeConversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.record["changes"] = [{"change": "bootstrap", "server": 0, "worker": 2, "done": 0, "steps": 1}]
    monkeypatch.setattr(steering.time, "sleep", lambda seconds: None)
    result = megaflow("control", "move-bins", "--balance")
    assert result.exit_code == 1 and "worker 2 is still receiving its routing table: wait until" in result.stderr


def test_a_worker_without_a_table_gets_no_bins_which_is_said(job: FakeConversation) -> None:
    job.record = status([0, 1, 0, 1], (0, 1, 2))
    job.record["workers"][2]["state"] = "joined"
    result = megaflow("control", "move-bins", "--balance")
    assert result.exit_code == 0 and result.stdout == NOTHING + "\n"
    assert says(result.stderr, "worker 2", "no bins", "megaflow control bootstrap --server 0 --worker 2\n")


def test_processes_with_other_code_are_added_only_if_that_is_said(job: FakeConversation) -> None:
    assert megaflow("control", "add-workers", "1", "--allow-other-code").exit_code == 0
    assert job.changed == [AddProcesses(1, other_code=True)]


def test_the_status_shows_who_comes_and_goes() -> None:
    change = {"change": "add-workers", "processes": 2, "done": 3, "steps": 4, "waiting": False}
    waiting = {"change": "remove-workers", "worker": 1, "done": 0, "steps": 3, "waiting": True}
    record = status([0, 0], (0, 1, 2), changes=[change, waiting])
    record["workers"][1]["state"], record["workers"][2]["state"] = "leaving", "joined"
    for worker in record["workers"][:2]:
        worker["inputs"] = {"payments": 3, "orders": 4}
    lines = status_text(status_of(record)).splitlines()
    assert lines.index("input orders: 8 read") + 1 == lines.index("input payments: 6 read")
    assert "worker 1: is leaving" in lines and "worker 2: has joined, but has no routing table yet" in lines
    assert "changing: add-workers (processes 2), 3 of 4 steps done" in lines
    assert "changing: remove-workers (worker 1), waiting" in lines


class Answers:
    """A client with prepared answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def send(self, request: Any) -> None:
        pass

    def receive(self, timeout_seconds: float) -> Any:
        if not self.answers:
            raise TimeoutError
        return self.answers.pop(0)


def test_progress_is_shown_and_named_when_the_end_does_not_come() -> None:
    shown: list[CommandProgress] = []
    news = CommandProgress(1, 1, 4, "worker 2 joined")
    talk = Conversation(Answers(CommandProgress(7, 1, 2, "of another"), news, Done(1, "done")), 5.0)  # type: ignore[arg-type]
    assert talk.ask("this", shown.append) == "done" and shown == [news]
    talk = Conversation(Answers(news), 5.0)  # type: ignore[arg-type]
    with pytest.raises(MegaflowError, match=r"last report: worker 2 joined \(1 of 4 steps\); the request goes on"):
        talk.ask("this")
    talk = Conversation(Answers(Accepted(1, 9)), 5.0)  # type: ignore[arg-type]
    with pytest.raises(MegaflowError, match="accepted for epoch 9"):
        talk.ask("this")


def test_the_total_of_no_step_is_nothing() -> None:
    talk: Any = FakeConversation(status([0]))
    assert total(list(run_plan(talk, Plan((), (), []), lambda _: None))) == MoveReport(0, 0, 0, 0, 0, ())
    assert [bytes_text(size) for size in (0, 1023, 1024, 1 << 20, 1 << 60)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.0 MiB", "1048576.0 TiB"
    ]  # fmt: skip


def test_help_loads_neither_the_engine_nor_the_launcher_and_names_what_they_have() -> None:
    code = (
        "import sys; from megaflow.cli.main import cli; cli(['--help'], standalone_mode=False); "
        "loaded = [name for name in sys.modules if name.startswith(('megaflow.job', 'megaflow.control', "
        "'megaflow.timely.'))]; assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tuple(LANGUAGES) == entry.LANGUAGES


@pytest.mark.parametrize(
    ("path", "left", "kept"),
    [
        ("/a:/b", "/a:/b", True),
        (":/a", "/a", False),
        ("/a:", "/a", False),
        (":", "", False),
        ("/a::HERE", "/a:HERE", True),
    ],
)
def test_an_empty_part_of_pythonpath_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, left: str, kept: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/a", str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", path.replace("HERE", str(tmp_path)))
    leave_out_current_directory()
    assert os.environ["PYTHONPATH"] == left.replace("HERE", str(tmp_path))
    assert (str(tmp_path) in sys.path) is kept


def test_a_job_of_its_own_needs_a_folder_and_a_checkpoint(tmp_path: Path) -> None:
    run = ("run", "apps/wordcount.py", "--lines", "x")
    done = CliRunner().invoke(cli, [*run, "--from-checkpoint", "kept:nightly"])
    assert done.exit_code == 2 and "--from-checkpoint is only for jobs that save" in done.stderr
    for text in ("kept", ":nightly", "kept:"):
        done = CliRunner().invoke(cli, [*run, "--state", str(tmp_path / "new"), "--from-checkpoint", text])
        assert done.exit_code == 2 and f"--from-checkpoint {text}: must be DIR:NAME" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rows", "orders=spark:rate:", "--lines", "-"], "--lines and --rows do not go together"),
        (["--rows", "orders"], "--rows orders: must be NAME=spark:FORMAT:PATH"),
        (["--rows", "a=spark:rate:", "--join", "j"], "--rows does not go with --join j"),
    ],
)
def test_wrong_rows_are_wrong_usage(tmp_path: Path, words: list[str], why: str) -> None:
    app = tmp_path / "app.py"
    app.write_text("def dataflow(flow): return flow.rows('orders')")
    done = CliRunner().invoke(cli, ["run", str(app), *words])
    assert (done.exit_code, why in done.stderr) == (2, True), done.stderr


def test_a_folder_for_files_of_jobs_counts_for_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "left"):
        if before is not None:
            monkeypatch.setenv("MEGAFLOW_RUNTIME_DIR", before)
        done = CliRunner().invoke(cli, ["control", "status", "--runtime-dir", str(tmp_path / "own")])
        assert done.exit_code == 1 and "no job is running" in done.output
        assert os.environ.get("MEGAFLOW_RUNTIME_DIR") == before and (tmp_path / "own" / "megaflow").is_dir()
        wrong = CliRunner().invoke(cli, ["control", "status", "--runtime-dir", str(tmp_path / "own"), "--watc"])
        assert wrong.exit_code == 2 and os.environ.get("MEGAFLOW_RUNTIME_DIR") == before
