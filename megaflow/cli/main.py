"""The command line's entry: `megaflow run`, `megaflow graph` and the groups `megaflow control` and `megaflow state`.

1. Records and the answers of `control` go to standard output. All other messages go to standard error.
2. Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 75 lost with its state kept; if a signal has ended the
   command at once, 128 and the signal's number: 130 for Ctrl-C, 143 for SIGTERM. `megaflow.__main__` sees to the
   signals that come before a command handles them itself.
3. A command imports its own needs inside its function, and the commands of a group are imported when one is used:
   `megaflow --help` loads neither the engine nor the launcher.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from megaflow.cli.help import CONTEXT, Command
from megaflow.cli.options import (
    ArgsCommand,
    Where,
    answer,
    complete_files,
    give_up_output,
    is_json,
    keep_standard_files,
    option,
    reporter,
    say,
    say_json,
    watching,
)
from megaflow.cli.run_options import HELP, check_flags, check_join_flags, origin_of, renamings, run_options, size_of
from megaflow.errors import EndedBySignal, MegaflowError, PeerFailed, StateKept, UsageError, notes_of

INTERRUPTED = 130
STATE_KEPT = 75  # EX_TEMPFAIL of sysexits.h: the same command, run again, may succeed
SHELLS = ("bash", "zsh", "fish")
LANGUAGES = ("mermaid", "dot")  # of `megaflow.timely.dataflow.picture`


class LazyCommands(click.Group):
    """A group whose commands are imported, module by module, when one is asked for."""

    def __init__(self, *words: Any, modules: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*words, **more)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one of them, None if there is no such command."""
        self._load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group. The error for an unknown one says where those of commands belong."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            given = f"{ctx.command_path} COMMAND {error.option_name}"
            text = f"{error.message} Options of a command follow the command, as in '{given}'."
            raise click.NoSuchOption(error.option_name, text, error.possibilities, ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. The error for an unknown name suggests the command of that name in the other group.

        Among similar names it never suggests `stop`, so that a typing error does not lead to the end of a job.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            found = [f"megaflow {group}{args[0]}" for group, commands in groups() if commands.get_command(ctx, args[0])]
            if found:
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean '{found[0]}'?", ctx) from None
            if getattr(error, "possibilities", None):  # of click 8.4 and newer
                error.possibilities = [each for each in error.possibilities if each != "stop"]  # type: ignore[attr-defined]
            raise

    def _load(self, name: str | None = None) -> None:
        """Import the modules that are needed to find this command, or all."""
        for module in self._modules:
            if name not in self.commands:
                found = import_module(f"megaflow.cli.{module}").COMMANDS
                self.commands.update((str(command.name), command) for command in found)


class Commands(LazyCommands):
    """A group of commands whose errors become a line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with the codes of rule 2."""
        try:
            return self._invoke(ctx)
        except EndedBySignal as ended:
            say(str(ended))
            ctx.exit(ended.exit_code)
        except KeyboardInterrupt:  # also while an error is printed
            say("interrupted")
            ctx.exit(INTERRUPTED)

    def _invoke(self, ctx: click.Context) -> Any:
        from megaflow.environment import complaints
        from megaflow.job.limits import telling_limits

        for complaint in complaints(os.environ):
            say(complaint, "WARNING")
        try:
            with telling_limits():
                return super().invoke(ctx)
        except PeerFailed as error:  # a user's traceback: last and alone
            text = str(error).rstrip("\n")
            if is_json():
                say_json(f"the program has failed: {error.raised.rpartition(':')[2]}", "ERROR", text)
            else:
                print(text, file=sys.stderr, flush=True)
            ctx.exit(1)
        except MegaflowError as error:
            give_up_output()
            for note in notes_of(error):
                say(note, "ERROR")
            say(str(error), "ERROR")
            ctx.exit(2 if isinstance(error, UsageError) else STATE_KEPT if isinstance(error, StateKept) else 1)
        except BrokenPipeError:  # the reader of our output has closed it
            give_up_output()
            ctx.exit(1)


@click.group(cls=Commands, modules=("project", "doctor", "demo", "check"), context_settings=CONTEXT)
@click.version_option(package_name="megaflow")
def cli() -> None:
    """Stateful streams whose state moves between workers while the stream runs.

    \b
      megaflow new counts
      megaflow run wordcount.py --lines book.txt
      megaflow control status
      megaflow state ls kept

    `megaflow COMMAND --help` shows the options of a command. An environment variable can set each of them, as
    MEGAFLOW_LINES does for --lines; docs/environment.md lists all variables.
    """


def groups() -> tuple[tuple[str, click.Group], ...]:
    """Return the groups in which a user may look for a command, each after the words before its commands."""
    return ("", cli), ("control ", control)


@cli.group(cls=LazyCommands, modules=("inspecting", "steering", "scaling", "page"))
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


@cli.group(cls=LazyCommands, modules=("state", "state_reading", "state_outbox"))
def state() -> None:
    """Inspect, copy and repair the saved state of a job.

    \b
      megaflow state ls kept
      megaflow state get kept count river
      megaflow state copy kept backup/monday

    DIR is the --state folder of a job, also while the job is running.
    """


@cli.command(cls=ArgsCommand, help=HELP)
@click.argument("app", metavar="FILE|MODULE[:FUNCTION]", shell_complete=complete_files)
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@run_options
def run(
    app: str, args: tuple[str, ...], lines: tuple[str, ...], rows: tuple[str, ...], outputs: tuple[str, ...],
    join: str | None, server: int | None, no_bootstrap: bool, allow_other_code: bool, profile: str | None,
    profile_calls: bool, overwrite: bool, append: bool, state: str | None, from_checkpoint: str | None, on: str | None,
    conf: tuple[str, ...], address: str | None, web_control: bool, metrics: str | None, **more: Any,
) -> None:  # fmt: skip
    """Start a job, or join one, and report how it ended."""
    from megaflow.job.app import find_app
    from megaflow.job.job_file import Job
    from megaflow.job.launcher.inputs.launcher_input import parse_line_specs
    from megaflow.job.launcher.outputs.opened_output import Mode
    from megaflow.job.launcher.outputs.output_specs import is_written_by_spark, open_outputs, parse_outputs
    from megaflow.job.launcher.outputs.writer import Writer
    from megaflow.job.launcher.run.launch import LaunchOptions, launch
    from megaflow.job.launcher.run.published_job import started_text
    from megaflow.job.launcher.run.run_summary import report_end
    from megaflow.job.log_records import LogPlace, default_place
    from megaflow.job.patient_stream import print_patiently
    from megaflow.job.profile.report import profile_spec
    from megaflow.job.spec import JobSpec
    from megaflow.spark import launching as spark

    print_patiently()
    more["profile"] = profile_spec(profile, profile_calls)
    if join is not None:
        kept = {name: more[name] for name in ("listen", "debug", "profile", "log_level", "log_format")}
        part = {"server": server, "wishes": not no_bootstrap, "other_code": allow_other_code}
        join_running(app, join, part, args=args, **kept)
        return
    check_flags()
    report = reporter(more["log_level"], more["log_format"])
    if lines and rows:
        raise UsageError("--lines and --rows do not go together. To read lines as rows, use --rows x=spark:text:DIR.")
    if overwrite and append:
        raise UsageError("--overwrite and --append do not go together. Give one of them, or neither for a new file.")
    mode: Mode = "overwrite" if overwrite else "append" if append else "new"
    more["shrink"] &= state is not None  # the environment may set it
    more["renamed"] = renamings(more["renamed"])
    more["line_size_max"] = size_of(more["line_size_max"])
    relocate(more)
    more["on"] = None if on is None else spark.parse_on(on)
    more["conf"] = spark.parse_conf(conf) if conf else ()
    given = parse_outputs(outputs)
    spec = JobSpec(find_app(app), args=args, state=None if state is None else os.path.abspath(state),
                   origin=None if from_checkpoint is None else origin_of(from_checkpoint),
                   results=is_written_by_spark(given[""]), **more)
    workers = spec.processes * spec.workers
    specs = spark.parse_row_specs(rows) if rows else {}
    line_specs = parse_line_specs(lines) if lines else None
    read = specs.values() if line_specs is None else line_specs.values() if isinstance(line_specs, dict) else line_specs

    def opened(mode: Mode) -> Writer:
        return open_outputs(given, read, mode, open_spark)

    def open_spark(output: str, mode: Mode) -> Writer:
        from megaflow.job.launcher.outputs.spark_results import open_results

        return open_results(output, spec.state, mode)

    page = page_of(address, metrics, web_control)
    options = LaunchOptions(spec, line_specs, lambda: opened(mode), lambda: opened("resume"), specs or None, page=page)

    def started(job: Job) -> None:
        default_place(LogPlace(job.name))
        report(started_text(job, workers))

    summary = launch(options, report, started, signals=True)
    report_end(summary, "row" if rows else "line", spec.state is not None, report)
    if summary.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def relocate(more: dict[str, Any]) -> None:
    """Replace the values of `--relocate` and `--same-file` by pairs of absolute paths. Raises UsageError."""
    if more["relocated"] or more["same_files"]:
        from megaflow.durable.relocation import relocations

        more["relocated"] = relocations(more["relocated"])
        more["same_files"] = relocations(more["same_files"], "--same-file")


def page_of(address: str | None, metrics: str | None, web_control: bool) -> Any:
    """Return the page of a job, None if the options ask for none."""
    if address is None and metrics is None:
        return None
    from megaflow.job.launcher.run.live_page import LivePage

    return LivePage(address, metrics, web_control and address is not None)


def join_running(app: str, target: str, part: dict[str, Any], **more: Any) -> None:
    """Be a further process of a running job, to its end; `part` are fields of its JoiningProcess."""
    from megaflow.job.app import find_app
    from megaflow.job.contact import find_contact
    from megaflow.job.log_records import MARK, plain_line, set_up
    from megaflow.job.spec import JobSpec, JoiningProcess
    from megaflow.job.worker.process.child import empty_standard_input
    from megaflow.job.worker.process.join_by_hand import join_job
    from megaflow.job.worker.process.worker_text import WorkerText

    check_join_flags(target)
    contact, secret = find_contact(target)
    if more["log_format"] == "json":
        sys.stderr = WorkerText(sys.stderr, plain_line, holds=True)
    set_up(more["log_level"], more["log_format"], MARK)
    empty_standard_input()  # as in the job's other processes
    with contextlib.redirect_stdout(sys.stderr):  # records go to the job's launcher; what the program prints does not
        join_job(JobSpec(find_app(app), **more), JoiningProcess(contact, **part), secret, say)


@cli.command(cls=Command)
@watching
def top(where: Where) -> None:
    """Show a running job live in the terminal.

    \b
      megaflow top
      megaflow top --job orders

    The screen shows the owner and load of each bin, the workers, and what happens: moves, joins, checkpoints. Keys:
    o shows the next operator, p pauses, q quits. It works over ssh and without colours (NO_COLOR=1).
    """
    try:
        from megaflow.cli.top_app import show
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("textual", "rich"):
            raise UsageError("megaflow top needs textual. Install it: pip install 'megaflow[top]'") from None
        raise
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # textual writes to standard error
        raise UsageError("megaflow top needs a terminal. Scripts read megaflow control watch --json.")
    if told := show(where):
        say(told)


@cli.command(cls=ArgsCommand)
@click.argument("app", metavar="FILE|MODULE[:FUNCTION]", shell_complete=complete_files)
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@option("--format", "language", env="GRAPH_FORMAT", type=click.Choice(LANGUAGES), default="mermaid",
        help="Print the picture in this language.")  # fmt: skip
@option("--debug", is_flag=True, help="Keep megaflow's own frames in tracebacks.")
def graph(app: str, args: tuple[str, ...], language: str, debug: bool) -> None:
    """Draw the dataflow of a program without running it.

    \b
      megaflow graph wordcount.py
      megaflow graph wordcount.py --format dot | dot -Tsvg > wordcount.svg

    FUNCTION builds the dataflow, by default `dataflow`. In an engine program, main(worker) runs up to its first step.
    """
    from megaflow.cli.built_program import draw_app

    with contextlib.redirect_stdout(sys.stderr):  # what the program itself prints
        picture = draw_app(app, args, language, debug)
    answer(picture)


@cli.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script by which a shell completes the command line.

    \b
      eval "$(megaflow completion bash)"                                  in ~/.bashrc
      eval "$(megaflow completion zsh)"                                   in ~/.zshrc
      megaflow completion fish > ~/.config/fish/completions/megaflow.fish

    It completes commands, options, files and the names of running jobs.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    answer(kind(cli, {}, "megaflow", "_MEGAFLOW_COMPLETE").source())


def main() -> None:
    """Run the command line and exit."""
    keep_standard_files()
    cli(prog_name="megaflow")
