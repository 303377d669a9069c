"""S14: cost of a store: rates of word and number counts with `--state` and without, and latency with checkpoints.

A checkpoint is due each second, as by default, but not before 20 times the duration of the last one have passed. A
rate is measured from the first line read to the last epoch closed, in runs that are long enough for several
checkpoints. Stores are in the folder for temporary files.

Latency is that of S4, in an engine program on two processes: the time from the moment a record is due until its new
count comes out. Both processes start their ticks at the same agreed moment. Otherwise the later start of one process
would add to every latency, with or without checkpoints.

The program has a million keys when the clock starts, and up to 50,000 of them change between two checkpoints. The
first checkpoint has all keys and falls into the second of warm-up. Checkpoints are cut, packed, written and synced as
in a job, but no launcher commits them.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from apps.bench import random_keys, wordcount
from apps.bench.cluster import run_cluster
from apps.bench.latency import HEAD_START_SECONDS, P99, WARM_UP_SECONDS, Counted, count, figures
from apps.bench.plain import TICK_SECONDS, keys_of_ticks
from apps.bench.report import Found, Goal
from apps.bench.workload import Setting, Step, Workload, check_count, one, peer
from apps.wordcount import dataflow
from megaflow.control.checkpoint_messages import CutFailed
from megaflow.durable.incarnation import DurablePart
from megaflow.durable.local_folder import open_for_a_job
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec
from megaflow.job.worker.process.child import settle_memory
from megaflow.job.worker.snapshots.state_backend import StateBackend
from megaflow.megaphone.base.durability import Durability
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.timely import InputHandle, ProbeHandle, Worker

RATE = "M records/s"
MEGA = 1e6
WORDS, NUMBERS, STATE = "words", "numbers", ", --state"
COPIES, COPIES_QUICK = 20, 1  # copies of the text, for some seconds
KEYS, KEYS_QUICK = 1_000_000, 50_000
RECORDS_PER_KEY = 10
BYTEWAX_SHARE = 10  # Bytewax gets one number for ten keys: with its store, a million took more than 15 minutes
LATE_RATE, LATE_RATE_QUICK = 50_000, 5_000
LATE_SECONDS, LATE_SECONDS_QUICK = 8, 2
EVERY_SECONDS = 1.0
PROCESSES = 2
BATCH = 1000  # keys
CALM, BESIDE = "latency, no checkpoints", "latency, a checkpoint a second"


def run_job(app: Callable[[Any], Any], path: Path, records: int, kept: bool) -> float:
    """Run a job to the end of its lines, with a new store or without; return millions of records a second."""
    with tempfile.TemporaryDirectory(prefix="megaflow-store-") as folder:
        state = str(Path(folder) / "store") if kept else None
        account = launch(LaunchOptions(JobSpec(pickle_app(app), state=state), str(path)))
    check_count(path.name, account.records, records)
    return records / account.flow_seconds / MEGA


def run_bytewax(setting: Setting, row: str, path: Path, kind: str, kept: bool) -> Found:
    """Run Bytewax, with a recovery store and a snapshot a second, or without."""
    with tempfile.TemporaryDirectory(prefix="megaflow-store-") as folder:
        words: list[str | Path] = [path, kind, "1", "1", *([f"state={folder}"] if kept else [])]
        record = peer(setting.peers, "bytewax_wordcount.py", "Bytewax", *words)
    return one(row, {RATE: record["records"] / record["seconds"] / MEGA})


def rates(
    setting: Setting, kind: str, app: Callable[[Any], Any], path: Path, records: int, for_bytewax: Path
) -> Iterator[Step]:
    """Return the contenders for one input. Bytewax may have a smaller one."""

    def run(row: str, kept: bool) -> Found:
        return one(row, {RATE: run_job(app, path, records, kept)})

    for kept in False, True:
        row = f"megaflow, {kind}{STATE if kept else ''}"
        yield Step(row, partial(run, row, kept))
    for kept in False, True:
        row = f"Bytewax, {kind}{', recovery store' if kept else ''}"
        yield Step(row, partial(run_bytewax, setting, row, for_bytewax, kind, kept), setting.size(3, 1))


def main(worker: Worker) -> dict[str, Any]:
    """Send this worker's share of the records when they are due. Worker 0 also sends the checkpoints.

    `worker.args`: records a second, seconds, keys, and optionally the folder of a store. Returns the latencies of the
    records that came out here, the numbers of records that came and were sent, and the number of checkpoints written.
    """
    rate, seconds, keys = map(float, worker.args[:3])
    ticks = round((seconds + WARM_UP_SECONDS) / TICK_SECONDS)
    due_keys = keys_of_ticks(rate / worker.peers, ticks, worker.index, int(keys))
    handle: InputHandle[tuple[int, float]] = InputHandle()
    commands: InputHandle[Checkpoint] = InputHandle()
    probe = ProbeHandle()
    counted = Counted()
    kept = StateBackend(worker, DurablePart(worker.args[3], 1, None)) if worker.args[3:] else None

    def advance(epoch: int) -> None:
        handle.advance_to(epoch)
        commands.advance_to(epoch)

    with worker.dataflow("latency") as scope:
        control = scope.input_from(commands)
        if kept is not None:
            kept.equip(control.port.scope.graph.extension(Durability))
        out = scope.input_from(handle).stateful_state_machine(count, control=control)
        out.inspect_batch(counted.note).probe_with(probe)
    own = [(key, 0.0) for key in range(worker.index, int(keys), worker.peers)]
    for begin in range(0, len(own), BATCH):
        handle.send_batch(own[begin : begin + BATCH])
    advance(1)
    worker.step_while(lambda: probe.less_than(1))  # both processes have started, and all keys have their state
    settle_memory()
    start = agreed_start(worker)
    counted.ready = start + WARM_UP_SECONDS
    checkpoints, next_at = 0, start
    for tick, keys_now in enumerate(due_keys):
        due = start + tick * TICK_SECONDS
        while (left := due - time.monotonic()) > 0:
            worker.step_or_park(left)
        if kept is not None and worker.index == 0 and due >= next_at:
            checkpoints, next_at = checkpoints + 1, next_at + EVERY_SECONDS
            commands.send(Checkpoint(checkpoints, checkpoints - 1 or None))
        handle.send_batch([(key, due) for key in keys_now])
        advance(tick + 2)
        worker.step()
    handle.close()
    commands.close()
    worker.step_while(lambda: not probe.done())
    reports = written(kept)
    sent = sum(map(len, due_keys)) + len(own)
    return {"late": counted.late, "came": counted.came, "sent": sent, "written": reports}


def agreed_start(worker: Worker) -> float:
    """Return the moment from which records are due. It is the same on all workers, and all are ready for it.

    Otherwise a record would also wait for a worker that starts later, because no time is complete before all have
    sent.
    """
    handle: InputHandle[float] = InputHandle()
    probe = ProbeHandle()
    found: list[float] = []
    with worker.dataflow("start") as scope:
        scope.input_from(handle).broadcast().inspect(found.append).probe_with(probe)
    handle.send(time.monotonic() + HEAD_START_SECONDS)
    handle.close()
    worker.step_while(lambda: not probe.done())
    return max(found)


def written(kept: StateBackend | None) -> int:
    """Wait for pending writes; return the number of checkpoints whose part of this worker is written."""
    if kept is None:
        return 0
    kept.keeper.finish()
    reports = kept.keeper.take_reports()
    if failed := [each.reason for each in reports if isinstance(each, CutFailed)]:
        raise OSError(failed[0])
    return len(reports)


def run_latency(row: str, rate: int, seconds: int, keys: int, kept: bool) -> Found:
    """Run the program on two processes."""
    with tempfile.TemporaryDirectory(prefix="megaflow-store-") as folder:
        words: list[object] = [rate, seconds, keys]
        if kept:
            store = open_for_a_job(str(Path(folder) / "store"))
            words.append(Path(folder) / "store")
        found = run_cluster(main, PROCESSES, words)
        if kept:
            store.close_folder()
    check_count(row, sum(each["came"] for each in found), sum(each["sent"] for each in found))
    if kept:
        check_count("checkpoints", min(each["written"] for each in found), max(each["written"] for each in found))
    return one(row, figures([late for process in found for late in process["late"]]))


def open_rates(setting: Setting) -> Sequence[Step]:
    """Write the inputs; return the contenders, input by input."""
    text, numbers, fewer = (setting.folder / f"{name}.txt" for name in ("text", "numbers", "fewer"))
    words = wordcount.write_text(setting.text, setting.size(COPIES, COPIES_QUICK), text)
    keys = setting.size(KEYS, KEYS_QUICK)
    random_keys.write_numbers(numbers, keys, keys * RECORDS_PER_KEY)
    random_keys.write_numbers(fewer, keys, keys // BYTEWAX_SHARE)
    size = (setting.size(LATE_RATE, LATE_RATE_QUICK), setting.size(LATE_SECONDS, LATE_SECONDS_QUICK), keys)
    return (
        *rates(setting, WORDS, dataflow, text, words, text),
        *rates(setting, NUMBERS, random_keys.dataflow, numbers, keys * RECORDS_PER_KEY, fewer),
        Step(CALM, lambda: run_latency(CALM, *size, kept=False)),
        Step(BESIDE, lambda: run_latency(BESIDE, *size, kept=True)),
    )


S14 = Workload(
    "S14",
    "what a store costs: a checkpoint a second, and not sooner than 20 times what the last one took",
    open_rates,
    (
        Goal(f"megaflow, {WORDS}{STATE}", RATE, 0.9, at_least=True, of=(f"megaflow, {WORDS}",)),
        Goal(f"megaflow, {NUMBERS}{STATE}", RATE, 0.8, at_least=True, of=(f"megaflow, {NUMBERS}",)),
        Goal(BESIDE, P99, 15.0),
    ),
    base=None,
    notes=(
        "latency: two processes, 50,000 records a second over a million keys; Bytewax has fewer numbers, as text",
        "Bytewax's snapshots go to SQLite, one a second",
    ),
)
