"""S18: CPU time of a record as the number of processes grows: running counts of random ints, exchanged by key.

Processes compete for the processors, so elapsed seconds say little. The figure is the CPU time of all processes. The
time to start and connect is subtracted: it is the CPU time of the same program with hardly any records. Each process
sends its share in epochs of some batches, and waits while the probe is more than a few epochs behind. Its garbage
collector has the settings of a job's process.
"""

import random
import resource
from collections.abc import Sequence
from functools import partial

from apps.bench.cluster import run_cluster
from apps.bench.plain import LATENCY_KEYS as KEYS
from apps.bench.report import Found, Goal
from apps.bench.workload import PLAIN, Setting, Step, Workload, check_count, one, plain
from apps.wordcount import count
from megaflow.job.worker.process.child import settle_memory
from megaflow.timely import InputHandle, ProbeHandle, Worker

COST = "µs of a processor a record"
PROCESSES, PROCESSES_QUICK = (1, 2, 4, 8, 16), (1, 2)
RECORDS, RECORDS_QUICK = 6_000_000, 300_000
BLOCK_RECORDS = 20_000  # drawn during the start, and sent again and again
EPOCH_RECORDS = 7_000
LAG_EPOCHS = 5
MICRO = 1e6


def main(worker: Worker) -> int:
    """Send this worker's share of `records`; return how many counts came out here."""
    share = int(worker.args[0]) // worker.peers
    draw = random.Random(worker.index).randrange
    block = [(draw(KEYS), 1) for _ in range(BLOCK_RECORDS)]
    handle: InputHandle[tuple[int, int]] = InputHandle()
    probe = ProbeHandle()
    came = 0

    def note(epoch: object, batch: list[tuple[int, int]]) -> None:
        nonlocal came
        came += len(batch)

    with worker.dataflow("processor time") as scope:
        scope.input_from(handle).stateful_state_machine(count).inspect_batch(note).probe_with(probe)
    settle_memory()
    sent = epoch = 0
    while sent < share:
        at = sent % BLOCK_RECORDS
        part = block[at : min(at + EPOCH_RECORDS, at + share - sent)]
        handle.send_batch(part)
        sent += len(part)
        epoch += 1
        handle.advance_to(epoch)
        worker.step_while(partial(probe.less_than, epoch - LAG_EPOCHS))
    handle.close()
    worker.step_while(lambda: not probe.done())
    return came


def processor_seconds(processes: int, records: int) -> float:
    """Run the program; return the CPU time of all its processes. Raises WrongCounts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    came = sum(run_cluster(main, processes, [records]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    check_count(row(processes), came, records // processes * processes)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(processes: int) -> str:
    """Return the name of a contender."""
    return f"megaflow, {processes} process{'es' if processes > 1 else ''}"


def run_plain(records: int) -> Found:
    """Run the plain loop."""
    return one(PLAIN, {COST: MICRO * plain("ints", str(records))["processor_seconds"] / records})


def run_processes(processes: int, records: int) -> Found:
    """Run the program with all records and with hardly any; return the figures."""
    both = processor_seconds(processes, records), processor_seconds(processes, processes)
    return one(row(processes), {COST: MICRO * (both[0] - both[1]) / records})


def steps(numbers: Sequence[int], records: int) -> Sequence[Step]:
    """Return the contenders."""
    several = [Step(row(each), lambda each=each: run_processes(each, records)) for each in numbers]  # type: ignore[misc]
    return (Step(PLAIN, lambda: run_plain(records)), *several)


def open_processes(setting: Setting) -> Sequence[Step]:
    """Return the contenders. This workload needs no files."""
    return steps(PROCESSES_QUICK if setting.quick else PROCESSES, setting.size(RECORDS, RECORDS_QUICK))


S18 = Workload(
    "S18",
    "processor time a record as processes grow, 10,000 keys",
    open_processes,
    (Goal(row(16), COST, 1.2),),
    notes=("of all processes together, without what their start takes; with 16 of them 15 in 16 records are sent",),
)
