"""Warnings about leaked capabilities: those that are garbage-collected while they are still held.

When a capability is made, its origin is recorded, which costs 0.2 µs. The origin is the caller's code object and the
position in it. A reference to the frame would keep the frame's variables alive. The line number is looked up only if
the capability leaks.
"""

import sys
import warnings
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Protocol, TypeAlias

from megaflow.timely.dataflow.error_notes import is_ours

Origin: TypeAlias = tuple[CodeType, int] | None
"""A code object and the offset of an instruction in it. None: only the operator's declaration is known."""

_CALLER = 3  # frames up from `caller`: mint, the method that mints, its caller


class LostCapability(ResourceWarning):
    """Warning that a capability can never be released. It is shown unless Python has been given warning options."""


if not sys.warnoptions:
    warnings.filterwarnings("default", category=LostCapability)  # Python hides ResourceWarnings unless asked


class Endable(Protocol):
    """A dataflow, as far as this module uses it."""

    over: bool  # complete, dropped or failed


def watch(graph: Endable) -> Callable[[], bool]:
    """Return a function that tells whether the dataflow still exists and is not over. It does not keep it alive.

    If the garbage collector takes a whole dataflow, the function returns False for the dataflow's capabilities. The
    reason is the callback of the weak reference: Python clears such references before it finalizes the capabilities.
    Python 3.14 clears references without a callback later.
    """
    itself = weakref.ref(graph, lambda _: None)

    def is_running() -> bool:
        there = itself()
        return there is not None and not there.over

    return is_running


def caller() -> Origin:
    """Return the place that called the minting method."""
    frame = sys._getframe(_CALLER)
    return frame.f_code, frame.f_lasti


def warn_of_loss(message: str, declared: str, origin: Origin) -> None:
    """Warn at the user's line that made the capability, or else at `declared` (file:line), its operator's line."""
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
