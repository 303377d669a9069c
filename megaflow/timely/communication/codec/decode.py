"""Bytes to values: values are rebuilt from the tree that `encode` made.

The tree is not trusted. Of the modules that it names, the decoder imports only those of megaflow's own records. Of the
functions that it names, the decoder calls only those that the program has registered. It looks a class up in
`sys.modules`, refuses one that may not travel, and fills the object without running `__init__`. See the package's
rules.
"""

import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import partial
from importlib import import_module
from itertools import chain, repeat
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import msgpack

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec import array_types, equal_shapes, plain_columns, tags, user_types
from megaflow.timely.communication.codec.old_classes import flag_number, in_order, names_of, old_record
from megaflow.timely.communication.codec.tags import Node

_anchors: Final[ContextVar[dict[int, Any] | None]] = ContextVar("anchors", default=None)
"""Objects with further references in the value that a thread restores; None if such references are not allowed."""

_takes_old: Final[ContextVar[bool]] = ContextVar("takes_old", default=False)
"""Whether a thread wants old records instead of objects that do not fit their classes."""


def decode(buffer: bytes | bytearray | memoryview, *, shared: bool = False, old: bool = False) -> Any:
    """Return the value from which `encode` made these bytes, with the same `shared`.

    With `old`, an `OldRecord` replaces each object whose class is missing or has other fields or members. Otherwise
    such an object is refused. Raises ProtocolError for any other bytes.

    >>> from megaflow.timely.communication.codec.encode import encode
    >>> decode(encode((3, [("to", 1), ("be", 2)])))
    (3, [('to', 1), ('be', 2)])
    """
    if old:
        return _decode_old(buffer, shared)
    token = _anchors.set({} if shared else None)
    try:
        return restore(unpack(buffer))
    except ProtocolError:
        raise
    except Exception as error:  # a wrong tree may cause any error, so the bytes are to blame
        raise ProtocolError(f"cannot decode {len(buffer)} received bytes ({error!r})") from error
    finally:
        _anchors.reset(token)


def _decode_old(buffer: bytes | bytearray | memoryview, shared: bool) -> Any:
    token = _takes_old.set(True)
    try:
        return decode(buffer, shared=shared)
    finally:
        _takes_old.reset(token)


def _old_record(
    error: ProtocolError, module: str, qualname: str, names: Sequence[str] | None, values: Sequence[Any]
) -> Any:
    """Return a record for an object that does not fit its class; raise the error unless the caller wants records."""
    if not _takes_old.get():
        raise error
    return old_record(module, qualname, names, values)


def unpack(buffer: bytes | bytearray | memoryview) -> Node:
    """Return the tree in these bytes. Raises the first error of any type."""
    return msgpack.unpackb(
        buffer,
        unicode_errors="surrogatepass",
        max_array_len=tags.ARRAY_LENGTH_MAX,
        max_map_len=0,
        max_ext_len=0,
        object_hook=_refuse,
        ext_hook=_refuse,
    )


def _refuse(content: object, *more: object) -> None:
    raise ProtocolError("a received value holds a msgpack map or extension")


def restore(node: Node, depth: int = 0) -> Any:
    """Return the value of a node. A tree that `lower` did not make raises ProtocolError or the first other error."""
    if type(node) is not list:
        return node
    tag = node[0]
    if tag <= tags.COLUMNS or tag in tags.MORE_LISTS:
        return _restore_list(node, depth)
    if depth > tags.DEPTH_MAX:
        raise ProtocolError("a received value is nested too deeply")
    return _RESTORE[tag](depth, *node[1:])


def _restore_list(node: Node, depth: int, nested: int = 0) -> list[Any]:
    if depth > tags.DEPTH_MAX or nested > tags.NESTED_COLUMNS_MAX:
        raise ProtocolError("a received list is nested too deeply")
    if node[0] == tags.PLAIN_COLUMN:
        _, kind, column, zone = node
        return plain_columns.restore(kind, _restore_list(column, depth + 1, nested + 1), restore(zone, depth + 1))
    if node[0] >= tags.ROWS:
        return _restore_equal(depth, nested, *node)
    tag, content = node
    if tag == tags.STRS:
        return content.decode("utf-8", "surrogatepass").split("\0")  # type: ignore[no-any-return]
    if tag in tags.LETTERS:
        letter, size = tags.LETTERS[tag]
        return list(struct.unpack(f"<{len(content) // size}{letter}", content))
    if tag == tags.COLUMNS:
        return list(zip(*[_restore_list(column, depth + 1, nested + 1) for column in content], strict=True))
    if tag == tags.LIST:
        return [value if type(value) is not list else restore(value, depth + 1) for value in content]
    if tag == tags.PARTS:
        return list(chain.from_iterable([_restore_list(part, depth + 1, nested) for part in content]))
    raise ProtocolError(f"{tag!r} is not the tag of a list")


