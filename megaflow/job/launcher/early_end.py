"""The end of a job with unfinished work: its drain takes too long, or a user stops it by force.

1. A drain begins when the launcher asks for it, or when the coordinator reports that a user has (`Draining`).
2. Before the job ends, a thread asks the coordinator what is left. It waits a limited time, as the coordinator may be
   in a long step of user code. With force, a coordinator that is known to be busy is not asked. The report always
   includes what the launcher knows itself.
3. If the job ends by itself meanwhile, it has ended normally.
4. The thread of the side door calls `end_now`, which sets a flag for `turn`. While the launcher still waits for its
   processes to start, `turn` does not run: then `end_now` kills them, which ends the wait.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence

from megaflow.control.client.conversation import Conversation
from megaflow.control.launcher_messages import BusyReport, EndNow, EndsNow
from megaflow.control.messages import ExplainQuery, StatusQuery
from megaflow.control.reports import Explanation, JobStatus, WorkerStatus
from megaflow.control.wording import busy_text, quantity, workers_text
from megaflow.errors import ClusterError, MegaflowError
from megaflow.job.launcher.busy_workers import who_is_busy
from megaflow.job.launcher.children import Children
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client

QUESTION_SECONDS = 5.0  # for the status and for what holds it back, each of which waits a while for busy workers
FORCE_SECONDS = 2.5  # likewise, by force: for the status alone
HOLDERS_SHOWN = 3
BUSY_SHOWN = 3

FORCED = "the job was ended by force, as requested (megaflow control stop --force)"


class LastQuestion:
    """Asks a job what it has not worked off; one thread, which writes all that is here."""

    def __init__(self, address: Address, secret: bytes, wake: Callable[[], None], with_holders: bool = True) -> None:
        """`address` is the coordinator's; `wake` is called, by the thread, when nothing more comes."""
        self._with_holders = with_holders
        self.status: JobStatus | None = None
        self.explanation: Explanation | None = None
        self.is_over = False
        self._address = address
        self._secret = secret
        self._wake = wake
        threading.Thread(target=self._run, name="megaflow-question", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(MegaflowError, OSError):  # then this is all that is known
            client = self._connect(*self._address)
            with contextlib.closing(Conversation(client, QUESTION_SECONDS, self._connect)) as talk:
                self.status = talk.ask(StatusQuery(loads=True, partial=True))
                if self._with_holders:
                    self.explanation = talk.ask(ExplainQuery())
        self.is_over = True
        with contextlib.suppress(OSError):  # the loop has ended
            self._wake()

    def _connect(self, host: str, port: int) -> Client:
        return Client.connect(host, port, self._secret, "control", {}, QUESTION_SECONDS)


class EarlyEnd:
    """When a job is to be ended, and what is said then. One writer: the launcher's loop."""

    def __init__(self, secret: bytes, children: Children) -> None:
        self.is_forced = False  # set by the thread of the side door
        self.is_served = False  # the loop is at its turns
        self.is_draining = False  # the job was told to stop
        self.wake: Callable[[], None] = lambda: None  # wakes the loop, which sets this; any thread calls it
        self._secret = secret
        self._children = children
        self._due: float | None = None  # seconds of the clock: the drain has taken too long
        self._why = ""  # not empty from when the end is due
        self._why_drain = ""
        self._question: LastQuestion | None = None
        self._answer_due = 0.0  # seconds of the clock

    @property
    def has_come(self) -> bool:
        """Whether the job is ended because it is to be, and not by what happens to it."""
        return self.is_forced or bool(self._why)

    def drain(self, now: float, timeout_seconds: float | None) -> None:
        """Note that the job is to work off what it has, in so many seconds; the first such word counts."""
        self.is_draining = True
        if self._due is None and timeout_seconds is not None:
            self._due = now + timeout_seconds
            self._why_drain = (
                f"the job did not finish its work within {timeout_seconds:g} s of the request to stop "
                f"(--drain-timeout {timeout_seconds:g}), so it was ended"
            )

    def end_now(self, request: EndNow) -> EndsNow:
        """End the job as soon as may be, whatever its processes do; any thread."""
        self.is_forced = True
        if not self.is_served:
            for child in list(self._children.all):
                if child.process is not None:
                    child.process.kill()
        with contextlib.suppress(OSError):  # the loop has ended
            self.wake()
        return EndsNow()

    def wait_seconds(self, now: float) -> float | None:
        """Return in how many seconds `turn` is to be called; None: not before something has happened."""
        due = self._answer_due if self._question is not None else self._due
        return None if due is None else max(0.0, due - now)

    def turn(self, now: float, coordinator: Address | None, left: tuple[int, int]) -> None:
        """End the job, if it is time: raises ClusterError, which says what was not worked off.

        `coordinator` is None once all workers have ended; `left`: lines that were sent to them and that they have not
        read, and records that are not written.
        """
        if self._due is not None and now >= self._due and not self._why:
            self._why = self._why_drain
        if self.is_forced and self._question is None:
            self._why = FORCED
        if not self._why:
            return
        busy = who_is_busy(self._children)
        is_busy = any(set(each.workers) & set(busy.coordinating) for each in busy.busy)
        if coordinator is None or (self.is_forced and is_busy):
            raise self._error(coordinator is None, None, known_work(*left), busy)
        if self._question is None:
            self._question = LastQuestion(coordinator, self._secret, self.wake, not self.is_forced)
            self._answer_due = now + (FORCE_SECONDS if self.is_forced else QUESTION_SECONDS)
        elif self._question.is_over or now >= self._answer_due:
            raise self._error(False, self._question, known_work(*left), busy)

    def _error(
        self, all_ended: bool, answer: LastQuestion | None, known: Sequence[str], busy: BusyReport
    ) -> ClusterError:
        status, explanation = (None, None) if answer is None else (answer.status, answer.explanation)
        left = what_is_left(status, explanation, known, all_ended)
        return ClusterError("; ".join([self._why, left, *map(busy_text, busy.busy[:BUSY_SHOWN])]))


def what_is_left(
    status: JobStatus | None, explanation: Explanation | None, known: Sequence[str], all_ended: bool = False
) -> str:
    """Say what a job has not worked off: what its workers say, unless they have all ended, and what else is `known`.

    >>> what_is_left(None, None, ["2 lines sent but not read yet"])
    'unfinished: 2 lines sent but not read yet; the workers did not answer, so what they still have is unknown'
    """
    left = [f"worker {each.id}: {text}" for each in (status.workers if status else ()) if (text := work_of(each))]
    left += known
    parts = [f"unfinished: {', '.join(left)}"] if left else []
    if status is None and not all_ended:
        parts.append("the workers did not answer, so what they still have is unknown")
    elif status is not None and status.silent:
        what = "it still has" if len(status.silent) == 1 else "they still have"
        parts.append(f"{workers_text(status.silent)} did not answer, so what {what} is unknown")
    elif not left:
        parts.append("no line, timer or record was left")
    holders = [
        f"{each.operator!r} ({each.where}){'' if each.worker is None else f' on worker {each.worker}'}"
        for each in (explanation.held_by if explanation else ())
    ]
    if holders:
        shown = list(dict.fromkeys(holders))
        more = f" and {len(shown) - HOLDERS_SHOWN} more" if len(shown) > HOLDERS_SHOWN else ""
        parts.append(f"held back by {', '.join(shown[:HOLDERS_SHOWN])}{more}")
    return "; ".join(parts)


def known_work(lines: int, records: int) -> list[str]:
    """Say what is not worked off, as far as the launcher knows.

    >>> known_work(2, 0)
    ['2 lines sent but not read yet']
    """
    return [
        *([f"{quantity(lines, 'line')} sent but not read yet"] if lines else ()),
        *([f"{quantity(records, 'record')} not written yet"] if records else ()),
    ]


def work_of(worker: WorkerStatus) -> str:
    """Say what a worker has not worked off; "" if that is nothing."""
    lines, timers = worker.lines - worker.done, worker.timers or 0
    return " and ".join(
        [
            *([f"{lines} of the {quantity(worker.lines, 'line')} it has read"] if lines else ()),
            *([quantity(timers, "timer")] if timers else ()),
        ]
    )
