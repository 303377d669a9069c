"""Records as lines of JSON, for `--output jsonl:PATH`; a record without a form below is refused, never given as a repr.

| Python | JSON |
|---|---|
| None, bool, int, float, str | as they are; NaN and infinities: null; a lone surrogate: U+FFFD |
| dict, Counter, any mapping | object |
| dataclass, NamedTuple, Spark's Row | object, by the names of its fields; an EarlyWindow also has `"is_final": false` |
| list, other tuples, deque, range, any sequence | array |
| set, frozenset | array, sorted: by value where its elements compare, otherwise by their JSON |
| datetime, date, time | string, ISO 8601 |
| timedelta | number of seconds |
| Enum | the form of its value |
| Decimal, UUID, Path | string; a Decimal that is NaN or infinite: null |
| numpy scalar, array | what its elements are in Python; datetime64: ISO 8601; timedelta64: seconds; NaT: null |
| pandas' Period, NA | string; null |

A key becomes the text of its JSON, without quotes if it is a string: 1 is "1", None is "null", a date is its ISO form.
Keys that become arrays or objects are refused; so are NaN, infinities, and two keys with one name. All other values are
refused: bytes, functions, instances of other classes, and values that contain themselves.

Every line is valid UTF-8 and valid JSON. Most records contain only the exact types that JSON has, so json's own encoder
writes them. It gets no other records: it would silently write a NamedTuple as an array and a key 1 as "1".
"""

import contextlib
import json
import math
import sys
from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from megaflow.errors import ProgramError
from megaflow.rows.row_values import is_utf8
from megaflow.timely.communication.codec.encode import encode

ATOMS = frozenset((str, int, float, bool, type(None)))
STRINGS = frozenset((str,))
LONGEST_SHOWN = 80  # characters of a value in a message
UNITS_WITHOUT_SECONDS = frozenset(("Y", "M", "generic"))
EARLY_WINDOW = ("megaflow.event_time.windows", "EarlyWindow")  # by name, because few jobs load the module
REMEDY = "convert the records to values that JSON has before you return them, or use --output -"

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def as_json_lines(epoch: int, records: list[Any]) -> list[str]:
    """Return one JSON object per record, with its epoch as the time. Raises ProgramError for a record without a form.

    >>> as_json_lines(17, [("word", 3)])
    ['{"time": 17, "record": ["word", 3]}']
    """
    return [f'{{"time": {epoch}, "record": {to_json(record)}}}' for record in records]


def to_json(record: Any) -> str:
    """Return the record as JSON. Raises ProgramError if it has no form.

    >>> to_json(("é", 3, {2, 1})), to_json({1: float("nan")})
    ('["é", 3, [1, 2]]', '{"1": null}')
    """
    try:
        if is_plain(record):
            with contextlib.suppress(ValueError):  # a NaN or an infinity
                text = _encode(record)
                if text.isascii() or is_utf8(text):
                    return text
        return _encode(plain(record))
    except RecursionError:
        raise ProgramError(f"--output jsonl: a record contains itself or is nested too deeply; {REMEDY}") from None
    except ValueError as error:  # an int of thousands of digits
        raise ProgramError(f"--output jsonl: {error}; {REMEDY}") from None


def state_text(state: Any, form: str) -> str:
    """Return a state of a running job in a form; without a form in JSON, its type and its repr.

    >>> state_text("a", "text"), state_text([1], "text"), state_text((1, 2), "json"), state_text(1j, "json")
    ('a', '[1]', '[1, 2]', '{"type": "builtins.complex", "repr": "1j"}')
    >>> state_text((1, 2), "value")
    'kgeSAJIBAg=='
    """
    if form == "value":
        return b2a_base64(encode(state), newline=False).decode()
    if form == "text":
        return state if isinstance(state, str) else repr(state)
    try:
        return to_json(state)
    except ProgramError:
        kind = type(state)
        return _encode({"type": f"{kind.__module__}.{kind.__qualname__}", "repr": repr(state)})


def is_plain(value: Any) -> bool:
    """Tell whether a value contains only the exact types that JSON has; floats in it may be NaN."""
    kind = type(value)
    if kind is dict:
        if not STRINGS.issuperset(map(type, value)):
            return False
        value = value.values()
    elif kind is not tuple and kind is not list:
        return kind in ATOMS
    for each in value:  # not all(map(is_plain, value)): most elements are atoms
        if type(each) not in ATOMS and not is_plain(each):
            return False
    return True


