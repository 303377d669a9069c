"""The command line: `megaflow run` and `megaflow control`; with `megaflow.cli.scaling` the only module that prints.

Records go to standard output, everything else of `run` to standard error; what `control` was asked for goes to
standard output. Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 130 interrupted.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from megaflow.cli.drawing import draw_app
from megaflow.cli.options import counted, option, profiling, progress_bar, steering
from megaflow.cli.scaling import autoscale, recommend
from megaflow.control.client.commands import (
    Conversation,
    add_processes,
    ask_explanation,
    ask_status,
    bootstrap_worker,
    check_removal,
    remove_worker,
    run_plan,
    stop_job,
    take_up_plan,
    total,
)
from megaflow.control.client.move_request import (
    Plan,
    Selection,
    check_bins,
    check_no_plan,
    check_selection,
    make_plan,
    plan_removal,
    remaining_plan,
)
from megaflow.control.client.planner import HOTTEST_FIRST, STRATEGIES
from megaflow.control.client.text import (
    bootstrapped_text,
    explanation_text,
    joined_text,
    moved_text,
    plan_text,
    removed_text,
    status_text,
)
from megaflow.errors import MegaflowError, PeerFailed, PeerLost, UsageError
from megaflow.job.app import find_app
from megaflow.job.contact import conversation
from megaflow.job.job_file import Job
from megaflow.job.launcher.epoch_merge import open_writer
from megaflow.job.launcher.launch import launch
from megaflow.job.profile.report import profile_spec
from megaflow.job.spec import JobSpec
from megaflow.job.worker.join_by_hand import find_contact, join_job
from megaflow.timely.dataflow.picture import LANGUAGES

INTERRUPTED = 130
WATCH_SECONDS = 1.0


def say(text: str) -> None:
    """Tell the user something that is no result."""
    print(f"megaflow: {text}", file=sys.stderr, flush=True)


class Commands(click.Group):
    """A group of commands whose errors become a line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with 1 for a failure or refusal, 2 for wrong usage, 130 for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted")
            ctx.exit(INTERRUPTED)
        except PeerFailed as error:  # a user's traceback: last and alone
            print(str(error).rstrip("\n"), file=sys.stderr, flush=True)
            ctx.exit(1)
        except UsageError as error:
            say(str(error))
            ctx.exit(2)
        except MegaflowError as error:
            say(str(error))
            ctx.exit(1)
        except BrokenPipeError:  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


@click.group(cls=Commands)
@click.version_option(package_name="megaflow")
def cli() -> None:
    """Stateful streams whose state moves between workers while the stream runs."""


@cli.command()
@click.argument("app", metavar="FILE[:FUNCTION]")
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@option("--lines", env="LINES", metavar="SPEC",
        help="Where lines come from: a file, directory or glob, - (standard input), or spark:FORMAT:PATH.")  # fmt: skip
@option("--output", env="OUTPUT", metavar="SPEC", default="-", show_default=True,
        help="Where records go: - for standard output, jsonl:PATH, or none.")  # fmt: skip
@option("--processes", env="PROCESSES", metavar="N", type=int, default=1, show_default=True, help="Worker processes.")
@option("--workers", env="WORKERS", metavar="W", type=int, default=1, show_default=True, help="Workers per process.")
@option("--rate", env="RATE", metavar="N", type=float,
        help="Read so many lines per second, whatever happens to them: for tests and benchmarks.")  # fmt: skip
@option("--name", env="NAME", metavar="JOB", help="The job's name; made from the file's if not given.")
@option("--listen", env="LISTEN", metavar="HOST", default="127.0.0.1", show_default=True,
        help="The address the workers listen on.")  # fmt: skip
@option("--encoding-errors", env="ENCODING_ERRORS", type=click.Choice(["replace", "strict"]), default="replace",
        show_default=True, help="What to do with text that is not UTF-8.")  # fmt: skip
@option("--debug", env="DEBUG", is_flag=True, help="Keep megaflow's own frames in tracebacks.")
@profiling
@option("--join", env="JOIN", metavar="NAME|HOST:PORT",
        help="Start no job, but join a running one: its name, or where a process of it listens.")  # fmt: skip