def _restore_equal(
    depth: int, nested: int, tag: int, shape: Node, content: Node, anchors: Sequence[int] = ()
) -> list[Any]:
    if tag == tags.LISTS:
        lengths = _restore_list(shape, depth, nested + 1)
        made = equal_shapes.make_lists(lengths, _restore_list(content, depth, nested + 1))
    elif tag == tags.ROWS:
        columns = [_restore_list(column, depth + 1, nested + 1) for column in content]
        made = _MAKE[shape[0]](columns, *shape)
    else:
        raise ProtocolError(f"{tag!r} is not the tag of a list")
    if anchors:
        _restored().update(zip(anchors[1::2], map(made.__getitem__, anchors[::2]), strict=True))
    return made


def _make_named_tuples(
    columns: list[list[Any]], tag: int, module: str, qualname: str, names: str | None = None
) -> list[Any]:
    try:
        kind = class_of(tag, module, qualname)
        return [*map(tuple.__new__, repeat(kind), zip(*in_order(kind, names, columns), strict=True))]
    except ProtocolError as error:
        fields = None if names is None else names.split(",")
        return [_old_record(error, module, qualname, fields, values) for values in zip(*columns, strict=True)]


def _make_objects(
    columns: list[list[Any]], tag: int, module: str, qualname: str, names: Sequence[str], beside: int | None = None
) -> list[Any]:
    try:
        return user_types.storage_of(class_of(tag, module, qualname)).fill_all(names, columns, beside)
    except ProtocolError as error:
        return [_old_record(error, module, qualname, names, values) for values in zip(*columns, strict=True)]


_MAKE: Final[dict[int, Callable[..., list[Any]]]] = {  # first element of a shape -> (columns, *shape) -> the values
    tags.LIST: lambda columns, tag: [*map(list, zip(*columns, strict=True))],
    tags.DICT: lambda columns, tag, keys: equal_shapes.make_dicts(keys, columns),
    tags.NAMED_TUPLE: _make_named_tuples,
    tags.DATACLASS: _make_objects,
    tags.OBJECT: _make_objects,
}


def _restore_dict(depth: int, keys: Node, values: Node) -> dict[Any, Any]:
    return dict(zip(_restore_list(keys, depth), _restore_list(values, depth), strict=True))


def _restore_time(depth: int, hour: int, minute: int, second: int, microsecond: int, fold: int, zone: Node) -> time:
    return time(hour, minute, second, microsecond, restore(zone, depth + 1), fold=fold)


def _restore_defaultdict(depth: int, name: str | None, keys: Node, values: Node) -> defaultdict[Any, Any]:
    return defaultdict(None if name is None else tags.FACTORIES[name], _restore_dict(depth, keys, values))


def class_of(tag: int, module: str, qualname: str) -> Any:
    """Return the class of that name. Raises ProtocolError if it does not travel with this tag."""
    kind = user_types.find_class(module, qualname)
    fits, what = FITS[tag]
    if not fits(kind):
        raise ProtocolError(f"{user_types.describe(kind)} is not {what}")
    return kind


FITS: Final[dict[int, tuple[Callable[[Any], bool], str]]] = {
    tags.ENUM: (lambda kind: issubclass(kind, Enum), "an enum"),
    tags.FLAG: (lambda kind: issubclass(kind, Flag), "a Flag"),
    tags.NAMED_TUPLE: (user_types.is_named_tuple, "a NamedTuple"),
    tags.DATACLASS: (user_types.is_plain_dataclass, "a dataclass that may travel"),
    tags.OBJECT: (lambda kind: user_types.why_not_by_fields(kind) is None, "a class that may travel by its fields"),
}  # tag -> (whether a class travels with it, description of such a class)


def _restore_enum(depth: int, module: str, qualname: str, name: str) -> Any:
    try:
        kind = class_of(tags.ENUM, module, qualname)
        if name not in kind.__members__:
            raise ProtocolError(f"{user_types.describe(kind)} has no member {name!r:.50} in this process")
        return kind.__members__[name]
    except ProtocolError as error:
        return _old_record(error, module, qualname, ["name"], [name])


def _restore_flag(depth: int, module: str, qualname: str, node: Node, names: str | None = None) -> Any:
    number = restore(node, depth + 1)
    try:
        kind = class_of(tags.FLAG, module, qualname)
        if type(number) is not int:
            raise ProtocolError(f"{user_types.describe(kind)} has no value {number!r:.50}")
        return kind(number if names is None else flag_number(kind, names))
    except ProtocolError as error:
        return _old_record(error, module, qualname, ["value", "names"], [number, names])


def _restore_named_tuple(depth: int, module: str, qualname: str, items: Node, names: str | None = None) -> Any:
    values: Sequence[Any] = _restore_list(items, depth)
    try:
        kind = class_of(tags.NAMED_TUPLE, module, qualname)
        if names != names_of(kind) or len(values) != len(kind._fields):
            values = in_order(kind, names, values)
        return tuple.__new__(kind, values)
    except ProtocolError as error:
        return _old_record(error, module, qualname, None if names is None else names.split(","), values)


