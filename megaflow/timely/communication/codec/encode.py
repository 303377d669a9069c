"""Values to bytes: a value is taken apart into a tree that msgpack carries exactly.

Types are told apart by `type(value)`, never by isinstance: a subclass never turns into its base. Lists of one type
alone, and the columns of lists of tuples, become one run of bytes without Python code per element.
"""

import contextlib
import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import partial
from pathlib import PurePath
from typing import Any, Final, TypeAlias, TypeVar, overload
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack

from megaflow.errors import CannotTravel, UsageError
from megaflow.timely.communication.codec import array_types, tags, user_types
from megaflow.timely.communication.codec.tags import Node

T = TypeVar("T")
Lower: TypeAlias = Callable[[Any, int], Node]  # (value, depth) -> node

COLUMN_LENGTH_MIN: Final = 4  # a shorter list costs less element by element
ARITY_MAX: Final = 64  # a wider tuple would make many short columns
_BY_FIELD: Final = " because of its field "
_TOO_DEEP: Final = f"a value nested deeper than {tags.DEPTH_MAX} levels, or one that contains itself, cannot travel"


class _Met:
    """The objects that `lower` has met in one value."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[object, list[Node]]] = {}  # id -> the object, which keeps its id, and its node
        self.anchors = 0


_met: Final[ContextVar[_Met | None]] = ContextVar("met", default=None)  # of each thread
_sharing: Final[set[_Met]] = set()  # of all threads; asking `_met` alone would make records cost a tenth more


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Have `lower` keep, in this block, what is referred to twice as one: a node for the first, numbers for the rest.

    Tuples and frozensets are copied as ever: what they are does not depend on who else has them, and the hash of a
    tuple of shared tuples could take for ever.
    """
    met = _Met()
    token = _met.set(met)
    _sharing.add(met)
    try:
        yield
    finally:
        _sharing.remove(met)
        _met.reset(token)


def encode(value: object, *, shared: bool = False) -> bytes:
    """Return bytes from which `decode` rebuilds the value; raises CannotTravel naming a type that cannot travel.

    With `shared`, also for `decode`, objects that the value refers to several times stay one. Without, they are copied.
    """
    try:
        with sharing() if shared else contextlib.nullcontext():
            tree = lower(value)
    except RecursionError as error:
        raise CannotTravel(f"a value of {user_types.describe(type(value))} is nested too deeply to travel") from error
    try:
        packed: bytes = msgpack.packb(tree, default=_lower_big_int, strict_types=True, unicode_errors="surrogatepass")
    except ValueError as error:  # more than 4 GiB in one piece
        raise CannotTravel(f"a value of {user_types.describe(type(value))} is too large to travel") from error
    return packed


@overload
def register(cls: type[Any]) -> None: ...
@overload
def register(cls: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]) -> None: ...
def register(
    cls: type[T], encode: Callable[[T], object] | None = None, decode: Callable[[Any], T] | None = None
) -> None:
    """Let values of exactly this class travel, as keys, states and records.

    `encode` gives a value that can travel, `decode` turns it back. Without them an object of the class is taken apart
    into its fields, or by its own `__getstate__` if it has one, and is made again without `__init__`, by its own
    `__setstate__` if it has one. So a class of a library travels when the program says so; what its objects hold must
    be able to travel, too. Each process must register the class, under the same name, before the first value is sent:
    call this at the top level of the program. Raises UsageError for a class that needs the two functions.
    """
    if cls in _BUILT_IN:
        raise UsageError(f"register({cls.__name__}): values of {user_types.describe(cls)} travel already")
    if encode is None or decode is None:
        why = "one function is given" if encode or decode else user_types.why_not_by_state(cls)
        if why is not None:
            raise UsageError(f"register({cls.__name__}): {why}; give both, register({cls.__name__}, encode, decode)")
        encode, decode = user_types.by_state(cls)
    name = f"{cls.__module__}.{cls.__qualname__}"
    user_types.decoders[name] = decode
    taken_apart: Callable[[T], object] = encode
    _LOWER[cls] = lambda value, depth: [tags.REGISTERED, name, lower(taken_apart(value), depth + 1)]


def lower(value: Any, depth: int = 0) -> Node:
    """Return the node of a value; raises CannotTravel naming a type that cannot travel."""
    kind = type(value)
    if kind in tags.SCALARS:
        return value
    if depth > tags.DEPTH_MAX:
        raise CannotTravel(_TOO_DEEP)
    lowered = _LOWER.get(kind) or _lower_of_class(kind)
    met = _met.get() if _sharing else None
    if met is None or kind in _COPIED:
        return lowered(value, depth)
    if id(value) not in met.nodes:
        node = lowered(value, depth)
        met.nodes[id(value)] = value, node
        return node
    _, first = met.nodes[id(value)]
    if first[0] != tags.ANCHOR:
        first[:] = [tags.ANCHOR, met.anchors, first[:]]
        met.anchors += 1
    return [tags.SHARED, first[1]]