@option("--server", env="SERVER", metavar="WORKER", type=int, help="With --join: the worker to be bootstrapped by.")
def run(
    app: str, args: tuple[str, ...], lines: str | None, output: str, join: str | None, server: int | None,
    profile: str | None, profile_calls: bool, **more: Any,
) -> None:  # fmt: skip
    """Run the dataflow that FUNCTION (default: dataflow) in FILE describes.

    The job ends when its lines end. Ctrl-C drains and stops it; a second Ctrl-C kills it.
    """
    more["profile"] = profile_spec(profile, profile_calls)
    if join is not None:
        some = {name: more[name] for name in ("listen", "debug", "profile")}
        join_running(app, join, server, args=args, **some)
        return
    if server is not None:
        raise UsageError("--server says who bootstraps a process that joins: it needs --join")
    if lines is None:
        raise click.MissingParameter(param_hint="'--lines'", param_type="option")
    spec = JobSpec(find_app(app), args=args, **more)
    summary = launch(spec, lines, lambda: open_writer(output), report=say, started=show_started(spec), signals=True)
    say(f"{summary.lines} lines, {summary.records} records, {summary.seconds:.2f} seconds")
    if summary.interrupted:
        click.get_current_context().exit(INTERRUPTED)


def join_running(app: str, target: str, server: int | None, **more: Any) -> None:
    """Be a further process of a running job, to its end."""
    context = click.get_current_context()
    for name in ("lines", "output", "processes", "workers", "rate", "name", "encoding_errors"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} is the running job's to say: --join does not take it")
    contact, secret = find_contact(target)
    with contextlib.redirect_stdout(sys.stderr):  # records go to the job's launcher; what the program prints does not
        join_job(JobSpec(find_app(app), **more), contact, secret, server, say)


def show_started(spec: JobSpec) -> Callable[[Job], None]:
    """Return what tells the user the job's name and how to steer it."""
    count = spec.processes * spec.workers
    workers = "1 worker" if count == 1 else f"{count} workers"

    def show(job: Job) -> None:
        say(f"job {job.name!r} on {workers}; steer it with: megaflow control status --job {job.name}")

    return show


@cli.command()
@click.argument("app", metavar="FILE[:FUNCTION]")
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
@option("--format", "language", env="GRAPH_FORMAT", type=click.Choice(list(LANGUAGES)), default="mermaid",
        show_default=True, help="The notation.")  # fmt: skip