def _restore_fields(
    tag: int, depth: int, module: str, qualname: str, names: Sequence[str], items: Node, beside: int | None = None
) -> Any:
    values = _restore_list(items, depth)
    try:
        return user_types.storage_of(class_of(tag, module, qualname)).fill(names, values, beside)
    except ProtocolError as error:
        return _old_record(error, module, qualname, names, values)


def _restore_path(depth: int, name: str, text: Any) -> PurePath:
    if type(text) is not str:
        raise ProtocolError(f"{text!r:.50} arrived in place of a text")
    return tags.PATHS[name](text)


def _restore_pattern(depth: int, pattern: str | bytes, flags: int) -> re.Pattern[Any]:
    if type(pattern) not in (str, bytes) or type(flags) is not int or not tags.is_modest(pattern, flags):
        raise ProtocolError("a regular expression arrived that is too long, or with flags that may not travel")
    return re.compile(pattern, flags)


def _restore_range(depth: int, items: Node) -> range:
    parts = _restore_list(items, depth)
    if len(parts) != 3 or any(type(part) is not int for part in parts):  # __index__ of another type would run
        raise ProtocolError("a range arrived without its three numbers")
    return range(*parts)


def _restore_timestamp(
    depth: int, count: Any, unit: Any = None, fold: Any = None, name: Any = None, zone: Node = None
) -> Any:
    return array_types.restore_timestamp(count, unit, fold, name, restore(zone, depth + 1))


def _restore_registered(depth: int, name: str, node: Node) -> Any:
    if name not in user_types.decoders:
        raise ProtocolError(f"a value of type {name} arrived: call megaflow.register for it in this process too")
    return user_types.decoders[name](restore(node, depth + 1))


def _restore_anchor(depth: int, number: int, node: Node) -> Any:
    value = restore(node, depth)
    _restored()[number] = value
    return value


def _restored() -> dict[int, Any]:
    restored = _anchors.get()
    if restored is None:
        raise ProtocolError("a value arrived with two references to one object, which are not allowed here")
    return restored


_RESTORE: Final[dict[int, Callable[..., Any]]] = {  # tag -> (depth, *rest of the node) -> value
    tags.TUPLE: lambda depth, items: tuple(_restore_list(items, depth)),
    tags.BIG_INT: lambda depth, content: int.from_bytes(content, "little", signed=True),
    tags.DICT: _restore_dict,
    tags.SET: lambda depth, items: set(_restore_list(items, depth)),
    tags.FROZENSET: lambda depth, items: frozenset(_restore_list(items, depth)),
    # A view of a number raises TypeError. bytearray(number) would allocate that many bytes.
    tags.BYTEARRAY: lambda depth, content: bytearray(memoryview(content)),
    tags.COMPLEX: lambda depth, real, imag: complex(real, imag),
    tags.DECIMAL: lambda depth, text: Decimal(text),
    tags.UUID: lambda depth, content: UUID(bytes=content),
    tags.DATE: lambda depth, day: date.fromordinal(day),
    tags.TIME: _restore_time,
    tags.DATETIME: lambda depth, day, clock: datetime.combine(date.fromordinal(day), restore(clock, depth + 1)),
    tags.TIMEDELTA: lambda depth, days, seconds, microseconds: timedelta(days, seconds, microseconds),
    tags.TIMEZONE: lambda depth, *arguments: timezone(*[restore(argument, depth + 1) for argument in arguments]),
    tags.ZONE_INFO: lambda depth, key: import_module("zoneinfo").ZoneInfo(key),
    tags.COUNTER: lambda depth, keys, values: Counter(_restore_dict(depth, keys, values)),
    tags.DEFAULTDICT: _restore_defaultdict,
    tags.DEQUE: lambda depth, length, items: deque(_restore_list(items, depth), length),
    tags.ENUM: _restore_enum,
    tags.FLAG: _restore_flag,
    tags.NAMED_TUPLE: _restore_named_tuple,
    tags.DATACLASS: partial(_restore_fields, tags.DATACLASS),
    tags.REGISTERED: _restore_registered,
    tags.OBJECT: partial(_restore_fields, tags.OBJECT),
    tags.ORDERED_DICT: lambda depth, keys, values: OrderedDict(_restore_dict(depth, keys, values)),
    tags.PATH: _restore_path,
    tags.PATTERN: _restore_pattern,
    tags.RANGE: _restore_range,
    tags.ARRAY: lambda depth, *parts: array_types.restore_array(*parts),
    tags.NUMPY_SCALAR: lambda depth, text, content: array_types.restore_array(text, [], content)[()],
    tags.NUMPY_TEXT: lambda depth, content: array_types.restore_text(content),
    tags.TIMESTAMP: _restore_timestamp,
    tags.PANDAS_TIMEDELTA: lambda depth, *parts: array_types.restore_timedelta(*parts),
    tags.PERIOD: lambda depth, *parts: array_types.restore_period(*parts),
    tags.PANDAS_NA: lambda depth: array_types.imported("pandas").NA,
    tags.PYTZ_ZONE: lambda depth, *parts: array_types.restore_pytz_zone(parts),
    tags.ANCHOR: _restore_anchor,
    tags.SHARED: lambda depth, number: _restored()[number],
}
