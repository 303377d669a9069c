"""A fast source before a slow operator, in threads and in processes: memory stays flat, and no record is lost.

The same holds for a file that one process reads for itself and for a slow one.
"""

import resource
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from megaflow.program import Worker
from megaflow.timely import Exchange, Pipeline
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from tests.cluster.processes import Run, run_processes
from tests.results import check_equal, comparing
from tests.timely.cases import taking

pytestmark = pytest.mark.cluster

RECORDS = 600 * BATCH_RECORDS
RECORD_BYTES = 250
SLOW_SECONDS = 0.002  # for each batch; the source could make all of them in a fraction of the time
GROWTH_BYTES_MAX = 45 << 20  # all records together take more than twice as much
QUEUED_MAX = Bounds().window_records + 2 * BATCH_RECORDS


def fast_and_slow(worker: Worker) -> tuple[int, int, int, int]:
    """Return the records that arrived, their sum, the most that waited here or were under way from here, and bytes of
    growth.
    """
    arrived = total = most = 0

    def source(capability: Any, info: Any) -> Any:
        made = iter(range(RECORDS if worker.index == 0 else 0))

        def logic(output: Any) -> None:
            for _ in range(16):
                if not capability.held or output.is_full():
                    return
                batch = [f"{number:>0{RECORD_BYTES}}" for number in islice(made, BATCH_RECORDS)]
                output.session(capability).give_batch(batch)
                if not batch:
                    capability.release()
            info.activator.activate()

        return logic

    def slow(time_: Any, batch: list[str]) -> None:
        nonlocal arrived, total
        time.sleep(SLOW_SECONDS)
        arrived += len(batch)
        total += sum(map(int, batch))

    with worker.dataflow() as scope:
        fast = scope.source("Fast", source)
        spread = fast.unary(Exchange(lambda text: 1), "Takes", taking)
        probe = spread.unary(Pipeline(), "TakesToo", taking).inspect_batch(slow).probe()
    graph, before = worker.graphs()[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while not probe.done():
        worker.step_or_park(0.1)
        ends = [handoff.end for handoff in graph.handoffs._all]
        used = [end.credits.used(1 - worker.index) for end in ends if end.credits is not None]
        most = max(most, *used, *(end.queue.records for end in ends))
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return arrived, total, most, growth


@pytest.mark.parametrize(
    ("processes", "workers"),
    [pytest.param(1, 2, id="threads", marks=pytest.mark.slow), pytest.param(2, 1, id="processes")],
)
def test_queues_and_memory_stay_within_bounds_and_every_record_arrives(processes: int, workers: int) -> None:
    results = run_processes(fast_and_slow, processes, workers)
    check_equal([arrived for arrived, _, _, _ in results], [0, RECORDS])
    check_equal(results[1][1], RECORDS * (RECORDS - 1) // 2)
    assert max(most for _, _, most, _ in results) <= QUEUED_MAX
    assert max(growth for _, _, _, growth in results) < GROWTH_BYTES_MAX < RECORDS * RECORD_BYTES / 2


LINES = 450_000
UNDER_WAY_MAX = 4 * Bounds().window_records  # under way, taken and not yet due, and both once more at the reader

# Worker 0 reads; worker 1 is slow. Both keep their progress in a file, where the slow one sees how much lies between
# them.
BETWEEN = """
import os, time

def dataflow(flow):
    me, done = flow.worker.index, [0, 0, 0]  # lines read, records applied by worker 0, by worker 1
    shared = os.open(flow.args[0], os.O_RDWR)

    def note(place):
        done[place] += 1
        os.pwrite(shared, done[place].to_bytes(8, "little"), 8 * place)

    def read(line):
        assert me == 0, "one worker reads a file"
        note(0)
        return int(line) % 1000, None

    def apply(key, value, total):
        note(1 + me)
        if me == 0:
            return None, []
        if done[2] % 60 == 0:
            time.sleep(0.001)
        lines, fast, slow = (int.from_bytes(os.pread(shared, 8, 8 * place), "little") for place in range(3))
        return None, [lines - fast - slow]

    return flow.lines().map(read).stateful_state_machine(apply)
"""


@pytest.mark.slow
def test_the_reader_of_a_file_waits_for_a_slow_process_that_reads_none(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app, numbers, shared = tmp_path / "between.py", tmp_path / "numbers.txt", tmp_path / "shared"
    app.write_text(BETWEEN)
    numbers.write_text("\n".join(map(str, range(LINES))))
    shared.write_bytes(bytes(24))
    code, output, said = start(str(app), "--lines", str(numbers), "--processes", "2", "--", str(shared)).end()
    assert code == 0, said
    with comparing():
        assert said[-1].startswith(f"megaflow: {LINES} lines"), said
    assert max(map(int, output.split())) <= UNDER_WAY_MAX < LINES / 2
