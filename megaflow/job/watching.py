"""Watching a running job from outside: its status again and again, and its events as they come.

`control watch`, `status --watch`, the page and the metrics all read `watch`.

1. The coordinator has the events, see `megaflow.control.coordinator.controller.event_feed`. The watcher asks for the
   next one and gets an answer when there is one, or after a second. So a slow watcher holds back only itself.
2. The watcher follows the job through moves of its coordinator and through restarts. Meanwhile it yields a status
   without workers, whose state is "busy", "silent" or "recovering".
3. Events that only the launcher or the watcher knows have number 0: `Recovering`, `Waiting` and `EventsLost`.
4. A watcher stays with one job. If several jobs may come and go, it keeps the name of the first that it has found.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from megaflow.control import job_events
from megaflow.control.client import commands
from megaflow.control.client.conversation import Conversation
from megaflow.control.job_events import EventsPart, JobEvent
from megaflow.control.messages import WatchQuery
from megaflow.control.reports import BusyWorker, Explanation, JobStatus
from megaflow.errors import JobNotFound, JobRecovers, NoAnswer, PeerLost
from megaflow.job.admin_socket import Silence, find_reason
from megaflow.job.contact import conversation
from megaflow.job.job_file import find
from megaflow.quick_dataclass import dataclass

STATUS_SECONDS = 1.0
PAUSE_SECONDS = 1.0  # before the next attempt to reach a busy or recovering job

Where: TypeAlias = tuple[str | None, str | None, float]  # name of the job, address, timeout: see `conversation`


class CoordinatorBusy(NoAnswer):
    """The coordinator of a job is in a long step, or neither it nor the launcher can answer."""

    def __init__(self, silence: Silence) -> None:
        super().__init__(str(silence))
        self.silence = silence


def giving_up(tell: Callable[[Silence], None]) -> Callable[[Silence], None]:
    """Return a function that raises CoordinatorBusy if the coordinator is busy or the launcher suspended.

    It gives any other silence to `tell`.
    """

    def give_up(silence: Silence) -> None:
        if silence.is_busy or silence.is_suspended:
            raise CoordinatorBusy(silence)
        tell(silence)

    return give_up


def busy_now(report: JobStatus | Explanation, told: Silence) -> tuple[BusyWorker, ...]:
    """Return the busy workers: all if some have not answered the request, else only those that are joining."""
    joining = {each.pid for each in report.joining}
    return tuple(each for each in told.busy if report.silent or each.pid in joining)


def ask_launcher_of(where: Where) -> Silence:
    """Return which workers are in a long step, and what the output waits for.

    The answer has neither if the launcher cannot be asked.
    """
    job, connect, _ = where
    with contextlib.suppress(JobNotFound):  # it has answered, and ended since
        return Silence("", True) if connect is not None else find_reason(find(job), "", True)
    return Silence("", True)


def explain(where: Where, tell: Callable[[Silence], None], back_seconds: float | None = None) -> Explanation:
    """Return what holds the output back; only the busy workers, if the coordinator is one of them.

    Raises CoordinatorBusy if the launcher is suspended, and otherwise as `conversation` does. `tell` and
    `back_seconds` are for the conversation.
    """
    try:
        with conversation(*where, giving_up(tell), back_seconds) as talk:
            report = commands.ask_explanation(talk)
            told = ask_launcher_of(where)
            return replace(report, busy=busy_now(report, told), output=told.output or None)
    except CoordinatorBusy as error:
        silence = error.silence
        if silence.is_suspended:
            raise
        return Explanation(silence.job, None, None, False, (), silence.coordinating, busy=silence.busy)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a watcher wants to see."""

    status: bool = True  # every STATUS_SECONDS
    events: bool = True
    tables: bool = True  # the status has the owner of each bin
    loads: bool = True  # the status has loads by bin and by key
    ledger: bool = True  # the status has the bins that moved last


@dataclass(eq=False, repr=False)
class Watcher:
    """One watcher of a job. One writer: the thread that iterates."""

    _where: Where
    _wanted: Wanted
    _tell: Callable[[Silence], None] = lambda silence: None  # receives why the job is silent
    pause: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        self._seen = False  # whether the job has answered
        self._attempt, self._next = -1, 1  # of the next event
        self._waits = self._restart = ""  # as last reported

    def watch(self) -> Iterator[JobEvent | JobStatus]:
        """Yield what is wanted until the job has ended. Raises PeerLost or JobNotFound if it was not there at all."""
        job, connect, timeout = self._where
        if job is None and connect is None:
            with contextlib.suppress(JobNotFound):  # the conversation raises it
                self._where = find(None).name, None, timeout
        try:
            while True:
                yield from self._attend()
                self.pause(PAUSE_SECONDS)
        except (PeerLost, JobNotFound):
            if not self._seen:
                raise

    def _attend(self) -> Iterator[JobEvent | JobStatus]:
        """Yield what is wanted until the conversation ends, and then why."""
        try:
            with conversation(*self._where, giving_up(self._tell), back_seconds=0.0) as talk:
                while True:
                    due = time.monotonic() + STATUS_SECONDS
                    told = ask_launcher_of(self._where)
                    waits = self._waits if told.unasked else told.output  # no answer in time is not the end of a wait
                    if self._wanted.status:
                        wanted = self._wanted
                        now = commands.ask_status(talk, wanted.tables, wanted.loads, True, wanted.ledger)
                        self._seen = True
                        yield replace(now, busy=busy_now(now, told), output=waits or None)
                    yield from self._note(waits)
                    if not self._wanted.events:
                        self.pause(max(0.0, due - time.monotonic()))
                    while self._wanted.events and time.monotonic() < due:
                        yield from self._events(talk)
        except CoordinatorBusy as error:
            silence = error.silence
            state, why = ("silent", silence.unasked) if silence.is_suspended else ("busy", None)
            known = JobStatus(silence.job, state, None, None, (), (), silent=silence.coordinating, busy=silence.busy)
            if self._wanted.status:
                yield replace(known, launcher=why)
        except JobRecovers:
            job = None if self._where[1] is not None else find(self._where[0])
            if job is None or not job.recovering:  # it is back
                return
            self._seen = True
            if self._wanted.events and job.recovering != self._restart:
                self._restart = job.recovering
                yield added(job_events.Recovering(job.recovering))
            if self._wanted.status:
                yield JobStatus(job.name, "recovering", None, None, (), (), restart=job.recovering)

    def _events(self, talk: Conversation) -> Iterator[JobEvent]:
        """Yield the events that the next answer brings."""
        part: EventsPart = talk.ask(WatchQuery(self._attempt, self._next))
        self._seen, self._attempt, self._next = True, part.attempt, part.next
        if part.lost:
            yield added(job_events.EventsLost(part.lost))
        yield from part.events

    def _note(self, waits: str) -> Iterator[JobEvent]:
        """Yield an event if the job waits for something else than before."""
        if self._wanted.events and waits != self._waits:
            self._waits = waits
            yield added(job_events.Waiting(waits))


def added(body: job_events.Body) -> JobEvent:
    """Return an event that this process adds."""
    return JobEvent(0, 0, time.time(), body)
