"""The options of `megaflow run`, in the groups and the order of its help, and the text above them."""

from collections.abc import Callable

import click

from megaflow.cli.options import LinesOption, grouped, option, repeated

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

An environment variable can set each option, as MEGAFLOW_LINES does for --lines.
"""

INPUT = grouped(
    "Input",
    repeated("--lines", env="LINES", cls=LinesOption, metavar="[NAME=]SPEC",
             help="Read lines from a file, folder, quoted glob, spark:FORMAT:PATH or - (stdin)."),
    repeated("--rows", "rows", env="ROWS", metavar="NAME=SPEC",
             help="Read rows from spark:FORMAT:PATH, for flow.rows(NAME)."),
    option("--follow", env="FOLLOW", is_flag=True, help="Keep reading files that grow, and new files."),
    option("--encoding-errors", env="ENCODING_ERRORS", type=click.Choice(["strict", "replace"]), default="strict",
           show_default=True, help="Fail at bytes that are not text, or replace and count them."),
    option("--rate", env="RATE", metavar="N", type=float,
           help="Read N lines per second, even if the workers fall behind."),
)  # fmt: skip

OUTPUT = grouped(
    "Output",
    repeated("--output", "outputs", env="OUTPUT", cls=LinesOption, metavar="[NAME=]SPEC", default=("-",),
             show_default=True,
             help="Write records to jsonl:PATH, csv:PATH, spark:FORMAT:PATH, - (stdout) or none."),
    option("--overwrite", env="OVERWRITE", is_flag=True, help="Replace the contents of existing output files."),
    option("--append", env="APPEND", is_flag=True, help="Append to existing output files."),
)  # fmt: skip

PROCESSES = grouped(
    "Processes",
    option("--processes", env="PROCESSES", metavar="N", type=int, default=1, show_default=True,
           help="Start N worker processes."),
    option("--workers", env="WORKERS", metavar="W", type=int, default=1, show_default=True,
           help="Run W workers in each process."),
    option("--oversubscribe", env="OVERSUBSCRIBE", is_flag=True,
           help="Lift the limit on processes, and on workers in each (16, or 4 per core if more)."),
    option("--name", env="NAME", metavar="JOB", help="Name the job; by default after the program's file."),
    option("--listen", env="LISTEN", metavar="HOST[:PORT]", default="127.0.0.1", show_default=True,
           help="Listen on HOST: on free ports, or on PORT and the ports after it."),
    option("--join-timeout", "join_timeout_seconds", env="JOIN_TIMEOUT", metavar="SECONDS", type=float, default=30.0,
           show_default=True, help="Give up on a process that takes longer to join the running job."),
    option("--drain-timeout", env="DRAIN_TIMEOUT", metavar="SECONDS", type=float,
           help="Kill a job that takes longer to stop; by default there is no limit."),
)  # fmt: skip

STATE = grouped(
    "State",
    option("--state", env="STATE", metavar="DIR", type=click.Path(file_okay=False),
           help="Save state in DIR (created if missing), and resume from it."),
    option("--from-checkpoint", env="FROM_CHECKPOINT", metavar="DIR:NAME",
           help="Start a new --state folder from a checkpoint of another job."),
    option("--checkpoint-every", env="CHECKPOINT_EVERY", metavar="SECONDS", type=float, default=1.0,
           show_default=True, help="Wait at least this long between two checkpoints."),
    option("--checkpoints-kept", env="CHECKPOINTS_KEPT", metavar="N", type=int, default=3, show_default=True,
           help="Keep the newest N checkpoints."),
    option("--restarts", env="RESTARTS", metavar="N", type=int, default=3, show_default=True,
           help="Resume after a lost process at most N times in a row."),
    option("--shrink", env="SHRINK", is_flag=True, help="Resume with fewer processes instead of starting a new one."),
    option("--take-over", env="TAKE_OVER", is_flag=True, help="Take DIR from a launcher that no longer answers."),
    option("--allow-loss", env="ALLOW_LOSS", is_flag=True,
           help="Resume with --follow even if unread lines have been deleted."),
    repeated("--rename-state", "renamed", env="RENAME_STATE", metavar="OLD=NEW",
             help="Give the saved state of operator OLD to operator NEW."),
    repeated("--drop-state", "dropped", env="DROP_STATE", metavar="NAME",
             help="Discard the saved state of operator NAME."),
)  # fmt: skip

EVENT_TIME = grouped(
    "Event time",
    option("--idle-timeout", env="IDLE_TIMEOUT", metavar="SECONDS", type=float, default=5.0, show_default=True,
           help="Let event time pass a partition that is idle for this long."),
    option("--close-windows", env="CLOSE_WINDOWS", is_flag=True,
           help="Close all windows when the input of a job with --state ends."),
)  # fmt: skip

SPARK = grouped(
    "Spark",
    option("--on", env="ON", metavar="spark[:MASTER]", help="Run the worker processes on Spark's executors."),
    repeated("--conf", env="CONF", metavar="K=V",
             help="With --on, set a Spark property, such as spark.executor.memory=2g."),
    option("--start-timeout", "start_timeout_seconds", env="START_TIMEOUT", metavar="SECONDS", type=float,
           default=120.0, show_default=True, help="With --on, fail if the first processes take longer to start."),
    repeated("--ship", "shipped", env="SHIP", metavar="PATH",
             help="With --on, also send a file or folder that is not beside FILE."),
)  # fmt: skip

JOINING = grouped(
    "Joining",
    option("--join", env="JOIN", metavar="NAME|HOST:PORT",
           help="Join a running job of the same program instead of starting one."),
    option("--server", env="SERVER", metavar="WORKER", type=int,
           help="Ask this worker for the routing table; by default the coordinator."),
    option("--no-bootstrap", env="NO_BOOTSTRAP", is_flag=True,
           help="Own no bins before `megaflow control bootstrap`."),
    option("--allow-other-code", env="ALLOW_OTHER_CODE", is_flag=True,
           help="Join even if the program or ARGS differ from the job's."),
)  # fmt: skip

DIAGNOSTICS = grouped(
    "Diagnostics",
    option("--profile", env="PROFILE", metavar="[DIR]", is_flag=False, flag_value="profile",
           type=click.Path(file_okay=False),
           help="Write the time of each operator to DIR (by default `profile`)."),
    option("--profile-calls", env="PROFILE_CALLS", is_flag=True,
           help="With --profile, also time each function; this slows the job."),
    option("--debug", env="DEBUG", is_flag=True, help="Keep megaflow's own frames in tracebacks."),
)  # fmt: skip

GROUPS = (INPUT, OUTPUT, PROCESSES, STATE, EVENT_TIME, SPARK, JOINING, DIAGNOSTICS)


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add them all to the command."""
    for group in reversed(GROUPS):
        command = group(command)
    return command
