"""A store that one operator of one worker has written, with random changes over some checkpoints."""

from itertools import count
from random import Random

from megaflow import stable_hash
from megaflow.durable.blocks import Block, BlockKind, CutHeader
from megaflow.durable.commits import Commit, OperatorCut, needed
from megaflow.durable.restored import Hash
from megaflow.durable.segments import SegmentRef, segment_name
from megaflow.durable.store import Store
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.durability import Piece
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.megaphone.snapshot.journal import Journal
from megaflow.testing.simulated_disk import SimulatedDisk
from tests.durable.launchers import make_segments

BINS = 16
CHECKPOINTS = 8


class KeptOperator:
    """The store, its newest commit, and the states and timers of that checkpoint."""

    def __init__(self, seed: int, hash: Hash = stable_hash) -> None:
        rng = Random(seed)
        bins = BinStore(BINS, hash)
        for bin in range(BINS):
            bins.install(bin, [])
        blocks: list[Block] = []

        def sink(cut: Piece, block: Block | None) -> None:
            blocks.extend([] if block is None else [block])

        journal = Journal("count", bins, sink, lambda: 0.0, lambda: 0.0)
        bins.watcher = journal
        self.store = Store(SimulatedDisk(rng).open())
        names = (segment_name(1, 0, sequence) for sequence in count(1))
        bases: list[int | None] = [None] * BINS
        segments: tuple[SegmentRef, ...] = ()
        since = None
        for number in range(1, CHECKPOINTS + 1):
            for key in rng.sample([f"k{n}" for n in range(60)], 25):
                journal.touch([key])
                if key not in bins.states:
                    bins.create(key, rng.randrange(1000))
                elif rng.random() < 0.5:
                    bins.forget(key)
                else:
                    bins.states[key] = rng.randrange(1000)
            journal.set_timer(bins.bin_of_key("k1"), (number * 10 + 15, "k1", number))
            bins.timers.add(number * 10 + 15, bins.bin_of_key("k1"), "k1", number)
            blocks.clear()
            journal.register(number * 10, Checkpoint(number, since))
            journal.before(number * 10)
            journal.write(all=True)
            if rng.random() < 0.3:
                continue  # abandoned
            for ref, parts in make_segments(CutHeader(number, number * 10, since, 0), blocks, names):
                self.store.put(ref.name, parts)
                segments = (*segments, ref)
            for block in blocks:
                if block.kind is BlockKind.BIN and block.bin is not None:
                    bases[block.bin] = number
            since = number
            self.states = dict(bins.states)
            self.timers = [(n * 10 + 15, "k1", n) for n in range(1, number + 1) if n * 10 + 15 >= number * 10]
            operators = (OperatorCut("count", "", tuple(bases), version=3),)
            self.commit = Commit(1, number, number * 10, 1, operators=operators, segments=needed(operators, segments))
