"""Busy and silent workers, which the launcher recognizes by the heartbeats of their processes.

A process is silent if it has given no sign for SILENT_SECONDS. It is suspended, starved of CPU time, or in C code that
holds the interpreter's lock. A process that was started by hand gives the launcher no signs.
"""

import time
from collections.abc import Callable, Iterable

from megaflow.control.launcher_messages import BusyReport
from megaflow.control.reports import BUSY_REPORTED_MAX, BusyWorker
from megaflow.control.wording import busy_text, busy_where
from megaflow.job.heartbeat import LongStep
from megaflow.job.job_file import process_state
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children

SILENT_SECONDS = 2.0  # four signs
START_SECONDS = 10.0  # for a process to give its first sign: its imports take long on a busy machine
TOLD_SECONDS = 10.0  # in one step before it is reported to the user, and between two reports


def who_is_busy(children: Children) -> BusyReport:
    """Return the workers that are busy or silent now, longest first. Any thread."""
    now = time.monotonic()
    found = [busy for child in list(children.all) for busy in _busy_of(child, now)]
    found.sort(key=lambda busy: -busy.seconds)
    coordinator = children.at(children.coordinator)
    return BusyReport(tuple(found[:BUSY_REPORTED_MAX]), () if coordinator is None else coordinator.workers)


def is_in_a_step(child: Child) -> bool:
    """Return whether a process sends heartbeats while one of its workers is in a long step, such as user code."""
    return any(each.state == "busy" for each in _busy_of(child, time.monotonic()))


def where_it_is(child: Child) -> str:
    """Return where a process has been for a long time, as text to follow `has been`; "" if unknown."""
    return next((busy_where(each) for each in _busy_of(child, time.monotonic())), "")


def _busy_of(child: Child, now: float) -> Iterable[BusyWorker]:
    if child.sign is None or child.process is None or child.process.returncode is not None:
        return
    sign, pid = child.sign.read(), child.process.pid
    quiet = now - sign.now
    if quiet >= (SILENT_SECONDS if sign.now > child.sign.began else START_SECONDS):
        state, place = "?" if child.host else process_state(pid), _place(sign.busy[0]) if sign.busy else ()
        if state:
            yield BusyWorker(child.workers, pid, quiet, "suspended" if state in ("T", "t") else "silent", *place)
        return
    for step in sign.busy:
        workers = child.workers if step.worker is None else (step.worker,)
        yield BusyWorker(workers, pid, now - step.since, "busy", *_place(step))


def _place(step: LongStep) -> tuple[str | None, ...]:
    return step.function, step.where, step.operator, step.record, step.waits


class BusyWords:
    """Reporter to the user of workers that stay busy and outputs that wait: each once, and not too often."""

    def __init__(self, children: Children, report: Callable[[str], None], waits_text: Callable[[], str]) -> None:
        """`waits_text` returns what the output waits for; "" for nothing."""
        self._children = children
        self._report = report
        self._waits_text = waits_text
        self._is_waiting = False  # and the user knows
        self._told: dict[tuple[int, tuple[int, ...]], float] = {}  # (pid, workers) -> seconds busy when reported
        self._next = 0.0  # time of the next report, in seconds of time.monotonic()

    def look(self) -> None:
        """Report a new wait of the output, and the longest-busy worker not yet reported if a report is due."""
        waits = self._waits_text()
        if waits and not self._is_waiting:
            self._report(waits)
        self._is_waiting = bool(waits)
        now = time.monotonic()
        known = {(each.pid, each.workers): each for each in who_is_busy(self._children).busy}
        self._told = {
            key: seconds for key, seconds in self._told.items() if key in known and known[key].seconds >= seconds
        }
        for key, each in known.items():
            if each.seconds >= TOLD_SECONDS and now >= self._next and key not in self._told:
                self._told[key] = each.seconds
                self._next = now + TOLD_SECONDS
                self._report(busy_text(each))
