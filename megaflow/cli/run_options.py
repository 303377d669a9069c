"""The options of `megaflow run`, in the groups and the order of its help, and the text above them.

The groups also say which options go together: those of a job, of a job that keeps its state, of a job on Spark, and
those of a process that joins. Only options that were typed are refused, not those that the environment sets.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator

import click
from click.core import ParameterSource

from megaflow.cli.help import GroupedOption
from megaflow.cli.options import LinesOption, grouped, option, repeated, runtime_dir, use_log_format
from megaflow.errors import UsageError

HELP = """Run a program as a job of one or more worker processes.

The program is a FILE, or a MODULE such as shop.orders. Its FUNCTION (by default `dataflow`) builds the dataflow.
ARGS are the program's own arguments.

\b
  megaflow run wordcount.py --lines book.txt
  megaflow run wordcount.py --lines 'logs/*.gz' --processes 4 --output jsonl:counts.jsonl
  megaflow run shop.orders:dataflow --lines orders.csv --state kept -- --currency EUR

The job ends when its input ends. The first Ctrl-C, SIGTERM or SIGHUP stops reading and completes the lines that were
read. The second one kills the job. In a process that joined, the first one makes the process leave the job. The second
one kills the process and its job.

\b
Exit codes:
  0    The job is complete.
  1    The job failed or was refused.
  2    The command line is wrong.
  75   The job was lost. Run the same command again to resume from --state.
  130  Ctrl-C ended the job.
  143  SIGTERM ended the job at once: during its start or a recovery, or as the second signal.

