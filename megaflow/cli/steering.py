"""The commands of `megaflow control` that ask a running job or change it."""

import contextlib
import json
import sys
import time
from dataclasses import replace
from typing import Any

import click

from megaflow.cli import text
from megaflow.cli.json_records import plain, plan_record, to_json
from megaflow.cli.options import Where, answer, counted, option, progress_bar, say, steering, tell_silence
from megaflow.cli.state import last_checkpoint
from megaflow.control.client import commands, move_request
from megaflow.control.client.commands import ask_status
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Plan, Selection, make_plan
from megaflow.control.client.planner import HOTTEST_FIRST, STRATEGIES
from megaflow.control.reports import Explanation, JobStatus, MoveReport, RemovalReport
from megaflow.durable.commits import check_checkpoint_name
from megaflow.errors import JobNotFound, JobRecovers, MegaflowError, NoAnswer, PeerLost, UsageError
from megaflow.job.contact import checked_timeout, conversation
from megaflow.job.job_file import find
from megaflow.job.side_door import Silence, end_by_force, find_reason

WATCH_SECONDS = 1.0


@click.command()
@option("--watch", env="WATCH", is_flag=True, help="Show the status again every second until the job ends.")
@option("--bins", env="SHOW_BINS", is_flag=True, help="Also show the owner and load of each bin, and the hottest keys.")
@steering
def status(where: Where, as_json: bool, watch: bool, bins: bool) -> None:
    """Show workers, rates, latency, bins and recent moves.

    Workers that do not answer within two seconds are named, with where they are. If the coordinator is one of them,
    that is all that is shown, and the state is "busy". It is "recovering" while a job that has lost a process is about
    to go on from its last checkpoint.
    """
    seen = False
    while True:
        try:
            with conversation(*where, give_up, waits=False) as talk:
                while True:
                    now = ask_status(talk, tables=bins or as_json, loads=bins, partial=True)
                    seen = True
                    told = ask_launcher_of(where)
                    now = replace(now, busy=told.busy if now.silent else (), output=told.output or None)
                    show_status(now, as_json, watch)
                    if not watch:
                        return
                    time.sleep(WATCH_SECONDS)
        except CoordinatorBusy as error:
            silence = error.silence
            show_status(
                JobStatus(silence.job, "busy", None, None, (), (), silent=silence.coordinating, busy=silence.busy),
                as_json, watch,
            )  # fmt: skip
            if not watch:
                return
            time.sleep(WATCH_SECONDS)
        except JobRecovers:
            job = None if where[1] is not None else find(where[0])
            if job is None or not job.recovering:
                continue  # it is back
            seen = True
            show_status(JobStatus(job.name, "recovering", None, None, (), (), restart=job.recovering), as_json, watch)
            if not watch:
                return
            time.sleep(WATCH_SECONDS)
        except (PeerLost, JobNotFound):
            if watch and seen:  # the job has ended
                return
            raise


def show_status(now: JobStatus, as_json: bool, watch: bool) -> None:
    """Print it, in the place of the last one on a terminal."""
    if watch and not as_json and sys.stdout.isatty():
        click.clear()
    answer(to_json(now) if as_json else text.status_text(now))


class CoordinatorBusy(NoAnswer):
    """Who coordinates the job is in a long step."""

    def __init__(self, silence: Silence) -> None:
        super().__init__(str(silence))
        self.silence = silence


def give_up(silence: Silence) -> None:
    """Raise CoordinatorBusy if it is; wait on otherwise."""
    if silence.is_busy:
        raise CoordinatorBusy(silence)
    tell_silence(silence)


def ask_launcher_of(where: Where) -> Silence:
    """Return which workers are in a long step, and what the output waits for; nothing if that cannot be asked."""
    job, connect, _ = where
    with contextlib.suppress(JobNotFound):  # it has answered, and ended since
        return Silence("", True) if connect is not None else find_reason(find(job), "", True)
    return Silence("", True)


@click.command("move-bins")
@option("--bins", env="BINS", metavar="LIST", help="The bins to move, such as 0-127,200; needs --to.")
@option("--to", env="TO", metavar="WORKER", type=int, help="The worker that gets them.")
@option("--balance", env="BALANCE", is_flag=True, help="Give each worker its share of all bins; see --by.")
@option("--by", env="BALANCE_BY", type=click.Choice(["number", "load"]), default="number", show_default=True,
        help="With --balance: an equal number of bins, or an equal load as measured in the last seconds.")  # fmt: skip