def plain(value: Any) -> Any:
    """Return a value as None, bool, int, finite float, str, list and dict, by the rules above."""
    match value:
        case None | bool():
            return value
        case Enum():
            return plain(value.value)
        case str():
            return str.encode(value, "utf-16", "surrogatepass").decode("utf-16", "replace")
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case date() | time():  # also a datetime, which is a date, and pandas' NaT, which differs from itself
            return value.isoformat() if value == value else None
        case timedelta():
            microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
            nanoseconds = getattr(value, "nanoseconds", 0)  # pandas has them, and its total_seconds() leaves them out
            return (microseconds * 1_000 + nanoseconds) / 1_000_000_000
        case Decimal():
            return str(value) if value.is_finite() else None
        case UUID() | PurePath():
            return plain(str(value))
        case bytes() | bytearray() | memoryview():
            raise refusal(value, "decode() turns it into a string, base64.b64encode(…).decode() does so for any bytes")
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case tuple() if hasattr(value, "_fields"):
            found = dict(zip(value._fields, map(plain, value)))
            kind = type(value)
            return found | {"is_final": False} if (kind.__module__, kind.__name__) == EARLY_WINDOW else found
        case tuple() if names := row_names(value):
            return dict(zip(names, map(plain, value)))
        case Mapping():
            return named(value)
        case Set():
            return ordered(map(plain, value))
        case Sequence():
            return list(map(plain, value))
    return of_library(value)


def row_names(value: tuple[Any, ...]) -> Sequence[str]:
    """Return the names of the values of Spark's Row, if they have names, all different; otherwise an empty sequence."""
    names = None if type(value) is tuple else getattr(value, "__fields__", None)
    return names if isinstance(names, list | tuple) and len(set(names)) == len(value) else ()


def named(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a mapping as a dict with the names of its keys."""
    found: dict[str, Any] = {}
    origins: dict[str, Any] = {}  # name -> the key that it stands for
    for origin, value in mapping.items():
        name = name_of(origin)
        if name in origins:
            raise ProgramError(
                f"--output jsonl: the keys {shown(origins[name])} and {shown(origin)} of a dict would both "
                f"become {name!r}; {REMEDY}"
            )
        origins[name] = origin
        found[name] = plain(value)
    return found


def name_of(origin: Any) -> str:
    """Return the name of a key."""
    name = plain(origin)
    if isinstance(name, str):
        return name
    if isinstance(name, list | dict) or (name is None and origin is not None):
        raise refusal(origin, "it cannot be a key of a JSON object; a list of pairs can hold any keys")
    return _encode(name)


def ordered(elements: Iterable[Any]) -> list[Any]:
    """Return plain values in an order that depends only on the values."""
    values = list(elements)
    try:
        return sorted(values)  # whether all compare does not depend on their order: sorting always compares neighbours
    except TypeError:
        return sorted(values, key=_encode)


def of_library(value: Any) -> Any:
    """Return the plain form of a value of numpy or pandas; refuse all others. Imports neither library."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        match value:
            case numpy.timedelta64():  # before the integers: it is one of them
                if numpy.isnat(value):
                    return None
                if numpy.datetime_data(value.dtype)[0] in UNITS_WITHOUT_SECONDS:
                    raise refusal(value, "its unit is not a fixed number of seconds")
                return float(value / numpy.timedelta64(1, "s"))
            case numpy.bool_() | numpy.integer() | numpy.floating():
                return plain(float(value) if isinstance(value, numpy.longdouble) else value.item())
            case numpy.datetime64():
                return None if numpy.isnat(value) else str(value)
            case numpy.ndarray() if value.ndim:
                return [plain(each) for each in value]
            case numpy.ndarray() if not isinstance(value[()], numpy.ndarray):
                return plain(value[()])
    if (kind := type(value)).__module__.partition(".")[0] == "pandas" and kind.__name__ in ("Period", "NAType"):
        return str(value) if kind.__name__ == "Period" else None
    raise refusal(value, REMEDY)


def refusal(value: Any, remedy: str) -> ProgramError:
    """Return the error for a value without a form."""
    return ProgramError(
        f"--output jsonl: JSON has no form for {shown(value)} of type "
        f"{type(value).__module__}.{type(value).__qualname__}; {remedy}"
    )


def shown(value: Any) -> str:
    """Return a value's repr, shortened; if the repr fails, a text that names its error."""
    try:
        text = repr(value)
    except BaseException as failure:  # of a user's __repr__; it must not hide the actual fault
        return f"a value whose repr raises {type(failure).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
