"""The rules of every fold per key: records are pairs, keys have no NaN, outputs are records.

All are checked where the many records of a stream pay little or nothing: records batch by batch, a key when it has no
state, outputs when they are no list.

Why only tuples and lists are pairs: much else unpacks into two. A dict of two would become its keys, 'DE' two letters,
and the results would be wrong without an error.

Why NaN is refused in keys: it differs from itself, so a dict finds it by identity alone, which is lost where it is
read or decoded anew. One key of one process would be thousands of two, and a state that moved is never found again.
Tuples, frozensets and objects hide it, for they compare what they hold by identity first.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from gc import get_referents
from typing import Any, Final
from uuid import UUID

from megaflow.errors import BuildError, ProgramError, UsageError
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.given import function

NO_OUTPUTS: Final[tuple[()]] = ()
"""As good as an empty list: loops ask for it by identity."""
NAN_IN_KEY: Final = (
    "NaN cannot be a key or part of a key: it equals no value, not even itself, so neither another record nor a move "
    "would find its state; drop such records, or replace NaN with another value, such as None"
)
_WITHOUT_NAN: Final = frozenset(
    {str, int, bool, bytes, type(None), UUID, datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
)
_TAKEN_APART: Final[dict[type, str]] = {
    str: "one record for each character",
    bytes: "one record for each byte, an int",
    bytearray: "one record for each byte, an int",
    dict: "one record for each key, without its value",
    tuple: "one record for each item",
}  # type -> what its values would be sent as


def pairing(
    verb: str, key: Callable[[Any], Any] | None, value: Callable[[Any], Any] | None
) -> Callable[[Any], tuple[Any, Any]] | None:
    """Return what makes (key, value) of a record, None if records are such pairs already. Raises BuildError.

    >>> pairing("count_by_key", len, None)("abc"), pairing("sum_by_key", len, str.upper)("abc")
    ((3, 'abc'), (3, 'ABC'))
    """
    if key is None:
        if value is not None:
            raise BuildError(f"{verb} ({user_line()}): value= needs key=; give both, or map the stream to pairs")
        return None
    function(verb, key, "key")
    if value is None:
        return lambda record: (key(record), record)
    function(verb, value, "value")
    return lambda record: (key(record), value(record))


def require_pairs(operator: str, batch: Sequence[Any]) -> None:
    """Raise ProgramError, naming the record, unless each is a tuple or a list, whose unpacking then counts the items.

    Cost: 11 ns a record (measured); a check within a loop that unpacks costs as much, a set of types 18.
    """
    if [*map(type, batch)].count(tuple) != len(batch):
        for kind in {*map(type, batch)}:
            if not issubclass(kind, (tuple, list)):
                complain_about(batch, operator, None)


def complain_about(batch: Sequence[Any], operator: str, error: Exception | None) -> None:
    """Raise ProgramError, because of `error`, for the first record that is no pair or whose key cannot be one.

    Return if all are right. It raises itself, so that blame finds the record here.
    """
    for record in batch:
        if not isinstance(record, (tuple, list)) or len(record) != 2:
            raise ProgramError(
                f"{operator}: records must be (key, value) pairs, but one is {record!r:.200}, "
                f"a {type(record).__name__}; {_how_to_key(record)}"
            ) from error
        try:
            hash(record[0])
        except TypeError as unhashable:
            check_key(record[0])  # decimal's signalling NaN has no hash
            raise ProgramError(
                f"{operator}: the key {record[0]!r:.200} is a {type(record[0]).__name__}, which cannot be a key "
                f"({unhashable}); make it a tuple, a frozenset or a str"
            ) from error


def _how_to_key(record: Any) -> str:
    field = next(iter(record), "user") if isinstance(record, dict) else None
    of_record = "…" if field is None else f"record[{field!r:.60}]"
    return f"name the key with key=lambda record: {of_record}, or map the stream to tuples or lists of two first"


def check_outputs(operator: str, outputs: object) -> None:
    """Raise ProgramError for what is a record, and not an iterable of records: a str, bytes, dict or non-empty tuple.

    Loops call it for what is neither a list nor NO_OUTPUTS, and then `extend` by it: `+=` would have an array add its
    numbers to the outputs before. What is not iterable at all is theirs to refuse.
    """
    for kind, parts in _TAKEN_APART.items():
        if isinstance(outputs, kind) and outputs != NO_OUTPUTS:
            raise ProgramError(
                f"{operator}: the fold returned (state, {outputs!r:.200}), and these outputs, a "
                f"{type(outputs).__name__}, would be sent as {parts}. Return a list of records: return state, "
                f"[{outputs!r:.200}] for this one, state, [first, second] for several, state, [] for none"
            )


def check_key(key: object) -> None:
    """Raise UsageError for a key that is NaN or has it in what its equality compares. Cost: linear in its parts.

    For keys that nobody has put through `stable_hash`, which refuses the same.
    """
    if type(key) not in _WITHOUT_NAN and _has_nan(key):
        raise UsageError(f"the key {key!r:.200}: {NAN_IN_KEY}")


def _has_nan(key: object) -> bool:
    left, seen = [key], set[int]()
    while left:
        part: Any = left.pop()
        kind = type(part)
        if kind in _WITHOUT_NAN or id(part) in seen:
            continue
        seen.add(id(part))
        if _differs_from_itself(part):
            return True
        if is_dataclass(kind):
            left += [getattr(part, field.name) for field in fields(kind) if field.compare]
            continue
        equality: object = kind.__eq__
        if equality is not object.__eq__:  # else it is compared by identity, whatever it has
            left += get_referents(part)
    return False


def _differs_from_itself(part: Any) -> bool:
    try:
        return bool(part != part)
    except ArithmeticError:  # decimal's signalling NaN may not even be compared
        return True
    except (TypeError, ValueError):  # an array, say, which says it of each of its elements
        return False
