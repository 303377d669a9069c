"""The linear operators for streams whose records have timestamps beside them: pairs of a timestamp and a record.

A *stamped* port carries pairs (stamp, record); a stamp is an int, of which nothing is known here. `with_stamps` makes
such a port of a plain one: as it makes stamps greater ones are later, and what those below the greatest so far become
is up to the stamper. `plain` makes a port plain again. Functions of the program see the record alone, and what
comes of a record has its stamp. What is here is how each operator is run alone. In a fused group (`codegen`) the stamp
is a variable beside that of the record, and pairs are made only where records leave the group: a chain from
`with_stamps` to `plain` makes none.

Pairs, and not a second list beside that of the records: what moves a batch anywhere has one thing to move, and needs to
know nothing of it. Measured with batches of 700, by the record: a map of pairs takes 207 ns, one of two lists 157; a
filter 125 and 149; what an exchange between two workers does to a batch 116 and 173.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

from megaflow.timely.dataflow import given
from megaflow.timely.dataflow.builder import Input, Output
from megaflow.timely.dataflow.fusion import stage as stages
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import branching, movement
from megaflow.timely.dataflow.operators.linear import cut, linear, one_to_one
from megaflow.timely.order import Time

T = TypeVar("T")
U = TypeVar("U")

Stamped: TypeAlias = tuple[int, T]
"""A stamp and a record."""

_BOTH = stages.Stamps(True, True)


class Stamper(Protocol[T]):
    """What gives records their stamps, on one worker."""

    timestamp: Callable[[T], Any]  # the program's function

    def begin(self, batch: list[Any]) -> tuple[Callable[[Any, T], int], int, Callable[[int, int], int]]:
        """Begin with a batch, or what it was made of.

        Return what makes stamps, the greatest so far, and what is called with a stamp below the greatest and with the
        greatest: it returns what stands for that stamp. What makes a stamp is called with what `timestamp` has given
        and the record, and raises ProgramError.
        """

    def end(self, time: Any, batch: list[Any], greatest: int, has_come: bool) -> None:
        """End it; `greatest` is that of all stamps so far, `has_come` whether the batch had a record."""


def with_stamps(port: Port[T], name: str, stamper: Stamper[T]) -> Port[Stamped[T]]:
    """Put beside each record what the stamper says. It is told the greatest stamp so far after each batch."""

    def apply(time: Time, batch: list[T]) -> list[Stamped[T]]:
        timestamp = stamper.timestamp
        to_stamp, greatest, below = stamper.begin(batch)
        pairs = []
        for record in batch:
            stamp = to_stamp(timestamp(record), record)
            if stamp >= greatest:
                greatest = stamp
            else:
                stamp = below(stamp, greatest)
            pairs.append((stamp, record))
        stamper.end(time, batch, greatest, bool(pairs))
        return pairs

    return linear(port, name, apply, kind="stamp", f=stamper, stamps=stages.Stamps(False, True))


def plain(port: Port[Stamped[T]]) -> Port[T]:
    """Leave the stamps out."""
    return linear(port, "Plain", lambda time, batch: [record for _, record in batch], kind="plain",
                  stamps=stages.Stamps(True, False))  # fmt: skip


def map_(port: Port[Stamped[T]], f: Callable[[T], U]) -> Port[Stamped[U]]:
    """Apply `f` to each record."""

    def apply(time: Time, batch: list[Stamped[T]]) -> list[Stamped[U]]:
        out = []
        for stamp, record in batch:
            out.append((stamp, f(record)))  # no comprehension: `error_notes` would show the pair
        return out

    return linear(port, "Map", apply, kind="map", f=f, stamps=_BOTH)


def flat_map(port: Port[Stamped[T]], f: Callable[[T], Iterable[U]]) -> Port[Stamped[U]]:
    """Replace each record by the records of the iterable `f(record)`, which is read bit by bit."""

    def make(source: Input[Stamped[T]], output: Output[Stamped[U]]) -> Callable[[], None]:
        def process(time: Time, batch: list[Stamped[T]]) -> Iterator[None]:
            out: list[Stamped[U]] = []
            for stamp, record in batch:
                for portion in stages.portions(f(record)):
                    out += [(stamp, each) for each in portion]
                    if len(out) > stages.LARGEST_BATCH_RECORDS:
                        yield from cut(output, time, out, batch)
            stages.ship(output, time, out, batch)

        return stages.run_pausable([source], [output], process)

    return one_to_one(port, "FlatMap", make, kind="flat_map", f=f, stamps=_BOTH)


def filter_(port: Port[Stamped[T]], f: Callable[[T], bool]) -> Port[Stamped[T]]:
    """Keep the records for which `f` is true."""

    def apply(time: Time, batch: list[Stamped[T]]) -> list[Stamped[T]]:
        out = []
        for stamp, record in batch:
            if f(record):
                out.append((stamp, record))
        return out

    return linear(port, "Filter", apply, kind="filter", f=f, stamps=_BOTH)


def inspect(port: Port[Stamped[T]], f: Callable[[T], object]) -> Port[Stamped[T]]:
    """Show each record to `f` and pass it on."""

    def apply(time: Time, batch: list[Stamped[T]]) -> list[Stamped[T]]:
        for _, record in batch:
            f(record)
        return batch

    return linear(port, "Inspect", apply, kind="inspect", f=f, stamps=_BOTH)


def branch(port: Port[Stamped[T]], f: Callable[[Time, T], bool]) -> tuple[Port[Stamped[T]], Port[Stamped[T]]]:
    """Split into two streams: the records for which `f(time, record)` is false, and those for which it is true."""

    def split(time: Time, batch: list[Stamped[T]]) -> list[list[Stamped[T]]]:
        false: list[Stamped[T]] = []
        true: list[Stamped[T]] = []
        for stamp, record in batch:
            (true if f(time, record) else false).append((stamp, record))
        return [false, true]

    false, true = branching.split(port, "Branch", 2, split, "branch", f, {}, _BOTH)
    return false, true


def exchange(port: Port[Stamped[T]], key: Callable[[T], int]) -> Port[Stamped[T]]:
    """Send each record to the worker that its key says, as `movement.exchange`."""
    given.function("exchange", key, "the key of an exchange")

    def of_record(pair: Stamped[T]) -> int:
        _, record = pair
        return key(record)

    return movement.exchange(port, of_record)