def graph(app: str, args: tuple[str, ...], language: str) -> None:
    """Print a picture of the dataflows that a program builds; they are not run.

    An engine program's main(worker) is run up to its first step.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what the program itself prints
        picture = draw_app(app, args, language)
    print(picture)


@cli.group()
def control() -> None:
    """Look at a running job and steer it."""


@control.command()
@option("--watch", env="WATCH", is_flag=True, help="Show it again every second until the job ends.")
@option("--bins", env="SHOW_BINS", is_flag=True, help="Show the owner and load of each bin, and the hottest keys, too.")
@steering
def status(job: str | None, connect: str | None, timeout: float, as_json: bool, watch: bool, bins: bool) -> None:
    """Show workers, rates, latency, bins and what was moved."""
    with conversation(job, connect, timeout) as talk:
        while True:
            try:
                record = ask_status(talk, tables=bins or as_json, loads=bins)
            except PeerLost:
                if watch:  # the job has ended, and was seen to
                    return
                raise
            if watch and not as_json and sys.stdout.isatty():
                click.clear()
            print(json.dumps(record) if as_json else status_text(record), flush=True)
            if not watch:
                return
            time.sleep(WATCH_SECONDS)


@control.command("move-bins")
@option("--bins", env="BINS", metavar="LIST", help="The bins to move, such as 0-127,200.")
@option("--to", env="TO", metavar="WORKER", type=int, help="The worker that gets them.")
@option("--balance", env="BALANCE", is_flag=True, help="Give all workers equally many.")
@option("--by", env="BALANCE_BY", type=click.Choice(["number", "load"]), default="number", show_default=True,
        help="With --balance: equally many bins, or equally much work as measured in the last seconds.")  # fmt: skip
@option("--drain", env="DRAIN", metavar="WORKER", type=int, help="Take all from this worker.")
@option("--map", "map_file", env="MAP", metavar="FILE", type=click.File(),
        help="The wanted owner of each bin: worker ids separated by spaces, commas or lines.")  # fmt: skip
@option("--strategy", env="STRATEGY", type=click.Choice(list(STRATEGIES)), default="fluid", show_default=True,
        help="How many bins move in a step; the next step starts when one is done.")  # fmt: skip
@option("--batch", env="BATCH", metavar="N", type=int, help="Bins in a step, for --strategy batched.")
@option("--gap", env="GAP", metavar="SECONDS", type=float, default=0.0, show_default=True,
        help="How long to wait between two steps.")  # fmt: skip
@option("--dry-run", env="DRY_RUN", is_flag=True, help="Show the plan and change nothing.")
@steering
def move_bins(
    job: str | None, connect: str | None, timeout: float, as_json: bool, map_file: Any, dry_run: bool, **words: Any
) -> None:
    """Give bins to other workers while the job runs; return when they are there."""
    selection = Selection(map_text=map_file.read() if map_file else None, **words)
    check_selection(selection)
    with conversation(job, connect, timeout) as talk:
        plan = make_plan(ask_status(talk, loads=dry_run or selection.needs_loads), selection)
        if dry_run:
            print(json.dumps(plan.record()) if as_json else plan_text(plan))
            return
        done = total(carry_out(talk, plan))
    print(json.dumps(done) if as_json else moved_text(done))


@control.command()
@option("--gap", env="GAP", metavar="SECONDS", type=float, help="How long to wait between two steps, if not as before.")
@steering
def resume(job: str | None, connect: str | None, timeout: float, as_json: bool, gap: float | None) -> None:
    """Go on with a plan of move-bins whose command was ended on the way; status shows whether there is one."""
    with conversation(job, connect, timeout) as talk:
        kept = take_up_plan(talk)
        left = remaining_plan(ask_status(talk, loads=kept.strategy == HOTTEST_FIRST), kept, gap)
        done = total(carry_out(talk, left, kept.number))
    print(json.dumps(done) if as_json else moved_text(done))


def carry_out(talk: Conversation, plan: Plan, number: int | None = None) -> list[dict[str, Any]]:
    """Run a plan, or go on with the one of this number; return the accounts of its steps. Shows a bar on a terminal."""
    with counted(run_plan(talk, plan, time.sleep, number), len(plan.steps), "moving bins") as steps:
        return list(steps)


@control.command("add-workers")
@click.argument("count", metavar="N", type=click.IntRange(min=1))
@option("--balance", env="BALANCE", is_flag=True, help="Also give them their share of the bins, one by one.")
@steering
def add_workers(
    job: str | None, connect: str | None, timeout: float, as_json: bool, count: int, balance: bool
) -> None:
    """Start N more worker processes; return when they have joined and may own bins."""
    with conversation(job, connect, timeout) as talk:
        if balance:
            before = ask_status(talk, tables=False)
            check_bins(before)
            check_no_plan(before)
        with progress_bar("adding workers") as show:
            done = add_processes(talk, count, show)
        for join in done["joins"] if not as_json else ():
            print(joined_text(join), flush=True)
        if balance:
            done["moved"] = total(carry_out(talk, make_plan(ask_status(talk), Selection(balance=True))))
    if as_json:
        print(json.dumps(done))
    elif balance:
        print(moved_text(done["moved"]))
    if failed := done["failed"]:
        raise MegaflowError(f"{len(failed)} of {count} processes were not added: {'; '.join(dict.fromkeys(failed))}")


@control.command("remove-workers")
@option("--id", "worker", env="ID", metavar="WORKER", type=int, required=True,
        help="A worker of the process that is to leave.")  # fmt: skip
@steering
def remove_workers(job: str | None, connect: str | None, timeout: float, as_json: bool, worker: int) -> None:
    """Take all bins from a process, and have it leave; if it coordinates the job, another one takes that over first."""
    with conversation(job, connect, timeout) as talk:
        check_removal(talk, worker)
        moved = total(carry_out(talk, plan_removal(ask_status(talk), worker)))
        with progress_bar("removing workers") as show:
            done = remove_worker(talk, worker, show)
    if as_json:
        print(json.dumps({**done, "moved": moved}))
        return
    if moved["steps"]:
        print(moved_text(moved))
    print(removed_text(done))


@control.command()
@option("--server", env="SERVER", metavar="WORKER", type=int, required=True, help="The worker that gives its table.")
@option("--worker", env="WORKER", metavar="WORKER", type=int, required=True, help="The worker that gets it.")
@steering
def bootstrap(
    job: str | None, connect: str | None, timeout: float, as_json: bool, server: int, worker: int
) -> None:
    """Give a worker that has joined the routing table, so that it may own bins."""
    with conversation(job, connect, timeout) as talk:
        done = bootstrap_worker(talk, server, worker)
    print(json.dumps(done) if as_json else bootstrapped_text(done))


@control.command()
@steering
def explain(job: str | None, connect: str | None, timeout: float, as_json: bool) -> None:
    """Show which operator, worker and time hold the output back."""
    with conversation(job, connect, timeout) as talk:
        record = ask_explanation(talk)
    print(json.dumps(record) if as_json else explanation_text(record))


@control.command()
@steering
def stop(job: str | None, connect: str | None, timeout: float, as_json: bool) -> None:
    """Stop reading lines, work off what was read, end the job."""
    with conversation(job, connect, timeout) as talk:
        stop_job(talk)
    print(json.dumps({"stopped": True}) if as_json else "the job has stopped")


for command in (recommend, autoscale):
    control.add_command(command)


def main() -> None:
    """Run the command line and exit."""
    cli(prog_name="megaflow")
