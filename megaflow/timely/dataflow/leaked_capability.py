"""Warnings of capabilities that leak: that are garbage-collected while they are still held.

Making a capability leaves a mark, which costs 0.2 µs: the code object of the caller and the position in it, not the
frame, which would keep its variables alive. The line is looked up only if the capability leaks.
"""

import sys
import warnings
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Protocol, TypeAlias

from megaflow.timely.dataflow.error_notes import is_ours

Origin: TypeAlias = tuple[CodeType, int] | None
"""A code object and the offset of an instruction in it; None: the operator's declaration is all that is known."""

_CALLER = 3  # frames up from `caller`: mint, the method that mints, its caller


class LostCapability(ResourceWarning):
    """A capability can never be released any more. Shown unless Python is told which warnings to show."""


if not sys.warnoptions:
    warnings.filterwarnings("default", category=LostCapability)  # Python hides ResourceWarnings unless asked


class Endable(Protocol):
    """A dataflow, as far as this module knows it."""

    over: bool  # complete, dropped or failed


def watch(graph: Endable) -> Callable[[], bool]:
    """Return a function that tells whether a dataflow is there and not over. It does not keep the dataflow alive.

    When the garbage collector takes a whole dataflow it is not there for its capabilities: the weak reference has a
    callback, so it is cleared before they are finalized (Python 3.14 clears those without one later).
    """
    itself = weakref.ref(graph, lambda _: None)

    def is_running() -> bool:
        there = itself()
        return there is not None and not there.over

    return is_running


def caller() -> Origin:
    """Mark who called the method that mints."""
    frame = sys._getframe(_CALLER)
    return frame.f_code, frame.f_lasti


def warn_of_loss(message: str, declared: str, origin: Origin) -> None:
    """Warn at the line of the user's that made the capability, or else that `declared` (file:line) its operator."""
    where = declared if origin is None or is_ours(origin[0].co_filename) else line_of(*origin)
    file, _, line = where.rpartition(":")
    number = int(line) if line.isdigit() else 0
    warnings.warn_explicit(f"{message}; made at {where}", LostCapability, file or where, number)


def line_of(code: CodeType, offset: int) -> str:
    """Return file:line of an instruction.

    >>> code = compile("first()\\nsecond()", "worker_program.py", "exec")
    >>> line_of(code, 0).startswith("worker_program.py:")
    True
    """
    lines = [line for line, *_ in code.co_positions()]
    line = lines[offset // 2] if 0 <= offset // 2 < len(lines) else None
    return f"{code.co_filename}:{code.co_firstlineno if line is None else line}"
