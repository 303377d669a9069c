"""Operators that split a stream: each record goes to one of several outputs, on the same worker.

Like the linear operators they hold no capability and keep times; loops name `time` and `record` (see `error_notes`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from megaflow.errors import BuildError, ProgramError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.error_notes import raised_by_loop, user_line
from megaflow.timely.dataflow.fusion.stage import NO_STAMPS, Kind, Stage, Stamps, run_whole
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.origin import alike
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """A success, for `ok_err`."""

    value: T


@dataclass(frozen=True, slots=True)
class Err(Generic[E]):
    """A failure, for `ok_err`."""

    error: E


Result: TypeAlias = Ok[U] | Err[E]


def partition(port: Port[T], count: int, f: Callable[[T], tuple[int, U]]) -> list[Port[U]]:
    """Split into `count` streams: `f(record)` gives the number of a stream and what to send there.

    Raises BuildError unless `count` is an int of at least 1; while running ProgramError for a number out of range.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BuildError(
            f"partition({count!r}, …) ({user_line()}): give the number of streams to make, an int of at least 1"
        )

    def divide(time: Time, batch: list[T]) -> list[list[U]]:
        parts: dict[int, list[U]] = {number: [] for number in range(count)}  # a list would take -1
        try:
            for record in batch:
                number, out = f(record)
                parts[number].append(out)
        except (KeyError, TypeError, ValueError) as error:
            check_partition(error, record, count)
            raise
        return list(parts.values())

    return split(port, "Partition", count, divide, "partition", f, {"check_partition": check_partition})


def branch(port: Port[T], f: Callable[[Time, T], bool]) -> tuple[Port[T], Port[T]]:
    """Split into two streams: the records for which `f(time, record)` is false, and those for which it is true."""

    def divide(time: Time, batch: list[T]) -> list[list[T]]:
        false: list[T] = []
        true: list[T] = []
        for record in batch:
            if f(time, record):
                true.append(record)
            else:
                false.append(record)
        return [false, true]

    false, true = split(port, "Branch", 2, divide, "branch", f, {})
    return false, true


def branch_when(port: Port[T], f: Callable[[Time], bool]) -> tuple[Port[T], Port[T]]:
    """Split into two streams: the records of times for which `f(time)` is false, and of those for which it is true."""

    def divide(time: Time, batch: list[T]) -> list[list[T]]:
        return [[], batch] if f(time) else [batch, []]

    false, true = split(port, "BranchWhen", 2, divide, "branch_when", f, {})
    return false, true


def ok_err(port: Port[T], f: Callable[[T], Result[U, E]]) -> tuple[Port[U], Port[E]]:
    """Split into two streams: x of each record for which `f(record)` is `Ok(x)`, e of each for which it is `Err(e)`."""

    def divide(time: Time, batch: list[T]) -> list[list[Any]]:
        oks: list[U] = []
        errs: list[E] = []
        for record in batch:
            result = f(record)
            if isinstance(result, Ok):
                oks.append(result.value)
            elif isinstance(result, Err):
                errs.append(result.error)
            else:
                raise neither(result, record)
        return [oks, errs]

    oks, errs = split(port, "OkErr", 2, divide, "ok_err", f, {"Ok": Ok, "Err": Err, "neither": neither})
    return oks, errs


def check_partition(error: Exception, record: object, count: int) -> None:
    """Say what the function should return, if the partition's own loop raised and not user code."""
    if raised_by_loop(error):
        raise ProgramError(
            f"partition: the function must return (number, record) with a number from 0 to {count - 1}; for "
            f"{record!r} it did not ({type(error).__name__}: {error})"
        ) from None


def neither(result: object, record: object) -> ProgramError:
    """Return what is wrong with a function of `ok_err` that returned neither."""
    return ProgramError(f"ok_err: the function returned {result!r} for {record!r}, not Ok(x) or Err(e)")


def split(
    port: Port[Any],
    name: str,
    count: int,
    divide: Callable[[Time, list[Any]], list[list[Any]]],  # time and batch -> a batch for each output
    kind: Kind,
    f: Callable[..., Any],
    names: Mapping[str, object],
    stamps: Stamps = NO_STAMPS,
) -> list[Port[Any]]:
    """Build an operator with so many outputs; what is fused of it is said by `kind`, `f`, `names` and `stamps`."""
    builder = NodeBuilder(port.scope, name)
    source: Input[Any] = builder.new_input(port, Pipeline(), notify=False)
    made = [builder.new_output() for _ in range(count)]
    outputs: list[Output[Any]] = [output for output, _ in made]

    def process(time: Time, batch: list[Any]) -> None:
        for output, part in zip(outputs, divide(time, batch), strict=True):
            output.ship(time, alike(part, batch))

    stage = Stage(kind, f, [source], outputs, names, stamps=stamps)
    builder.build_releasing(run_whole([source], outputs, process), stage)
    return [result for _, result in made]
