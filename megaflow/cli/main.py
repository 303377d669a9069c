"""The command line's entry: `megaflow run`, `megaflow graph` and the groups `megaflow control` and `megaflow state`.

1. Records and the answers of `control` go to standard output. All other messages go to standard error.
2. Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 75 lost with its state kept, 130 interrupted.
3. A command imports its own needs inside its function, and the commands of a group are imported when one is used:
   `megaflow --help` loads neither the engine nor the launcher.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from megaflow.cli.help import CONTEXT
from megaflow.cli.options import (
    ArgsCommand,
    answer,
    give_up_output,
    keep_standard_files,
    option,
    say,
)
from megaflow.cli.run_flags import check_flags, check_join_flags, origin_of
from megaflow.cli.run_options import HELP, run_options
from megaflow.errors import MegaflowError, PeerFailed, StateKept, UsageError

INTERRUPTED = 130
STATE_KEPT = 75  # EX_TEMPFAIL of sysexits.h: the same command, run again, may succeed
REPORT_SECONDS = 1.0  # a running job waits no longer for its terminal to take a report
LANGUAGES = ("mermaid", "dot")  # of `megaflow.timely.dataflow.picture`


class Commands(click.Group):
    """A group of commands whose errors become a line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with 1 for a failure or refusal, 2 for wrong usage, 75 (state kept), 130 for Ctrl-C."""
        try:
            return self._invoke(ctx)
        except KeyboardInterrupt:  # also while an error is printed
            say("interrupted")
            ctx.exit(INTERRUPTED)

    def _invoke(self, ctx: click.Context) -> Any:
        from megaflow.environment import complaints

        for complaint in complaints(os.environ):
            say(complaint)
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
            say(f"Cannot open another file: {error.strerror}. Raise the limit, for example: ulimit -n 1024.")
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
        from megaflow.cli.inspecting import COMMANDS

        self.commands.update((str(command.name), command) for command in COMMANDS)
        if name not in self.commands:
            from megaflow.cli.scaling import COMMANDS as SCALING
            from megaflow.cli.steering import COMMANDS as STEERING

            self.commands.update((str(command.name), command) for command in (*STEERING, *SCALING))


class StateCommands(LazyCommands):
    """Those of `megaflow state`."""

    def _load(self, name: str | None = None) -> None:
        from megaflow.cli.state import COMMANDS

        self.commands.update((str(command.name), command) for command in COMMANDS)
        if name not in self.commands:
            from megaflow.cli.state_outbox import COMMANDS as OF_OUTBOX
            from megaflow.cli.state_reading import COMMANDS as MORE

            self.commands.update((str(command.name), command) for command in (*MORE, *OF_OUTBOX))


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(package_name="megaflow")
def cli() -> None:
    """Stateful streams whose state moves between workers while the stream runs.

    \b
      megaflow run wordcount.py --lines book.txt
      megaflow control status
      megaflow state ls kept

    `megaflow COMMAND --help` shows the options of a command. An environment variable can set each of them, as
    MEGAFLOW_LINES does for --lines; docs/environment.md lists all variables.
    """


@cli.group(cls=LazyCommands)
def control() -> None:
    """Inspect and change a running job.

    \b
      megaflow control status --watch
      megaflow control move-bins --balance
      megaflow control add-workers 1 --balance
      megaflow control stop

    If several jobs are running on this machine, name one with --job. For a job on another machine, give --connect
    HOST:PORT and put the job's secret into MEGAFLOW_SECRET.
    """


@cli.group(cls=StateCommands)
def state() -> None:
    """Inspect, copy and repair the saved state of a job.

    \b
      megaflow state ls kept
      megaflow state get kept count river
      megaflow state copy kept backup/monday

    DIR is the --state folder of a job, also while the job is running.
    """


@cli.command(cls=ArgsCommand, help=HELP)
@click.argument("app", metavar="FILE|MODULE[:FUNCTION]")
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@run_options
def run(
    app: str, args: tuple[str, ...], lines: tuple[str, ...], rows: tuple[str, ...], outputs: tuple[str, ...],
    join: str | None, server: int | None, no_bootstrap: bool, allow_other_code: bool, profile: str | None,
    profile_calls: bool, overwrite: bool, append: bool, state: str | None, from_checkpoint: str | None, on: str | None,
    conf: tuple[str, ...], **more: Any,
) -> None:  # fmt: skip
    """Start a job, or join one, and report how it ended."""
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
        raise UsageError("--lines and --rows do not go together. To read lines as rows, use --rows x=spark:text:DIR.")
    if overwrite and append:
        raise UsageError("--overwrite and --append do not go together. Give one of them, or neither for a new file.")
    mode: Mode = "overwrite" if overwrite else "append" if append else "new"
    more["shrink"] &= state is not None  # the environment may set it
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
        say(f"stopped at checkpoint {summary.stopped_at}; run the same command again to resume")
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
        show_default=True, help="Print the picture in this language.")  # fmt: skip
@option("--debug", env="DEBUG", is_flag=True, help="Keep megaflow's own frames in tracebacks.")
def graph(app: str, args: tuple[str, ...], language: str, debug: bool) -> None:
    """Draw the dataflow of a program without running it.

    \b
      megaflow graph wordcount.py
      megaflow graph wordcount.py --format dot | dot -Tsvg > wordcount.svg

    FUNCTION builds the dataflow, by default `dataflow`. In an engine program, main(worker) runs up to its first step.
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
