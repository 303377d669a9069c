"""The command line's entry: `megaflow run`, `megaflow graph` and the groups `megaflow control` and `megaflow state`.

1. Records go to standard output, everything else that `run` says to standard error; what `control` was asked for
   goes to standard output.
2. Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 75 lost with its state kept, 130 interrupted.
3. A command imports inside its function what only it needs, and the commands of `control` are imported when one is
   asked for: `megaflow --help` loads neither the engine nor the launcher.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from megaflow.cli.options import (
    ArgsCommand,
    LinesOption,
    answer,
    give_up_output,
    keep_standard_files,
    option,
    repeated,
    say,
)
from megaflow.cli.run_flags import check_flags, check_join_flags, origin_of
from megaflow.errors import MegaflowError, PeerFailed, StateKept, UsageError

INTERRUPTED = 130
STATE_KEPT = 75  # EX_TEMPFAIL of sysexits.h: the same command, run again, may succeed
REPORT_SECONDS = 1.0  # for somebody to read what a job says while it runs: it has other things to do
LANGUAGES = ("mermaid", "dot")  # of `megaflow.timely.dataflow.picture`


class Commands(click.Group):
    """A group of commands whose errors become a line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with 1 for a failure or refusal, 2 for wrong usage, 75 (state kept), 130 for Ctrl-C."""
        try:
            return self._invoke(ctx)
        except KeyboardInterrupt:  # also while an error is told
            say("interrupted")
            ctx.exit(INTERRUPTED)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PeerFailed as error:  # a user's traceback: last and alone
            print(str(error).rstrip("\n"), file=sys.stderr, flush=True)
            ctx.exit(1)
        except MegaflowError as error:
            give_up_output()
            say(str(error))
            ctx.exit(2 if isinstance(error, UsageError) else STATE_KEPT if isinstance(error, StateKept) else 1)
        except BrokenPipeError:  # the reader of our output has closed it
            give_up_output()
            ctx.exit(1)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            say(f"too few file descriptors: {error.strerror}; raise their limit, as in: ulimit -n 1024")
            ctx.exit(1)


class LazyCommands(click.Group):
    """A group whose commands are imported when one is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one of them, None if there is no such command."""
        self._load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def _load(self, name: str | None = None) -> None:
        """Import the commands that are needed to find this one, or all."""
        from megaflow.cli.steering import COMMANDS

        self.commands.update((str(command.name), command) for command in COMMANDS)
        if name not in self.commands:
            from megaflow.cli.scaling import COMMANDS as MORE

            self.commands.update((str(command.name), command) for command in MORE)


class StateCommands(LazyCommands):
    """Those of `megaflow state`."""

    def _load(self, name: str | None = None) -> None:
        from megaflow.cli.state import COMMANDS

        self.commands.update((str(command.name), command) for command in COMMANDS)
        if name not in self.commands:
            from megaflow.cli.state_outbox import COMMANDS as OF_OUTBOX
            from megaflow.cli.state_reading import COMMANDS as MORE

            self.commands.update((str(command.name), command) for command in (*MORE, *OF_OUTBOX))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="megaflow")
def cli() -> None:
    """Stateful streams whose state moves between workers while the stream runs."""


@cli.group(cls=LazyCommands)
def control() -> None:
    """Inspect a running job and steer it."""


@cli.group(cls=StateCommands)
def state() -> None:
    """Look at a store of durable state, whether a job uses it or not."""


@cli.command(cls=ArgsCommand)
@click.argument("app", metavar="FILE|MODULE[:FUNCTION]")
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@repeated("--lines", env="LINES", cls=LinesOption, metavar="[NAME=]SPEC",
          help="Where lines come from: a file, directory or quoted glob, - (standard input), or spark:FORMAT:PATH. "
          "One worker reads a file, in order; with ?unordered several do; with ?ordered-by=name event time goes by the "
          "files' names. .gz, .bz2 and .zst are decompressed. Several inputs, read by flow.lines(NAME), come as "
          "NAME=SPEC each; a path with = begins with ./. A program that only uses flow.read needs none.")  # fmt: skip
@option("--follow", env="FOLLOW", is_flag=True,
        help="Read on as the files of --lines grow, and files that come: the job ends when it is stopped. A file that "
        "is rotated is read to its end, one that is truncated begins anew.")  # fmt: skip
@repeated("--rows", "rows", env="ROWS", metavar="NAME=SPEC",
          help="In the place of lines: rows that the program reads by flow.rows(NAME), from spark:FORMAT:PATH. "
          "?schema=COLUMNS, ?where=CONDITION and ?select=COLUMNS are SQL. May come several times.")  # fmt: skip
@repeated("--output", "outputs", env="OUTPUT", cls=LinesOption, metavar="[NAME=]SPEC", default=("-",),
          show_default="-",
          help="Where records go: - for standard output (a str as it is, others by their repr), jsonl:PATH for a file "
          "of JSON lines, csv:PATH for one of CSV (?columns=A,B says the order of columns), "
          "spark:FORMAT:PATH?schema=COLUMNS for what Spark writes (parquet, …), or none. NAME=SPEC, which may come "
          "several times, is for what the program gives out by flow.output(NAME, stream).")  # fmt: skip
@option("--overwrite", env="OVERWRITE", is_flag=True,
        help="Let --output name a file that is not empty: the first output replaces what it has.")  # fmt: skip
@option("--append", env="APPEND", is_flag=True,
        help="Let --output name a file that is not empty: the output comes behind what it has.")  # fmt: skip
@option("--processes", env="PROCESSES", metavar="N", type=int, default=1, show_default=True, help="Worker processes.")
@option("--workers", env="WORKERS", metavar="W", type=int, default=1, show_default=True, help="Workers per process.")
@option("--oversubscribe", env="OVERSUBSCRIBE", is_flag=True,
        help="Let there be more than 16 processes, or workers in each, and more than 4 per core.")  # fmt: skip
@option("--state", env="STATE", metavar="DIR", type=click.Path(file_okay=False),
        help="Keep the job's state in DIR, which is made if there is none: the same command goes on from there after "
        "a crash or a stop. Lines come from files or Spark.")  # fmt: skip
@option("--from-checkpoint", env="FROM_CHECKPOINT", metavar="DIR:NAME",
        help="With --state, if that is new: begin, as a job of its own, with what another job kept in its DIR at a "
        "checkpoint of this name or number. Program and lines are that job's, the output is not.")  # fmt: skip
@option("--checkpoint-every", env="CHECKPOINT_EVERY", metavar="SECONDS", type=float, default=1.0, show_default=True,
        help="With --state: how long from one checkpoint to the next, at least.")  # fmt: skip
@option("--checkpoints-kept", env="CHECKPOINTS_KEPT", metavar="N", type=int, default=3, show_default=True,
        help="With --state: how many checkpoints DIR has, the newest ones.")  # fmt: skip
@option("--restarts", env="RESTARTS", metavar="N", type=int, default=3, show_default=True,
        help="With --state: how often the job goes on by itself after it has lost a process, without a checkpoint "
        "between, and ten times as often within ten minutes; 0: never.")  # fmt: skip
@option("--shrink", env="SHRINK", is_flag=True,
        help="With --state: go on after such a loss without a new process. The others divide its part.")  # fmt: skip
@option("--take-over", env="TAKE_OVER", is_flag=True,
        help="With --state: take DIR from a launcher that does not answer. It stops when it wakes up.")  # fmt: skip
@option("--allow-loss", env="ALLOW_LOSS", is_flag=True,
        help="With --state and --follow: go on without lines that came and are gone.")  # fmt: skip
@repeated("--rename-state", "renamed", env="RENAME_STATE", metavar="OLD=NEW",
          help="With --state: what DIR has of operator OLD is operator NEW's from now on. May come several times, and "
          "again with the same command.")  # fmt: skip
@repeated("--drop-state", "dropped", env="DROP_STATE", metavar="NAME",
          help="With --state: give up what DIR has of operator NAME. May come several times, and again.")  # fmt: skip
@option("--rate", env="RATE", metavar="N", type=float,
        help="Read N lines per second, even more than can be processed: for tests and benchmarks.")  # fmt: skip
@option("--drain-timeout", env="DRAIN_TIMEOUT", metavar="SECONDS", type=float,
        help="End a job that takes longer than this to stop (Ctrl-C, SIGTERM, SIGHUP, control stop): it exits with 1 "
        "and says what is left. By default there is no limit.")  # fmt: skip
@option("--idle-timeout", env="IDLE_TIMEOUT", metavar="SECONDS", type=float, default=5.0, show_default=True,
        help="After how long a file, partition or query that has nothing new holds event time back no longer.")
@option("--close-windows", env="CLOSE_WINDOWS", is_flag=True, help="With --state: close windows when the lines end.")
@option("--name", env="NAME", metavar="JOB", help="The job's name; by default made from the file's name.")
@option("--listen", env="LISTEN", metavar="HOST[:PORT]", default="127.0.0.1", show_default=True,
        help="The address that the processes listen on: on any free ports, or the first one on PORT, the others on the "
        "following ones.")  # fmt: skip
@option("--join-timeout", "join_timeout_seconds", env="JOIN_TIMEOUT", metavar="SECONDS", type=float, default=30.0,
        show_default=True, help="How long a process that is added, or joins by hand, may take to join; it is given up "
        "then, and changes that wait for it go on.")  # fmt: skip
@option("--on", env="ON", metavar="spark[:MASTER]",
        help="Run the worker processes on Spark's executors, each as a job of one task: spark:spark://HOST:7077, "
        "spark:local[4], or the session that is there.")  # fmt: skip
@repeated("--conf", env="CONF", metavar="K=V",
          help="With --on spark: a setting of Spark's, as in spark.executor.memory=2g. May come several "
          "times.")  # fmt: skip
@option("--start-timeout", "start_timeout_seconds", env="START_TIMEOUT", metavar="SECONDS", type=float, default=120.0,
        show_default=True, help="With --on spark: how long the first processes may take to start.")  # fmt: skip
@repeated("--ship", "shipped", env="SHIP", metavar="PATH",
          help="With --on spark: a file or folder that the program imports and that is not beside FILE; what is beside "
          "it is sent anyway. May come several times.")  # fmt: skip
@option("--encoding-errors", env="ENCODING_ERRORS", type=click.Choice(["strict", "replace"]), default="strict",
        show_default=True, help="At bytes that are not text: fail, or read U+FFFD and count them.")  # fmt: skip
@option("--debug", env="DEBUG", is_flag=True, help="Keep megaflow's own frames in tracebacks.")
@option("--profile", env="PROFILE", metavar="[DIR]", is_flag=False, flag_value="profile",
        type=click.Path(file_okay=False),
        help="Write to DIR/operators.txt where each worker's time went, by operator. DIR is `profile` if not "
        "given.")  # fmt: skip
@option("--profile-calls", env="PROFILE_CALLS", is_flag=True,
        help="With --profile: also write the time of each function, to DIR/calls.txt and DIR/worker-N.pstats. "
        "This uses cProfile, which slows down every function call: operators that make many small calls look "
        "slower than they are.")  # fmt: skip
@option("--join", env="JOIN", metavar="NAME|HOST:PORT",
        help="Join a running job instead of starting one: give its name, or where one of its processes listens "
        "(the job's secret is then taken from MEGAFLOW_SECRET), and the job's own FILE and ARGS. "
        "`megaflow control move-bins --balance` then gives it bins.")  # fmt: skip
@option("--server", env="SERVER", metavar="WORKER", type=int,
        help="With --join: the worker that tells this process how far the job is, and which worker owns which bin; by "
        "default the one that coordinates the job.")  # fmt: skip
@option("--no-bootstrap", env="NO_BOOTSTRAP", is_flag=True,
        help="With --join: own no bins until `megaflow control bootstrap` is given for this process.")  # fmt: skip
@option("--allow-other-code", env="ALLOW_OTHER_CODE", is_flag=True,
        help="With --join: join also if FILE, the modules beside it or ARGS are not what the job runs, to upgrade it "
        "process by process.")  # fmt: skip
def run(
    app: str, args: tuple[str, ...], lines: tuple[str, ...], rows: tuple[str, ...], outputs: tuple[str, ...],
    join: str | None, server: int | None, no_bootstrap: bool, allow_other_code: bool, profile: str | None,
    profile_calls: bool, overwrite: bool, append: bool, state: str | None, from_checkpoint: str | None, on: str | None,
    conf: tuple[str, ...], **more: Any,
) -> None:  # fmt: skip
    """Run the dataflow that FUNCTION (default: dataflow) builds, in FILE, or in MODULE, as in pkg.app:dataflow.

    The job ends when its lines, or rows, end. Ctrl-C, SIGTERM or SIGHUP drains and stops it; the second kills it.
    At a process that joined, the first has it leave the job, the second ends it and the job.
    The exit code is 130 after Ctrl-C, and 75 if the job is lost and --state has what the same command goes on from.
    """
    from megaflow.cli.counted_text import summed_texts
    from megaflow.control.wording import quantity
    from megaflow.job.app import find_app
    from megaflow.job.launcher.epoch_merge import Writer
    from megaflow.job.launcher.launch import launch
    from megaflow.job.launcher.launcher_input import parse_line_specs
    from megaflow.job.launcher.output_file import Mode
    from megaflow.job.launcher.output_specs import open_outputs, parse_outputs
    from megaflow.job.launcher.resumption import renamings
    from megaflow.job.launcher.spark_results import open_results
    from megaflow.job.profile.report import profile_spec
    from megaflow.job.spec import JobSpec
    from megaflow.spark.query_spec import parse_row_specs
    from megaflow.spark.results_spec import is_results_spec
    from megaflow.spark.worker_settings import parse_conf, parse_on

    more["profile"] = profile_spec(profile, profile_calls)
    if join is not None:
        kept = {name: more[name] for name in ("listen", "debug", "profile")}
        part = {"server": server, "wishes": not no_bootstrap, "other_code": allow_other_code}
        join_running(app, join, part, args=args, **kept)
        return
    check_flags()
    if lines and rows:
        raise UsageError("--lines and --rows do not go together: Spark reads lines as rows, too, by spark:text:FOLDER")
    if overwrite and append:
        raise UsageError("--overwrite and --append: give one of them, or leave both out for a new file")
    mode: Mode = "overwrite" if overwrite else "append" if append else "new"
    more["shrink"] &= state is not None  # the environment may say so
    more["renamed"] = renamings(more["renamed"])
    more["on"], more["conf"] = None if on is None else parse_on(on), parse_conf(conf)
    given = parse_outputs(outputs)
    spec = JobSpec(find_app(app), args=args, state=None if state is None else os.path.abspath(state),
                   origin=None if from_checkpoint is None else origin_of(from_checkpoint),
                   results=is_results_spec(given[""]), **more)
    started = show_started(spec.processes * spec.workers)
    specs = parse_row_specs(rows)
    line_specs = parse_line_specs(lines) if lines else None
    read = specs.values() if line_specs is None else line_specs.values() if isinstance(line_specs, dict) else line_specs

    def opened(mode: Mode) -> Writer:
        return open_outputs(given, read, mode, lambda output, mode: open_results(output, spec.state, mode))

    summary = launch(
        spec, line_specs, lambda: opened(mode), rows=specs or None, signals=True, started=started,
        report=partial(say, wait_seconds=REPORT_SECONDS), resume_output=lambda: opened("resume"),
    )  # fmt: skip
    if summary.stopped_at is not None:
        say(f"stopped at checkpoint {summary.stopped_at}: the same command goes on from there")
    else:
        lines_read, written = quantity(summary.lines, "row" if rows else "line"), quantity(summary.records, "record")
        since = "" if summary.since is None else f" since checkpoint {summary.since}"
        tail = "".join(f"; {text}" for text in summed_texts(summary.skipped, summary.replaced))
        say(f"{lines_read}, {written}{since}, {summary.seconds:.2f} seconds{tail}")
    if summary.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def join_running(app: str, target: str, part: dict[str, Any], **more: Any) -> None:
    """Be a further process of a running job, to its end; `part` are fields of its JoiningProcess."""
    from megaflow.job.app import find_app
    from megaflow.job.contact import find_contact
    from megaflow.job.spec import JobSpec, JoiningProcess
    from megaflow.job.worker.child import empty_standard_input
    from megaflow.job.worker.join_by_hand import join_job

    check_join_flags(target)
    contact, secret = find_contact(target)
    empty_standard_input()  # as in the job's other processes
    with contextlib.redirect_stdout(sys.stderr):  # records go to the job's launcher; what the program prints does not
        join_job(JobSpec(find_app(app), **more), JoiningProcess(contact, **part), secret, say)


def show_started(count: int) -> Callable[[Any], None]:
    """Return what tells the user the name of a job with so many workers, and how to steer it."""
    from megaflow.control.wording import quantity

    workers = quantity(count, "worker")
    return lambda job: say(f"job {job.name!r} on {workers}; steer it with: megaflow control status --job {job.name}")


@cli.command(cls=ArgsCommand)
@click.argument("app", metavar="FILE|MODULE[:FUNCTION]")
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@option("--format", "language", env="GRAPH_FORMAT", type=click.Choice(LANGUAGES), default="mermaid",
        show_default=True, help="The notation of the picture.")  # fmt: skip
@option("--debug", env="DEBUG", is_flag=True, help="Keep megaflow's own frames in tracebacks.")
def graph(app: str, args: tuple[str, ...], language: str, debug: bool) -> None:
    """Print a picture of the dataflows that a program builds, without running them.

    The main(worker) of an engine program runs up to its first step.
    """
    from megaflow.cli.drawing import draw_app

    with contextlib.redirect_stdout(sys.stderr):  # what the program itself prints
        picture = draw_app(app, args, language, debug)
    answer(picture)


def leave_out_current_directory() -> None:
    """Import nothing from it, neither here nor in what is started, because of an empty part of PYTHONPATH."""
    path = os.environ.get("PYTHONPATH", "")
    wanted = [part for part in path.split(os.pathsep) if part]
    if path != (cleaned := os.pathsep.join(wanted)):
        os.environ["PYTHONPATH"] = cleaned
        if (here := os.getcwd()) in sys.path and here not in map(os.path.abspath, wanted):
            sys.path.remove(here)


def main() -> None:
    """Run the command line and exit."""
    keep_standard_files()
    leave_out_current_directory()
    cli(prog_name="megaflow")