@option("--drain", env="DRAIN", metavar="WORKER", type=int, help="Take all bins from this worker.")
@option("--map", "map_file", env="MAP", metavar="FILE", type=click.File(),
        help="Read the owner of each bin from FILE: worker ids separated by spaces, commas or newlines.")  # fmt: skip
@option("--strategy", env="STRATEGY", type=click.Choice(list(STRATEGIES)), default="fluid", show_default=True,
        help="Which bins move together in one step; a step starts when the step before it is done.")  # fmt: skip
@option("--batch", env="BATCH", metavar="N", type=int, help="With --strategy batched: bins per step.")
@option("--gap", env="GAP", metavar="SECONDS", type=float, default=0.0, show_default=True,
        help="How long to wait between two steps.")  # fmt: skip
@option("--dry-run", env="DRY_RUN", is_flag=True, help="Show the plan and change nothing.")
@steering
def move_bins(where: Where, as_json: bool, map_file: Any, dry_run: bool, **words: Any) -> None:
    """Give bins to other workers while the job runs; return when they have moved."""
    try:
        map_text = map_file.read() if map_file else None
    except UnicodeDecodeError as error:
        raise UsageError(f"--map {map_file.name}: not a text file; write the worker of each bin in it") from error
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
    """Return the status to balance by; say who is left out."""
    status = commands.ask_settled_status(talk, time.sleep, loads=loads)
    for way in move_request.without_table(status):
        say(way)
    return status


@click.command()
@option("--gap", env="GAP", metavar="SECONDS", type=float,
        help="How long to wait between two steps; by default as long as before.")  # fmt: skip
@steering
def resume(where: Where, as_json: bool, gap: float | None) -> None:
    """Finish what a move-bins or remove-workers command was about that was interrupted; status shows it."""
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
                say("megaflow control status shows which bins are left, and megaflow control resume moves them")
            raise


@click.command("add-workers")
@click.argument("count", metavar="N", type=click.IntRange(min=1))
@option("--balance", env="BALANCE", is_flag=True, help="Also give them their share of the bins, one by one.")
@option("--allow-other-code", env="ALLOW_OTHER_CODE", is_flag=True,
        help="Add them also if the program's files have changed since the job loaded them, to upgrade it process by "
        "process.")  # fmt: skip
@steering
def add_workers(where: Where, as_json: bool, count: int, balance: bool, allow_other_code: bool) -> None:
    """Start N more worker processes; return when they have joined and may own bins."""
    moved = None
    with conversation(*where, tell_silence) as talk:
        if balance:
            before = ask_status(talk)
            move_request.check_bins(before)
            move_request.check_no_plan(before)
            commands.try_growth(talk, before, count)
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
        raise MegaflowError(f"{len(failed)} of {count} processes were not added: {'; '.join(dict.fromkeys(failed))}")


@click.command("remove-workers")
@option("--id", "worker", env="ID", metavar="WORKER", type=int, required=True,
        help="A worker of the process that is to leave.")  # fmt: skip
@steering
def remove_workers(where: Where, as_json: bool, worker: int) -> None:
    """Move all bins away from a process, then make it leave the job.

    If the process coordinates the job, another process takes that over first.
    """
    with conversation(*where, tell_silence) as talk:
        commands.check_removal(talk, worker)
        moved = carry_out(talk, move_request.plan_removal(ask_status(talk), worker))
        removal = remove(talk, worker)
    show_moved(moved, removal, as_json)


def remove(talk: Conversation, worker: int) -> RemovalReport:
    """Have the process of a worker that owns no bins leave. Shows a bar on a terminal."""
    with progress_bar("removing workers") as show:
        return commands.remove_worker(talk, worker, show)


def show_moved(moved: MoveReport, removal: RemovalReport | None, as_json: bool) -> None:
    """Answer what has moved, and who has left then, if anybody."""
    if as_json:
        answer(to_json(moved if removal is None else {**plain(removal), "moved": moved}))
        return
    if moved.steps or removal is None:
        answer(text.moved_text(moved))
    if removal is not None:
        answer(text.removed_text(removal))


@click.command()
@option("--server", env="SERVER", metavar="WORKER", type=int, required=True,
        help="The worker that provides the routing table.")  # fmt: skip
