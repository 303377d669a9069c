"""The commands of `megaflow control` that size a running job: `recommend` and `autoscale`.

`megaflow.control.client.ds2` and `megaflow.control.client.hysteresis` decide, and say why; the clock is here.
"""

import sys
import time
from typing import Any

import click

from megaflow.cli.help import Command
from megaflow.cli.json_records import plain, to_json
from megaflow.cli.options import Where, answer, counted, option, say, steering, tell_silence
from megaflow.cli.text import joined_text, moved_text, removed_text, table_text
from megaflow.control.client.autoscale import ScalingOutcome
from megaflow.control.client.autoscale import autoscale as steer
from megaflow.control.client.commands import ask_status
from megaflow.control.client.ds2 import TARGET_UTILIZATION, Goal, Recommendation
from megaflow.control.client.ds2 import recommend as advise
from megaflow.control.client.hysteresis import Autoscaler, Decision
from megaflow.control.client.rate_sample import sample
from megaflow.control.wording import quantity
from megaflow.errors import CommandRefused, UsageError
from megaflow.job.contact import conversation

STROKE_SECONDS = 0.1  # of a progress bar

target_utilization = option(
    "--target-utilization", metavar="SHARE", type=float, default=TARGET_UTILIZATION,
    help="Keep workers busy for this share of their time.",
)  # fmt: skip
target_rate = option(
    "--target-rate", metavar="N", type=float,
    help="Process N lines per second; by default as many as arrive.",
)  # fmt: skip


@click.command(cls=Command)
@option("--over", metavar="SECONDS", type=float, default=5.0, help="Sample the job for this long.")
@target_utilization
@target_rate
@steering
def recommend(where: Where, as_json: bool, over: float, target_utilization: float, target_rate: float | None) -> None:
    """Recommend a number of processes, and explain why.

    \b
      megaflow control recommend --over 10

    The command samples the job and changes nothing. It measures how much of their time the workers spend on records.
    From that it computes the rate that each operator can reach, and the workers that the wanted rate needs.
    """
    goal = Goal(target_utilization, target_rate)
    goal.check()
    check_seconds("--over", over)
    with conversation(*where, tell_silence) as talk:
        first = ask_status(talk, tables=False, ledger=True)
        wait(over)
        second = ask_status(talk, tables=False, ledger=True)
    try:
        advice = advise(sample(first, second), goal)
    except CommandRefused as error:
        raise CommandRefused(f"No recommendation is possible now: {str(error).rstrip('.')}. Try again later.") from None
    record = {"job": second.job, **recommendation_record(advice)}
    answer(to_json(record) if as_json else recommendation_text(advice))


@click.command(cls=Command)
@option("--min", "least", env="MIN_PROCESSES", metavar="N", type=click.IntRange(min=1), default=1,
        help="Never go below N processes.")  # fmt: skip
@option("--max", "most", env="MAX_PROCESSES", metavar="N", type=click.IntRange(min=1), required=True,
        help="Never go above N processes.")  # fmt: skip
@option("--cool-down", metavar="SECONDS", type=float, default=30.0, help="Wait this long after a change.")
@option("--every", metavar="SECONDS", type=float, default=10.0,
        help="Sample the job for this long before each decision.")  # fmt: skip
@target_utilization
@target_rate
@steering
def autoscale(
    where: Where, as_json: bool, least: int, most: int, cool_down: float, every: float, target_utilization: float,
    target_rate: float | None,
) -> None:  # fmt: skip
    """Add and remove processes as the load changes.

    \b
      megaflow control autoscale --min 1 --max 4

    The command runs until the job ends or you press Ctrl-C, and prints each decision. It adds processes after two
    samples in a row that call for more, and removes processes after three that call for fewer. It makes one change at
    a time. When the command ends, the job keeps its processes.
    """
    goal = Goal(target_utilization, target_rate, least, most)
    goal.check()
    check_seconds("--every", every)
    check_seconds("--cool-down", cool_down, least=0.0)
    shown: object = None
    with conversation(*where, tell_silence) as talk:
        for news in steer(talk, Autoscaler(goal, cool_down), every, time.monotonic, time.sleep):
            if as_json:
                answer(to_json(scaling_record(news)))
            elif isinstance(news, ScalingOutcome):
                answer(outcome_text(news))
            elif (gist := gist_of(news)) != shown:  # the same again is no news
                answer(decision_text(news))
                shown = gist
    say("the job has ended")


