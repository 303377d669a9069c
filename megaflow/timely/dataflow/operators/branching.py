"""Operators that split a stream: each record goes to one of several outputs, on the same worker.

They hold no capability and keep times. They are stages, like the linear operators.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from megaflow.errors import BuildError, ProgramError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.error_notes import raised_by_loop, user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.linear import split

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
    """Split into `count` streams: `f(record)` returns the number of a stream and the record to send there.

    Raises BuildError unless `count` is an int of at least 1. At run time, a number out of range raises ProgramError.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BuildError(
            f"partition({count!r}, …) ({user_line()}): give the number of streams to make, an int of at least 1"
        )
    return split(port, "partition", f, count, names={"check_partition": check_partition})


def ok_err(port: Port[T], f: Callable[[T], Result[U, E]]) -> list[Port[Any]]:
    """Split into two streams: x for each record with `f(record) == Ok(x)`, e for each with `f(record) == Err(e)`."""
    return split(port, "ok_err", f, names={"Ok": Ok, "Err": Err, "neither": neither})


def check_partition(error: Exception, record: object, count: int) -> None:
    """Raise ProgramError with the expected return value, if the partition's own loop raised and not user code."""
    if raised_by_loop(error):
        raise ProgramError(
            f"partition: the function must return (number, record) with a number from 0 to {count - 1}; for "
            f"{record!r} it did not ({type(error).__name__}: {error})"
        ) from None


def neither(result: object, record: object) -> ProgramError:
    """Return the error for a function of `ok_err` that returned neither Ok nor Err."""
    return ProgramError(f"ok_err: the function returned {result!r} for {record!r}, not Ok(x) or Err(e)")
