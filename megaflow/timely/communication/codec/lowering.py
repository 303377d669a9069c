"""Values to the tree that msgpack carries exactly.

A list of one simple type becomes one run of bytes, without Python code per element. Values of equal shape (tuples of
one length, dicts with the same keys in the same order, objects of one class with the same fields, lists) become
columns, and each column is lowered as a list again. The code finds out whether columns fit before it lowers any
element. Lowering twice at each level would take exponential time.
"""

import re
import struct
import sys
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

from megaflow.errors import CannotTravel
from megaflow.timely.communication.codec import array_types, equal_shapes, plain_columns, tags, user_types
from megaflow.timely.communication.codec.old_classes import beside_fields, flag_names, names_of
from megaflow.timely.communication.codec.references import Interlinked, Met, Rows
from megaflow.timely.communication.codec.tags import Node
from megaflow.timely.communication.codec.user_types import Storage

Lower: TypeAlias = Callable[[Any, int], Node]  # (value, depth) -> node
LowerAll: TypeAlias = Callable[[Any, int, int], Node | None]  # (values, depth, nested columns) -> one node, or None

COLUMN_LENGTH_MIN: Final = 4  # a shorter list costs less element by element
FLAT_LENGTH_MAX: Final = 1 << 16  # elements of lists in a list; a list that contains itself has more at each level
_BY_FIELD: Final = " because of its field "
_TOO_DEEP: Final = f"a value nested deeper than {tags.DEPTH_MAX} levels, or one that contains itself, cannot travel"

_met: Final[ContextVar[Met | None]] = ContextVar("met", default=None)  # one for each thread
_sharing: Final[set[Met]] = set()  # of all threads; asking only `_met` would make records cost a tenth more


def lower_shared(value: object) -> Node:
    """Lower a value so that an object it refers to twice stays one: a node for the first reference, then numbers.

    Tuples and frozensets are copied as usual. Sharing does not change what they are, and the hash of a tuple of shared
    tuples could take exponential time.
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
    """Return the node of a value. Raises CannotTravel with the name of a type that cannot travel."""
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
    if len(values) >= COLUMN_LENGTH_MIN:
        if (node := _lower_uniform(values, depth, nested)) is not None:
            return node
        if 0 < nested < tags.NESTED_COLUMNS_MAX and (found := plain_columns.take_apart(values)) is not None:
            return [tags.PLAIN_COLUMN, found[0], _lower_list(found[1], depth + 1), lower(found[2], depth + 1)]
    return [tags.LIST, [value if type(value) in tags.SCALARS else lower(value, depth + 1) for value in values]]


def _lower_parts(values: Sequence[Any], depth: int, nested: int) -> Node:
    size = tags.ARRAY_LENGTH_MAX
    while len(values) > size * tags.ARRAY_LENGTH_MAX:
        size *= tags.ARRAY_LENGTH_MAX
    return [tags.PARTS, [_lower_list(values[at : at + size], depth + 1, nested) for at in range(0, len(values), size)]]


def _lower_uniform(values: Sequence[Any], depth: int, nested: int) -> Node | None:
    """Lower values as one node. Return None, before lowering any, if their types differ or have no such form."""
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
            pass  # out of range: try the wider type, then lower one by one
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
    """Lower values, given as columns, to one node. Return None, before lowering any, if one is met twice."""
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
}  # class -> how to lower values of only this class; written like _LOWER


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


def _lower_zone_info(value: Any, depth: int) -> Node:
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
    """Lower values of this class, which is not built in, to the result of a function, under this name."""
    _LOWER[cls] = lambda value, depth: [tags.REGISTERED, name, lower(take_apart(value), depth + 1)]
    _COLUMN.pop(cls, None)


def forget(is_gone: Callable[[type], bool]) -> list[type]:
    """Forget how to lower values of the program's classes that are gone; return these classes."""
    gone = [cls for cls in _LOWER if cls not in BUILT_IN and is_gone(cls)]
    for cls in gone:
        del _LOWER[cls]
        _COLUMN.pop(cls, None)
    return gone


def check_class(kind: type) -> None:
    """Raise CannotTravel if no value of exactly this class can travel. A class that passes may have values that cannot.
    """
    if kind not in tags.SCALARS and kind not in _LOWER:
        _lower_of_class(kind)


def _lower_of_class(kind: Any) -> Lower:
    """Return how to lower values of one of the program's or a library's classes, and remember it."""
    lowered = array_types.lowering(kind, lower)
    column: LowerAll | None = None
    if kind is getattr(sys.modules.get("zoneinfo"), "ZoneInfo", None):  # importing it would add 3 ms to each start
        lowered = _lower_zone_info
    if lowered is None:
        if issubclass(kind, Enum):
            lowered = _lower_enum
        elif user_types.is_named_tuple(kind):
            lowered, column = _lower_named_tuple, _lower_named_tuples
        elif (is_plain := user_types.is_plain_dataclass(kind)) or (why := user_types.why_not_by_fields(kind)) is None:
            tag, storage = tags.DATACLASS if is_plain else tags.OBJECT, user_types.storage_of(kind)
            lowered, column = partial(_lower_fields, tag, storage), partial(_lower_objects, tag, storage)
        else:
            more = ", encode, decode" if user_types.why_not_by_state(kind) else ""
            general = "use a plain Python value, a dataclass, a NamedTuple or an enum, or call megaflow.register"
            why = f"{why}: {array_types.remedy(kind) or f'{general}({kind.__name__}{more})'}"
            raise CannotTravel(f"a value of {user_types.describe(kind)} cannot travel between processes because {why}")
        user_types.check_findable(kind)
    if column is not None:
        _COLUMN[kind] = column
    _LOWER[kind] = lowered
    return lowered


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
    if nested == tags.NESTED_COLUMNS_MAX or (apart := storage.take_all_apart(values)) is None:
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
    """Return the error with the name of the field that caused it; the innermost one is enough."""
    if _BY_FIELD in str(error) or str(error) == _TOO_DEEP or kind.__module__.startswith("megaflow.control."):
        return error
    for name, value in zip(names, values):
        try:
            lower(value, depth + 1)
        except CannotTravel:
            return CannotTravel(
                f"a value of {user_types.describe(kind)} cannot travel{_BY_FIELD}{name!r}: {error}; to leave it out, "
                f"call megaflow.register({kind.__name__}, encode, decode)"
            )
    return error
