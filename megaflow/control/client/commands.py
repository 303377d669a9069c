"""How a running job is steered, from the side of whoever steers: questions, commands, and plans carried out.

A plan is run by the client, one step after another; each step is a request of its own that is done before the next is
made. If the client dies, the job goes on with the table of the last step, and another client may go on with the plan.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from megaflow.control import messages, reports
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Plan, bins_for_newcomers
from megaflow.errors import CommandRefused, MegaflowError, PeerLost

BOOTSTRAP_POLL_SECONDS = 0.1
RENEW_SECONDS = 3.0  # between two renewals of a plan's lease, which lasts three times as long
BOOTSTRAP_POLLS = 300  # until a worker that is being given its routing table is waited for no longer


def ask_status(
    conversation: Conversation, tables: bool = True, loads: bool = False, partial: bool = False
) -> reports.JobStatus:
    """Return the status of a job; its loads cost the workers some ten milliseconds if states are large.

    Waits for all workers; if a `partial` one will do, for less than two seconds.
    """
    return cast(reports.JobStatus, conversation.ask(messages.StatusQuery(tables, loads, partial)))


def ask_settled_status(
    conversation: Conversation, pause: Callable[[float], None], tables: bool = True, loads: bool = False
) -> reports.JobStatus:
    """Like `ask_status`, once no worker is being given its routing table: a plan is to count it.

    Blocks for that time; `pause` sleeps. Raises CommandRefused if it takes more than 30 seconds.
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
    """Return the report that says what holds a job's output back."""
    return cast(reports.Explanation, conversation.ask(messages.ExplainQuery()))


def try_growth(conversation: Conversation, status: reports.JobStatus, processes: int) -> None:
    """Raise CommandRefused if a bin that so many more processes would get holds what cannot travel.

    The status was asked for with tables. Nothing changes; what a plan moves then is tried again, at once.
    """
    conversation.ask(messages.TryBins(bins_for_newcomers(status, processes)))


def add_processes(
    conversation: Conversation,
    count: int,
    show: Callable[[messages.CommandProgress], None] | None = None,
    other_code: bool = False,
) -> reports.JoinReport:
    """Have worker processes started that join the job; return how each join went, and which ones failed and why.

    Unless `other_code` is allowed, one that loads other code than the job runs fails.
    """
    return cast(reports.JoinReport, conversation.ask(messages.AddProcesses(count, other_code), show))


def check_removal(conversation: Conversation, worker: int) -> None:
    """Raise CommandRefused unless the worker's process may leave once its bins are elsewhere."""
    conversation.ask(messages.RemoveWorker(worker, ask_only=True))


def remove_worker(
    conversation: Conversation, worker: int, show: Callable[[messages.CommandProgress], None] | None = None
) -> reports.RemovalReport:
    """Have the process of a worker that owns no bins leave; return who has left."""
    return cast(reports.RemovalReport, conversation.ask(messages.RemoveWorker(worker), show))


def bootstrap_worker(conversation: Conversation, server: int, worker: int) -> reports.BootstrapReport:
    """Have a worker that has joined be given the routing table of another one."""
    return cast(reports.BootstrapReport, conversation.ask(messages.BootstrapWorker(server, worker)))


def take_checkpoint(conversation: Conversation, name: str | None = None) -> reports.CheckpointStatus:
    """Have a durable job take a checkpoint, perhaps by a name; return what is known of it when it is committed."""
    return cast(reports.CheckpointStatus, conversation.ask(messages.CheckpointJob(name)))


def get_state(conversation: Conversation, operator: str, key: str, as_json: bool = False) -> reports.StateReport:
    """Return an operator's state of a key, as text; `key` is what was typed."""
    return cast(reports.StateReport, conversation.ask(messages.GetState(operator, key, as_json)))


def stop_job(conversation: Conversation, drain: bool = True) -> None:
    """Have the job stop; return when it has. `drain`: whether it closes what is open, if it keeps no state."""
    try:
        conversation.ask(messages.StopJob(drain))
    except PeerLost:
        if conversation.accepted is None:
            raise  # else: it was quicker than its answer


def run_plan(
    conversation: Conversation, plan: Plan, pause: Callable[[float], None], number: int | None = None
) -> Iterator[reports.StepReport]:
    """Carry out a plan; yield the account of each step (epoch, bins, bytes, keys, seconds) when it is done.

    `pause` sleeps for so many seconds between steps. `number` is that of a plan that was taken up; without, this one
    is begun.
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
    """Wait, and stay the runner of the plan with this number. Raises CommandRefused once another command is."""
    while number is not None and seconds > RENEW_SECONDS:
        pause(RENEW_SECONDS)
        conversation.ask(messages.RenewPlan(number))
        seconds -= RENEW_SECONDS
    pause(seconds)


def take_up_plan(conversation: Conversation) -> messages.KeptPlan:
    """Become the runner of the plan that nobody runs any more, and return it."""
    return cast(messages.KeptPlan, conversation.ask(messages.ResumePlan(this_process())))


def this_process() -> str:
    """Say for people which process this is."""
    return f"pid {os.getpid()} on {os.uname().nodename}"[: messages.RUNNER_LENGTH_MAX]


def total(steps: Sequence[reports.StepReport]) -> reports.MoveReport:
    """Return the account of several steps.

    >>> total([reports.StepReport(epoch=3, bins=1, bytes=10, keys=2, seconds=0.5)] * 2)
    MoveReport(steps=2, bins=2, bytes=20, keys=4, seconds=1.0, epochs=(3, 3))
    """
    return reports.MoveReport(
        len(steps),
        sum(step.bins for step in steps),
        sum(step.bytes for step in steps),
        sum(step.keys for step in steps),
        sum(step.seconds for step in steps),
        tuple(step.epoch for step in steps),
    )
