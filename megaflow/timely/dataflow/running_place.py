"""Where a worker's thread is just now: the user's function and line, the operator, the record.

For another thread than the worker's, which may look at its frames at any moment. So nothing of the user's runs here:
a value of a class of theirs is shown by its type alone, as its `__repr__` might hang.
"""

import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from os.path import basename
from types import FrameType, NoneType
from typing import Any

from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.error_notes import CALL_SITES, facts_of, is_ours
from megaflow.timely.dataflow.graph import Node

FRAMES_MAX = 10_000  # looked at, from the innermost
TEXT_MAX = 100  # characters of a name, or of a record shown
ITEMS_MAX = 6  # of a container shown
DEPTH_MAX = 3  # of containers within containers
BITS_MAX = 256  # of a number shown
COMMAND = "<string>"  # what a process was begun by, `python -c`: it is in there all the time

_INSTALLED = ("/site-packages/", "/dist-packages/")
_STANDARD = (sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/", "<frozen ")


@dataclass(frozen=True, slots=True)
class RunningPlace:
    """What is known of it."""

    function: str | None = None  # the innermost one of the user's own code
    where: str | None = None  # file:line in there, without the folder
    operator: str | None = None
    record: str | None = None  # how it shows


def place_of(innermost: FrameType) -> RunningPlace | None:
    """Return where a thread is that runs this frame; None if it waits for something to do."""
    frames = list(islice(_outwards(innermost), FRAMES_MAX))
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
    except (LookupError, TypeError):  # the thread has gone on, and what its variables were is no more
        facts = {}
    return RunningPlace(function, where, _operator(frames), facts.get("record", facts.get("key")))


def _operator(frames: list[FrameType]) -> str | None:
    """Return the name of the innermost operator that runs."""
    for frame in frames:
        if is_ours(frame.f_code.co_filename):
            site = frame.f_globals.get(CALL_SITES, {}).get(frame.f_lineno)
            if site is not None:
                return str(site.operator)
            if isinstance(node := frame.f_locals.get("node"), Node):
                return node.name
    return None


def _outwards(innermost: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back


def _innermost(frames: list[FrameType], wanted: Callable[[str], bool]) -> FrameType | None:
    return next((frame for frame in frames if wanted(frame.f_code.co_filename)), None)


def _is_foreign(file: str) -> bool:
    """Whether it is neither megaflow's nor Python's own."""
    return not is_ours(file) and (not file.startswith(_STANDARD) or any(part in file for part in _INSTALLED))


def _is_users(file: str) -> bool:
    """Whether it is neither installed nor Python's own."""
    return _is_foreign(file) and not any(part in file for part in _INSTALLED)


def shown_plainly(value: Any, depth: int = DEPTH_MAX) -> str:
    """Return how a value shows, shortened, without calling anything of the user's.

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
    except RuntimeError:  # it was changed meanwhile
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
    """The name of a class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(kind)
    return name[:TEXT_MAX]
