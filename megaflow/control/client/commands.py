"""Questions and commands to a running job, and the execution of plans, in the client.

The client carries out a plan step by step. Each step is a separate request, and it is done before the client sends the
next one. If the client dies, the job keeps the table of the last step, and another client can resume the plan.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from megaflow.control import messages, reports
from megaflow.control.client.conversation import Conversation, Show
from megaflow.control.client.move_request import Plan, bins_for_newcomers, check_bins, check_no_plan
from megaflow.errors import CommandRefused, MegaflowError, PeerLost

BOOTSTRAP_POLL_SECONDS = 0.1
RENEW_SECONDS = 3.0  # between two renewals of a plan's lease, which has time for three
BOOTSTRAP_POLLS = 300  # after which `ask_settled_status` stops waiting for a worker's routing table


def ask_status(
    conversation: Conversation, tables: bool = True, loads: bool = False, partial: bool = False, ledger: bool = False
) -> reports.JobStatus:
    """Return the status of a job. Loads cost the workers some ten milliseconds if states are large.

    Blocks until all workers have answered; with `partial`, for less than two seconds. After many moves the ledger has
    10,000 bins: half a megabyte in the message, 2.5 MB in memory.
    """
    return cast(reports.JobStatus, conversation.ask(messages.StatusQuery(tables, loads, partial, ledger)))


def ask_settled_status(
    conversation: Conversation, pause: Callable[[float], None], tables: bool = True, loads: bool = False
) -> reports.JobStatus:
    """Return the status like `ask_status`, once no worker is receiving its routing table: a plan must count them all.

    Blocks for that time; `pause` sleeps. Raises CommandRefused after 30 seconds.
    """
    for _ in range(BOOTSTRAP_POLLS):
        given = [each.worker for each in ask_status(conversation, False).changes if each.change == "bootstrap"]
        if not given:
            return ask_status(conversation, tables, loads)
        pause(BOOTSTRAP_POLL_SECONDS)
    raise CommandRefused(
        f"worker {given[0]} is still receiving its routing table: wait until `megaflow control status` shows that it "
        "has it, then try again"
    )


def ask_explanation(conversation: Conversation) -> reports.Explanation:
    """Return the report of what holds a job's output back."""
    return cast(reports.Explanation, conversation.ask(messages.ExplainQuery()))


def try_growth(conversation: Conversation, status: reports.JobStatus, processes: int) -> None:
    """Raise CommandRefused if the contents of a bin that so many new processes would get cannot travel.

    `status` must have tables. Nothing changes. The plan that moves the bins later tries them again.
    """
    conversation.ask(messages.TryBins(bins_for_newcomers(status, processes)))


def check_growth(conversation: Conversation, processes: int) -> None:
    """Raise CommandRefused unless the job can grow by so many processes and give them bins. Nothing changes."""
    status = ask_status(conversation)
    check_bins(status)
    check_no_plan(status)
    try_growth(conversation, status, processes)


def add_processes(
    conversation: Conversation, count: int, show: Show | None = None, other_code: bool = False
) -> reports.JoinReport:
    """Add worker processes to the job; return the account of each join and the reason of each failure.

    A process that loads other code than the job's fails, unless `other_code` is allowed.
    """
    return cast(reports.JoinReport, conversation.ask(messages.AddProcesses(count, other_code), show))


def check_removal(conversation: Conversation, worker: int) -> None:
    """Raise CommandRefused unless the worker's process may leave after its bins have moved away."""
    conversation.ask(messages.RemoveWorker(worker, ask_only=True))


def remove_worker(conversation: Conversation, worker: int, show: Show | None = None) -> reports.RemovalReport:
    """Remove the process of a worker that owns no bins; return the workers that have left."""
    return cast(reports.RemovalReport, conversation.ask(messages.RemoveWorker(worker), show))


