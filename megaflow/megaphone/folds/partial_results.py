"""Partial results: one worker's records of one time, combined by key before they go to the keys' owners.

    records ── pipeline ──▶ [combine] ── pipeline ──▶ [F] ── addressed ──▶ [S]       (`aggregates`)

However often a key comes at a time, a worker sends one value for it, which `combine` has made of the key's records. A
`Combined` defines how; everything else here is the same for all aggregates.

Why no checkpoint and no move misses anything
 1. `combine` holds a capability at a time from the time's first record until it has sent the partial results. It sends
    them when the time is closed here, that is, when no frontier is at or before it. So a worker sends each key of a
    time once, and no S sees a time as closed before all its partial results are in.
 2. `combine` keeps nothing beyond the close of a time. A checkpoint at t has the effects of all records before t and of
    no others (see `journal`). S cuts for t when nothing before t can come. By rule 1 `combine` then keeps nothing of
    any time before t, on any worker. It may keep records of t or later, and a job that resumes from the checkpoint
    reads those again.
 3. `combine` knows no table. F sends partial results as records of their time, by the table in force then. So the rules
    of `router` hold for partial results as they do for records. Nothing here belongs to a bin.
 4. A leaver has given up its capabilities before it goes, and so has sent what it kept.

Partial results are in the order in which the keys came. They name their sender, so S can merge them in an order that
does not depend on which arrives first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from megaflow.errors import ProtocolError
from megaflow.megaphone.base.routing import RoutingTable
from megaflow.megaphone.folds.stateful import TURN_SECONDS
from megaflow.megaphone.router.splitting import ByMadePair, Pairs, Part
from megaflow.timely.communication.codec.encode import register
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import Time, sort_key

BATCH_KEYS_MAX = 4096  # in one message: many, because each message costs a tenth of what an epoch's keys cost


class Combined(ABC):
    """The combination of one worker's records of one time so far."""

    def __init__(self, name: str) -> None:
        self._name = name  # the operator's
        self._results: dict[Any, Any] = {}  # key -> result, in the order in which keys came

    @abstractmethod
    def add(self, batch: list[Any]) -> None:
        """Take in a batch. Raises ProgramError, naming the record, if one cannot be combined."""

    def columns(self) -> tuple[list[Any], list[Any]]:
        """Return all keys, in the order in which they came, and the result of each. Called once, at the end."""
        return list(self._results), list(self._results.values())


class Partials(Pairs):
    """Pairs of keys and partial results of one time and one worker; a worker sends each key of a time only once.

    >>> Partials(0, ["a", "b"], [1, 2])
    Partials(0, ['a', 'b'], [1, 2])
    """

    __slots__ = ("sender",)

    def __init__(self, sender: WorkerId, keys: list[Any], values: list[Any]) -> None:
        super().__init__(keys, values)
        self.sender = sender

    def copy(self) -> Partials:
        """Return a copy with columns of its own."""
        return Partials(self.sender, self.keys.copy(), self.values.copy())

    def __repr__(self) -> str:
        return f"Partials({self.sender}, {self.keys!r}, {self.values!r})"


def _restore(columns: Any) -> Partials:
    match columns:
        case [int() as sender, list() as keys, list() as values] if len(keys) == len(values):
            return Partials(sender, keys, values)
    raise ProtocolError("partial results that are not a sender and two lists of one length")


register(Partials, lambda partials: [partials.sender, partials.keys, partials.values], _restore)


class ByPartial(ByMadePair):
    """Splitter of partial results: by their keys, always into columns."""

    def _split(self, batch: Any, table: RoutingTable) -> Iterable[Part]:
        owners = self._owners_by(table)
        parts = {worker: Partials(batch.sender, [], []) for worker in (self._worker, *owners.others(self._worker))}
        put = {worker: (part.keys.append, part.values.append) for worker, part in parts.items()}
        for key, value in batch:
            put_key, put_value = put[owners[key]]
            put_key(key)
            put_value(value)
        return parts.items()


def combine(port: Port[Any], name: str, begin: Callable[[], Combined]) -> Port[Any]:
    """Build the operator that sends the partial results of each time, as `Partials`, when the time is closed."""
    builder = NodeBuilder(port.scope, f"{name}.combine")
    source: Input[Any] = builder.new_input(port, Pipeline())
    output: Output[Any]
    output, result = builder.new_output()
    now, worker = builder.graph.context.now, builder.graph.context.allocator.index
    combined: dict[Time, tuple[Capability, Combined]] = {}  # open time -> its capability, its records combined

    def logic() -> None:
        end = now() + TURN_SECONDS
        while source.is_waiting():
            time, batch = source.take()
            if time not in combined:
                combined[time] = output.mint(time), begin()
            combined[time][1].add(batch)
            if now() >= end:  # queued batches make it run again
                break
        frontier = source.frontier
        for time in sorted((time for time in combined if not frontier.less_equal(time)), key=sort_key):
            capability, found = combined.pop(time)
            with capability:
                send(time, *found.columns())

    def send(time: Time, keys: list[Any], values: list[Any]) -> None:
        for start in range(0, len(keys), BATCH_KEYS_MAX):
            end = start + BATCH_KEYS_MAX
            batch: Any = Partials(worker, keys[start:end], values[start:end])
            output.ship(time, batch)

    builder.build_releasing(logic)
    return result
