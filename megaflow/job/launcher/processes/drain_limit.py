"""The end of a job with unfinished work, because its drain takes too long or a user stops it by force.

1. A drain begins when the launcher asks for it, or when the coordinator reports that a user has asked (`Draining`).
2. Before the job ends, a thread asks the coordinator what is left. It waits for a limited time, because the coordinator
   may be in a long step of user code. With force, a coordinator that is known to be busy is not asked. The report
   always includes what the launcher itself knows.
3. If the job ends by itself meanwhile, it has ended normally.
4. The thread of the admin socket calls `end_now`, which sets a flag for `turn`. `turn` does not run while the launcher
   waits for its processes to start. Then `end_now` kills them, which ends the wait.
5. A job that resumes after a loss may wait for slots of Spark without a limit, and has no coordinator meanwhile. So its
   launcher carries out a stop: the thread calls `stop_restart`. `_lock` lets a stop that was accepted end the wait.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence

from megaflow.control.client.conversation import Conversation
from megaflow.control.launcher_messages import BusyReport, EndNow, EndsNow, RestartStops, StopRestart
from megaflow.control.messages import ExplainQuery, StatusQuery
from megaflow.control.reports import Explanation, JobStatus, WorkerStatus
from megaflow.control.wording import busy_text, quantity, workers_text
from megaflow.errors import ClusterError, MegaflowError
from megaflow.job.launcher.processes.busy_workers import who_is_busy
from megaflow.job.launcher.processes.children import Children
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client

QUESTION_SECONDS = 5.0  # for the status and the explanation; both wait a while for busy workers
FORCE_SECONDS = 2.5  # likewise, with force: for the status alone
HOLDERS_SHOWN = 3
BUSY_SHOWN = 3

FORCED = "the job was ended by force, as requested (megaflow control stop --force)"


class LastQuestion:
    """The thread that asks a job which work is unfinished; it writes all attributes here."""

    def __init__(self, address: Address, secret: bytes, wake: Callable[[], object], with_holders: bool = True) -> None:
        """Start the thread. `address` is the coordinator's; the thread calls `wake` when it has finished."""
        self._with_holders = with_holders
        self.status: JobStatus | None = None
        self.explanation: Explanation | None = None
        self.is_over = False
        self._address = address
        self._secret = secret
        self._wake = wake
        threading.Thread(target=self._run, name="megaflow-question", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(MegaflowError, OSError):  # then the answers so far are all that is known
            client = self._connect(*self._address)
            with contextlib.closing(Conversation(client, QUESTION_SECONDS, self._connect)) as talk:
                self.status = talk.ask(StatusQuery(loads=True, partial=True))
                if self._with_holders:
                    self.explanation = talk.ask(ExplainQuery())
        self.is_over = True
        self._wake()

    def _connect(self, host: str, port: int) -> Client:
        return Client.connect(host, port, self._secret, "control", {}, QUESTION_SECONDS)


class DrainLimit:
    """The decision to end a job early, and the error that explains it. One writer: the launcher's loop."""

    def __init__(self, secret: bytes, children: Children) -> None:
        self.is_forced = False  # set by the thread of the admin socket
        self.is_served = False  # the loop has begun its turns
        self.is_draining = False  # a stop was requested
        self.is_stopped = False  # likewise, while a restart waited for its processes
        self.wake: Callable[[], object] = lambda: None  # wakes the loop; set by the loop, called by any thread
        self._secret = secret
        self._children = children
        self._due: float | None = None  # seconds of the clock, when the drain has taken too long
        self._why = ""  # not empty once the end is due
        self._why_drain = ""
        self._question: LastQuestion | None = None
        self._answer_due = 0.0  # seconds of the clock
        self._is_waiting = False  # a restart waits for its processes
        self._lock = threading.Lock()  # for this and `is_stopped`

    @property
    def has_come(self) -> bool:
        """Whether the job ends early by request or timeout, not by its own end or a failure."""
        return self.is_forced or bool(self._why)

    def drain(self, now: float, timeout_seconds: float | None) -> None:
        """Note that the job must finish its work within `timeout_seconds`; only the first timeout counts."""
        self.is_draining = True
        if self._due is None and timeout_seconds is not None:
            self._due = now + timeout_seconds
            self._why_drain = (
                f"the job did not finish its work within {timeout_seconds:g} s of the request to stop "
                f"(--drain-timeout {timeout_seconds:g}), so it was ended"
            )

    def end_now(self, request: EndNow) -> EndsNow:
        """End the job as soon as possible, whatever its processes are doing. Any thread."""
        self.is_forced = True
        if not self.is_served:
            for child in list(self._children.all):
                if child.process is not None:
                    child.process.kill()
        self.wake()
        return EndsNow()

    def wait_for_processes(self, waits: bool) -> None:
        """Note whether a restart waits for its processes, so that a stop ends the wait. The launcher's thread."""
        with self._lock:
            self._is_waiting = waits

    def stop_restart(self, request: StopRestart) -> RestartStops:
        """Stop a job that waits for the processes of a restart. Any thread."""
        with self._lock:
            self.is_stopped = self.is_stopped or self._is_waiting
        self.wake()
        return RestartStops(self.is_stopped)

    def wait_seconds(self, now: float) -> float | None:
        """Return the seconds until `turn` must be called; None: not before the next event."""
        due = self._answer_due if self._question is not None else self._due
        return None if due is None else max(0.0, due - now)

    def turn(self, now: float, coordinator: Address | None, left: tuple[int, int]) -> None:
        """End the job if it is time, by raising ClusterError with the unfinished work.

        `coordinator` is None once all workers have ended. `left` has the number of lines that were sent to workers but
        not read, and the number of records that were not written.
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
    """Return the unfinished work of a job as text: what its workers report, and what else is `known`.

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
    """Return the unfinished work that the launcher knows of, as texts.

    >>> known_work(2, 0)
    ['2 lines sent but not read yet']
    """
    counts = (lines, "line", "sent but not read"), (records, "record", "not written")
    return [f"{quantity(count, noun)} {what} yet" for count, noun, what in counts if count]


def work_of(worker: WorkerStatus) -> str:
    """Return the unfinished work of a worker as text; "" if there is none."""
    lines, timers = worker.lines - worker.done, worker.timers or 0
    left = f"{lines} of the {quantity(worker.lines, 'line')} it has read" if lines else ""
    return " and ".join(filter(None, (left, quantity(timers, "timer") if timers else "")))
