"""Requests at their due times, whether or not earlier ones are done; every nanosecond is a separate timestamp."""

from time import perf_counter_ns

import pytest

from megaflow.program import Worker
from megaflow.timely import InputHandle
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY

RATE, SECONDS = 1000, 0.3  # requests a second on each worker


def open_loop(worker: Worker) -> list[int]:
    """Return for each request the nanoseconds from its due time until the probe reported it as done."""
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow() as scope:
        probe = scope.input_from(handle).exchange(lambda x: x).probe()
    due = [round(i * 1e9 / RATE) for i in range(int(RATE * SECONDS))]
    latencies: list[int] = []
    sent = 0
    began = perf_counter_ns()
    while len(latencies) < len(due):
        now = perf_counter_ns() - began
        while sent < len(due) and due[sent] <= now:
            handle.advance_to(due[sent])
            handle.send(sent)
            sent += 1
        if sent == len(due):
            handle.close()
        else:
            handle.advance_to(now)
        worker.step()
        done = perf_counter_ns() - began
        while len(latencies) < sent and not probe.less_equal(due[len(latencies)]):
            latencies.append(done - due[len(latencies)])
    return latencies


def survivors(latencies: list[int]) -> list[tuple[int, float]]:
    """Return the share of requests that took longer than 1, 2, 4, … nanoseconds."""
    return [(1 << k, sum(each > 1 << k for each in latencies) / len(latencies)) for k in range(40)]


@pytest.mark.parametrize("workers", EVERY)
def test_every_request_of_an_open_loop_is_retired(workers: int) -> None:
    """Case 59."""
    for latencies in run_threads(workers, open_loop):
        assert len(latencies) == int(RATE * SECONDS)
        assert min(latencies) > 0
        shares = [share for _, share in survivors(latencies)]
        assert shares == sorted(shares, reverse=True)
        assert (shares[0], shares[-1]) == (1.0, 0.0)
