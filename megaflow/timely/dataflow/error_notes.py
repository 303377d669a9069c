"""Notes on errors: the user's line where an operator was declared, and the record on which user code raised.

Nothing is recorded per record. When user code raises, the frames of the traceback say which engine loop called it; by
agreement such loops name their variables `record` (or `key` and `value`, or `key` and `timers`) and `time`; and loops
that these call for one key, over its values, `accumulated` and `value`, or `merged` and `part`. The variable of a
comprehension is gone by then (from Python 3.12 on): a comprehension over a `batch` goes over an iterator named `left`,
which knows how many records it has left. A generated function (`codegen`) does the work of several operators: its
module has a table that says for each of its lines which operator calls user code there.
"""

import sys
import traceback
from collections.abc import Callable, Iterable
from operator import length_hint
from pathlib import Path
from types import FrameType

from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import Product

_PACKAGE = str(Path(__file__).resolve().parents[2]) + "/"
GENERATED = "<megaflow "  # how the names of files begin that are generated
CALL_SITES = "__call_sites__"  # a global of a generated module: line number -> CallSite
_NOTE = "in operator "
_NOTES = (_NOTE, "in source ")  # either says where an error came from
_LAUNCHING = ("/threading.py", "/runpy.py", "/contextlib.py")  # the last at the end of a block that builds a dataflow
_LONGEST_REPR = 200  # characters of a record shown


@dataclass(frozen=True, slots=True)
class CallSite:
    """Which operator calls user code in a line of a generated function."""

    operator: str
    where: str  # file:line of its declaration
    record: str | None  # the variable that has the record; None: it is called for a batch


def user_line() -> str:
    """`file:line` of the nearest caller outside megaflow, where the user declared something."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_ours(frame.f_code.co_filename) or _is_of_our_dataclass(frame)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown line"


def annotate(error: BaseException, operator: str, where: str, worker: int) -> None:
    """Add a note: operator, the line that declared it, worker, and time and record if a frame knows them.

    The first note stands: the frames nearest to the fault know best.
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


def format_user_traceback(error: BaseException, debug: bool = False) -> str:
    """Return the traceback as text, notes included, without engine frames unless `debug`.

    An error of megaflow itself, which has no frames of the user's inside, keeps only its message.
    """
    shown = traceback.TracebackException.from_exception(error)
    if not debug:
        _hide_engine(shown)
    return "".join(shown.format())


def _hide_engine(shown: traceback.TracebackException) -> None:
    # Everything up to the first frame of the user's *inside* the engine's calls goes, and engine frames after it too.
    kept = [frame for frame in shown.stack if not is_ours(frame.filename) and not _is_launch(frame)]
    shown.stack = traceback.StackSummary.from_list(kept)
    for cause in (shown.__cause__, shown.__context__):
        if cause is not None:
            _hide_engine(cause)


def _is_launch(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith("<frozen") or frame.filename.endswith(_LAUNCHING)


def _is_of_our_dataclass(frame: FrameType) -> bool:
    """Tell whether this is the `__init__` that Python has generated for a dataclass of megaflow: it is in no file."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__")).startswith("megaflow.")


def is_ours(filename: str) -> bool:
    """Tell whether a file is a part of megaflow."""
    return filename.startswith((_PACKAGE, GENERATED))


def raised_by_loop(error: BaseException) -> bool:
    """Tell, where an engine loop has caught an error, whether the loop raised it, not user code that it called."""
    trace = error.__traceback__
    return trace is None or trace.tb_next is None


def facts_of(frames: Iterable[tuple[FrameType, int]], show: Callable[[object], str]) -> dict[str, str]:
    """Return what engine loops among these frames (with their lines, outermost first) know: time, record, key, …"""
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
        if site.record in frame.f_locals:  # else it is a comprehension's
            facts["record"] = show(frame.f_locals[site.record])


def _collect(frame: FrameType, facts: dict[str, str], show: Callable[[object], str]) -> None:
    known = frame.f_locals
    if "record" in known:
        facts["record"] = show(known["record"])
    elif "key" in known and "value" in known:
        facts["record"] = show((known["key"], known["value"]))
    elif "key" in known and "timers" in known:
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
