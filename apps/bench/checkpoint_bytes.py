"""What checkpoints write, by how many keys change between two, and what a store has that keeps the last one.

    python apps/bench/checkpoint_bytes.py all [--json] [--plots DIR]

One worker in this process has a state for each of the keys, ints under ints, and for each number it changes so many of
them between two checkpoints, all in turn. Each checkpoint's blocks become one segment, which is measured and dropped.
Counted are the bytes of the blocks, apart for the changed keys (*deltas*) and for the bins written whole (*bases*, from
which a recovery begins: see `megaflow.megaphone.bases`), and those of segments. Averages are of the later half of the
checkpoints. What the store has is what `megaflow.durable.commits.needed` keeps: at its most, by the first checkpoint,
which has all states once. Commits are not in it. Nothing of this depends on how fast the machine is.
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
from megaflow.megaphone.journal import Durability
from megaflow.megaphone.routing import Checkpoint
from megaflow.megaphone.unwritten import Piece
from megaflow.program import Worker, execute
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.runtime import Config

SEED = 11
STRIDE = 7919  # from one key that changes to the next: a prime, so that all have their turn
BATCH = 10_000
CUTS_MIN = 8
ROUNDS = 4  # in which all keys change, if there are so many cuts


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of what is measured."""

    keys: int = size(1_000_000, "Keys with a state.")
    changed: str = size("1,10,100,1000,10000,100000,1000000", "Numbers of keys that change between two checkpoints.")
    cuts: int = size(1200, "Checkpoints for each of them, at most.")


class Sink:
    """Measures what is written, cut by cut."""

    def __init__(self) -> None:
        self.deltas: list[int] = []  # bytes, of each cut
        self.bases: list[int] = []
        self.segments: list[int] = []
        self.kept: list[int] = []  # of the segments that are needed with it
        self._base_of: dict[int | None, int] = {}  # bin -> the last cut that has it whole
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
    """Return the bytes of blocks."""
    return sum(len(block.keys) + len(block.states) for block in blocks)


def add(key: Any, amount: int, total: int | None) -> tuple[int, list[Any]]:
    return (total or 0) + amount, []


def cut(keys: int, changed: int, cuts: int) -> Sink:
    """Have a state for each key, and so many checkpoints between which so many keys change; return what was written."""
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
    """Count for each number of keys that change."""
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
    """Draw over the keys that change what a checkpoint writes, and what the store has."""
    written, kept = figure.subplots(1, 2, width_ratios=(3, 2))
    changed = [point["changed"] for point in record["points"]]
    for name, style, colour in zip(("segments", "deltas", "bases"), ("o-", "s--", "^--"), COLOURS):
        found = [point[name] or math.nan for point in record["points"]]  # no deltas where all bins are written
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