def _lower_list(values: Sequence[Any], depth: int, nested: int = 0) -> Node:
    count = len(values)
    if depth > tags.DEPTH_MAX:
        raise CannotTravel(_TOO_DEEP)
    if count > tags.ARRAY_LENGTH_MAX:
        return _lower_parts(values, depth)
    if count >= COLUMN_LENGTH_MIN:
        kind = type(values[0])
        column = _COLUMN.get(kind)
        # Measured on a list of 700 words: comparing lists takes 10 ns an element, set(map(type, values)) 18.
        if column is not None and [*map(type, values)] == [kind] * count:
            node = column(values, depth, nested)
            if node is not None:
                return node
    return [tags.LIST, [value if type(value) in tags.SCALARS else lower(value, depth + 1) for value in values]]


def _lower_parts(values: Sequence[Any], depth: int) -> Node:
    size = tags.ARRAY_LENGTH_MAX
    while len(values) > size * tags.ARRAY_LENGTH_MAX:
        size *= tags.ARRAY_LENGTH_MAX
    return [tags.PARTS, [_lower_list(values[at : at + size], depth + 1) for at in range(0, len(values), size)]]


def _lower_strs(values: Sequence[str], depth: int, nested: int) -> Node | None:
    text = "\0".join(values)
    if text.count("\0") != len(values) - 1:
        return None
    return [tags.STRS, text.encode("utf-8", "surrogatepass")]


def _lower_ints(values: Sequence[int], depth: int, nested: int) -> Node | None:
    for tag, letter in ((tags.INT32S, "i"), (tags.INT64S, "q")):
        try:
            return [tag, struct.pack(f"<{len(values)}{letter}", *values)]
        except struct.error:
            pass  # out of range: wider, then one by one
    return None


def _lower_columns(values: Sequence[tuple[Any, ...]], depth: int, nested: int) -> Node | None:
    if nested == tags.NESTED_COLUMNS_MAX or not 0 < len(values[0]) <= ARITY_MAX:
        return None
    try:
        columns = list(zip(*values, strict=True))
    except ValueError:  # tuples of different lengths
        return None
    return [tags.COLUMNS, [_lower_list(column, depth + 1, nested + 1) for column in columns]]


_COLUMN: Final[dict[type, Callable[[Any, int, int], Node | None]]] = {
    str: _lower_strs,
    int: _lower_ints,
    float: lambda values, depth, nested: [tags.FLOATS, struct.pack(f"<{len(values)}d", *values)],
    tuple: _lower_columns,
}