def cancel_queued(conversation: Conversation) -> int:
    """Give up the processes to be added that wait for a slot; return their number."""
    return cast(int, conversation.ask(messages.CancelQueued()))


def bootstrap_worker(conversation: Conversation, server: int, worker: int) -> reports.BootstrapReport:
    """Give a worker that has joined the routing table of the worker `server`."""
    return cast(reports.BootstrapReport, conversation.ask(messages.BootstrapWorker(server, worker)))


def take_checkpoint(conversation: Conversation, name: str | None = None) -> reports.CheckpointStatus:
    """Take a checkpoint of a durable job, named if `name` is given; return its status after the commit."""
    return cast(reports.CheckpointStatus, conversation.ask(messages.CheckpointJob(name)))


def get_state(
    conversation: Conversation, operator: str, key: str, form: messages.StateForm = "text"
) -> reports.StateReport:
    """Return an operator's state of a key, in a form; `key` is the text that the user typed."""
    return cast(reports.StateReport, conversation.ask(messages.GetState(operator, key, form)))


def stop_job(conversation: Conversation, drain: bool = True) -> None:
    """Stop the job and block until it has stopped. `drain`: close open windows, if the job keeps no state."""
    try:
        conversation.ask(messages.StopJob(drain))
    except PeerLost:
        if conversation.accepted is None:
            raise  # else: the job ended before its answer arrived


def run_plan(
    conversation: Conversation, plan: Plan, pause: Callable[[float], None], number: int | None = None
) -> Iterator[reports.StepReport]:
    """Carry out a plan; yield the account of each step (epoch, bins, bytes, keys, seconds) when it is done.

    `pause` sleeps for so many seconds between steps. `number` is that of a plan that this client has taken up; without
    it, this begins the plan.
    """
    if number is None and plan.steps:
        words = plan.strategy, plan.batch, plan.gap, this_process()
        begin = messages.BeginPlan(plan.table, plan.target, *words, plan.removes)
        number = conversation.ask(begin).number
    for place, step in enumerate(plan.steps):
        try:
            if place and plan.gap:
                wait_as_runner(conversation, number, plan.gap, pause)
            yield conversation.ask(messages.Reconfigure(tuple(step), number))
        except MegaflowError as error:
            if len(plan.steps) > 1:
                where = f"step {place + 1} of {len(plan.steps)}"
                raise type(error)(f"{where}: {error} (the earlier steps are done)") from error
            raise


def wait_as_runner(
    conversation: Conversation, number: int | None, seconds: float, pause: Callable[[float], None]
) -> None:
    """Wait, and stay the runner of this plan. Raises CommandRefused once another command runs it."""
    while number is not None and seconds > RENEW_SECONDS:
        pause(RENEW_SECONDS)
        conversation.ask(messages.RenewPlan(number))
        seconds -= RENEW_SECONDS
    pause(seconds)


def take_up_plan(conversation: Conversation) -> messages.KeptPlan:
    """Become the runner of the plan that has lost its runner, and return the plan."""
    return cast(messages.KeptPlan, conversation.ask(messages.ResumePlan(this_process())))


def this_process() -> str:
    """Describe this process for people."""
    return f"pid {os.getpid()} on {os.uname().nodename}"[: messages.RUNNER_LENGTH_MAX]


def total(steps: Sequence[reports.StepReport]) -> reports.MoveReport:
    """Return the account of several steps in total.

    >>> total([reports.StepReport(epoch=3, bins=1, bytes=10, keys=2, seconds=0.5)] * 2)
    MoveReport(steps=2, bins=2, bytes=20, keys=4, seconds=1.0, epochs=(3, 3), operators=1)
    """
    return reports.MoveReport(
        len(steps),
        sum(step.bins for step in steps),
        sum(step.bytes for step in steps),
        sum(step.keys for step in steps),
        sum(step.seconds for step in steps),
        tuple(step.epoch for step in steps),
        max((step.operators for step in steps), default=1),
    )
