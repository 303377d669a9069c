"""Partial results: what one worker has of the records of one time, by key; combined before they go to their owners.

    records ── pipeline ──▶ [combine] ── pipeline ──▶ [F] ── addressed ──▶ [S]       (`aggregates`)

However often a key comes at a time, one value of it travels: what `combine` has made of its records. How that is made
a `Combined` says; all else here is the same for all.

Why no checkpoint misses anything, and no move
 1. What `combine` keeps of a time is held by a capability at that time, from the first record of it until its partial
    results are sent, when the time is closed here: no frontier is at most it. So each key of a time is sent once by a
    worker, and no S sees a time as closed before all partial results of it are in.
 2. Nothing is kept over a time's close. A checkpoint at t has the effects of all records before t and of no others (see
    `journal`). S cuts for t when nothing before t can come: by 1 `combine` keeps nothing then of any time before t, on
    any worker. What it keeps is of t or later, and whoever goes on from the checkpoint reads those records again.
 3. `combine` knows no table. F sends what it gives as records of that time, by the table that is in force then; so the
    rules of `router` hold for partial results as they do for records. Nothing that belongs to a bin is kept here.
 4. A worker that leaves has given up its capabilities before it goes, and so has sent what it kept.

The order of partial results is that in which the keys came; they say who sends them, so S can merge them in an order
that does not depend on which arrives first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from megaflow.errors import ProtocolError
from megaflow.megaphone.routing import RoutingTable
from megaflow.megaphone.splitting import ByMadePair, Pairs, Part
from megaflow.megaphone.stateful import TURN_SECONDS
from megaflow.timely.communication.codec.encode import register
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import Time, sort_key

BATCH_KEYS_MAX = 4096  # of one message: large, for what a batch costs is a tenth of what an epoch's keys do


class Combined(Protocol):
    """What a worker has made of the records of one time so far."""

    def add(self, batch: list[Any]) -> None:
        """Take in a batch. Raises ProgramError, naming the record, for one that cannot be."""

    def columns(self) -> tuple[list[Any], list[Any]]:
        """Return all keys, in the order in which they came, and what there is of each; it is not asked again."""


class Partials(Pairs):
    """Pairs of keys and partial results, of one time and one worker; no key is in two of the same time and worker.

    >>> Partials(0, ["a", "b"], [1, 2])
    Partials(0, ['a', 'b'], [1, 2])
    """

    __slots__ = ("sender",)

    def __init__(self, sender: WorkerId, keys: list[Any], values: list[Any]) -> None:
        super().__init__(keys, values)
        self.sender = sender

    def copy(self) -> Partials:
        """Return columns of their own."""
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
    """How F splits partial results: by their keys, all of them as columns."""

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
    """Build the operator that gives the partial results of each time, as `Partials`, when the time is closed."""
    builder = NodeBuilder(port.scope, f"{name}.combine")
    source: Input[Any] = builder.new_input(port, Pipeline())
    output: Output[Any]
    output, result = builder.new_output()
    now, worker = builder.graph.context.now, builder.graph.context.allocator.index
    combined: dict[Time, tuple[Capability, Combined]] = {}  # open time -> its right, what there is of it

    def logic() -> None:
        end = now() + TURN_SECONDS
        while source.is_waiting():
            time, batch = source.take()
            if time not in combined:
                combined[time] = output.mint(time), begin()
            combined[time][1].add(batch)
            if now() >= end:  # what is queued has it run again
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
