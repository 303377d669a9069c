"""A run's summary is the sum of its workers. Its memory does not grow as workers come and go."""

import pytest

from megaflow.control.latency import WINDOW_SECONDS, WINDOWS_MAX, LatencyLog, merged
from megaflow.control.launcher_messages import Ended, LatencyWindow
from megaflow.control.reports import LatencyQuantiles, MissingPartition
from megaflow.errors import SourceError
from megaflow.job.launcher.run.run_summary import LATENCY_SECONDS, RunSummary, report_end
from tests.words import says


def windows(begin: int, count: int, bucket: int = 0) -> tuple[LatencyWindow, ...]:
    """Return the windows of `tenths` tenths of a second, each with a line."""
    return tuple(LatencyWindow(tenth * WINDOW_SECONDS, {bucket: 1}, 1.0) for tenth in range(begin, begin + count))


def test_workers_are_added_up_and_latencies_long_before_the_newest_are_dropped() -> None:
    summary = RunSummary()
    for worker in range(10):  # one leaves each minute, and was there for thirty seconds
        summary.add(Ended(worker, 2, 3, windows(600 * worker, 300), (float(worker), worker + 0.5)))
    assert (summary.lines, summary.records, summary.flow_seconds) == (20, 30, 9.5)
    starts = [window.start for window in summary.latency]
    newest = (600 * 9 + 299) * WINDOW_SECONDS
    assert starts == sorted(starts) and starts[-1] == newest and 0 <= starts[0] - (newest - LATENCY_SECONDS) < 31


def test_latency_between_two_moments_is_that_of_the_windows_there() -> None:
    summary = RunSummary()
    summary.add(Ended(0, 2, 2, (LatencyWindow(1.0, {0: 3}, 1.0), LatencyWindow(2.0, {100: 1}, 40.0))))
    assert summary.latency_between(0.0, 2.0) == LatencyQuantiles(1.0, 1.0, 1.0)
    assert summary.latency_between(2.0, 9.0) == LatencyQuantiles(40.0, 40.0, 40.0)
    assert summary.latency_between(3.0, 9.0) == LatencyQuantiles()


def test_latencies_of_one_moment_are_one_window() -> None:
    summary = RunSummary()
    summary.add(Ended(0, 5, 5, windows(10, 5)))
    summary.add(Ended(1, 3, 3, windows(12, 3, bucket=7)))
    assert [len(window.buckets) for window in summary.latency] == [1, 1, 2, 2, 2]
    assert merged(summary.latency).buckets == {0: 5, 7: 3}


def test_a_summary_holds_no_more_the_more_workers_have_left() -> None:
    summary = RunSummary()
    for worker in range(30):  # four at a time, each for its minute
        summary.add(Ended(worker, 1, 1, windows(150 * worker, 600), (float(worker), worker + 60.0)))
        assert len(summary.latency) <= WINDOWS_MAX + 1 and len(summary.flows) == 1
    assert (summary.lines, summary.flow_seconds) == (30, 89.0)


def test_the_log_of_a_worker_is_bounded() -> None:
    log = LatencyLog()
    for tenth in range(3 * WINDOWS_MAX):
        log.add(tenth * WINDOW_SECONDS, 2.0, 1)
    assert len(log.windows()) == WINDOWS_MAX == LATENCY_SECONDS / WINDOW_SECONDS


def test_a_worker_that_had_nothing_to_do_adds_nothing() -> None:
    summary = RunSummary()
    summary.add(Ended(0, 0, 0))
    assert summary == RunSummary()


@pytest.mark.parametrize("unread, words", [(14, "14 bytes are not read"), (None, "it is not read")])
def test_unread_bytes_are_an_error_unless_a_next_run_reads_them(unread: int | None, words: str) -> None:
    summary, reports = RunSummary(3, 3, 0.4), list[str]()
    report_end(summary, "line", False, reports.append)
    summary.add(Ended(0, 0, 0, missing=(MissingPartition("", "'a.log' is locked", 1, (0, 1), unread),)))
    report_end(summary, "line", True, reports.append)
    with pytest.raises(SourceError) as error:
        report_end(summary, "line", False, reports.append)
    assert says(str(error.value), "'a.log' is locked", "workers 0, 1", words)
    assert len(reports) == 3 and len({*reports}) == 1
