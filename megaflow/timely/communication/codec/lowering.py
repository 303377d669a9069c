"""Values to the tree that msgpack carries exactly.

Types are told apart by `type(value)`, never by isinstance: a subclass never turns into its base. Lists of one type
alone become one run of bytes without Python code per element, and what is equal in shape (tuples of one length, dicts
with the same keys in the same order, objects of one class with the same fields, lists) becomes columns, each of which
is a list again. Whether a list can become columns is known before anything in it is lowered: what is lowered twice at
each level of nesting takes for ever.
"""

import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

from megaflow.errors import CannotTravel
from megaflow.timely.communication.codec import array_types, equal_shapes, tags, user_types
from megaflow.timely.communication.codec.old_classes import beside_fields, flag_names, names_of
from megaflow.timely.communication.codec.references import Interlinked, Met, Rows
from megaflow.timely.communication.codec.tags import Node
from megaflow.timely.communication.codec.user_types import Storage

Lower: TypeAlias = Callable[[Any, int], Node]  # (value, depth) -> node
LowerAll: TypeAlias = Callable[[Any, int, int], Node | None]  # (values, depth, nested columns) -> node, or not as one

COLUMN_LENGTH_MIN: Final = 4  # a shorter list costs less element by element
FLAT_LENGTH_MAX: Final = 1 << 16  # elements of lists in a list: one that contains itself has more at each level
_BY_FIELD: Final = " because of its field "
_TOO_DEEP: Final = f"a value nested deeper than {tags.DEPTH_MAX} levels, or one that contains itself, cannot travel"

_met: Final[ContextVar[Met | None]] = ContextVar("met", default=None)  # of each thread
_sharing: Final[set[Met]] = set()  # of all threads; asking `_met` alone would make records cost a tenth more


def lower_shared(value: object) -> Node:
    """Lower a value so that what it refers to twice stays one: a node for the first, numbers for the rest.

    Tuples and frozensets are copied as ever: what they are does not depend on who else has them, and the hash of a
    tuple of shared tuples could take for ever.
    """
    try:
        return _lower_noting(value, Met())
    except Interlinked:
        return _lower_noting(value, Met(rows=False))


def _lower_noting(value: object, met: Met) -> Node:
    token = _met.set(met)
    _sharing.add(met)
    try:
        return lower(value)
    finally:
        _sharing.remove(met)
        _met.reset(token)


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
    if id(value) in met.nodes:
        return met.reference_to(value)
    node = lowered(value, depth)
    met.nodes[id(value)] = value, node
    return node


def _lower_list(values: Sequence[Any], depth: int, nested: int = 0) -> Node:
    if depth > tags.DEPTH_MAX:
        raise CannotTravel(_TOO_DEEP)
    if len(values) > tags.ARRAY_LENGTH_MAX:
        return _lower_parts(values, depth, nested)
    if len(values) >= COLUMN_LENGTH_MIN and (node := _lower_uniform(values, depth, nested)) is not None:
        return node
    return [tags.LIST, [value if type(value) in tags.SCALARS else lower(value, depth + 1) for value in values]]


def _lower_parts(values: Sequence[Any], depth: int, nested: int) -> Node:
    size = tags.ARRAY_LENGTH_MAX
    while len(values) > size * tags.ARRAY_LENGTH_MAX:
        size *= tags.ARRAY_LENGTH_MAX
    return [tags.PARTS, [_lower_list(values[at : at + size], depth + 1, nested) for at in range(0, len(values), size)]]


def _lower_uniform(values: Sequence[Any], depth: int, nested: int) -> Node | None:
    """Lower values as one; None, before anything in them is lowered, if they are not alike, or not of such a type."""
    kind = type(values[0])
    if kind not in _COLUMN and kind not in _LOWER:
        _lower_of_class(kind)
    column = _COLUMN.get(kind)
    # Measured on a list of 700 words: comparing lists takes 10 ns an element, set(map(type, values)) 18.
    if column is None or [*map(type, values)] != [kind] * len(values):
        return None
    return column(values, depth, nested)


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


def _lower_plain(values: Sequence[Any], depth: int, nested: int) -> Node | None:
    return [tags.LIST, list(values)] if len(values) <= tags.ARRAY_LENGTH_MAX else None


def _lower_tuples(values: Sequence[tuple[Any, ...]], depth: int, nested: int) -> Node | None:
    columns = equal_shapes.take_tuples_apart(values) if nested < tags.NESTED_COLUMNS_MAX else None
    return columns and [tags.COLUMNS, [_lower_list(column, depth + 1, nested + 1) for column in columns]]


def _lower_dicts(values: Sequence[dict[Any, Any]], depth: int, nested: int) -> Node | None:
    apart = equal_shapes.take_dicts_apart(values) if nested < tags.NESTED_COLUMNS_MAX else None
    return apart and _lower_rows([tags.DICT, apart[0]], values, apart[1], depth, nested)


def _lower_lists(values: Sequence[list[Any]], depth: int, nested: int) -> Node | None:
    if nested == tags.NESTED_COLUMNS_MAX or sum(map(len, values)) > FLAT_LENGTH_MAX:
        return None
    if len({*map(type, values[0])}) > 1:
        columns = equal_shapes.take_tuples_apart(values)
        return columns and _lower_rows([tags.LIST], values, columns, depth, nested)
    rows = Rows(values, _met.get() if _sharing else None)
    if not rows.begin():
        return None
    flat = [*chain.from_iterable(values)]
    node = _lower_uniform(flat, depth, nested + 1) if flat else [tags.LIST, []]
    if node is None:
        rows.forget()
        return None
    return rows.complete([tags.LISTS, _lower_list([*map(len, values)], depth, nested + 1), node])