def _lower_big_int(value: int) -> Node:
    """Lower an int beyond 64 bits, the one thing that msgpack finds left to lower."""
    return [tags.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


def _lower_items(tag: int, *more: Node) -> Lower:
    return lambda value, depth: [tag, *more, _lower_list(list(value), depth), _lower_list(list(value.values()), depth)]


def _lower_defaultdict(value: defaultdict[Any, Any], depth: int) -> Node:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and tags.FACTORIES.get(name) is not factory:
        raise CannotTravel(
            f"a defaultdict whose factory is {factory!r} cannot travel: use a dict, or one of these as the factory: "
            + ", ".join(sorted(tags.FACTORIES))
        )
    return _lower_items(tags.DEFAULTDICT, name)(value, depth)


def _lower_path(value: PurePath, depth: int) -> Node:
    return [tags.PATH, type(value).__name__, str(value)]


def _lower_pattern(value: re.Pattern[Any], depth: int) -> Node:
    if not tags.is_modest(value.pattern, value.flags):
        raise CannotTravel(
            f"a compiled regular expression of {len(value.pattern)} characters, flags {value.flags}, cannot travel: at "
            f"most {tags.PATTERN_LENGTH_MAX} characters, {tags.PATTERN_DASHES_MAX} of them dashes, and no DEBUG; "
            "send its name, and compile it at the top level of the program"
        )
    return [tags.PATTERN, value.pattern, value.flags]


def _lower_zone_info(value: ZoneInfo, depth: int) -> Node:
    if value.key is None:
        raise CannotTravel("a ZoneInfo made from a file without a key cannot travel: make it by name")
    return [tags.ZONE_INFO, value.key]


def _of_fields(tag: int, fields: Callable[[Any], Iterable[Any]]) -> Lower:
    """Lower a value to the few values that describe it."""
    return lambda value, depth: [tag, *(lower(part, depth + 1) for part in fields(value))]


_LOWER: Final[dict[type, Lower]] = {
    list: _lower_list,
    tuple: lambda value, depth: [tags.TUPLE, _lower_list(value, depth)],
    dict: _lower_items(tags.DICT),
    set: lambda value, depth: [tags.SET, _lower_list(list(value), depth)],
    frozenset: lambda value, depth: [tags.FROZENSET, _lower_list(list(value), depth)],
    bytearray: lambda value, depth: [tags.BYTEARRAY, bytes(value)],
    complex: lambda value, depth: [tags.COMPLEX, value.real, value.imag],
    Decimal: lambda value, depth: [tags.DECIMAL, str(value)],
    UUID: lambda value, depth: [tags.UUID, value.bytes],
    date: lambda value, depth: [tags.DATE, value.toordinal()],
    time: _of_fields(tags.TIME, lambda t: (t.hour, t.minute, t.second, t.microsecond, t.fold, t.tzinfo)),
    datetime: _of_fields(tags.DATETIME, lambda t: (t.toordinal(), t.timetz())),
    timedelta: lambda value, depth: [tags.TIMEDELTA, value.days, value.seconds, value.microseconds],
    timezone: _of_fields(tags.TIMEZONE, lambda zone: zone.__getinitargs__()),
    ZoneInfo: _lower_zone_info,
    Counter: _lower_items(tags.COUNTER),
    OrderedDict: _lower_items(tags.ORDERED_DICT),
    defaultdict: _lower_defaultdict,
    deque: lambda value, depth: [tags.DEQUE, value.maxlen, _lower_list(list(value), depth)],
    range: lambda value, depth: [tags.RANGE, _lower_list((value.start, value.stop, value.step), depth)],
    re.Pattern: _lower_pattern,
    **dict.fromkeys(tags.PATHS.values(), _lower_path),
}  # class -> how; written by register and, as a cache of the program's own classes, by _lower_of_class

_BUILT_IN: Final = tags.SCALARS.union(_LOWER)
_COPIED: Final = frozenset((tuple, frozenset))


def _lower_of_class(kind: Any) -> Lower:
    """Return how values of one of the program's classes, or of a library's, are lowered, and remember it."""
    lowered = array_types.lowering(kind, lower)
    if lowered is None:
        if issubclass(kind, Enum):
            lowered = _lower_enum
        elif user_types.is_named_tuple(kind):
            lowered = _lower_named_tuple
        elif user_types.is_plain_dataclass(kind):
            lowered = partial(_lower_fields, tags.DATACLASS, user_types.storage_of(kind))
        elif (why := user_types.why_not_by_fields(kind)) is None:
            lowered = partial(_lower_fields, tags.OBJECT, user_types.storage_of(kind))
        else:
            functions = ", encode, decode" if user_types.why_not_by_state(kind) else ""
            raise CannotTravel(
                f"a value of {user_types.describe(kind)} cannot travel between processes, for {why}: use a plain "
                "Python value, a dataclass, a NamedTuple or an enum, or call "
                f"megaflow.register({kind.__name__}{functions})"
            )
        user_types.check_findable(kind)
    _LOWER[kind] = lowered
    return lowered


def _lower_enum(value: Any, depth: int) -> Node:
    kind = type(value)
    if kind.__members__.get(value.name) is value:
        return [tags.ENUM, kind.__module__, kind.__qualname__, value.name]
    if isinstance(value, Flag):  # several flags at once
        return [tags.FLAG, kind.__module__, kind.__qualname__, value.value]
    raise CannotTravel(f"{value!r} cannot travel: it is not a member of {user_types.describe(kind)}")


def _lower_named_tuple(value: Any, depth: int) -> Node:
    kind = type(value)
    if getattr(value, "__dict__", None):
        raise CannotTravel(f"a value of {user_types.describe(kind)} cannot travel: it has attributes beside its fields")
    return [tags.NAMED_TUPLE, kind.__module__, kind.__qualname__, _lower_list(tuple(value), depth)]


def _lower_fields(tag: int, storage: user_types.Storage, value: Any, depth: int) -> Node:
    names, values = storage.take_apart(value)
    kind = storage.cls
    try:
        return [tag, kind.__module__, kind.__qualname__, names, _lower_list(values, depth)]
    except CannotTravel as error:
        raise _field_error(kind, names, values, depth, error) from None


def _field_error(kind: type, names: Sequence[str], values: Sequence[Any], depth: int, error: CannotTravel) -> Exception:
    """Return the error with the field that is to blame; the innermost one is enough."""
    if _BY_FIELD in str(error) or str(error) == _TOO_DEEP:
        return error
    for name, value in zip(names, values):
        try:
            lower(value, depth + 1)
        except CannotTravel:
            remedy = f"; to leave it out, call megaflow.register({kind.__name__}, encode, decode)"
            return CannotTravel(
                f"a value of {user_types.describe(kind)} cannot travel{_BY_FIELD}{name!r}: {error}{remedy}"
            )
    return error
