"""The commands of `megaflow control` for a program: those of each handle of a job, and `megaflow.jobs()`.

The calls find the job by its file, as those commands do. So the same rules hold, also while the job recovers from a
loss or its coordinator moves. Each call blocks until the command has taken effect. A refused command changes nothing.
"""

import abc
import contextlib
import json
import time
from binascii import a2b_base64
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, Self

from megaflow.control.client import commands, move_request
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Plan, Selection, make_plan
from megaflow.control.client.planner import HOTTEST_FIRST
from megaflow.control.reports import CheckpointStatus, Explanation, JobStatus, JoinReport, MoveReport, RemovalReport
from megaflow.durable.commits import check_checkpoint_name
from megaflow.errors import JobRecovers, MegaflowError, ProtocolError, UsageError
from megaflow.job.contact import conversation, stop
from megaflow.job.job_file import present
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode

TIMEOUT_SECONDS: Final = 60.0  # for the job to answer, as with `megaflow control`
BACK_SECONDS: Final = 10.0  # for a job to be back after a loss, before its status is that it recovers


def _check(call: str, kinds: tuple[type, ...], **given: Any) -> None:
    """Raise UsageError for an argument of none of these types. A bool is no int."""
    for name, value in given.items():
        if type(value) not in kinds:
            raise UsageError(
                f"{call}: {name} must be of type {kinds[0].__name__}, not {value!r:.80} ({type(value).__name__})."
            )


