"""S14: what a store costs: words and numbers counted with `--state` and without, and latency beside checkpoints.

A checkpoint is due each second, as by default, and not before 20 times what the last one took. A rate is from the first
line read to the last epoch closed, of runs that are long enough for several checkpoints; stores are in the folder for
temporary files. Latency is that of S4, of a program of the engine on two processes: a record is late until its new
count is out. The ticks of the two are due together, whichever was ready first: before that was so, a record was late by
as much as the other process began later, with checkpoints or without. It has a million keys when the clock starts, of
which up to 50,000 change between two checkpoints; the first one, which has all keys, is in the second of warming up.
They are cut, packed, written and synced as those of a job are; no launcher commits them.
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
from megaflow.job.launcher.epoch_merge import NothingWriter
from megaflow.job.launcher.function_pickler import pickle_app
from megaflow.job.launcher.launch import launch
from megaflow.job.spec import JobSpec
from megaflow.job.worker.child import settle_memory
from megaflow.job.worker.kept_state import KeptState
from megaflow.megaphone.journal import Durability
from megaflow.megaphone.routing import Checkpoint
from megaflow.timely import InputHandle, ProbeHandle, Worker

RATE = "M records/s"
MEGA = 1e6
WORDS, NUMBERS, STATE = "words", "numbers", ", --state"
COPIES, COPIES_QUICK = 20, 1  # of the text: some seconds
KEYS, KEYS_QUICK = 1_000_000, 50_000
RECORDS_PER_KEY = 10
BYTEWAX_SHARE = 10  # it has one number for ten keys: a million took more than 15 minutes with its store
LATE_RATE, LATE_RATE_QUICK = 50_000, 5_000
LATE_SECONDS, LATE_SECONDS_QUICK = 8, 2
EVERY_SECONDS = 1.0
PROCESSES = 2
BATCH = 1000  # keys
CALM, BESIDE = "latency, no checkpoints", "latency, a checkpoint a second"


def run_job(app: Callable[[Any], Any], path: Path, records: int, kept: bool) -> float:
    """Run a job to the end of its lines, with a new store or with none; return millions of records a second."""
    with tempfile.TemporaryDirectory(prefix="megaflow-store-") as folder:
        state = str(Path(folder) / "store") if kept else None
        account = launch(JobSpec(pickle_app(app), state=state), str(path), NothingWriter)
    check_count(path.name, account.records, records)
    return records / account.flow_seconds / MEGA


def run_bytewax(setting: Setting, row: str, path: Path, kind: str, kept: bool) -> Found:
    """Run Bytewax, with a recovery store that has a snapshot a second or with none."""
    with tempfile.TemporaryDirectory(prefix="megaflow-store-") as folder:
        words: list[str | Path] = [path, kind, "1", "1", *([f"state={folder}"] if kept else [])]
        record = peer(setting.peers, "bytewax_wordcount.py", "Bytewax", *words)
    return one(row, {RATE: record["records"] / record["seconds"] / MEGA})


def rates(
    setting: Setting, kind: str, app: Callable[[Any], Any], path: Path, records: int, for_bytewax: Path
) -> Iterator[Step]:
    """Return who takes turns with one input, of which Bytewax may have another amount."""

    def run(row: str, kept: bool) -> Found:
        return one(row, {RATE: run_job(app, path, records, kept)})

    for kept in False, True:
        row = f"megaflow, {kind}{STATE if kept else ''}"
        yield Step(row, partial(run, row, kept))
    for kept in False, True:
        row = f"Bytewax, {kind}{', recovery store' if kept else ''}"
        yield Step(row, partial(run_bytewax, setting, row, for_bytewax, kind, kept), setting.size(3, 1))


def main(worker: Worker) -> dict[str, Any]:
    """Send this worker's share of the records when they are due, and worker 0 the checkpoints.

    Arguments: records a second, seconds, keys, and the folder of a store, if there is one. Returns how late records
    were that came out here, how many came and were sent, and how many checkpoints were written.
    """
    rate, seconds, keys = map(float, worker.args[:3])
    ticks = round((seconds + WARM_UP_SECONDS) / TICK_SECONDS)
    due_keys = keys_of_ticks(rate / worker.peers, ticks, worker.index, int(keys))
    handle: InputHandle[tuple[int, float]] = InputHandle()
    commands: InputHandle[Checkpoint] = InputHandle()
    probe = ProbeHandle()
    counted = Counted()
    kept = KeptState(worker, DurablePart(worker.args[3], 1, None)) if worker.args[3:] else None

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
    worker.step_while(lambda: probe.less_than(1))  # both processes are there, and all keys are
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
    """Return from when on records are due: a moment for which all workers are ready, the same one for all.

    Else a record would wait, besides, for a worker that began later: no time is complete before all have sent for it.
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


def written(kept: KeptState | None) -> int:
    """Wait for what is being written; return of how many checkpoints this worker has written its part."""
    if kept is None:
        return 0
    kept.finish()
    reports = kept.take_reports()
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
    """Write what is counted; return who takes turns, input by input."""
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
