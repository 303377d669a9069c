"""Current work of a worker's thread: the user's function and line, the operator, the record, the system it waits for.

A function of megaflow that waits for another system has a local variable `waits` of the class `Waits`.

Another thread calls this module and may look at the worker's frames at any moment. So nothing here runs user code. A
value of a user's class is shown by its type alone, because its `__repr__` might hang.
"""

import sysconfig
from collections.abc import Callable
from itertools import islice
from os.path import basename
from traceback import walk_stack
from types import FrameType, NoneType
from typing import Any

from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.error_notes import CALL_SITES, facts_of, is_ours
from megaflow.timely.dataflow.graph import Node

FRAMES_MAX = 10_000  # frames looked at, from the innermost
TEXT_MAX = 100  # characters of a name, or of a record shown
ITEMS_MAX = 6  # shown of a container
DEPTH_MAX = 3  # levels of nested containers shown
BITS_MAX = 256  # of a number shown
COMMAND = "<string>"  # file name of the code that a process was started with, `python -c`: its frame is always there

_INSTALLED = ("/site-packages/", "/dist-packages/")
_STANDARD = (sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/", "<frozen ")


@dataclass(frozen=True, slots=True)
class RunningPlace:
    """Known facts about a thread's current work."""

    function: str | None = None  # the innermost function of the user's own code
    where: str | None = None  # file:line in that function, without the folder
    operator: str | None = None
    record: str | None = None  # its text
    waits: str | None = None  # the other system that it waits for


@dataclass(frozen=True, slots=True)
class Waits:
    """System outside megaflow that a thread waits for. The waiting function has it in its local variable `waits`."""

    what: str
    attempt: int = 1
    trouble: str = ""  # why the last attempt failed; "": none has failed

    def __str__(self) -> str:
        return f"{self.what}, attempt {self.attempt}{self.trouble and f' ({self.trouble})'}"


def place_of(innermost: FrameType) -> RunningPlace | None:
    """Return what the thread that runs this frame is doing. None if it waits for work."""
    frames = [frame for frame, _ in islice(walk_stack(innermost), FRAMES_MAX)]
    if frames[-1].f_code.co_filename == COMMAND:
        del frames[-1]
    if any(frame.f_code.co_name == "park" and is_ours(frame.f_code.co_filename) for frame in frames):
        return None
    user = _innermost(frames, _is_users) or _innermost(frames, _is_foreign)
    function = where = None
    if user is not None:
        function = user.f_code.co_name[:TEXT_MAX]
        where = f"{basename(user.f_code.co_filename)[-TEXT_MAX:]}:{user.f_lineno}"
    try:
        facts = facts_of(((frame, frame.f_lineno) for frame in reversed(frames)), shown_plainly)
    except (LookupError, TypeError):  # the thread has moved on, and its variables are gone
        facts = {}
    return RunningPlace(function, where, _operator(frames), facts.get("record", facts.get("key")), _waits(frames))


def _waits(frames: list[FrameType]) -> str | None:
    """Return the system that the innermost waiting function of megaflow waits for. None if no function waits."""
    for frame in frames:
        if is_ours(frame.f_code.co_filename) and type(waits := frame.f_locals.get("waits")) is Waits:
            return str(waits)
    return None


def _operator(frames: list[FrameType]) -> str | None:
    """Return the name of the innermost running operator."""
    for frame in frames:
        if is_ours(frame.f_code.co_filename):
            site = frame.f_globals.get(CALL_SITES, {}).get(frame.f_lineno)
            if site is not None:
                return str(site.operator)
            if isinstance(node := frame.f_locals.get("node"), Node):
                return node.name
    return None


def _innermost(frames: list[FrameType], wanted: Callable[[str], bool]) -> FrameType | None:
    return next((frame for frame in frames if wanted(frame.f_code.co_filename)), None)


def _is_foreign(file: str) -> bool:
    """Return whether a file belongs neither to megaflow nor to Python's standard library."""
    return not is_ours(file) and (not file.startswith(_STANDARD) or any(part in file for part in _INSTALLED))


def _is_users(file: str) -> bool:
    """Return whether a file is neither an installed package nor part of Python or megaflow."""
    return _is_foreign(file) and not any(part in file for part in _INSTALLED)


def shown_plainly(value: Any, depth: int = DEPTH_MAX) -> str:
    """Return a shortened text of a value, without calling user code.

    >>> shown_plainly(("word", [1, 2.5, None])), shown_plainly(ValueError()), len(shown_plainly("x" * 1000))
    ("('word', [1, 2.5, None])", '<ValueError>', 100)
    """
    kind = type(value)
    try:
        if kind in (str, bytes):
            text = repr(value[:TEXT_MAX])
        elif kind in (bool, float, NoneType) or (type(value) is int and value.bit_length() <= BITS_MAX):
            text = repr(value)
        elif kind in (tuple, list, set, frozenset, dict) and depth:
            text = _container(value, depth - 1)
        else:
            text = f"<{_name(kind)}>"
    except RuntimeError:  # the worker changed it meanwhile
        text = f"<{_name(kind)}>"
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _container(value: Any, depth: int) -> str:
    more = ", …" if len(value) > ITEMS_MAX else ""
    first = list(islice(value.items() if type(value) is dict else value, ITEMS_MAX))
    if type(value) is dict:
        inside = ", ".join(f"{shown_plainly(key, depth)}: {shown_plainly(item, depth)}" for key, item in first)
        return "{" + inside + more + "}"
    inside = ", ".join(shown_plainly(item, depth) for item in first) + more
    if type(value) is tuple:
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return f"[{inside}]" if type(value) is list else "{" + inside + "}" if value else f"{_name(type(value))}()"


def _name(kind: type) -> str:
    """Return the name of a class, even if its metaclass overrides it."""
    name: str = type.__dict__["__name__"].__get__(kind)
    return name[:TEXT_MAX]
