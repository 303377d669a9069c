"""The commands of `megaflow control` that change a running job; `inspecting` has those that only ask it."""

import contextlib
import time
from typing import Any

import click

from megaflow.cli import text
from megaflow.cli.help import Command
from megaflow.cli.json_records import plain, plan_record, to_json
from megaflow.cli.options import Where, answer, counted, grouped, option, progress_bar, say, steering, tell_silence
from megaflow.cli.state import last_checkpoint
from megaflow.control.client import commands, move_request
from megaflow.control.client.commands import ask_status
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Plan, Selection, make_plan
from megaflow.control.client.planner import HOTTEST_FIRST, STRATEGIES
from megaflow.control.reports import JobStatus, MoveReport, RemovalReport
from megaflow.control.wording import quantity
from megaflow.durable.commits import check_checkpoint_name
from megaflow.errors import JobNotFound, MegaflowError, UsageError
from megaflow.job.admin_socket import end_by_force
from megaflow.job.contact import conversation
from megaflow.job.contact import stop as stop_job
from megaflow.job.job_file import find


@click.command("move-bins", cls=Command)
@grouped(
    "Which bins",
    option("--bins", metavar="LIST", help="Move these bins, such as 0-127,200, to the worker --to."),
    option("--to", metavar="WORKER", type=int, help="Move the bins of --bins to this worker."),
    option("--balance", is_flag=True, help="Give each worker its share of all bins."),
    option("--by", env="BALANCE_BY", type=click.Choice(["number", "load"]), default="number",
           help="Balance the number of bins, or their load in the last seconds."),
    option("--drain", metavar="WORKER", type=int, help="Move all bins away from this worker."),
    option("--map", "map_file", metavar="FILE", type=click.File(), help="Read the new worker of each bin from FILE."),
)  # fmt: skip
@grouped(
    "Steps",
    option("--strategy", metavar="NAME", type=click.Choice(list(STRATEGIES)), default="fluid",
           help="Divide the move into steps by this strategy."),
    option("--batch", metavar="N", type=int, help="Move N bins in each step of `batched`."),
    option("--gap", metavar="SECONDS", type=float, default=0.0, help="Wait this long between two steps."),
    option("--dry-run", is_flag=True, help="Print the plan and change nothing."),
)  # fmt: skip
@steering
def move_bins(where: Where, as_json: bool, map_file: Any, dry_run: bool, **words: Any) -> None:
    """Move bins to other workers while the job runs.

    \b
      megaflow control move-bins --bins 0-127,200 --to 1
      megaflow control move-bins --balance --by load --strategy hottest-first
      megaflow control move-bins --drain 0 --strategy batched --batch 16 --gap 0.5

    The command returns when the bins have moved. The bins of one step move together, and a step starts when the step
    before it is complete. The FILE of --map has a worker id for each bin, separated by spaces, commas or newlines.

    \b
    Strategies:
      fluid          one bin in each step
      hottest-first  one bin in each step, the busiest first
      batched        N bins in each step, with --batch N
      optimized      in each step, at most one bin from each worker and to each worker
      all-at-once    all bins in one step
    """
    try:
        map_text = map_file.read() if map_file else None
    except UnicodeDecodeError as error:
        raise UsageError(f"--map {map_file.name}: not a text file. Write the worker of each bin into it.") from error
    selection = Selection(map_text=map_text, **words)
    move_request.check_selection(selection)
    with conversation(*where, tell_silence) as talk:
        status = (ask_settled if selection.balance else ask_status)(talk, loads=dry_run or selection.needs_loads)
        plan = make_plan(status, selection)
        if dry_run:
            answer(to_json(plan_record(plan)) if as_json else text.plan_text(plan))
            return
        moved = carry_out(talk, plan)
    answer(to_json(moved) if as_json else text.moved_text(moved))