def _lower_rows(
    shape: Node, values: Sequence[Any], columns: Sequence[equal_shapes.Column], depth: int, nested: int
) -> Node | None:
    """Lower values of which these are the columns; None, before anything is lowered, if one is met twice."""
    rows = Rows(values, _met.get() if _sharing else None)
    if not rows.begin():
        return None
    nodes = []
    for place, column in enumerate(columns):
        try:
            nodes.append(_lower_list(column, depth + 1, nested + 1))
        except CannotTravel as error:
            if shape[0] not in (tags.DATACLASS, tags.OBJECT):
                raise
            raise _field_error(type(values[0]), [shape[3][place]] * len(column), column, depth, error) from None
    return rows.complete([tags.ROWS, shape, nodes])


_COLUMN: Final[dict[type, LowerAll]] = {
    **dict.fromkeys((type(None), bool, bytes), _lower_plain),
    str: _lower_strs,
    int: _lower_ints,
    float: lambda values, depth, nested: [tags.FLOATS, struct.pack(f"<{len(values)}d", *values)],
    tuple: _lower_tuples,
    dict: _lower_dicts,
    list: _lower_lists,
}  # class -> how values of it alone are lowered; written as _LOWER is


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
    **dict.fromkeys(tags.PATHS.values(), lambda value, depth: [tags.PATH, type(value).__name__, str(value)]),
}  # class -> how; written by lower_as and, as a cache of the program's own classes, by _lower_of_class

BUILT_IN: Final = tags.SCALARS.union(_LOWER)
_COPIED: Final = frozenset((tuple, frozenset))


def lower_as(cls: type, name: str, take_apart: Callable[[Any], object]) -> None:
    """Lower values of this class, which is not built in, to what a function makes of them, under this name."""
    _LOWER[cls] = lambda value, depth: [tags.REGISTERED, name, lower(take_apart(value), depth + 1)]
    _COLUMN.pop(cls, None)


def _lower_of_class(kind: Any) -> Lower:
    """Return how values of one of the program's classes, or of a library's, are lowered, and remember it."""
    lowered = array_types.lowering(kind, lower)
    column: LowerAll | None = None
    if lowered is None:
        if issubclass(kind, Enum):
            lowered = _lower_enum
        elif user_types.is_named_tuple(kind):
            lowered, column = _lower_named_tuple, _lower_named_tuples
        elif user_types.is_plain_dataclass(kind):
            lowered, column = _by_fields(tags.DATACLASS, kind)
        elif (why := user_types.why_not_by_fields(kind)) is None:
            lowered, column = _by_fields(tags.OBJECT, kind)
        else:
            functions = ", encode, decode" if user_types.why_not_by_state(kind) else ""
            raise CannotTravel(
                f"a value of {user_types.describe(kind)} cannot travel between processes because {why}: use a plain "
                "Python value, a dataclass, a NamedTuple or an enum, or call "
                f"megaflow.register({kind.__name__}{functions})"
            )
        user_types.check_findable(kind)
    if column is not None:
        _COLUMN[kind] = column
    _LOWER[kind] = lowered
    return lowered


def _by_fields(tag: int, kind: type) -> tuple[Lower, LowerAll]:
    storage = user_types.storage_of(kind)
    return partial(_lower_fields, tag, storage), partial(_lower_objects, tag, storage)


def _lower_enum(value: Any, depth: int) -> Node:
    kind = type(value)
    if kind.__members__.get(value.name) is value:
        return [tags.ENUM, kind.__module__, kind.__qualname__, value.name]
    if isinstance(value, Flag):  # several flags at once
        return [tags.FLAG, kind.__module__, kind.__qualname__, value.value, flag_names(value)]
    raise CannotTravel(f"{value!r} cannot travel: it is not a member of {user_types.describe(kind)}")


def _lower_named_tuple(value: Any, depth: int) -> Node:
    kind: Any = type(value)
    if getattr(value, "__dict__", None):
        raise CannotTravel(
            f"a value of {user_types.describe(kind)} cannot travel: it has attributes besides its fields"
        )
    return [tags.NAMED_TUPLE, kind.__module__, kind.__qualname__, _lower_list(tuple(value), depth), names_of(kind)]


def _lower_named_tuples(values: Sequence[Any], depth: int, nested: int) -> Node | None:
    kind: Any = type(values[0])
    if nested == tags.NESTED_COLUMNS_MAX or kind.__dictoffset__:  # may have attributes beside its fields
        return None
    columns = equal_shapes.take_tuples_apart(values)
    shape = [tags.NAMED_TUPLE, kind.__module__, kind.__qualname__, names_of(kind)]
    return columns and _lower_rows(shape, values, columns, depth, nested)


def _lower_objects(tag: int, storage: Storage, values: Sequence[Any], depth: int, nested: int) -> Node | None:
    apart = storage.take_all_apart(values) if nested < tags.NESTED_COLUMNS_MAX else None
    if apart is None:
        return None
    shape = [tag, storage.cls.__module__, storage.cls.__qualname__, apart[0], *beside_fields(tag, storage, apart[0])]
    return _lower_rows(shape, values, apart[1], depth, nested)


def _lower_fields(tag: int, storage: Storage, value: Any, depth: int) -> Node:
    names, values = storage.take_apart(value)
    kind = storage.cls
    try:
        beside = beside_fields(tag, storage, names)
        return [tag, kind.__module__, kind.__qualname__, names, _lower_list(values, depth), *beside]
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
