"""What a run came to is the sum of its workers, without holding more the longer they come and go."""

from megaflow.control.launcher_messages import Ended, LatencyWindow
from megaflow.job.launcher.run_summary import RunSummary


def test_workers_are_added_up_and_latencies_older_than_ten_minutes_before_the_newest_are_dropped() -> None:
    summary = RunSummary()
    for worker in range(10):  # one leaves every five minutes, and was there for two
        windows = tuple(LatencyWindow(300.0 * worker + second, {0: 1}, 1.0) for second in range(120))
        summary.add(Ended(worker, 2, 3, windows, (float(worker), worker + 0.5)))
    assert (summary.lines, summary.records, summary.flow_seconds) == (20, 30, 9.5)
    starts = [window.start for window in summary.latency]
    newest = 300.0 * 9 + 119
    assert starts == sorted(starts) and starts[0] == newest - 600 and starts[-1] == newest and len(starts) == 241


def test_a_worker_that_had_nothing_to_do_adds_nothing() -> None:
    summary = RunSummary()
    summary.add(Ended(0, 0, 0))
    assert summary == RunSummary()
