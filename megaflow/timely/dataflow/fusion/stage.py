"""Stages: stateless operators that keep times, and how they are run, alone or several in one generated function.

A stage takes in a batch, sends what comes of it, and keeps nothing. So several may be one operator, if that does to
each record what they would do one after the other (`partition` says which, `codegen` how).

Rules
 1. A stage holds no capability between runs: what it sends leaves in the run that consumed its cause. The one
    exception is a pause. A `flat_map` whose consumers want no more is suspended in the middle of a batch, a
    generator; for the rest the shell holds a capability for each output, minted in the run that consumed the batch.
 2. Before it takes a batch, a stage asks whether its outputs are full, and leaves the batch queued if so.
 3. Batches that are sent are never changed afterwards.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple, TypeVar

from megaflow.errors import ProgramError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.builder import BATCH_RECORDS, Input, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.error_notes import raised_by_loop
from megaflow.timely.dataflow.given import shown
from megaflow.timely.dataflow.origin import alike
from megaflow.timely.order import Time

T = TypeVar("T")

LARGEST_BATCH_RECORDS: Final = 4 * BATCH_RECORDS
"""A flat_map's batch may grow to this before it is cut: cutting costs a copy, and a little over is as fast."""

Kind = Literal[
    "same", "map", "filter", "flat_map", "map_in_place", "inspect", "inspect_time", "inspect_batch",
    "branch", "branch_when", "ok_err", "partition", "stamp", "plain",
]  # fmt: skip


class Stamps(NamedTuple):
    """Whether an operator's records have stamps beside them: see `operators.stamped`."""

    come: bool  # on its inputs
    leave: bool  # on its outputs


NO_STAMPS: Final = Stamps(False, False)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What an operator does to a record: enough to write it into the function of a group."""

    kind: Kind
    f: Any  # the user's function; none for "same" and "plain"; a Stamper for "stamp"
    inputs: Sequence[Input[Any]]
    outputs: Sequence[Output[Any]]
    names: Mapping[str, object] = field(default_factory=dict)  # what such a function calls by name beside `f`
    stamps: Stamps = NO_STAMPS


def run_whole(
    inputs: Sequence[Input[Any]], outputs: Sequence[Output[Any]], process: Callable[[Time, list[Any]], object]
) -> Callable[[], None]:
    """Return the logic of a stage that does each batch in one go."""

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
    held: list[Capability] = []  # for what the paused one has still to send

    def logic() -> None:
        if paused:  # its generator asks whether there is room
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
    """Run on; tell whether it stopped before its end. A StopIteration of user code is raised as what it is."""
    try:
        return next(run, run) is None
    except RuntimeError as error:  # Python's for "this generator raised StopIteration", or one of the user's
        cause = error.__cause__
        trace = cause.__traceback__ if isinstance(cause, StopIteration) else None
        if cause is None or trace is None or trace.tb_frame.f_code is not getattr(run, "gi_code", None):
            raise
    raise cause  # it has its own traceback, and none of Python's error as a context


def portions(records: Iterable[T]) -> Iterable[list[T]]:
    """Return what an iterable has, in lists of a batch at most; read no farther than the lists that were taken.

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
    """Send a list that was made of the batch `cause`, in several batches if it is long."""
    if len(records) <= LARGEST_BATCH_RECORDS:
        output.ship(time, alike(records, cause))
    else:
        for start in range(0, len(records), BATCH_RECORDS):
            output.ship(time, alike(records[start : start + BATCH_RECORDS], cause))


def ship_full(output: Output[T], time: Time, records: list[T], cause: list[Any]) -> None:
    """Send what fills batches; what does not fill one is left in the list."""
    whole = len(records) - len(records) % BATCH_RECORDS
    for start in range(0, whole, BATCH_RECORDS):
        output.ship(time, alike(records[start : start + BATCH_RECORDS], cause))
    del records[:whole]
