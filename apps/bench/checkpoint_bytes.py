"""Bytes that checkpoints write, by the number of keys that change between two, and the bytes that a store keeps.

    python apps/bench/checkpoint_bytes.py all [--json] [--plots DIR]

One worker in this process has an int as the state of each key. For each number of keys, it changes that many of them
between two checkpoints, and every key has its turn. Each checkpoint's blocks become one segment, which is measured and
dropped.

The benchmark counts the bytes of blocks and of segments. It counts blocks of changed keys (*deltas*) apart from bins
written whole (*bases*, from which a recovery begins: see `megaflow.megaphone.snapshot.full_snapshots`). Averages are
over the later half of the checkpoints. A store keeps the segments that `megaflow.durable.commits.needed` selects. Its
size is the maximum over the run, and already the first checkpoint holds all states once. Commit files are not included.
None of these numbers depends on the speed of the machine.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, commands, main, plain_axes, size
from megaflow.cli.text import table_text
from megaflow.durable.blocks import Block, BlockKind, CutHeader
from megaflow.durable.segments import SegmentWriter
from megaflow.megaphone.base.durability import Durability, Piece
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.program import Worker, execute
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.runtime import Config

SEED = 11
STRIDE = 7919  # from one changed key to the next: a prime, so that every key has its turn
BATCH = 10_000
CUTS_MIN = 8
ROUNDS = 4  # passes over all keys, if the limit on cuts allows


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    keys: int = size(1_000_000, "Keys with a state.")
    changed: str = size("1,10,100,1000,10000,100000,1000000", "Numbers of keys that change between two checkpoints.")
    cuts: int = size(1200, "Checkpoints for each of them, at most.")


class Sink:
    """Measures the bytes written, cut by cut."""

    def __init__(self) -> None:
        self.deltas: list[int] = []  # bytes, of each cut
        self.bases: list[int] = []
        self.segments: list[int] = []
        self.kept: list[int] = []  # bytes of the segments that a recovery from this cut needs
        self._base_of: dict[int | None, int] = {}  # bin -> the last cut that holds the whole bin
        self._blocks: list[Block] = []

    def take(self, piece: Piece, block: Block | None) -> None:
        if block is not None:
            self._blocks.append(block)
            return
        blocks, self._blocks = self._blocks, []
        segment = SegmentWriter(CutHeader(piece.number, piece.time, piece.since, 0))
        for each in blocks:
            segment.add(each)
        whole = [each for each in blocks if each.kind is BlockKind.BIN]
        self._base_of |= {each.bin: len(self.segments) for each in whole}
        self.bases.append(length_of(whole))
        self.deltas.append(length_of(blocks) - self.bases[-1])
        self.segments.append(segment.finish("")[0].length if blocks else 0)
        self.kept.append(sum(self.segments[min(self._base_of.values()) :]))


def length_of(blocks: Iterable[Block]) -> int:
    """Return the total bytes of blocks."""
    return sum(len(block.keys) + len(block.states) for block in blocks)


def add(key: Any, amount: int, total: int | None) -> tuple[int, list[Any]]:
    return (total or 0) + amount, []


def cut(keys: int, changed: int, cuts: int) -> Sink:
    """Give each key a state, then take `cuts` checkpoints with `changed` keys changed before each; return the bytes."""
    sink, rng = Sink(), random.Random(SEED)

    def main(worker: Worker) -> None:
        records: InputHandle[Any] = InputHandle()
        commands: InputHandle[Any] = InputHandle()
        with worker.dataflow() as scope:
            scope.ref.graph.extension(Durability).sink = sink.take
            control = scope.input_from(commands)
            scope.input_from(records).stateful_state_machine(add, control=control, name="add").probe()
        first = 0
        for number in range(1, cuts + 2):
            after = first + (keys if number == 1 else changed)
            for start in range(first, after, BATCH):
                places = range(start, min(start + BATCH, after))
                records.send_batch([(place * STRIDE % keys, rng.randrange(1_000_000)) for place in places])
                worker.step()
            first = after
            commands.advance_to(number)
            commands.send(Checkpoint(number, number - 1 or None))
            commands.advance_to(number + 1)
            records.advance_to(number)
            while len(sink.segments) < number:
                worker.step()
        records.close()
        commands.close()
        while worker.step():
            pass

    execute(Config.thread(), main)
    return sink


def measure(sizes: Sizes) -> Record:
    """Measure for each number of changed keys."""
    points = []
    for changed in map(int, sizes.changed.split(",")):
        cuts = min(sizes.cuts, max(CUTS_MIN, ROUNDS * sizes.keys // changed))
        sink = cut(sizes.keys, changed, cuts)
        half = 1 + cuts // 2
        means = {
            name: sum(found[half:]) / len(found[half:])
            for name, found in (("deltas", sink.deltas), ("bases", sink.bases), ("segments", sink.segments))
        }
        points.append({"changed": changed, "cuts": cuts, **means, "kept": max(sink.kept) / sink.segments[0]})
    return {"points": points, "keys": sizes.keys, "state": sink.segments[0]}


def text(record: Record) -> str:
    """Return the table."""
    head = ["keys changed", "checkpoints", "deltas, bytes", "bases", "segments", "of the state", "store, of the state"]
    rows = [
        [
            f"{point['changed']:,}", f"{point['cuts']:,}",
            *(f"{point[name]:,.0f}" for name in ("deltas", "bases", "segments")),
            f"{point['segments'] / record['state']:.4f}", f"{point['kept']:.2f}",
        ]
        for point in record["points"]
    ]  # fmt: skip
    return f"{record['keys']:,} keys, {record['state']:,} bytes of state\n{table_text(head, rows)}"


def draw(record: Record, figure: Any) -> None:
    """Draw the bytes of a checkpoint and of the store over the number of changed keys."""
    written, kept = figure.subplots(1, 2, width_ratios=(3, 2))
    changed = [point["changed"] for point in record["points"]]
    for name, style, colour in zip(("segments", "deltas", "bases"), ("o-", "s--", "^--"), COLOURS):
        found = [point[name] or math.nan for point in record["points"]]  # no deltas where every bin is written whole
        written.plot(changed, found, style, color=colour, label=name)
    kept.plot(changed, [point["kept"] for point in record["points"]], "o-", color=COLOURS[0])
    for axes, title, unit in ((written, "written", "bytes a checkpoint"), (kept, "in the store", "of the state")):
        axes.set_xscale("log")
        plain_axes(axes, title, "keys that change between two checkpoints", unit)
    written.set_yscale("log")
    written.legend(frameon=False, fontsize=8)
    kept.set_ylim(0)


BYTES = Experiment(
    "written",
    "What checkpoints write, by the number of keys that change between two.",
    Sizes,
    Sizes(keys=10_000, changed="1,100,10000", cuts=20),
    measure,
    text,
    draw,
)

if __name__ == "__main__":
    main(commands("checkpoints", "Measure what checkpoints write.", (BYTES,)))
