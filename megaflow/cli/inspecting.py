"""The commands of `megaflow control` that ask a running job and change nothing: `status`, `watch`, `explain`
and `get`.
"""

import json
import sys
from datetime import date

import click

from megaflow.cli import text
from megaflow.cli.event_text import day_of, event_line, event_record
from megaflow.cli.help import Command
from megaflow.cli.json_records import plain, to_json
from megaflow.cli.options import Where, answer, check_output, option, steering, tell_silence
from megaflow.control.client import commands
from megaflow.control.job_events import JobEvent
from megaflow.control.reports import JobStatus
from megaflow.errors import MegaflowError
from megaflow.job import watching
from megaflow.job.contact import conversation
from megaflow.job.watching import Wanted, Watcher


@click.command(cls=Command)
@option("--watch", is_flag=True, help="Show the status every second until the job ends.")
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
    wanted = Wanted(events=False, tables=bins or as_json, loads=bins)
    for now in Watcher(where, wanted, tell_silence).watch():
        assert isinstance(now, JobStatus), "no events are wanted"
        check_output()
        if watch and not as_json and sys.stdout.isatty():
            click.clear()  # the status before
        answer(to_json(now) if as_json else text.status_text(now))
        if not watch:
            return


@click.command("watch", cls=Command)
@option("--gauges", env="WATCH_GAUGES", is_flag=True, help="Also print the status every second.")
@steering
def watch_job(where: Where, as_json: bool, gauges: bool) -> None:
    """Print moves, joins, checkpoints and restarts as they happen.

    \b
      megaflow control watch
      megaflow control watch --json | jq 'select(.event == "checkpoint-failed")'

    The command ends with the job. It begins with the events that the job still knows, about a thousand. The first event
    of another day has its date. With --json, each event is one line: "attempt" and "number" identify it, and "time" is
    in seconds since 1970. Event "status" of --gauges has the fields of `megaflow control status --bins --json`.
    """
    day = date.today()  # of the last line
    for news in Watcher(where, Wanted(status=gauges), tell_silence).watch():
        if isinstance(news, JobEvent):
            answer(to_json(event_record(news)) if as_json else event_line(news, day))
            day = day_of(news)
        else:
            answer(to_json({"event": "status", **plain(news)}) if as_json else text.gauges_text(news))


@click.command(cls=Command)
@steering
def explain(where: Where, as_json: bool) -> None:
    """Show which operator, worker and epoch hold the output back.

    If a worker does not answer within two seconds, the answer names the operator and line where it is. If the
    coordinator does not answer, the answer shows only that.
    """
    report = watching.explain(where, tell_silence)
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
        found = commands.get_state(talk, operator, key, "json" if as_json else "text")
    state = None if found.state is None or not as_json else json.loads(found.state)
    if as_json:
        record = {"operator": operator, "key": found.key, "state": state, "epoch": found.epoch, "worker": found.worker}
        answer(json.dumps(record, ensure_ascii=False))
    elif found.state is not None:
        answer(found.state)
    if found.state is None:
        raise MegaflowError(f"Operator {operator!r} has no key {key} at epoch {found.epoch}.")


COMMANDS = (explain, get_state, status, watch_job)
