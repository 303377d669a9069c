"""JSON of dicts and lists for columns that hold JSON: each value arrives as it is, or is refused.

1. A Decimal becomes a number with the same digits: Decimal("1.10") is 1.10.
2. A tuple becomes an array, as everywhere in Python's JSON.
3. A key must be a str. `json.dumps` would make one of 1, None and True, perhaps one that the dict already has.
4. NaN and the infinities are no JSON.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # an escape whose backslash is not escaped itself


def json_text(value: Any) -> str:
    """Return a value as JSON. Raises TypeError or ValueError for a value that JSON cannot have.

    >>> json_text({"a": [1, None, True, "é"], "b": Decimal("1.10")})
    '{"a": [1, null, true, "é"], "b": 1.10}'
    >>> json_text({1: 2})
    Traceback (most recent call last):
        ...
    TypeError: JSON has no key 1, only str
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if json.loads(text) == value:  # then no key has changed
            return text
    except TypeError:
        pass
    return "".join(_parts(value))


def no_json(value: Any, *, nul: bool) -> str | None:
    """Return why a column of JSON cannot have a value; None if it can. `nul`: whether its texts may have NUL.

    >>> no_json([float("nan")], nul=True)
    'ValueError: Out of range float values are not JSON compliant'
    >>> no_json("a\\0", nul=False), no_json("\\\\u0000", nul=False)
    ('JSON in PostgreSQL has no character NUL', None)
    """
    try:
        text = json_text(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {str(error).partition(':')[0]}"
    return None if nul or NUL.search(text) is None else "JSON in PostgreSQL has no character NUL"


def _parts(value: Any) -> Iterator[str]:
    match value:
        case dict():
            yield "{"
            for place, (key, inner) in enumerate(value.items()):
                if not isinstance(key, str):
                    raise TypeError(f"JSON has no key {key!r:.80}, only str")
                yield f"{', ' if place else ''}{json.dumps(key, ensure_ascii=False)}: "
                yield from _parts(inner)
            yield "}"
        case list() | tuple():
            yield "["
            for place, inner in enumerate(value):
                yield ", " if place else ""
                yield from _parts(inner)
            yield "]"
        case Decimal() if value.is_finite():
            yield str(value)
        case Decimal():
            raise ValueError(f"JSON has no number {value}")
        case _:
            yield json.dumps(value, ensure_ascii=False, allow_nan=False)
