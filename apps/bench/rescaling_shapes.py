"""Dataflows whose progress is measured, in several shapes; and workers in one thread that run them by hand.

The workers are those of threads and processes, so the progress that they broadcast is counted, not modelled. Only the
timing, which decides how much one broadcast combines, is simulated. In a pass every worker takes a step, in the order
of ids or in one drawn from a seed, and all messages arrive at once.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from apps.wordcount import count
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely import InputHandle, ProbeHandle
from megaflow.timely.communication.channel import Channel
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.communication.wire import pack_message
from megaflow.timely.log import Event, ProgressSent
from megaflow.timely.membership import founding
from megaflow.timely.order import Product, Time
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.rescale.bootstrap_server import Server
from megaflow.timely.rescale.host import Host

DATAFLOWS, ROUNDS, EXCHANGES = 4, 4, 16
KEYS = 997
KEYS_APART = 7  # between the first keys of neighbouring epochs


@dataclass(frozen=True, slots=True)
class Fed:
    """Handles of one worker on its dataflows."""

    records: Sequence[InputHandle[int]]
    controls: Sequence[InputHandle[Any]]  # open on worker 0 alone, which issues the ticks
    probes: Sequence[ProbeHandle]

    def advance(self, index: int, epoch: int, records: int) -> None:
        """Send `records` records of an epoch, as worker `index`, and end the epoch."""
        for handle in self.records:
            for number in range(records):
                handle.send((epoch * KEYS_APART + index + number) % KEYS)
            handle.advance_to(epoch + 1)
        for control in self.controls:
            if index == 0:
                control.advance_to(epoch + 1)

    def is_behind(self, epoch: int) -> bool:
        """Whether outputs of an epoch, or of an earlier one, may still come."""
        return any(probe.less_than(epoch + 1) for probe in self.probes)


def stateful(worker: Worker, dataflows: int = 1) -> Fed:
    """Count keys: an exchange, bins that may move, and a control stream."""
    records: list[InputHandle[int]] = [InputHandle() for _ in range(dataflows)]
    controls: list[InputHandle[Any]] = [InputHandle() for _ in range(dataflows)]
    probes = []
    for handle, commands in zip(records, controls):
        with worker.dataflow("progress") as scope:
            pairs = scope.input_from(handle).map(lambda key: (key, 1)).exchange(lambda pair: pair[0])
            probes.append(pairs.stateful_state_machine(count, control=scope.input_from(commands)).probe())
        if worker.index != 0:
            commands.close()
    return Fed(records, controls, probes)


def several(worker: Worker) -> Fed:
    """Build the same dataflow several times."""
    return stateful(worker, DATAFLOWS)


def loop(worker: Worker) -> Fed:
    """Send each record round a loop from worker to worker, for a number of rounds."""
    records: InputHandle[int] = InputHandle()
    with worker.dataflow("loop") as scope, scope.iterative() as inner:
        handle, back = inner.loop_variable(1)
        moved = scope.input_from(records).enter(inner).concat(back).map(lambda key: key + 1).exchange(lambda key: key)
        going, ended = moved.branch_when(is_last)
        going.connect_loop(handle)
        probe = ended.leave().probe()
    return Fed([records], [], [probe])


def is_last(time: Time) -> bool:
    """Whether a record has done all its rounds."""
    assert isinstance(time, Product)
    return bool(time.inner >= ROUNDS - 1)


def chain(worker: Worker) -> Fed:
    """Chain many operators, which all exchange every record."""
    records: InputHandle[int] = InputHandle()
    with worker.dataflow("chain") as scope:
        stream = scope.input_from(records)
        for _ in range(EXCHANGES):
            stream = stream.map(lambda key: key + 1).exchange(lambda key: key)
        probe = stream.probe()
    return Fed([records], [], [probe])


SHAPES: dict[str, Callable[[Worker], Fed]] = {
    "stateful": stateful,
    f"{DATAFLOWS} of those": several,
    f"loop of {ROUNDS}": loop,
    f"{EXCHANGES} exchanges": chain,
}


class Traffic:
    """The progress batches that workers broadcast, and what they would be if each pass had one combined batch."""

    def __init__(self) -> None:
        self._sums: dict[int, ChangeBatch[tuple[int, Time]]] = {}  # dataflow -> progress of this pass
        self.clear()

    def clear(self) -> None:
        """Reset the counts."""
        self.batches = 0
        self.bytes = 0  # of one message for each batch, with its frame's head and address
        self.merged = 0  # combined batches, one for each dataflow and pass with progress
        self.merged_bytes = 0

    def hear(self, event: Event) -> None:
        """Count an event of a worker's log."""
        if isinstance(event, ProgressSent):
            self.batches += 1
            self.bytes += message_bytes(event.dataflow, event.number, event.changes)
            changes = (((place, time), delta) for place, time, delta in event.changes)
            self._sums.setdefault(event.dataflow, ChangeBatch()).extend(changes)

    def end_pass(self) -> None:
        """Combine the progress since the last call into one batch for each dataflow."""
        for dataflow, told in self._sums.items():
            if not told.is_empty():
                changes = [(*place, delta) for place, delta in told.drain()]
                self.merged_bytes += message_bytes(dataflow, self.merged, changes)
                self.merged += 1


def message_bytes(dataflow: int, number: int, changes: Iterable[tuple[int, Time, int]]) -> int:
    """Return the bytes of a progress batch on the wire, for each receiving process."""
    return sum(map(len, pack_message(0, 1, Channel.progress(dataflow), encode((number, list(changes))))))


class Stepped:
    """Several workers in one thread, with the same dataflows."""

    def __init__(
        self, shape: Callable[[Worker], Fed], workers: int, records: int = 1, rng: random.Random | None = None
    ) -> None:
        """`records` is the number that each worker sends per epoch to each input; `rng` shuffles each pass."""
        fabric, everyone = LocalFabric(range(workers)), founding(range(workers))
        clocks = (time.monotonic, time.monotonic)
        self.traffic = Traffic()
        self.fed: list[Fed] = []
        self._records = records
        self._rng = rng
        self._workers = [Worker(fabric.allocator(index), everyone, Scope, clocks) for index in everyone.ids]
        self._order = list(self._workers)
        for worker in self._workers:
            worker.log.subscribe(self.traffic.hear)
            self.fed.append(shape(worker))

    def advance(self, epoch: int) -> None:
        """Send the records of one epoch to all workers."""
        for index, fed in enumerate(self.fed):
            fed.advance(index, epoch, self._records)

    def step(self) -> None:
        """Let every worker take a step."""
        if self._rng is not None:
            self._rng.shuffle(self._order)
        for worker in self._order:
            worker.step()
        self.traffic.end_pass()

    def is_behind(self, epoch: int) -> bool:
        """Whether an epoch is still open on some worker."""
        return any(fed.is_behind(epoch) for fed in self.fed)

    def look(self) -> tuple[int, int]:
        """Return the number of pointstamps that worker 0 counts, and the bytes of its snapshot for a joiner.

        Nothing is drained first, so records on their way count.
        """
        worker = self._workers[0]
        graphs = {graph.number: graph for graph in worker.graphs()}
        stamps = sum(1 for graph in graphs.values() for _ in graph.progress.tracker.pointstamps())
        host = Host(
            worker.allocator, graphs, (), lambda: len(graphs), worker.now, lambda seconds, what: None, worker.post,
            lambda envelopes: None,
        )  # fmt: skip
        server = Server(1, host)
        server.stop()
        return stamps, len(encode(server.snapshot))