An environment variable can set each option, as MEGAFLOW_LINES does for --lines.
"""

LEVELS = ("debug", "info", "warning", "error")  # as in `megaflow.job.log_records`, which --help does not load
FORMATS = ("text", "json")

INPUT = grouped(
    "Input",
    repeated("--lines", cls=LinesOption, metavar="[NAME=]SPEC",
             help="Read lines from a file, folder, quoted glob, spark:FORMAT:PATH or - (stdin)."),
    repeated("--rows", "rows", metavar="NAME=SPEC", help="Read rows from spark:FORMAT:PATH, for flow.rows(NAME)."),
    option("--follow", is_flag=True, help="Keep reading files that grow, and new files."),
    option("--encoding-errors", type=click.Choice(["strict", "replace"]), default="strict",
           help="Fail at bytes that are not text, or replace and count them."),
    option("--line-size-max", metavar="SIZE", default="64MiB",
           help="Fail at a line, or a row of CSV or JSON value, of more than SIZE."),
    option("--rate", metavar="N", type=float, help="Read N lines per second, even if the workers fall behind."),
)  # fmt: skip

OUTPUT = grouped(
    "Output",
    repeated("--output", "outputs", cls=LinesOption, metavar="[NAME=]SPEC", default=("-",),
             help="Write records to jsonl:PATH, csv:PATH, spark:FORMAT:PATH, - (stdout) or none."),
    option("--overwrite", is_flag=True, help="Replace the contents of existing output files."),
    option("--append", is_flag=True, help="Append to existing output files."),
)  # fmt: skip

PROCESSES = grouped(
    "Processes",
    option("--processes", metavar="N", type=int, default=1, help="Start N worker processes."),
    option("--workers", metavar="W", type=int, default=1, help="Run W workers in each process."),
    option("--oversubscribe", is_flag=True,
           help="Lift the limit on processes, and on workers in each (16, or 4 per core if more)."),
    option("--name", metavar="JOB",
           help="Name the job; by default after the program's file, or the folder of an app.py."),
    runtime_dir,
    option("--listen", metavar="HOST[:PORT]", default="127.0.0.1",
           help="Listen on HOST: on free ports, or on PORT and the ports after it."),
    option("--join-timeout", "join_timeout_seconds", metavar="SECONDS", type=float, default=30.0,
           help="Give up on a process that takes longer to join the running job."),
    option("--drain-timeout", metavar="SECONDS", type=float,
           help="Kill a job that takes longer to stop; by default there is no limit."),
)  # fmt: skip

STATE = grouped(
    "State",
    option("--state", metavar="DIR", type=click.Path(file_okay=False),
           help="Save state in DIR (created if missing), and resume from it."),
    option("--from-checkpoint", metavar="DIR:NAME",
           help="Start a new --state folder from a checkpoint of another job."),
    option("--checkpoint-every", metavar="SECONDS", type=float, default=1.0,
           help="Wait at least this long between two checkpoints."),
    option("--checkpoints-kept", metavar="N", type=int, default=3, help="Keep the newest N checkpoints."),
    option("--restarts", metavar="N", type=int, default=3,
           help="Resume after a lost process at most N times in a row."),
    option("--shrink", is_flag=True, help="Resume with fewer processes instead of starting a new one."),
    option("--take-over", is_flag=True, help="Take DIR from a launcher that no longer answers."),
    option("--allow-loss", is_flag=True, help="Resume with --follow even if unread lines have been deleted."),
    option("--forget-missing", is_flag=True,
           help="Resume without files that are gone before they were read to their ends."),
    repeated("--same-file", "same_files", metavar="OLD=NEW",
             help="Read the copy NEW of the saved file OLD on from where OLD was read."),
    repeated("--rename-state", "renamed", metavar="OLD=NEW",
             help="Give the saved state of operator OLD to operator NEW."),
    repeated("--drop-state", "dropped", metavar="NAME", help="Discard the saved state of operator NAME."),
    option("--partial-windows", metavar="leave-out|emit", default="leave-out",
           help="What to do with windows that lack records, because their states were dropped."),
    repeated("--accept-rows", "accept_rows", metavar="SINK",
             help="Resume though SINK has rows of another checkpoint or job."),
    repeated("--relocate", "relocated", metavar="OLD=NEW",
             help="Resume with the input and output files of folder OLD in folder NEW."),
)  # fmt: skip

EVENT_TIME = grouped(
    "Event time",
    option("--idle-timeout", metavar="SECONDS", type=float, default=5.0,
           help="Let event time pass a partition that is idle for this long."),
    option("--max-skew", metavar="SECONDS", type=float,
           help="Read no file of an input this much event time ahead of another input."),
    option("--close-windows", is_flag=True, help="Close all windows when the input of a job with --state ends."),
)  # fmt: skip

SPARK = grouped(
    "Spark",
    option("--on", metavar="spark[:MASTER]", help="Run the worker processes on Spark's executors."),
    repeated("--conf", metavar="K=V", help="With --on, set a Spark property, such as spark.executor.memory=2g."),
    option("--start-timeout", "start_timeout_seconds", metavar="SECONDS", type=float, default=120.0,
           help="With --on, fail if the first processes take longer to start."),
    repeated("--ship", "shipped", metavar="PATH",
             help="With --on, also send a file or folder that is not beside FILE."),
)  # fmt: skip

JOINING = grouped(
    "Joining",
    option("--join", metavar="NAME|HOST:PORT", help="Join a running job of the same program instead of starting one."),
    option("--server", metavar="WORKER", type=int,
           help="Ask this worker for the routing table; by default the coordinator."),
    option("--no-bootstrap", is_flag=True, help="Own no bins before `megaflow control bootstrap`."),
    option("--allow-other-code", is_flag=True, help="Join even if the program or ARGS differ from the job's."),
)  # fmt: skip

WATCHING = grouped(
    "Watching",
    option("--web", "address", metavar="[[HOST:]PORT]", is_flag=False, flag_value="0",
           help="Show the job on a web page at this address, by default on a free port."),
    option("--web-control", is_flag=True, help="Let the page steer the job; the printed link has the token for it."),
    option("--metrics", metavar="[HOST:]PORT", help="Serve only /metrics, /livez and /readyz at this address."),
)  # fmt: skip

DIAGNOSTICS = grouped(
    "Diagnostics",
    option("--profile", metavar="[DIR]", is_flag=False, flag_value="profile", type=click.Path(file_okay=False),
           help="Write the time of each operator to DIR (by default `profile`)."),
    option("--profile-calls", is_flag=True, help="With --profile, also time each function; this slows the job."),
    option("--debug", is_flag=True, help="Keep megaflow's own frames in tracebacks."),
    option("--log-level", metavar="LEVEL", type=click.Choice(LEVELS, case_sensitive=False),
           help="Log from this level on: debug, info, warning or error."),
    option("--log-format", type=click.Choice(FORMATS), default="text", callback=use_log_format, is_eager=True,
           help="Print messages, logs and prints as text, or as one JSON object per line."),
)  # fmt: skip

GROUPS = (INPUT, OUTPUT, PROCESSES, STATE, EVENT_TIME, SPARK, JOINING, WATCHING, DIAGNOSTICS)
UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "kib": 1 << 10, "mib": 1 << 20}
WITH_JOIN = ("listen", "runtime_dir", "profile", "profile_calls", "debug", "log_level", "log_format")
"""Options of a process that joins; all others are the job's."""


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add them all to the command."""
    for group in reversed(GROUPS):
        command = group(command)
    return command


def origin_of(text: str) -> tuple[str, str]:
    """Return folder and checkpoint that --from-checkpoint names. Raises UsageError if it does not name both."""
    folder, _, name = text.rpartition(":")
    if not folder or not name:
        raise UsageError(f"--from-checkpoint {text}: must be DIR:NAME, the --state folder of a job and its checkpoint.")
    return os.path.abspath(folder), name


def renamings(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return what `--rename-state` says, each OLD=NEW. Raises UsageError.

    The last "=" divides them, because the name in the store may contain one.

    >>> renamings(["count=words", "a=b=c"])
    (('count', 'words'), ('a=b', 'c'))
    """
    pairs = tuple((old, new) for old, _, new in (each.rpartition("=") for each in given))
    for each, (old, new) in zip(given, pairs, strict=True):
        if not old or not new or old == new:
            raise UsageError(f"--rename-state {each}: must be OLD=NEW, with two different names of operators.")
    return pairs


