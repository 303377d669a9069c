"""Notes on errors: the user's line where an operator was declared, and the record on which user code raised.

Nothing is recorded per record. When user code raises, the frames of the traceback show which engine loop called it.
These rules let a note find the record:

1. Engine loops name their variables `record` and `time`. Instead of `record`, loops over keys use `key` with `value`,
   `timers` or `values`.
2. A loop over the values of one key, called by such a loop, uses `accumulated` and `value`, or `merged` and `part`.
3. A comprehension over a `batch` uses an iterator named `left`, whose length hint tells how many records remain. From
   Python 3.12 on, the comprehension's own variable is already gone when the note is made.
4. A generated function (`codegen`) does the work of several operators. Its module has a table that maps its lines to
   the operators that call user code there.
"""

import functools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from pathlib import Path
from types import FrameType

from megaflow.errors import similar
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import Product

_PACKAGE = str(Path(__file__).resolve().parents[2]) + "/"
GENERATED = "<megaflow "  # prefix of the names of generated files
CALL_SITES = "__call_sites__"  # a global of a generated module: line number -> CallSite
_FUNCTOOLS = functools.__file__
_NOTE = "in operator "
_NOTES = (_NOTE, "in source ")  # a note that begins so says where an error came from
_LAUNCHING = ("/threading.py", "/runpy.py", "/contextlib.py")  # contextlib ends a block that builds a dataflow
_LONGEST_REPR = 200  # characters of a record shown


@dataclass(frozen=True, slots=True)
class CallSite:
    """Operator that calls user code in one line of a generated function."""

    operator: str
    where: str  # file:line of its declaration
    record: str | None  # the variable that holds the record; None: user code is called once per batch


def user_line() -> str:
    """Return `file:line` of the nearest caller outside megaflow, where the user declared something."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_ours(frame.f_code.co_filename) or frame.f_code.co_filename == _FUNCTOOLS or _is_of_our_dataclass(frame)
    ):  # a cached property of a stream is computed below functools
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown line"


def annotate(error: BaseException, operator: str, where: str, worker: int) -> None:
    """Add a note: the operator, its declaring line, the worker, and the time and record if a frame knows them.

    The first note stays, because it was added nearest to the fault and has the most facts.
    """
    if any(note.startswith(_NOTES) for note in getattr(error, "__notes__", ())):
        return
    facts = facts_of(traceback.walk_tb(error.__traceback__), _short)
    who = facts.get("operator", f"{operator!r} ({where})")
    note = f"{_NOTE}{who}, worker {worker}"
    if "time" in facts:
        note += f", time {facts['time']}"
    for what in ("record", "key", "value", "merging"):
        if what in facts:
            note += f", {what} {facts[what]}"
    error.add_note(note)


@contextmanager
def noting(note: Callable[[], str]) -> Iterator[None]:
    """Add a note to each error of a block, which calls user code that is not part of an operator."""
    try:
        yield
    except Exception as error:
        error.add_note(note())
        raise


def format_user_traceback(error: BaseException, debug: bool = False) -> str:
    """Return the traceback as text with its notes. Without `debug`, engine frames are left out.

    An error of megaflow itself, with no user frame inside, keeps only its message.
    """
    shown = traceback.TracebackException.from_exception(error)
    if sys.version_info < (3, 12) and isinstance(error, AttributeError):  # newer ones suggest the name themselves
        if error.name is not None and (near := similar(error.name, dir(error.obj))):
            shown.__notes__ = [*(shown.__notes__ or ()), f"Did you mean: {near!r}?"]
    if not debug:
        _hide_engine(shown)
    return "".join(shown.format())


def _hide_engine(shown: traceback.TracebackException) -> None:
    # Remove engine frames and launch frames. Only user frames remain.
    kept = [frame for frame in shown.stack if not is_ours(frame.filename) and not _is_launch(frame)]
    shown.stack = traceback.StackSummary.from_list(kept)
    for cause in (shown.__cause__, shown.__context__):
        if cause is not None:
            _hide_engine(cause)


def _is_launch(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith("<frozen") or frame.filename.endswith(_LAUNCHING)


def _is_of_our_dataclass(frame: FrameType) -> bool:
    """Return whether this frame is the `__init__` that Python generated for a megaflow dataclass. It has no file."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__")).startswith("megaflow.")


def is_ours(filename: str) -> bool:
    """Return whether a file is part of megaflow."""
    return filename.startswith((_PACKAGE, GENERATED))


def raised_by_loop(error: BaseException) -> bool:
    """Return whether the engine loop that caught an error raised it itself. Otherwise user code raised it."""
    trace = error.__traceback__
    return trace is None or trace.tb_next is None


def facts_of(frames: Iterable[tuple[FrameType, int]], show: Callable[[object], str]) -> dict[str, str]:
    """Return the facts that engine loops among these frames (outermost first) know: time, record, key and so on."""
    facts: dict[str, str] = {}
    for frame, line in frames:
        if is_ours(frame.f_code.co_filename):
            site = frame.f_globals.get(CALL_SITES, {}).get(line)
            if site is not None:
                _read_call_site(site, frame, facts, show)
            else:
                _collect(frame, facts, show)
            time = frame.f_locals.get("time")
            if isinstance(time, (int, Product, tuple)) or hasattr(time, "less_equal"):
                facts["time"] = show(time)
        elif facts:
            break
    return facts


def _read_call_site(
    site: CallSite, frame: FrameType, facts: dict[str, str], show: Callable[[object], str]
) -> None:
    facts["operator"] = f"{site.operator!r} ({site.where})"
    if site.record is not None:
        _collect(frame, facts, show)
        if site.record in frame.f_locals:  # otherwise it is the variable of a comprehension
            facts["record"] = show(frame.f_locals[site.record])


def _collect(frame: FrameType, facts: dict[str, str], show: Callable[[object], str]) -> None:
    known = frame.f_locals
    if "record" in known:
        facts["record"] = show(known["record"])
    elif "key" in known and "value" in known:
        facts["record"] = show((known["key"], known["value"]))
    elif "key" in known and ("timers" in known or "values" in known):
        facts["key"] = show(known["key"])
    elif "key" in facts and "accumulated" in known and "value" in known:
        facts["value"] = show(known["value"])
    elif "key" in facts and "merged" in known and "part" in known:
        facts["merging"] = f"{show(known['merged'])} and {show(known['part'])}"
    elif "batch" in known and "left" in known:
        facts["record"] = show(known["batch"][len(known["batch"]) - length_hint(known["left"]) - 1])


def _short(value: object) -> str:
    try:
        text = repr(value)
    except BaseException as failure:  # a user's __repr__ may raise; the note must not hide the real error
        text = f"<{type(value).__name__} whose repr raises {type(failure).__name__}>"
    return text if len(text) <= _LONGEST_REPR else text[: _LONGEST_REPR - 1] + "…"