def ask_settled(talk: Conversation, loads: bool = False) -> JobStatus:
    """Return the status to balance by; report the workers that are left out."""
    status = commands.ask_settled_status(talk, time.sleep, loads=loads)
    for way in move_request.without_table(status):
        say(way)
    return status


@click.command(cls=Command)
@option("--gap", metavar="SECONDS", type=float,
        help="Wait this long between two steps; by default as long as before.")  # fmt: skip
@steering
def resume(where: Where, as_json: bool, gap: float | None) -> None:
    """Finish a move-bins or remove-workers that was interrupted.

    `megaflow control status` shows how many bins are left.
    """
    with conversation(*where, tell_silence) as talk:
        kept = commands.take_up_plan(talk)
        left = move_request.remaining_plan(ask_status(talk, loads=kept.strategy == HOTTEST_FIRST), kept, gap)
        moved = carry_out(talk, left, kept.number)
        removal = None if kept.removes is None else remove(talk, kept.removes)
    show_moved(moved, removal, as_json)


def carry_out(talk: Conversation, plan: Plan, number: int | None = None) -> MoveReport:
    """Run a plan, or go on with the one of this number; return its account. Shows a bar on a terminal."""
    with counted(commands.run_plan(talk, plan, time.sleep, number), len(plan.steps), "moving bins") as steps:
        try:
            return commands.total(list(steps))
        except KeyboardInterrupt:
            if len(plan.steps) > 1:
                say("To move the bins that are left, run megaflow control resume.")
            raise


@click.command("add-workers", cls=Command)
@click.argument("count", metavar="N", type=click.IntRange(min=1))
@option("--balance", is_flag=True, help="Also move their share of the bins to them, bin by bin.")
@option("--allow-other-code", is_flag=True, help="Add them even if the program's files have changed.")
@steering
def add_workers(where: Where, as_json: bool, count: int, balance: bool, allow_other_code: bool) -> None:
    """Start N more worker processes.

    \b
      megaflow control add-workers 2 --balance

    The command returns when the processes have joined. They own no bins until you move some to them. With
    --allow-other-code you can upgrade a job to a changed program, process by process.
    """
    moved = None
    with conversation(*where, tell_silence) as talk:
        if balance:
            commands.check_growth(talk, count)
        with progress_bar("adding workers") as show:
            added = commands.add_processes(talk, count, show, allow_other_code)
        for join in added.joins if not as_json else ():
            answer(text.joined_text(join))
        if balance:
            moved = carry_out(talk, make_plan(ask_settled(talk), Selection(balance=True)))
    if as_json:
        answer(to_json(plain(added) if moved is None else {**plain(added), "moved": moved}))
    elif moved is not None:
        answer(text.moved_text(moved))
    if failed := added.failed:
        reasons = "; ".join(reason.rstrip(".") for reason in dict.fromkeys(failed))
        raise MegaflowError(f"{len(failed)} of {quantity(count, 'process')} did not join: {reasons}.")


@click.command("remove-workers", cls=Command, context_settings={"allow_extra_args": True})
@option("--id", "worker", metavar="WORKER", type=int, help="Remove the process of this worker.")
@option("--queued", is_flag=True, help="Give up the processes to be added that wait for a slot of Spark.")
@steering
def remove_workers(where: Where, as_json: bool, worker: int | None, queued: bool) -> None:
    """Move all bins away from a process and end it.

    \b
      megaflow control remove-workers --id 1

    All workers of the process leave the job, which goes on without them. If the process coordinates the job, another
    process takes over first.

    With --queued, processes of add-workers that have no slot yet are given up.
    """
    if extra := click.get_current_context().args:
        raise click.UsageError(f"Got unexpected extra argument ({' '.join(extra)}). Name one worker by --id.")
    if (worker is None) is not queued:
        raise UsageError("Give either --id WORKER or --queued.")
    with conversation(*where, tell_silence) as talk:
        if worker is None:
            count = commands.cancel_queued(talk)
            answer(to_json({"canceled": count}) if as_json else f"{quantity(count, 'process')} canceled")
            return
        commands.check_removal(talk, worker)
        moved = carry_out(talk, move_request.plan_removal(ask_status(talk), worker))
        removal = remove(talk, worker)
    show_moved(moved, removal, as_json)


