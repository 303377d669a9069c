"""Distribute: F's routing without a state to keep. Records go to the owner of their bin at their time, as they are.

The bins are empty, and move as those of other operators do: so the same commands steer it, the same views show it, and
a worker that leaves has given them up. S passes records on at once; nothing of a time depends on an empty bin.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from megaflow.megaphone import stateful_core
from megaflow.megaphone.bins import stable_hash
from megaflow.megaphone.routing import Numbered, RoutingTable
from megaflow.megaphone.splitting import Part, Splitter
from megaflow.megaphone.stateful_core import Core
from megaflow.timely.dataflow.graph import Port

T = TypeVar("T")


def distribute(
    port: Port[T],
    hash: Callable[[T], int] = stable_hash,
    control: Port[Numbered] | None = None,
    bins: int = 256,
    name: str | None = None,
) -> Port[T]:
    """Send each record to the owner of the bin of `hash(record)` at its time. Costs a hash per record."""
    return stateful_core.build([port], hash, control, bins, str(name or "distribute"), ByRecord, _PassOn)


class _PassOn:
    """S on one worker, which keeps nothing."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def run(self) -> None:
        """One invocation: own the bins that have arrived, and pass the records on."""
        core = self._core
        core.install()
        for time, batch in core.data[0].drain():
            core.view.meter.count(len(batch))
            core.output.ship(time, batch)


class ByRecord(Splitter):
    """By the record itself, which need not be a pair, nor hashable."""

    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        bin_of = self._store.bin_of_key
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        for record in batch:
            parts[table[bin_of(record)]].append(record)
        return parts.items()

    def _keep(self, batch: list[Any]) -> Iterable[Part]:
        record = batch[0]
        self._store.bin_of_key(record)  # so that a hash which is wrong is found on a lone worker, too
        return [(self._worker, batch)]

    def _complain(self, batch: list[Any], error: Exception | None) -> None:
        """Whatever the record is, it is the hash that was wrong."""
