"""The commands that size a running job: `megaflow control recommend` and `autoscale`.

What is decided, and why, stands in `megaflow.control.client.ds2` and `decisions`; here is the clock.
"""

import json
import sys
import time
from typing import Any

import click

from megaflow.cli.advice import (
    change_record,
    decision_record,
    decision_text,
    outcome_text,
    recommendation_record,
    recommendation_text,
)
from megaflow.cli.options import option, steering
from megaflow.control.client.autoscale import Change
from megaflow.control.client.autoscale import autoscale as steer
from megaflow.control.client.commands import ask_status
from megaflow.control.client.ds2 import TARGET_UTILIZATION, Goal
from megaflow.control.client.ds2 import recommend as advise
from megaflow.control.client.hysteresis import Autoscaler, Decision
from megaflow.control.client.rate_sample import sample
from megaflow.errors import CommandRefused, UsageError
from megaflow.job.contact import conversation

GLANCE_SECONDS = 0.1  # between two strokes of a progress bar

target_utilization = option(
    "--target-utilization", env="TARGET_UTILIZATION", metavar="SHARE", type=float, default=TARGET_UTILIZATION,
    show_default=True, help="The share of their time that workers shall be busy; the rest is for bursts.",
)  # fmt: skip
target_rate = option(
    "--target-rate", env="TARGET_RATE", metavar="N", type=float,
    help="Lines per second that shall be worked off; if not given, those that come.",
)  # fmt: skip


@click.command()
@option("--over", env="OVER", metavar="SECONDS", type=float, default=5.0, show_default=True,
        help="How long to look at the job.")  # fmt: skip
@target_utilization
@target_rate
@steering
def recommend(
    job: str | None, connect: str | None, timeout: float, as_json: bool, over: float, target_utilization: float,
    target_rate: float | None,
) -> None:  # fmt: skip
    """Say how many processes a job needs for the lines that come, and why; change nothing.

    From two looks at it, the useful time of its workers is known, and with it the rate at which each operator
    could work; so many workers' time it needs for the rate that is asked of it.
    """
    goal = Goal(target_utilization, target_rate)
    goal.check()
    check_seconds("--over", over)
    with conversation(job, connect, timeout) as talk:
        first = ask_status(talk, tables=False)
        look_on(over)
        second = ask_status(talk, tables=False)
    try:
        advice = advise(sample(first, second), goal)
    except CommandRefused as error:
        raise CommandRefused(f"no recommendation: {error}; ask again when that is over") from None
    record = {"job": second["job"], **recommendation_record(advice)}
    print(json.dumps(record) if as_json else recommendation_text(advice))


@click.command()
@option("--min", "least", env="MIN_PROCESSES", metavar="N", type=click.IntRange(min=1), default=1, show_default=True,
        help="Never have fewer processes.")  # fmt: skip
@option("--max", "most", env="MAX_PROCESSES", metavar="N", type=click.IntRange(min=1), required=True,
        help="Never have more processes.")  # fmt: skip
@option("--cool-down", env="COOL_DOWN", metavar="SECONDS", type=float, default=30.0, show_default=True,
        help="How long a change is to settle before the next.")  # fmt: skip
@option("--every", env="EVERY", metavar="SECONDS", type=float, default=10.0, show_default=True,
        help="How often to look at the job; what happens between two looks is judged.")  # fmt: skip
@target_utilization
@target_rate
@steering
def autoscale(
    job: str | None, connect: str | None, timeout: float, as_json: bool, least: int, most: int, cool_down: float,
    every: float, target_utilization: float, target_rate: float | None,
) -> None:  # fmt: skip
    """Add and remove processes as a job needs them, until it ends or Ctrl-C; print each decision.

    It grows when two looks agree that it must, shrinks when three do, one change at a time. The job goes on as it is
    when this command ends.
    """
    goal = Goal(target_utilization, target_rate, least, most)
    goal.check()
    check_seconds("--every", every)
    check_seconds("--cool-down", cool_down, least=0.0)
    shown: Any = None
    with conversation(job, connect, timeout) as talk:
        for news in steer(talk, Autoscaler(goal, cool_down), every, time.monotonic, time.sleep):
            if as_json:
                record = change_record(news) if isinstance(news, Change) else decision_record(news)
                print(json.dumps(record), flush=True)
            elif isinstance(news, Change):
                print(outcome_text(news), flush=True)
            elif (gist := gist_of(news)) != shown:  # the same again is no news
                print(decision_text(news), flush=True)
                shown = gist
    print("megaflow: the job has ended", file=sys.stderr, flush=True)


def gist_of(decision: Decision) -> tuple[str, int, int | None]:
    """Return what of a decision is worth telling if it differs from the last one's."""
    advice = decision.recommendation
    return decision.action, decision.processes, None if advice is None else advice.processes


def check_seconds(name: str, seconds: float, least: float = 0.1) -> None:
    """Raise UsageError unless this is a time that can be waited for."""
    if not least <= seconds <= 86_400:
        raise UsageError(f"{name} {seconds:g}: it must be a number of seconds from {least:g} to 86400")


def look_on(seconds: float) -> None:
    """Wait, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        time.sleep(seconds)
        return
    strokes = max(1, round(seconds / GLANCE_SECONDS))
    with click.progressbar(range(strokes), label="looking at the job", file=sys.stderr) as bar:
        for _ in bar:
            time.sleep(seconds / strokes)