def gist_of(decision: Decision) -> tuple[str, int, int | None]:
    """Return what of a decision is worth telling if it differs from the last one's."""
    advice = decision.recommendation
    return decision.action, decision.processes, None if advice is None else advice.processes


def check_seconds(name: str, seconds: float, least: float = 0.1) -> None:
    """Raise UsageError unless this is a time that one can wait."""
    if not least <= seconds <= 86_400:
        raise UsageError(f"{name} {seconds:g}: must be from {least:g} to 86400 seconds.")


def wait(seconds: float) -> None:
    """Wait, with a progress bar on a terminal."""
    strokes = max(1, round(seconds / STROKE_SECONDS)) if sys.stderr.isatty() else 1
    with counted(range(strokes), strokes, "sampling the job") as bar:
        for _ in bar:
            time.sleep(seconds / strokes)


def recommendation_text(advice: Recommendation) -> str:
    """Return a recommendation with its reasoning, and the command that follows it."""
    rows = [
        [need.operator, f"{need.offered:.0f}", "-" if need.true_rate is None else f"{need.true_rate:.0f}",
         f"{need.utilization:.0%}", f"{need.workers:.2f}"]
        for need in advice.needs
    ]  # fmt: skip
    table = [table_text(["operator", "offered/s", "true rate", "utilization", "workers needed"], rows)] if rows else []
    return "\n".join([*table, *advice.facts, advice.verdict, *advice.remarks, *_what_to_do(advice)])


def _what_to_do(advice: Recommendation) -> list[str]:
    wanted, now = advice.processes, advice.now
    if wanted == now:
        return [f"recommended: {quantity(now, 'process')}, as now"]
    head = f"recommended: {quantity(wanted, 'process')} instead of {now}:"
    if wanted > now:
        return [head, f"  megaflow control add-workers {wanted - now} --balance"]
    newest_first = advice.sample.processes[: wanted - 1 : -1]
    return [head, *(f"  megaflow control remove-workers --id {workers[0]}" for workers in newest_first)]


def decision_text(decision: Decision) -> str:
    """Return a decision as a line; one to act with everything that it was made from.

    >>> decision_text(Decision("wait", 2, "bins are moving: nothing is judged by that"))
    'wait, 2 processes: bins are moving: nothing is judged by that'
    """
    head = f"{decision.action}, {quantity(decision.processes, 'process')}: {decision.why}"
    advice = decision.recommendation
    if advice is None or decision.action not in ("grow", "shrink"):
        return head
    head = f"{decision.action} from {advice.now} to {quantity(decision.processes, 'process')}: {decision.why}"
    return "\n".join([head, *(f"  {fact}" for fact in (*advice.facts, *advice.remarks))])


def outcome_text(outcome: ScalingOutcome) -> str:
    """Return what came of a decision.

    >>> outcome_text(ScalingOutcome(failed=("too late",)))
    'not done: too late'
    """
    parts = [joined_text(join) for join in outcome.joins] + [removed_text(left) for left in outcome.left]
    if outcome.moved is not None and outcome.moved.steps:
        parts.append(moved_text(outcome.moved))
    parts += [f"not done: {reason}" for reason in outcome.failed]
    return "\n".join(parts)


def recommendation_record(advice: Recommendation) -> dict[str, Any]:
    """Return a recommendation: rates a second, utilizations as shares from 0 to 1."""
    sample = advice.sample
    return {
        "seconds": sample.seconds,
        "lines": {"wanted": advice.rate, "offered": sample.offered, "done": sample.done, "waiting": sample.waiting,
                  "unbounded": sample.unbounded},
        "operators": [
            {"name": need.operator, "offered": need.offered, "true_rate": need.true_rate,
             "utilization": need.utilization, "workers": need.workers}
            for need in advice.needs
        ],
        "workers": {"now": sample.workers, "needed": advice.workers, "utilization": advice.utilization,
                    "busy": plain(sample.busy)},
        "processes": {"now": advice.now, "recommended": advice.processes},
        "reasons": [*advice.facts, advice.verdict, *advice.remarks],
    }  # fmt: skip


def scaling_record(news: Decision | ScalingOutcome) -> dict[str, Any]:
    """Return a decision, or what came of one."""
    record: dict[str, Any] = plain(news)
    if isinstance(news, Decision):
        advice = news.recommendation
        record["recommendation"] = None if advice is None else recommendation_record(advice)
    return record


COMMANDS = (autoscale, recommend)