def size_of(text: str) -> int:
    """Return the bytes of `--line-size-max`. Raises UsageError for text that is not a size.

    >>> size_of("64MiB"), size_of("100 MB"), size_of("70000")
    (67108864, 100000000, 70000)
    """
    found = re.fullmatch(r"([0-9]{1,15}) *([A-Za-z]*)", text.strip())
    if found is None or found[2].lower() not in UNITS:
        raise UsageError(f"--line-size-max {text}: must be a number of bytes, kB, MB, KiB or MiB, such as 256MiB.")
    return int(found[1]) * UNITS[found[2].lower()]


def typed(context: click.Context) -> Iterator[GroupedOption]:
    """Yield the options that were typed."""
    for each in context.command.params:
        source = context.get_parameter_source(str(each.name))
        if isinstance(each, GroupedOption) and source is ParameterSource.COMMANDLINE:
            yield each


def check_flags() -> None:
    """Raise UsageError if an option was typed that is for processes that join, for a job with state, or for Spark."""
    context = click.get_current_context()
    has_state, is_on_spark = (context.params.get(name) is not None for name in ("state", "on"))
    for each in typed(context):
        flag = each.opts[0]
        if not has_state and (each.group == "State" or each.name == "close_windows"):
            raise UsageError(f"{flag} is only for jobs that save their state. Add --state DIR.")
        if not is_on_spark and each.group == "Spark":
            raise UsageError(f"{flag} is only for processes on Spark. Add --on spark.")
        if each.name == "web_control" and context.params["address"] is None:
            raise UsageError("--web-control is only for jobs with a page. Add --web.")
        if is_on_spark and each.name == "listen":
            raise UsageError(
                "--listen does not go with --on: processes on Spark find their own addresses. Leave it out."
            )
        if each.group == "Joining":
            flag = flag if each.is_flag else f"{flag} {context.params[str(each.name)]}"
            raise UsageError(f"{flag} is only for a process that joins a running job. Add --join, or leave it out.")


def check_join_flags(target: str) -> None:
    """Raise UsageError if an option was typed that belongs to a job, and so not to a process that joins it."""
    for each in typed(click.get_current_context()):
        if each.group != "Joining" and each.name not in WITH_JOIN:
            raise UsageError(
                f"{each.opts[0]} does not go with --join {target}: the running job sets it. Leave it out."
            )
