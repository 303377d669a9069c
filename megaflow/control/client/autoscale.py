"""Autoscaling of a job: sample it, decide, carry the decision out, sample it again.

1. `megaflow.control.client.hysteresis` decides. This module turns a decision into the commands that a user would give,
   one after another, and the coordinator checks each. If another client's change begins between a sample and a command,
   the coordinator refuses the command or queues it, as for any two clients.
2. New processes get their share of the bins one bin at a time. If the job cannot keep up, each step of the move waits
   behind all late work. So the move then takes only a few steps (`HURRY_STEPS`), and the new processes help sooner.
3. The newest process leaves first. The coordinator's process is the oldest, so it never leaves. Processes leave one at
   a time, each after its bins.
4. A refusal is an outcome: `autoscale` yields it, and decides anew after the next sample. Only the end of the job ends
   autoscaling.
"""

from collections.abc import Callable, Iterator
from math import ceil

from megaflow.control.client import commands
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.hysteresis import Autoscaler, Decision
from megaflow.control.client.move_request import Selection, make_plan, plan_removal
from megaflow.control.client.rate_sample import processes_of
from megaflow.control.reports import JoinedProcess, MoveReport, RemovalReport, StepReport
from megaflow.errors import ClusterError, CommandRefused, MegaflowError, PeerLost
from megaflow.quick_dataclass import dataclass

HURRY_STEPS = 4  # for the bins of a job that cannot keep up


@dataclass(frozen=True, slots=True)
class ScalingOutcome:
    """Outcome of a decision to grow or shrink."""

    joins: tuple[JoinedProcess, ...] = ()  # accounts of processes that have joined
    left: tuple[RemovalReport, ...] = ()  # accounts of processes that have left
    moved: MoveReport | None = None  # account of the moved bins
    failed: tuple[str, ...] = ()  # reasons why parts were not done


def autoscale(
    talk: Conversation, scaler: Autoscaler, every: float, now: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[Decision | ScalingOutcome]:
    """Steer a job until it ends, with a sample every `every` seconds.

    Yields each decision, and each outcome of growing or shrinking.
    """
    try:
        first = commands.ask_status(talk, tables=False, ledger=True)
        while True:
            sleep(every)
            second = commands.ask_status(talk, tables=False, ledger=True)
            decision = scaler.judge(first, second, now())
            yield decision
            if decision.action in ("grow", "shrink"):
                yield carry_out(talk, decision, sleep)
                scaler.changed(decision, now())
                second = commands.ask_status(talk, tables=False, ledger=True)
            first = second
    except PeerLost:
        return


def carry_out(talk: Conversation, decision: Decision, sleep: Callable[[float], None]) -> ScalingOutcome:
    """Give the job the size of the decision; return the outcome, which may be a refusal. Raises PeerLost."""
    try:
        if decision.action == "grow":
            advice = decision.recommendation
            return _grow(talk, decision.processes, sleep, in_hurry=advice is not None and advice.is_overloaded)
        return _shrink(talk, decision.processes, sleep)
    except ClusterError:
        raise
    except MegaflowError as error:
        return ScalingOutcome(failed=(str(error),))


def _grow(talk: Conversation, processes: int, sleep: Callable[[float], None], in_hurry: bool) -> ScalingOutcome:
    before = commands.ask_status(talk)
    missing = processes - len(processes_of(before))
    if missing <= 0:
        return ScalingOutcome(failed=("another command added processes in the meantime",))
    if before.operators:
        commands.try_growth(talk, before, missing)
    added = commands.add_processes(talk, missing)
    moved = None
    status = commands.ask_status(talk)
    if added.joins and status.operators:
        plan = make_plan(status, Selection(balance=True))
        if in_hurry and len(plan.steps) > HURRY_STEPS:
            batch = ceil(len(plan.moves) / HURRY_STEPS)
            plan = make_plan(status, Selection(balance=True, strategy="batched", batch=batch))
        moved = commands.total(list(commands.run_plan(talk, plan, sleep)))
    return ScalingOutcome(joins=added.joins, moved=moved, failed=tuple(dict.fromkeys(added.failed)))


def _shrink(talk: Conversation, processes: int, sleep: Callable[[float], None]) -> ScalingOutcome:
    left: list[RemovalReport] = []
    steps: list[StepReport] = []
    failed: tuple[str, ...] = ()
    try:
        while len(here := processes_of(status := commands.ask_status(talk))) > processes:
            newest = here[-1][0]
            commands.check_removal(talk, newest)
            steps += commands.run_plan(talk, plan_removal(status, newest), sleep)
            left.append(commands.remove_worker(talk, newest))
    except CommandRefused as error:
        failed = (str(error),)
    return ScalingOutcome(left=tuple(left), moved=commands.total(steps), failed=failed)