@option("--worker", env="WORKER", metavar="WORKER", type=int, required=True, help="The worker that receives it.")
@steering
def bootstrap(where: Where, as_json: bool, server: int, worker: int) -> None:
    """Give a worker that has joined the routing table, so that it may own bins.

    Only workers that were started with `megaflow run --join --no-bootstrap` need it; for others it changes nothing.
    """
    with conversation(*where, tell_silence) as talk:
        report = commands.bootstrap_worker(talk, server, worker)
    answer(to_json(report) if as_json else text.bootstrapped_text(report))


@click.command()
@steering
def explain(where: Where, as_json: bool) -> None:
    """Show which operator, worker and time hold the output back.

    Workers that do not answer within two seconds are named, with where they are. If the coordinator is one of them,
    that is all that is shown.
    """
    try:
        with conversation(*where, give_up) as talk:
            report = commands.ask_explanation(talk)
            report = replace(report, busy=ask_launcher_of(where).busy) if report.silent else report
    except CoordinatorBusy as error:
        silence = error.silence
        report = Explanation(silence.job, None, None, False, (), silence.coordinating, busy=silence.busy)
    answer(to_json(report) if as_json else text.explanation_text(report))


@click.command()
@option("--name", env="CHECKPOINT_NAME", metavar="NAME",
        help="Keep it by this name until megaflow state rm DIR NAME, however many come after it.")  # fmt: skip
@steering
def checkpoint(where: Where, as_json: bool, name: str | None) -> None:
    """Have a job that was started with --state keep its state now; return when it is on the disk.

    From one that has a name another job can begin: megaflow run --from-checkpoint DIR:NAME.
    """
    if name is not None:
        check_checkpoint_name(name)
    with conversation(*where, tell_silence) as talk:
        report = commands.take_checkpoint(talk, name)
    answer(to_json(report) if as_json else text.checkpoint_text(report))


@click.command("get", context_settings={"ignore_unknown_options": True})  # a KEY may be -7
@click.argument("operator", metavar="OPERATOR")
@click.argument("key", metavar="KEY")
@steering
def get_state(where: Where, as_json: bool, operator: str, key: str) -> None:
    """Show an operator's state of one key, as it is after all records before an epoch; its owner answers.

    KEY is JSON, where an array stands for a tuple; if it is none, or no such key is there, it is the text of a str.
    The exit code is 1 if there is no state of that key; --json shows null then.
    """
    with conversation(*where, tell_silence) as talk:
        found = commands.get_state(talk, operator, key, as_json)
    state = None if found.state is None or not as_json else json.loads(found.state)
    if as_json:
        record = {"operator": operator, "key": found.key, "state": state, "epoch": found.epoch, "worker": found.worker}
        answer(json.dumps(record, ensure_ascii=False))
    elif found.state is not None:
        answer(found.state)
    if found.state is None:
        raise MegaflowError(f"operator {operator!r} has no key {key} at epoch {found.epoch}")


@click.command()
@option("--force", env="FORCE", is_flag=True,
        help="End the job at once, whatever its workers do: it exits with 1, and says what was not worked off. For "
        "this the command has to run on the machine of the job's launcher.")  # fmt: skip
@option("--no-drain", env="NO_DRAIN", is_flag=True,
        help="Leave out what waits for event time or the clock: open windows, and timers set by at_event and "
        "after.")  # fmt: skip
@steering
def stop(where: Where, as_json: bool, force: bool, no_drain: bool) -> None:
    """Stop reading lines, process those that were read, close windows, fire timers, then end the job.

    A job that was started with --state leaves a checkpoint instead, from which the same command goes on. Windows and
    timers stay open in it.
    """
    job, connect, timeout = where
    if force:
        if connect is not None:
            raise UsageError("--force and --connect: name the job by --job, on the machine where it was started")
        end_by_force(find(job), checked_timeout(timeout))
        answer(to_json({"stopped": True, "forced": True}) if as_json else "the job was ended")
        return
    folder = None
    if connect is None:
        with contextlib.suppress(JobNotFound):
            folder = find(job).state
    with conversation(*where, tell_silence) as talk:
        commands.stop_job(talk, drain=not no_drain)
    at = None if folder is None else last_checkpoint(folder)
    if at is None:
        answer(to_json({"stopped": True}) if as_json else "the job has stopped")
    elif as_json:
        answer(to_json({"stopped": True, "checkpoint": at}))
    else:
        answer(f"the job has stopped at checkpoint {at}: the same command goes on from there")


COMMANDS = (add_workers, bootstrap, checkpoint, explain, get_state, move_bins, remove_workers, resume, status, stop)
