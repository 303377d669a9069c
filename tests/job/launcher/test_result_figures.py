"""Figures of a job for Spark's metrics, from statuses and last reports."""

from collections.abc import Iterator
from typing import Any

import pytest

from megaflow.control.checkpoint_messages import LeftOut
from megaflow.control.launcher_messages import Ended
from megaflow.control.reports import JobStatus, LatencyQuantiles, UsefulTime, WorkerStatus
from megaflow.errors import UsageError
from megaflow.job.launcher.outputs.result_figures import ResultFigures
from megaflow.job.launcher.run.python_function import FrameOptions


def worker(id: int, lines: int, late: int = 0) -> WorkerStatus:
    useful = {"totals": UsefulTime(lines, 0.0, late)}
    return WorkerStatus(id, "running", 1, "", lines, lines, 0.0, LatencyQuantiles(), 8, keys=3, useful=useful)


def status(*workers: WorkerStatus, **more: Any) -> JobStatus:
    return JobStatus("job", "running", 5, 5, workers, (), **more)


def test_figures_add_up_all_workers_and_those_that_left() -> None:
    figures = ResultFigures()
    assert figures.newest.rows_in is None
    figures.note_status(status(worker(0, 10, late=1), worker(1, 20), taken_before={"rows": 7}), restarts=2)
    newest = figures.newest
    assert (newest.rows_in, newest.late_rows, newest.state_rows, newest.workers) == (37, 1, 6, 2)
    assert newest.restarts == 2


def test_last_reports_replace_the_status_once_all_have_come() -> None:
    figures = ResultFigures()
    figures.note_status(status(worker(0, 10), worker(1, 20)), restarts=0)
    figures.note_end(Ended(0, 12, 12, keys=4))
    assert figures.newest.rows_in == 30
    figures.note_end(Ended(1, 25, 25, left_out=LeftOut(late={"totals": 6}), keys=5, state_bytes=90))
    newest = figures.newest
    assert (newest.rows_in, newest.state_rows, newest.state_bytes, newest.late_rows) == (37, 9, 90, 6)


def test_a_restart_forgets_reports_of_the_attempt_before() -> None:
    figures = ResultFigures()
    figures.note_end(Ended(0, 50, 50))
    figures.note_status(status(worker(0, 3)), restarts=1)
    assert (figures.newest.rows_in, figures.newest.restarts) == (3, 1)
    figures.note_status(status(), restarts=1)  # no worker answers during a recovery
    assert figures.newest.rows_in == 3


def test_figures_have_a_name_or_are_left_out() -> None:
    assert (FrameOptions().observed(), FrameOptions(observe=None).observed()) == ("megaflow", "")
    for wrong in ("", 5):
        with pytest.raises(UsageError, match="observe: Give a name"):
            FrameOptions(observe=wrong).observed()  # type: ignore[arg-type]


def test_a_question_gets_a_status_that_comes_after_it() -> None:
    figures, told = ResultFigures(), list[int | None]()
    figures.ask(lambda: told.append(figures.newest.rows_in))
    assert told == [None], "no thread asks for the status"

    def statuses() -> Iterator[JobStatus]:
        yield status(worker(0, 1))
        figures.ask(lambda: told.append(figures.newest.rows_in))
        assert len(told) == 1
        figures.pause(600.0)  # not long
        yield status(worker(0, 2))
        assert told[1:] == [2]
        figures.ask(lambda: told.append(figures.newest.rows_in))

    figures.watch(statuses(), lambda: 0)
    assert told[2:3] == [2], "no other status comes"
