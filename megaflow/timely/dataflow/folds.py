"""Rules of every fold per key: records are pairs, keys contain no NaN, and outputs are iterables of records.

Each check stands where a long stream pays little or nothing for it. Records are checked batch by batch, a key when it
has no state yet, and outputs when they are not a list.

Only tuples and lists count as pairs, because many other values also unpack into two. A dict of two items would become
its keys and 'DE' two letters. The results would then be wrong without an error.

NaN is refused in keys because it does not equal itself, so a dict finds it only by identity. Reading or decoding a
value creates a new object and loses the identity. One key in one process would become thousands of keys in two
processes, and a state that moved would never be found again. Tuples, frozensets and objects hide the problem, because
they compare their items by identity first.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from gc import get_referents
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from megaflow.errors import BuildError, ProgramError, UsageError
from megaflow.timely.dataflow.argument_checks import function
from megaflow.timely.dataflow.error_notes import user_line

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

Fold: TypeAlias = Callable[[K, V, A | None], tuple[A | None, Iterable[R]]]
"""(key, value, state) -> (new state, outputs); None: no state."""

NO_OUTPUTS: Final[tuple[()]] = ()
"""Equivalent to an empty list. Loops compare with it by identity."""
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
}  # type -> end of the error that tells what its values would become


def pairing(
    verb: str, key: Callable[[Any], Any] | None, value: Callable[[Any], Any] | None
) -> Callable[[Any], tuple[Any, Any]] | None:
    """Return a function from a record to (key, value), or None if records are already pairs. Raises BuildError.

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
    """Raise ProgramError, naming the record, unless each record is a tuple or a list. Unpacking checks the length.

    Cost: 11 ns a record (measured). A check inside a loop that unpacks costs the same; a set of types costs 18 ns.
    """
    if [*map(type, batch)].count(tuple) != len(batch):
        for kind in {*map(type, batch)}:
            if not issubclass(kind, (tuple, list)):
                complain_about(batch, operator, None)


def complain_about(batch: Sequence[Any], operator: str, error: Exception | None) -> None:
    """Raise ProgramError, caused by `error`, for the first record that is not a pair or has an invalid key.

    Return if all records are valid. The function itself raises, so that `error_notes` finds the record in its frame.
    """
    for record in batch:
        if not isinstance(record, (tuple, list)) or len(record) != 2:
            raise ProgramError(
                f"{operator}: records must be (key, value) pairs, but one is {record!r:.200}, "
                f"a {type(record).__name__}; {_how_to_key(record)}"
            ) from error
        try:
            hash(record[0])
        except TypeError:
            check_key(record[0])  # decimal's signalling NaN has no hash
            raise ProgramError(f"{operator}: the key {record[0]!r:.200} {not_a_key(record[0])}") from error


def not_a_key(value: object) -> str:
    """Return why an unhashable value cannot be a key, and what to write instead.

    >>> not_a_key(["a"])
    'is a list, which cannot be a key; make it a tuple, a frozenset or a str'
    >>> not_a_key(("a", ({"b": 1}, 2)))
    "contains {'b': 1}, a dict, which cannot be part of a key; make it a tuple, a frozenset or a str"
    """
    part = value
    while isinstance(part, tuple):
        part = next(each for each in part if not _has_hash(each))
    where = "is" if part is value else f"contains {part!r:.80},"
    role = "a key" if part is value else "part of a key"
    return f"{where} a {type(part).__name__}, which cannot be {role}; make it a tuple, a frozenset or a str"


def _has_hash(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _how_to_key(record: Any) -> str:
    field = next(iter(record), "user") if isinstance(record, dict) else None
    of_record = "…" if field is None else f"record[{field!r:.60}]"
    return f"name the key with key=lambda record: {of_record}, or map the stream to tuples or lists of two first"


def check_outputs(operator: str, outputs: object) -> None:
    """Raise ProgramError for outputs that are one record, not many: a str, bytes, dict or non-empty tuple.

    Loops call this for outputs that are neither a list nor NO_OUTPUTS, and then `extend` by the outputs. With `+=`, an
    array would add its numbers to the earlier outputs. The loops refuse values that are not iterable.
    """
    if type(outputs).__name__ == "DataFrame":
        raise ProgramError(
            f"{operator}: the fold returned (state, a DataFrame), which would be sent as the names of its columns. "
            "Return a list of records, such as outputs.to_dict('records') of pandas or outputs.to_dicts() of polars"
        )
    for kind, parts in _TAKEN_APART.items():
        if isinstance(outputs, kind) and outputs != NO_OUTPUTS:
            raise ProgramError(
                f"{operator}: the fold returned (state, {outputs!r:.200}), and these outputs, a "
                f"{type(outputs).__name__}, would be sent as {parts}. Return a list of records: return state, "
                f"[{outputs!r:.200}] for this one, state, [first, second] for several, state, [] for none"
            )


def check_key(key: object) -> None:
    """Raise UsageError if a key is NaN, or contains NaN where its equality looks. Cost: linear in its parts.

    Use it for keys that have not passed through `stable_hash`, which refuses the same keys.
    """
    if type(key) not in _WITHOUT_NAN and has_nan(key):
        raise UsageError(f"the key {key!r:.200}: {NAN_IN_KEY}")


def has_nan(key: object) -> bool:
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
        if equality is not object.__eq__:  # otherwise it is compared by identity, whatever it contains
            left += get_referents(part)
    return False


def _differs_from_itself(part: Any) -> bool:
    try:
        return bool(part != part)
    except ArithmeticError:  # decimal's signalling NaN raises when compared
        return True
    except (TypeError, ValueError):  # for example an array, which compares element by element
        return False
