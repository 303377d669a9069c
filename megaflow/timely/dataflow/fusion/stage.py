"""Stages: stateless operators that keep times, and how they run: alone or together, in a generated function.

A stage takes a batch, sends the results, and keeps nothing. So several stages may become one operator that does to each
record what they would do in turn (`partition` decides which, `codegen` writes it).

Rules
 1. A stage holds no capability between runs: it sends in the same run that consumed the input. A pause is the only
    exception. A `flat_map` runs as a generator, which is suspended in the middle of a batch while its consumers are
    full. Until the generator ends, the shell (`run_pausable`) holds a capability for each output. It mints them in the
    run that consumes the batch.
 2. Before a stage takes a batch, it asks whether its outputs are full. If so, it leaves the batch queued.
 3. A batch is never changed after it was sent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple, TypeVar

from megaflow.errors import ProgramError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.argument_checks import shown
from megaflow.timely.dataflow.builder import BATCH_RECORDS, Input, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.error_notes import raised_by_loop
from megaflow.timely.dataflow.partition_tag import alike
from megaflow.timely.order import Time

T = TypeVar("T")

LARGEST_BATCH_RECORDS: Final = 4 * BATCH_RECORDS
"""A flat_map's batch may grow to this size before it is cut: cutting costs a copy, and a larger batch is as fast."""

Kind = Literal[
    "same", "map", "filter", "flat_map", "map_in_place", "inspect", "inspect_time", "inspect_batch",
    "branch", "branch_when", "ok_err", "partition", "stamp", "plain",
]  # fmt: skip


class Stamps(NamedTuple):
    """Whether an operator's records carry stamps: see `operators.stamped`."""

    come: bool  # on its inputs
    leave: bool  # on its outputs


NO_STAMPS: Final = Stamps(False, False)
STAMPED: Final = Stamps(True, True)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Description of an operator's work on a record, sufficient to write it into the function of a group."""

    kind: Kind
    f: Any  # the user's function; None for "same" and "plain"; a Stamper for "stamp"
    inputs: Sequence[Input[Any]]
    outputs: Sequence[Output[Any]]
    names: Mapping[str, object] = field(default_factory=dict)  # names besides `f` that the generated function uses
    stamps: Stamps = NO_STAMPS


def run_whole(
    inputs: Sequence[Input[Any]], outputs: Sequence[Output[Any]], process: Callable[[Time, list[Any]], object]
) -> Callable[[], None]:
    """Return the logic of a stage that processes each batch without a pause."""

    def logic() -> None:
        for source in inputs:
            for time, batch in source.take_while_room(*outputs):
                process(time, batch)

    return logic


def run_pausable(
    inputs: Sequence[Input[Any]], outputs: Sequence[Output[Any]], process: Callable[[Time, list[Any]], Iterator[None]]
) -> Callable[[], None]:
    """Return the logic of a stage that may pause within a batch: its generator yields while an output is full."""
    paused: list[Iterator[None]] = []  # at most one
    held: list[Capability] = []  # for the records that the paused generator has still to send

    def logic() -> None:
        if paused:  # the generator itself asks whether there is room
            if _is_suspended(paused[0]):
                return
            paused.clear()
            while held:
                held.pop().release()
        for source in inputs:
            for time, batch in source.take_while_room(*outputs):
                run = process(time, batch)
                if _is_suspended(run):
                    paused.append(run)
                    held.extend(mint(output, time) for output in outputs)
                    return

    return logic


def _is_suspended(run: Iterator[None]) -> bool:
    """Run the generator on. Return whether it stopped before its end. A user's StopIteration is raised unchanged."""
    try:
        return next(run, run) is None
    except RuntimeError as error:  # Python's "generator raised StopIteration", or the user's own RuntimeError
        cause = error.__cause__
        trace = cause.__traceback__ if isinstance(cause, StopIteration) else None
        if cause is None or trace is None or trace.tb_frame.f_code is not getattr(run, "gi_code", None):
            raise
    raise cause  # with its own traceback, and without Python's error as context


def portions(records: Iterable[T]) -> Iterable[list[T]]:
    """Return the items of an iterable in lists of at most a batch. Reads no further than the lists taken.

    >>> [len(portion) for portion in portions(range(1500))]
    [700, 700, 100]
    """
    try:
        left = iter(records)
    except TypeError as error:
        if not raised_by_loop(error):
            raise
        raise ProgramError(
            f"flat_map: the function returned {shown(records)}; it must return an iterable of records, [] for none"
        ) from None
    rest = iter(lambda: list(islice(left, BATCH_RECORDS)), [])
    first = list(islice(left, BATCH_RECORDS))
    return (first,) if len(first) < BATCH_RECORDS else chain((first,), rest)


def ship(output: Output[T], time: Time, records: list[T], cause: list[Any]) -> None:
    """Send a list that was made from the batch `cause`, in several batches if it is long."""
    if len(records) <= LARGEST_BATCH_RECORDS:
        output.ship(time, alike(records, cause))
    else:
        for start in range(0, len(records), BATCH_RECORDS):
            output.ship(time, alike(records[start : start + BATCH_RECORDS], cause))


def ship_full(output: Output[T], time: Time, records: list[T], cause: list[Any]) -> None:
    """Send the full batches in the list. Fewer records than a batch stay in it."""
    whole = len(records) - len(records) % BATCH_RECORDS
    for start in range(0, whole, BATCH_RECORDS):
        output.ship(time, alike(records[start : start + BATCH_RECORDS], cause))
    del records[:whole]


_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS: Final[Mapping[type, Callable[[Any], object]]] = {
    kind: kind for kind in (tuple, frozenset, list, set, dict)
}  # type -> how to copy


def check_first_change(process: Any, variable: str) -> None:
    """Check, at the first record only, that a function meant to change records in place does not return new ones.

    `process` calls the function by a variable from outside. The variable refers to the check until its first call, so
    later records cost nothing. The check skips records whose changes it cannot see.
    """
    cell = process.__closure__[process.__code__.co_freevars.index(variable)]
    f = cell.cell_contents

    def first(record: Any) -> None:
        cell.cell_contents = f
        kind = type(record)
        if not _is_plain(record):
            f(record)
            return
        before = _CONTAINERS[kind](record) if kind in _CONTAINERS else record
        value = f(record)
        may_change = kind in (list, set, dict)
        if value is None or (may_change and (type(value) is not kind or value is record or record != before)):
            return
        raise ProgramError(
            f"map_in_place: the function returned {shown(value)}, and left the record {record!r:.200} as it is. Its "
            "return value is ignored: write map(f) to send it on, or inspect(f) if only f's effects matter"
        )

    cell.cell_contents = first


def _is_plain(record: Any) -> bool:
    """Return whether a record is an atom, or a container of atoms."""
    kind = type(record)
    if kind in _CONTAINERS:
        return all(type(part) in _ATOMS for part in (record.values() if kind is dict else record))
    return kind in _ATOMS
