"""Busy and silent workers, as the launcher sees them by their processes' signs of life.

A process that has given no sign for SILENT_SECONDS is silent: it is suspended, in C code that holds the interpreter's
lock, or starved. A process that was started by hand gives no signs to the launcher.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from megaflow.control.launcher_messages import BusyReport
from megaflow.control.reports import BUSY_REPORTED_MAX, BusyWorker
from megaflow.control.wording import busy_text
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.children import Children
from megaflow.job.sign_of_life import LongStep

SILENT_SECONDS = 2.0  # four signs
START_SECONDS = 10.0  # for a process to give its first sign: what it loads first takes long on a busy machine
TOLD_SECONDS = 10.0  # in one step, from when the user is told; and between two times that the user is


def who_is_busy(children: Children) -> BusyReport:
    """Return who is busy now, the longest first; any thread."""
    now = time.monotonic()
    found = [busy for child in list(children.all) for busy in _busy_of(child, now)]
    found.sort(key=lambda busy: -busy.seconds)
    coordinator = children.at(children.coordinator)
    return BusyReport(tuple(found[:BUSY_REPORTED_MAX]), () if coordinator is None else coordinator.workers)


def is_in_a_step(child: Child) -> bool:
    """Tell whether a process gives signs of life, and one of its workers is in a long step, of user code say."""
    return any(each.state == "busy" for each in _busy_of(child, time.monotonic()))


def _busy_of(child: Child, now: float) -> Iterable[BusyWorker]:
    if child.sign is None or child.process is None or child.process.returncode is not None:
        return
    sign, pid = child.sign.read(), child.process.pid
    quiet = now - sign.now
    if quiet >= (SILENT_SECONDS if sign.now > child.sign.began else START_SECONDS):
        state, place = "?" if child.host else _state(pid), _place(sign.busy[0]) if sign.busy else ()
        if state is not None:
            yield BusyWorker(child.workers, pid, quiet, "suspended" if state in ("T", "t") else "silent", *place)
        return
    for step in sign.busy:
        yield BusyWorker((step.worker,), pid, now - step.since, "busy", *_place(step))


def _place(step: LongStep) -> tuple[str | None, ...]:
    return step.function, step.where, step.operator, step.record


def _state(pid: int) -> str | None:
    """Return a process's state, as the kernel calls it; None if it has ended. "?" where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else "?"
    state = text.rpartition(")")[2].split()[0]
    return None if state in "ZX" else state


class BusyWords:
    """Tells the user of workers that are busy for long, and of what the output waits for: once each, and not often."""

    def __init__(
        self, children: Children, report: Callable[[str], None], waits_text: Callable[[], str] = lambda: ""
    ) -> None:
        """`waits_text` says what the output waits for; "" for nothing."""
        self._children = children
        self._report = report
        self._waits_text = waits_text
        self._is_waiting = False  # the user was told
        self._told: dict[tuple[int, tuple[int, ...]], float] = {}  # (pid, workers) -> for how many seconds when told
        self._next = 0.0  # seconds of time.monotonic()

    def look(self) -> None:
        """Tell of the first that was not told of, if it is time."""
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
