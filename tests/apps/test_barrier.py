"""apps/barrier.py: a round begins only when every worker has begun the one before."""

import pytest

from apps.barrier import main, rounds_of
from megaflow.program import Worker
from megaflow.timely import Pipeline
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY


@pytest.mark.parametrize("workers", EVERY)
def test_every_worker_does_each_round_once_in_order(workers: int) -> None:
    """Case 8, without the second request."""
    assert run_threads(workers, main, "100") == [list(range(100))] * workers


@pytest.mark.parametrize("workers", EVERY)
def test_no_worker_begins_a_round_before_all_began_the_one_before(workers: int) -> None:
    log: list[int] = []  # appended by every thread

    def logging(worker: Worker) -> None:
        with worker.dataflow() as scope:
            handle, back = scope.feedback(1)
            back.unary_frontier(Pipeline(), "Barrier", rounds_of(200, log.append)).connect_loop(handle)

    run_threads(workers, logging)
    assert log == [number for number in range(200) for _ in range(workers)]
