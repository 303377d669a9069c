"""CPU cost of checkpoints for a state machine, without a store: tracking changed keys, cutting and encoding.

    python -m apps.bench.checkpoints [--records N] [--repeat N]

One worker in this process counts words, a few of them frequent, and numbers up to a million, all of them rare. It runs
in three ways: without durability, durable without a checkpoint, and with a checkpoint every second or after 20 times
the duration of the last one, if that is longer. The rate is records per second of the thread's CPU time, so other
programs on the machine matter little. The ways take turns. The table has the median of each, relative to the first.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from megaflow.durable.blocks import Block
from megaflow.megaphone.base.durability import Durability, Piece
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.program import Worker, execute
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.runtime import Config

BATCH = 1000
BATCHES_PER_EPOCH = 10
PAUSE_SECONDS = 1.0  # of CPU time between two checkpoints, at least
PAUSES = 20  # times the duration of the last checkpoint, at least
KINDS = ("not durable", "durable", "checkpoints")


class Sink:
    """Counts the bytes written."""

    def __init__(self) -> None:
        self.bytes = self.keys = self.cuts = 0

    def take(self, piece: Piece, block: Block | None) -> None:
        if block is None:
            self.cuts += 1
        else:
            self.bytes += len(block.keys) + len(block.states)
            self.keys += block.count


def count(key: Any, one: int, total: int | None) -> tuple[int, list[Any]]:
    total = (total or 0) + one
    return total, [(key, total)]


def run(kind: str, batches: Sequence[list[Any]]) -> tuple[float, float, Sink]:
    """Count all batches once to warm up, then again; return CPU seconds, those of the longest step, and the sink."""
    sink = Sink()

    def main(worker: Worker) -> tuple[float, float]:
        records: InputHandle[Any] = InputHandle()
        commands: InputHandle[Any] = InputHandle()
        with worker.dataflow() as scope:
            if kind != "not durable":
                scope.ref.graph.extension(Durability).sink = sink.take
            control = scope.input_from(commands)
            probe = scope.input_from(records).stateful_state_machine(count, control=control, name="count").probe()
        for batch in batches:
            records.send_batch(list(batch))
        [operator] = worker.stateful
        number, longest, began, due = 0, 0.0, 0.0, 0.0
        for epoch in range(1, 1 + len(batches) // BATCHES_PER_EPOCH):
            records.advance_to(epoch)
            commands.advance_to(epoch)
            while probe.less_than(epoch):
                worker.step()
            if epoch == 1:
                began = time.thread_time()
                due = began + PAUSE_SECONDS
            elif kind == "checkpoints" and (now := time.thread_time()) > due:
                number, due = number + 1, now + max(PAUSE_SECONDS, PAUSES * operator.journal.seconds)
                commands.send(Checkpoint(number, number - 1 or None))
            for batch in batches[(epoch - 1) * BATCHES_PER_EPOCH : epoch * BATCHES_PER_EPOCH]:
                records.send_batch(list(batch))
        before = time.thread_time()
        records.close()
        commands.close()
        while worker.step():
            now = time.thread_time()
            longest, before = max(longest, now - before), now
        return time.thread_time() - began, longest

    [(seconds, longest)] = execute(Config.thread(), main)
    return seconds, longest, sink


def draw(what: str, count: int) -> list[list[Any]]:
    """Split the records into batches."""
    rng = random.Random(11)
    if what == "words":
        keys: list[Any] = [f"word{min(int(rng.paretovariate(0.6)), 25_000)}" for _ in range(count)]
    else:
        keys = [rng.randrange(1_000_000) for _ in range(count)]
    return [[(key, 1) for key in keys[start : start + BATCH]] for start in range(0, count, BATCH)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--what", default="words,numbers")
    options = parser.parse_args()
    for what in options.what.split(","):
        batches = draw(what, options.records)
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        said: dict[str, str] = {}
        for _ in range(options.repeat):
            for kind in KINDS:
                seconds, _, sink = run(kind, batches)
                found[kind].append(options.records / seconds / 1e6)
                said[kind] = f"{sink.cuts} cuts, {sink.keys / max(1, sink.cuts):,.0f} keys, {sink.bytes >> 20} MiB"
        for kind in KINDS:
            rate = statistics.median(found[kind])
            share = statistics.median(a / b for a, b in zip(found[kind], found["not durable"], strict=True))
            print(f"{what:8} {kind:12} {rate:6.2f} M/s of CPU   {share:5.2f}   {said[kind]}")


if __name__ == "__main__":
    main()