def remove(talk: Conversation, worker: int) -> RemovalReport:
    """Remove the process of a worker that owns no bins. Shows a bar on a terminal."""
    with progress_bar("removing workers") as show:
        return commands.remove_worker(talk, worker, show)


def show_moved(moved: MoveReport, removal: RemovalReport | None, as_json: bool) -> None:
    """Print the bins that moved and the process that left, if one did."""
    if as_json:
        answer(to_json(moved if removal is None else {**plain(removal), "moved": moved}))
        return
    if moved.steps or removal is None:
        answer(text.moved_text(moved))
    if removal is not None:
        answer(text.removed_text(removal))


@click.command(cls=Command)
@option("--server", metavar="WORKER", type=int, required=True,
        help="Copy the routing table of this worker.")  # fmt: skip
@option("--worker", metavar="WORKER", type=int, required=True, help="Send it to this worker.")
@steering
def bootstrap(where: Where, as_json: bool, server: int, worker: int) -> None:
    """Send the routing table to a worker that has joined.

    A worker needs the table to own bins. Only workers that joined with --no-bootstrap lack it. For all others, this
    command changes nothing.
    """
    with conversation(*where, tell_silence) as talk:
        report = commands.bootstrap_worker(talk, server, worker)
    answer(to_json(report) if as_json else text.bootstrapped_text(report))


@click.command(cls=Command)
@option("--name", env="CHECKPOINT_NAME", metavar="NAME",
        help="Keep the checkpoint under this name until `megaflow state rm`.")  # fmt: skip
@steering
def checkpoint(where: Where, as_json: bool, name: str | None) -> None:
    """Save a checkpoint of a job with --state now.

    \b
      megaflow control checkpoint --name nightly

    The command returns when the checkpoint is on disk. A checkpoint with a name is kept until you remove the name, and
    another job can start from it with `megaflow run --from-checkpoint DIR:NAME`.
    """
    if name is not None:
        check_checkpoint_name(name)
    with conversation(*where, tell_silence) as talk:
        report = commands.take_checkpoint(talk, name)
    answer(to_json(report) if as_json else text.checkpoint_text(report))


@click.command(cls=Command)
@option("--force", is_flag=True, help="End the job at once, with exit code 1.")
@option("--no-drain", is_flag=True, help="Do not wait for event time or timers; drop open windows.")
@steering
def stop(where: Where, as_json: bool, force: bool, no_drain: bool) -> None:
    """Process the lines that were read, then end the job.

    The job stops reading, closes its windows and fires its timers, so that the output is complete. With --no-drain it
    drops open windows, and timers set by at_event and after.

    A job with --state saves a checkpoint instead. Windows and timers stay open in it. Run the same `megaflow run`
    command again to resume.

    --force ends a job that does not respond, and reports the lines that were not processed. Run it on the machine
    where the job was started.
    """
    job, connect, timeout = where
    if force:
        if connect is not None:
            raise UsageError("--force and --connect do not go together. Use --job, where the job was started.")
        end_by_force(find(job), timeout)
        answer(to_json({"stopped": True, "forced": True}) if as_json else "the job was ended")
        return
    folder = None
    if connect is None:
        with contextlib.suppress(JobNotFound):
            folder = find(job).state
    stop_job(*where, tell_silence, drain=not no_drain)
    at = None if folder is None else last_checkpoint(folder)
    record = {"stopped": True} if at is None else {"stopped": True, "checkpoint": at}
    more = "" if at is None else f" at checkpoint {at}; run the same command again to resume"
    answer(to_json(record) if as_json else f"the job has stopped{more}")


COMMANDS = (add_workers, bootstrap, checkpoint, move_bins, remove_workers, resume, stop)
