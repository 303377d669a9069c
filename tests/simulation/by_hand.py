"""Cluster stepped by hand: the test chooses which worker steps and which messages arrive.

hands = ByHand(build, workers=2)
hands.records[1].send(("the", 1))
hands.held = [Lane.STATE]       # these lanes deliver nothing
hands.settle()                  # run everything else until nothing more can happen
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any

from megaflow.megaphone.base.bins import stable_hash
from megaflow.scope import Scope
from megaflow.testing import Build, Network
from megaflow.testing.monitor import describe_pointstamps
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.membership import founding
from megaflow.timely.worker import Worker


def bin_of(hash64: int, log2_bins: int) -> int:
    """Return the bin of a key with this hash: its high bits.

    >>> bin_of(2**63, 8), bin_of(2**64 - 1, 8), bin_of(5, 0)
    (128, 255, 0)
    """
    return hash64 >> (64 - log2_bins)


def keys_of(bin: int, bins: int, count: int = 1) -> list[str]:
    """Return keys that fall into a bin."""
    found = []
    number = 0
    while len(found) < count:
        key = f"key{number}"
        if bin_of(stable_hash(key), bins.bit_length() - 1) == bin:
            found.append(key)
        number += 1
    return found


def key_of(bin: int, bins: int) -> str:
    """Return a key that falls into a bin."""
    return keys_of(bin, bins)[0]


class ByHand:
    """Workers 0, 1, …; commands enter on worker 0, and the command inputs of the other workers are closed."""

    def __init__(self, build: Build, workers: int = 2, close_other_commands: bool = True) -> None:
        ids = tuple(range(workers))
        self.network = Network(Random(0))
        self.workers: list[Worker[Scope]] = []
        self.records: list[InputHandle[Any]] = []
        self.controls: list[InputHandle[Any]] = []
        self.probes: list[ProbeHandle] = []
        self.outputs: list[tuple[Any, Any]] = []  # (time, record), in the order of output
        self.held: Collection[Lane] = ()
        self.delivered: list[tuple[int, int, Lane, Any, Any]] = []  # (source, target, lane, time, batch), no progress
        for index in ids:
            worker = Worker(self.network.add(index, index), founding(ids), Scope, (lambda: 0.0, lambda: 0.0))
            records: InputHandle[Any] = InputHandle()
            commands: InputHandle[Any] = InputHandle()
            with worker.dataflow("by hand") as scope:
                result = build(worker, scope.input_from(records), scope.input_from(commands))
                result.inspect_time(lambda time, record: self.outputs.append((time, record)))
                self.probes.append(result.probe())
            self.workers.append(worker)
            self.records.append(records)
            self.controls.append(commands)
        for commands in self.controls[1:] if close_other_commands else ():
            commands.close()
        self.settle()

    @property
    def commands(self) -> InputHandle[Any]:
        """The input for commands."""
        return self.controls[0]

    def command(self, time: int, *commands: Any) -> None:
        """Send commands at a time, then advance the command input past it."""
        self.commands.advance_to(time)
        for command in commands:
            self.commands.send(command)
        self.commands.advance_to(time + 1)

    def advance_to(self, time: int) -> None:
        """Advance all record inputs to a time."""
        for records in self.records:
            records.advance_to(time)

    def settle(self) -> None:
        """Step and deliver until nothing more can happen; deliver nothing on the held lanes."""
        busy = True
        while busy:
            busy = False
            for worker in self.workers:
                if worker.has_work() or self.network.allocator(worker.index).arrived:
                    worker.step()
                    busy = True
            for route, _ in list(self.network.waiting()):
                if route[2] not in self.held:
                    self.deliver(*route)
                    busy = True

    def deliver(self, source: int, target: int, lane: Lane) -> None:
        """Deliver the oldest message of a lane."""
        self.network.deliver((source, target, lane))
        if lane is not Lane.PROGRESS:
            time, batch = self.network.allocator(target).arrived[-1].body
            self.delivered.append((source, target, lane, time, batch))

    def waiting(self, lane: Lane) -> list[tuple[int, int]]:
        """Return (source, target) of each message that waits on a lane."""
        return [(route[0], route[1]) for route, _ in self.network.waiting() if route[2] is lane]

    def owned(self, operator: int = 0) -> list[list[int]]:
        """Return the bins that each worker owns now."""
        return [worker.stateful[operator].owned() for worker in self.workers]

    def moved(self, operator: int = 0) -> list[tuple[int, int, int, int]]:
        """Return (time, bin, from, to) of each bin that arrived since the last call, sorted by time."""
        rows = [row for worker in self.workers for row in worker.stateful[operator].take_ledger()]
        return sorted(((row.time, row.bin, row.source, row.target) for row in rows), key=lambda row: row[0])

    def done(self) -> bool:
        """Return whether the dataflow is complete on all workers."""
        return not any(worker.installed_dataflows for worker in self.workers)

    def finish(self) -> None:
        """Close all inputs and run to completion. Raise AssertionError if the dataflow does not complete."""
        self.held = ()
        for handle in [*self.records, *self.controls]:
            handle.close()
        self.settle()
        held = [describe_pointstamps(graph) for worker in self.workers for graph in worker.graphs()]
        assert self.done(), f"nothing can happen any more, but pointstamps are left: {held}"


class Histories:
    """Stateful operator whose state is the list of a key's values. Records which worker applied each value.

    `kind` is "machine", "unary" or "binary". The last two apply the values of a closed time one after the other.
    """

    def __init__(self, bins: int = 4, kind: str = "machine") -> None:
        self.bins = bins
        self.kind = kind
        self.applied: list[tuple[int, Any, Any]] = []  # (worker, key, value) in order

    def build(self, worker: Any, records: Any, commands: Any) -> Any:
        """Outputs (key, its values so far)."""
        options: dict[str, Any] = {"control": commands, "bins": self.bins, "name": "histories"}
        one = self.fold_on(worker)

        def fold(key: Any, time: int, values: list[Any], state: Any, timers: Any) -> Any:
            outputs: list[Any] = []
            for value in values:
                state, more = one(key, value, state)
                outputs += more
            return state, outputs

        def fold_both(key: Any, time: int, left: list[Any], right: list[Any], state: Any, timers: Any) -> Any:
            return fold(key, time, [*left, *right], state, timers)

        if self.kind == "machine":
            return records.stateful_state_machine(one, **options)
        if self.kind == "unary":
            return records.stateful_unary(fold, **options)
        right, left = records.branch(lambda time, record: stable_hash(record) % 2 == 0)
        return left.stateful_binary(right, fold_both, **options)

    def fold_on(self, worker: Any) -> Any:
        """Return the fold of `worker`."""

        def fold(key: Any, value: Any, state: list[Any] | None) -> tuple[list[Any] | None, list[Any]]:
            self.applied.append((worker.index, key, value))
            if value == "forget":
                return None, [(key, "forgotten")]
            state = [*(state or []), value]
            return state, [(key, tuple(state))]

        return fold

    def where(self, value: Any) -> int:
        """Return the only worker that applied this value."""
        (worker,) = [worker for worker, _, applied in self.applied if applied == value]
        return worker
