"""Check that a received record matches its class: the shapes of its fields, down to the last number.

The codec builds a record without running its `__init__`, so a field may contain anything. A receiver calls this check
before it passes a record on. The code behind it may then compare, add and print the fields.

1. A value must have exactly the declared type, not a subclass. A program's own classes can travel, and this way none of
   their code runs. Only a float field also accepts an int.
2. An int has fewer than 64 bits. A number with five thousand digits could not even be shown in an error.
3. This module does not check `Any`, nor which values a type permits. Modules that know more check these.
"""

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

INT_BITS = 64


@cache
def _hints(record: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names and types of a record's fields."""
    hints = get_type_hints(record)
    return tuple((field.name, hints[field.name]) for field in fields(record))


def conforms(value: Any, hint: Any) -> bool:
    """Return whether a value has exactly this type: a bool is no number, and the elements of a tuple count.

    Cost: linear in its contents.

    >>> conforms((1, None), tuple[int, str | None]), conforms(True, int), conforms({"a": 2.5}, dict[str, float])
    (True, False, True)
    >>> conforms(1 << 63, int), conforms([1], tuple[int, ...])
    (False, False)
    >>> conforms("a", Literal["a", "b"]), conforms("c", Literal["a", "b"]), conforms([], Literal["a"])
    (True, False, False)
    """
    if hint is Any:
        return True
    if hint is int:
        return type(value) is int and value.bit_length() < INT_BITS
    if hint is float:
        return type(value) is float or conforms(value, int)
    if hint in (str, bytes, bool, NoneType):
        return type(value) is hint
    if is_dataclass(hint):
        hints = _hints(cast(Hashable, hint))
        return type(value) is hint and all(conforms(getattr(value, name), kind) for name, kind in hints)
    origin, kinds = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(conforms(value, kind) for kind in kinds)
    if origin is Literal:
        return any(type(value) is type(kind) and value == kind for kind in kinds)
    if type(value) is not origin:
        return False
    if origin is dict:
        return all(conforms(key, kinds[0]) and conforms(item, kinds[1]) for key, item in value.items())
    if origin is list:
        return all(conforms(item, kinds[0]) for item in value)
    assert origin is tuple, f"no record has a field of type {hint}"
    if kinds[-1] is ...:
        return all(conforms(item, kinds[0]) for item in value)
    return len(value) == len(kinds) and all(map(conforms, value, kinds))