class JobControl(abc.ABC):
    """Commands of `megaflow control` for one job: the base of its handles.

    Results have the fields that the commands print with `--json`. All calls raise CommandRefused, and JobNotFound if
    the job has ended.
    """

    @abc.abstractmethod
    def _conversation(self, back_seconds: float | None = None) -> contextlib.AbstractContextManager[Conversation]:
        """Open a connection to the job. `back_seconds`: see `contact.conversation`."""

    def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the job if that is known."""
        time.sleep(seconds)

    @property
    def control(self) -> Self:
        """The commands, which the handle itself also has."""
        return self

    def status(self) -> JobStatus:
        """Return workers, rates, latency, bins and moves.

        Waits less than two seconds for busy workers, and lists those that did not answer. If the job has lost a process
        and is not back after ten seconds, the state is "recovering", `restart` says why, and there are no workers.
        """
        for last in False, True:
            try:
                with self._conversation(BACK_SECONDS) as talk:
                    return commands.ask_status(talk, tables=True, partial=True, ledger=True)
            except JobRecovers as error:
                if error.restart:
                    return JobStatus(error.job, "recovering", None, None, (), (), restart=error.restart)
                if last:  # it lost a process while it was asked, twice
                    raise
        raise AssertionError("the last attempt returns or raises")

    def explain(self) -> Explanation:
        """Return the operator, worker and time that hold the output back."""
        with self._conversation() as talk:
            return commands.ask_explanation(talk)

    def get(self, operator: str, key: Any) -> Any:
        """Return an operator's present state of one key; None if there is none.

        The key is None, a bool, a number, a str, or a tuple of these. Raises UsageError for other keys, and for a state
        with an instance of a class that this process has not imported.
        """
        _check("get", (str,), operator=operator)
        try:
            text = json.dumps(key)
        except (TypeError, ValueError):
            raise UsageError(f"get: A key must be a bool, number, str, or a tuple of these, not {key!r:.80}.") from None
        with self._conversation() as talk:
            found = commands.get_state(talk, operator, text, "value")
        try:
            return None if found.state is None else decode(a2b_base64(found.state))
        except ProtocolError as error:
            raise UsageError(f"get: The state of {key!r:.80} cannot be built in this process: {error}") from None

    def move_bins(
        self,
        *,
        bins: str | None = None,
        to: int | None = None,
        balance: bool = False,
        by: str = "number",
        drain: int | None = None,
        map: str | None = None,
        strategy: str = "fluid",
        batch: int | None = None,
        gap: float = 0.0,
    ) -> MoveReport:
        """Move bins to other workers while the job runs; return a report of the moves.

        Choose one of:

        - `bins`, such as "0-127,200", which worker `to` gets;
        - `balance`, by the "number" of bins or, with `by="load"`, by their measured load;
        - `drain`, a worker that gives up all of its bins;
        - `map`, the owner of each bin, separated by spaces, commas or newlines.

        `strategy` and `gap` (seconds) are those of `megaflow control move-bins`; `batch` applies to strategy "batched".
        Raises UsageError for other combinations.
        """
        _check("move_bins", (bool,), balance=balance)
        _check("move_bins", (int, NoneType), to=to, drain=drain, batch=batch)
        _check("move_bins", (str, NoneType), bins=bins, map=map)
        _check("move_bins", (str,), by=by, strategy=strategy)
        _check("move_bins", (float, int), gap=gap)
        selection = Selection(bins, to, balance, drain, map, by, strategy, batch, gap)
        move_request.check_selection(selection)
        with self._conversation() as talk:
            loads = selection.needs_loads
            if balance:
                status = commands.ask_settled_status(talk, self._pause, loads=loads)
            else:
                status = commands.ask_status(talk, loads=loads)
            return self._carry_out(talk, make_plan(status, selection))

    def resume(self, gap: float | None = None) -> MoveReport:
        """Finish the moves of an interrupted command, and its removal of a worker; return a report of the moves.

        `gap`: seconds between two steps; by default those of the interrupted command.
        """
        _check("resume", (float, int, NoneType), gap=gap)
        with self._conversation() as talk:
            kept = commands.take_up_plan(talk)
            status = commands.ask_status(talk, loads=kept.strategy == HOTTEST_FIRST)
            moved = self._carry_out(talk, move_request.remaining_plan(status, kept, gap), kept.number)
            if kept.removes is not None:
                commands.remove_worker(talk, kept.removes)
            return moved

    def add_workers(self, count: int = 1, *, balance: bool = False) -> JoinReport:
        """Start `count` more processes; return when they have joined.

        They own no bins until you move some to them. With `balance`, the call also moves their share to them, bin by
        bin, before it returns; if the job cannot move bins now, it raises before it starts any process. Raises
        MegaflowError with the reasons if some processes could not be added.
        """
        _check("add_workers", (int,), count=count)
        _check("add_workers", (bool,), balance=balance)
        if count < 1:
            raise UsageError(f"add_workers: count must be at least 1, not {count}.")
        with self._conversation() as talk:
            if balance:
                commands.check_growth(talk, count)
            added = commands.add_processes(talk, count)
            if balance:
                status = commands.ask_settled_status(talk, self._pause)
                self._carry_out(talk, make_plan(status, Selection(balance=True)))
        if failed := added.failed:
            why = "; ".join(dict.fromkeys(failed))
            raise MegaflowError(f"{len(failed)} of {count} processes were not added: {why}")
        return added

    def remove_workers(self, id: int) -> RemovalReport:
        """Move all bins away from the process of this worker, then make it leave the job; return which workers left."""
        _check("remove_workers", (int,), id=id)
        with self._conversation() as talk:
            commands.check_removal(talk, id)
            self._carry_out(talk, move_request.plan_removal(commands.ask_status(talk), id))
            return commands.remove_worker(talk, id)

    def cancel_queued(self) -> int:
        """Give up the processes that `add_workers` waits for because there is no slot; return their number.

        The `add_workers` that waits raises MegaflowError. Raises CommandRefused if no process waits.
        """
        with self._conversation() as talk:
            return commands.cancel_queued(talk)

    def checkpoint(self, name: str | None = None) -> CheckpointStatus:
        """Make a job with `state` write a checkpoint now; return when it is on disk.

        Another job can start from a named checkpoint, until `megaflow state rm DIR NAME` removes it.
        """
        _check("checkpoint", (str, NoneType), name=name)
        if name is not None:
            check_checkpoint_name(name)
        with self._conversation() as talk:
            return commands.take_checkpoint(talk, name)

    def _carry_out(self, talk: Conversation, plan: Plan, number: int | None = None) -> MoveReport:
        return commands.total(list(commands.run_plan(talk, plan, self._pause, number)))


@dataclass(eq=False, repr=False)
class OpenControl(JobControl):
    """Commands for a job by the connections that a function opens."""

    talk: Callable[[], contextlib.AbstractContextManager[Conversation]]

    def _conversation(self, back_seconds: float | None = None) -> contextlib.AbstractContextManager[Conversation]:
        return self.talk()


class RunningJob(JobControl):
    """A job of this user that runs on this machine."""

    def __init__(self, name: str, pid: int, state: str | None) -> None:
        """`pid` is of the program that started the job; `state` is the folder of its store, None without a store."""
        self.name, self.pid, self.state = name, pid, state

    def __repr__(self) -> str:
        kept = "" if self.state is None else f", state {self.state!r}"
        return f"<RunningJob {self.name!r}: process {self.pid}{kept}>"

    def stop(self, drain: bool = True) -> None:
        """Stop the job, as `megaflow control stop` does: it processes what was read. Raises JobNotFound."""
        stop(self.name, None, TIMEOUT_SECONDS, drain=drain)

    def _conversation(self, back_seconds: float | None = None) -> contextlib.AbstractContextManager[Conversation]:
        return conversation(self.name, None, TIMEOUT_SECONDS, back_seconds=back_seconds)


def jobs() -> list[RunningJob]:
    """Return this user's running jobs on this machine, by name, including those of other programs and notebooks.

    `megaflow.jobs()[0].status()` shows one, `megaflow.jobs()[0].stop()` stops it.
    """
    return [RunningJob(job.name, job.pid, job.state) for job, is_seen in present() if is_seen]
