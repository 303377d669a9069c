"""The launcher's memory does not grow with the number of checkpoints, joins, leaves and attempts of its job."""

import gc
from collections.abc import Iterator
from random import Random
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from megaflow.control.checkpoint_messages import CheckpointBegun, CheckpointReady, Committed, DurableOperator
from megaflow.control.launcher_messages import Ended, LatencyWindow, OutputBatch, OutputClosed
from megaflow.durable.commits import OutputLength
from megaflow.durable.segments import SegmentRef, segment_name
from megaflow.job.launcher.outputs.epoch_merge import EpochMerge
from megaflow.job.launcher.outputs.output_queue import OutputQueue
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.run.checkpointing import Checkpointing
from megaflow.job.launcher.run.machine import Machine
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.launcher.store.store_keeper import StoreKeeper
from megaflow.testing.simulated_disk import SimulatedDisk

BINS = 4
COUNT = (DurableOperator("count", BINS, 0),)


class Text(Writer):
    """A writer of text that keeps none of it."""

    form = "text"


class Bench:
    """The lasting parts of a launcher, without its threads and processes. Its disk is not counted."""

    def __init__(self) -> None:
        self._disk = SimulatedDisk(Random(1))
        self.keeper = StoreKeeper("store", "app.py:dataflow", 3, lambda path: self._disk.open())
        self.keeper.begin((OutputLength("text", 0),))
        self.output = OutputQueue(Text())
        self.children = Children(is_durable=True)
        self.summary = RunSummary()
        self.merge = EpochMerge([0])
        self.newest = 0  # worker
        self.join(0)

    def join(self, worker: int) -> None:
        self.children.all.append(Child(("h", worker)))
        self.children.all[-1].join([worker])
        self.newest = worker

    def checkpoint(self, number: int) -> None:
        """Run an epoch with output, then a checkpoint in which one bin is written whole."""
        worker, since = self.newest, self.keeper.latest.checkpoint or None
        told: list[Any] = []
        lasting: Any = SimpleNamespace(
            keeper=self.keeper, output=self.output, report=told.append, machine=Machine()
        )
        parts = Checkpointing(lasting, self.merge.mark, told.append)
        self.merge.add(OutputBatch(worker, 10 * number, ["line\n"] * 3))
        parts.take(CheckpointBegun(number, 10 * number + 5, since, COUNT, (), worker + 1))
        self.output.put(self.merge.close(OutputClosed(worker, 10 * number + 5)))
        segment = SegmentRef(segment_name(self.keeper.latest.incarnation, worker, number), number, worker, 9, 7, 3)
        self.keeper._store.put(segment.name, [b"a segment"])
        whole = tuple(range(BINS)) if since is None else (number % BINS,)
        parts.take(CheckpointReady(number, (segment,), (("count", whole),), ()))
        while self.output.records or self.output._epochs:
            self.output._write_next()
        parts.settle()
        self.work()
        parts.settle()
        assert told == [Committed(number)]

    def replace_worker(self) -> None:
        """Let a worker join, and the previous one leave."""
        leaves = self.newest
        self.join(leaves + 1)
        self.merge.join([leaves + 1])
        windows = tuple(LatencyWindow(float(second), {3: 1}, 1.0) for second in range(60))
        self.children.all[0].running.clear()
        self.summary.add(Ended(leaves, 1, 1, windows, (float(leaves), leaves + 1.0)))
        self.merge.close(OutputClosed(leaves, None))
        self.children.forget_ended()

    def live_again(self) -> None:
        """Lose all processes, and recover."""
        self.children.begin_anew(keeping=False)
        self.keeper.begin_anew()
        self.work()
        assert self.keeper.begun_anew() is not None
        self.output.cut_back(0)
        self.summary = RunSummary()
        self.merge = EpochMerge([self.newest])
        self.join(self.newest)

    def work(self) -> None:
        while self.keeper._tasks:
            self.keeper.work()

    def held(self) -> int:
        """Return the number of objects reachable from this one, without the disk and shared objects."""
        seen = {id(self._disk), id(self.keeper._folder), id(self.keeper._store)}
        waiting: list[Any] = [self.keeper, self.output, self.children, self.summary, self.merge]
        count = 0
        while waiting:
            each = waiting.pop()
            if id(each) not in seen and not isinstance(each, (type, ModuleType, FunctionType)):
                seen.add(id(each))
                count += 1
                waiting += gc.get_referents(each)
        return count


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.keeper.close()


def test_what_is_held_is_bounded(bench: Bench) -> None:
    held = []
    for number in range(1, 501):
        bench.checkpoint(number)
        if number % 5 == 0:
            bench.replace_worker()
        if number in (50, 100, 150, 200):
            bench.live_again()
        if number in (130, 490):
            held.append(bench.held())
    assert held[1] <= 1.2 * held[0], f"{held[0]} objects after 130 checkpoints, {held[1]} after 490"
