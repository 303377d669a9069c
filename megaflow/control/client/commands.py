"""How a running job is steered, from the side of whoever steers: questions, commands, and plans carried out.

A plan is run by the client, one step after another; each step is a request of its own that is done before the next is
made. If the client dies, the job goes on with the table of the last step, and another client may go on with the plan.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from megaflow.control import messages, reports
from megaflow.control.client.move_request import Plan
from megaflow.errors import CommandRefused, MegaflowError, PeerLost
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text

MOVES_MAX = 10  # more in the course of one request: it moves faster than it can be asked


@dataclass(eq=False)
class Conversation:
    """Questions to the coordinator, one after another, wherever it is by then."""

    _client: Client  # belongs to this from now on
    _timeout_seconds: float
    _connect: Callable[[str, int], Client] | None = None  # follows the coordinator to an address
    _find: Callable[[], Client | None] = lambda: None  # connects to where the job is found by now, None if it is not
    _id: int = 0  # of the last request
    accepted: int | None = None  # the epoch of the last command, once it is accepted
    _heard: messages.CommandProgress | None = None  # of the last command

    def ask(self, body: object, show: Callable[[messages.CommandProgress], None] | None = None) -> Any:
        """Return what the request is done with; `show` is told how far it has come.

        Raises CommandRefused with the reason, PeerLost if the job ends before, and MegaflowError if nothing is heard
        for the time given. Nothing is done twice: a coordinator that says that it has moved has begun nothing, nor has
        one that left the job without a word.
        """
        for _ in range(MOVES_MAX):
            self._id += 1
            self.accepted = self._heard = None
            try:
                self._client.send(messages.Request(self._id, body))
                answer = self._await_answer(show)
            except TimeoutError as error:
                raise MegaflowError(self._overdue()) from error
            except PeerLost as error:
                if not self._find_again():
                    raise PeerLost(f"the job has ended before it was done with the request ({error})") from error
                continue
            if isinstance(answer, messages.Done):
                return answer.result
            if self._connect is None:
                place = address_text((answer.host, answer.port))
                raise CommandRefused(f"the coordinator has moved to {place}: ask there")
            self.close()
            self._client = self._connect(answer.host, answer.port)
        raise MegaflowError(f"the job's coordinator has moved {MOVES_MAX} times while it was asked one thing")

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _find_again(self) -> bool:
        """Connect to where the job is found by now; False if that is where it was, or what was asked had begun."""
        if self.accepted is not None or self._heard is not None:
            return False
        client = self._find()
        if client is None:
            return False
        if client.address == self._client.address:
            client.close()
            return False
        self.close()
        self._client = client
        return True

    def _await_answer(self, show: Callable[[messages.CommandProgress], None] | None) -> messages.Done | messages.Moved:
        while True:
            answer = self._client.receive(self._timeout_seconds)
            match answer:
                case messages.Refused(id, reason) if id == self._id:
                    raise CommandRefused(reason)
                case messages.Accepted(id, epoch) if id == self._id:
                    self.accepted = epoch
                case messages.CommandProgress(id) if id == self._id:
                    self._heard = answer
                    if show is not None:
                        show(answer)
                case messages.Done(id) | messages.Moved(id) if id == self._id:
                    return answer

    def _overdue(self) -> str:
        waited = f"within {self._timeout_seconds:g} s"
        if self._heard is not None:
            what = f"{self._heard.what} ({self._heard.done} of {self._heard.steps} steps)"
            return f"nothing was heard {waited}, last: {what}; what was asked for goes on"
        if self.accepted is None:
            return f"the job did not answer {waited}; a worker may be in a long step of user code"
        return f"the command was accepted for epoch {self.accepted} but has not taken effect {waited}; it still will"


def ask_status(conversation: Conversation, tables: bool = True, loads: bool = False) -> reports.JobStatus:
    """Return the status of a job; its loads cost the workers some ten milliseconds if states are large."""
    return cast(reports.JobStatus, conversation.ask(messages.StatusQuery(tables, loads)))


def ask_explanation(conversation: Conversation) -> reports.Explanation:
    """Return the report that says what holds a job's output back."""
    return cast(reports.Explanation, conversation.ask(messages.ExplainQuery()))


def add_processes(
    conversation: Conversation, count: int, show: Callable[[messages.CommandProgress], None] | None = None
) -> reports.JoinReport:
    """Have worker processes started that join the job; return how each join went, and which ones failed and why."""
    return cast(reports.JoinReport, conversation.ask(messages.AddProcesses(count), show))


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


def stop_job(conversation: Conversation) -> None:
    """Have the job drain and stop; return when it has."""
    try:
        conversation.ask(messages.StopJob())
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
        begin = messages.BeginPlan(plan.table, plan.target, plan.strategy, plan.batch, plan.gap, this_process())
        number = conversation.ask(begin).number
    for place, step in enumerate(plan.steps):
        if place and plan.gap:
            pause(plan.gap)
        try:
            yield conversation.ask(messages.Reconfigure(tuple(step), number))
        except MegaflowError as error:
            if len(plan.steps) > 1:
                where = f"step {place + 1} of {len(plan.steps)}"
                raise type(error)(f"{where}: {error} (the steps before it are done)") from error
            raise


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
