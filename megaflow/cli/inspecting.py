"""The commands of `megaflow control` that ask a running job and change nothing: `status`, `explain` and `get`."""

import contextlib
import json
import sys
import time
from dataclasses import replace

import click

from megaflow.cli import text
from megaflow.cli.help import Command
from megaflow.cli.json_records import to_json
from megaflow.cli.options import Where, answer, option, steering, tell_silence
from megaflow.control.client import commands
from megaflow.control.client.commands import ask_status
from megaflow.control.reports import Explanation, JobStatus
from megaflow.errors import JobNotFound, JobRecovers, MegaflowError, NoAnswer, PeerLost
from megaflow.job.contact import conversation
from megaflow.job.job_file import find
from megaflow.job.side_door import Silence, find_reason

WATCH_SECONDS = 1.0


@click.command(cls=Command)
@option("--watch", env="WATCH", is_flag=True, help="Show the status every second until the job ends.")
@option("--bins", env="SHOW_BINS", is_flag=True, help="Also show each bin's owner and load, and the hottest keys.")
@steering
def status(where: Where, as_json: bool, watch: bool, bins: bool) -> None:
    """Show workers, rates, latency, bins and recent moves.

    \b
      megaflow control status --watch
      megaflow control status --bins --json

    If a worker does not answer within two seconds, the status names the operator and line where it is. If the
    coordinator does not answer, the status shows only that, and the job's state is "busy". A job that resumes after
    losing a process is "recovering".
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
    """The coordinator of a job is in a long step."""

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


@click.command(cls=Command)
@steering
def explain(where: Where, as_json: bool) -> None:
    """Show which operator, worker and epoch hold the output back.

    If a worker does not answer within two seconds, the answer names the operator and line where it is. If the
    coordinator does not answer, the answer shows only that.
    """
    try:
        with conversation(*where, give_up) as talk:
            report = commands.ask_explanation(talk)
            report = replace(report, busy=ask_launcher_of(where).busy) if report.silent else report
    except CoordinatorBusy as error:
        silence = error.silence
        report = Explanation(silence.job, None, None, False, (), silence.coordinating, busy=silence.busy)
    answer(to_json(report) if as_json else text.explanation_text(report))


@click.command("get", cls=Command, context_settings={"ignore_unknown_options": True})  # a KEY may be -7
@click.argument("operator", metavar="OPERATOR")
@click.argument("key", metavar="KEY")
@steering
def get_state(where: Where, as_json: bool, operator: str, key: str) -> None:
    """Show the state of one key.

    \b
      megaflow control get count river
      megaflow control get orders '["Ada", 7]'

    The owner of the key answers with the state after all records before an epoch. KEY is JSON, in which an array
    stands for a tuple. A KEY that is not JSON, or that has no state as JSON, is read as a string. If the key has no
    state, the exit code is 1 and --json prints null.
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
        raise MegaflowError(f"Operator {operator!r} has no key {key} at epoch {found.epoch}.")


COMMANDS = (explain, get_state, status)
