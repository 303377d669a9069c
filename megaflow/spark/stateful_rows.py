"""Folds on Spark's Rows: the dataflow of a stateful frame, and the same fold in Spark's own tasks for a batch frame.

The module imports nothing of megaflow at its top, because `fold_partition` travels by value to executors without it.

1. A fold gets a Row, in it naive datetimes, dates, Decimals and nested Rows. Spark's own types convert them, from the
   ints and tuples that travel between workers. But naive datetimes are in the time zone of the session, not in that of
   the machine as in Spark's functions, because keys and states move between machines.
2. A record's key is its tuple of travelling values, so bins and stored keys do not depend on a time zone.
3. A Row may be a state and an output. It travels with its names.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import partial
from operator import itemgetter
from typing import Any

PLAIN = frozenset([bool, int, float, str, bytes, type(None)])
UNHELD = (
    "Python's datetimes hold only the years 1 to 9999. Use tuples=True, where such a value is an int, or replace such "
    "values in Spark."
)
Fold = Callable[[Any, Any, Any], tuple[Any, Iterable[Any]]]


def stateful_flow(
    flow: Any, fold: Fold, schema: str, places: Sequence[int], has_tuples: bool, zone: tzinfo = UTC
) -> Any:
    """Build the dataflow of a stateful frame on a worker. `places` are those of the key columns in the schema.

    `has_tuples`: the fold gets the travelling values as they are. `zone`: that of naive datetimes.
    """
    from pyspark.sql.types import StructType

    register_rows()
    names = [field["name"] for field in json.loads(schema)["fields"]]
    make, key_of = row_maker(StructType.fromJson(json.loads(schema)), zone), key_maker(names, places)

    def by_name(_: Any, values: Any, state: Any) -> Any:
        row = make(values)
        return fold(key_of(row), row, state)

    given = fold if has_tuples else by_name
    folded = flow.rows().stateful_state_machine(given, key=itemgetter(*places), name=operator_name(names, places))
    return folded.map(plain_record)


def row_maker(kind: Any, zone: tzinfo) -> Callable[[Any], Any]:
    """Return a function from travelling values to a Row of a StructType, with naive datetimes in a time zone.

    It raises ValueError for a value that Python's datetime cannot hold.
    """
    zoned = _zoned(kind, zone)

    def make(values: Any) -> Any:
        try:
            return zoned.fromInternal(values)
        except (OverflowError, ValueError):
            for field, value in zip(zoned.fields, values):
                try:
                    field.dataType.fromInternal(value)
                except (OverflowError, ValueError):
                    raise ValueError(
                        f"The column {field.name!r} has {value!r:.200}, in microseconds or days since 1970, in the row "
                        f"{tuple(values)!r:.200}. {UNHELD}"
                    ) from None
            raise

    return make


def _zoned(kind: Any, zone: tzinfo) -> Any:
    """Return a type of Spark whose timestamps become naive datetimes of a time zone."""
    from pyspark.sql import types

    class ZonedType(types.TimestampType):
        def fromInternal(self, ts: Any) -> Any:
            return None if ts is None else naive_in(zone, ts)

    def zoned(kind: Any) -> Any:
        if isinstance(kind, types.StructType):
            return types.StructType([types.StructField(each.name, zoned(each.dataType)) for each in kind.fields])
        if isinstance(kind, types.ArrayType):
            return types.ArrayType(zoned(kind.elementType))
        if isinstance(kind, types.MapType):
            return types.MapType(zoned(kind.keyType), zoned(kind.valueType))
        return ZonedType() if isinstance(kind, types.TimestampType) else kind

    return zoned(kind)


def naive_in(zone: tzinfo, micros: int) -> datetime:
    """Return a time, in microseconds since 1970 in UTC, as a naive datetime of a time zone. Raises OverflowError.

    >>> from datetime import timezone
    >>> naive_in(timezone(timedelta(hours=-5)), 253_402_318_799_000_000)  # in UTC this is in the year 10000
    datetime.datetime(9999, 12, 31, 23, 59, 59)
    """
    seconds, rest = divmod(micros, 1_000_000)
    try:
        return datetime.fromtimestamp(seconds, zone).replace(microsecond=rest, tzinfo=None)
    except (OverflowError, ValueError):  # out of range in UTC
        offset = zone.utcoffset(datetime.max if micros > 0 else datetime.min) or timedelta()
        return datetime(1970, 1, 1) + (timedelta(microseconds=micros) + offset)


def register_rows() -> None:
    """Let Rows travel to and from this process. The driver also needs it, to show states."""
    from pyspark.sql.types import Row

    from megaflow.timely.communication.codec.encode import register

    register(Row, taken_apart, made_row)


def operator_name(names: Sequence[str], places: Sequence[int]) -> str:
    """Return the name of the operator, under which its states are stored. Other keys need other states.

    >>> operator_name(["customer", "shop", "amount"], [0, 1])
    'stateful(customer, shop)'
    """
    return f"stateful({', '.join(names[place] for place in places)})"


def key_maker(names: Sequence[str], places: Sequence[int]) -> Callable[[Any], Any]:
    """Return a function from a row to its key: the value of the key column, or a Row of those of several columns."""
    if len(places) == 1:
        return itemgetter(places[0])
    from pyspark.sql.types import Row

    make, pick = Row(*[names[place] for place in places]), itemgetter(*places)
    return lambda row: make(*pick(row))


def plain_record(record: Any) -> Any:
    """Return an output record as a dict if it is a Row with names, as a tuple if it is a Row without.

    >>> plain_record(("ann", 3))
    ('ann', 3)
    """
    names = getattr(record, "__fields__", None)
    if names is not None and isinstance(record, tuple):
        return dict(zip(names, record))
    return tuple(record) if type(record).__name__ == "Row" else record


def taken_apart(row: Any) -> tuple[Any, ...]:
    """Return a Row as its names (None: it has none) and its values."""
    names = getattr(row, "__fields__", None)
    return None if names is None else tuple(names), tuple(row)


def made_row(parts: tuple[Any, ...]) -> Any:
    """Return the Row that `taken_apart` has taken apart."""
    from pyspark.sql.types import Row

    names, values = parts
    return Row(*values) if names is None else Row(*names)(*values)


def fold_partition(
    fold: Fold, kind: Any, places: Sequence[int], output: Any, has_tuples: bool, zone: tzinfo,
    rows: Iterable[Any],
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield the outputs of a fold on all rows of some keys, as tuples. Runs in a task of Spark.

    It keeps the states of these keys in memory. `kind` is the StructType of the frame; the rows have ints for its
    timestamps and dates. `output`: the StructType of the outputs; `zone`: that of naive datetimes.
    """
    pick = itemgetter(*places)  # naive datetimes of an hour that clocks repeat are equal, so they are no keys
    key_of = pick if has_tuples else key_maker(kind.names, places)
    states, make, made = dict[Any, Any](), row_maker(kind, zone), output_maker(output, zone)
    for values in map(plain_values, rows):
        row = values if has_tuples else make(values)
        if (values_of_key := pick(values)) not in states:
            checked_key(values_of_key)
        key = key_of(row)
        state, outputs = answer_of(key, fold(key, row, states.get(values_of_key)))
        if state is None:
            states.pop(values_of_key, None)
        else:
            states[values_of_key] = state
        yield from map(made, outputs)


def plain_values(value: Any) -> Any:
    """Return a row of Spark as a tuple, and likewise the rows in it.

    >>> plain_values((1, [(bytearray(b"a"), {"b": None})]))
    (1, [(b'a', {'b': None})])
    """
    if isinstance(value, tuple):
        return tuple(map(plain_values, value))
    if isinstance(value, list):
        return [*map(plain_values, value)]
    if isinstance(value, dict):
        return {plain_values(key): plain_values(each) for key, each in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


def checked_key(key: Any) -> Any:
    """Return the key of a batch frame. Raises ValueError for NaN, as the hash of a job's keys does.

    >>> checked_key(("ann", float("nan")))
    Traceback (most recent call last):
        ...
    ValueError: NaN cannot be a key or part of a key, as in ('ann', nan): it equals no value, not even itself; drop ...
    """
    if any(part != part for part in (key if isinstance(key, tuple) else (key,))):
        raise ValueError(
            f"NaN cannot be a key or part of a key, as in {key!r:.200}: it equals no value, not even itself; drop such "
            "rows, or replace NaN with another value, such as None"
        )
    return key


def answer_of(key: Any, answer: Any) -> tuple[Any, Iterable[Any]]:
    """Return what a fold has returned for a key: the state and the outputs. Raises TypeError for anything else.

    >>> answer_of("ann", (3, [("ann", 3)]))
    (3, [('ann', 3)])
    """
    if isinstance(answer, tuple | list) and len(answer) == 2:
        outputs = answer[1]
        if type(outputs) is list or not (
            isinstance(outputs, str | bytes | dict | None) or (isinstance(outputs, tuple) and outputs)
        ):
            return answer[0], outputs
    raise TypeError(f"the fold must return (state, list of outputs), but for key {key!r} got {answer!r:.200}")


def output_maker(kind: Any, zone: tzinfo) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from an output of a batch frame to values of a StructType, with ints for timestamps and dates.

    It raises ValueError for a value that is no time. Spark checks all other values.
    """
    calls, names = [_int_maker(field.dataType, zone) for field in kind.fields], kind.names

    def make(output: Any) -> tuple[Any, ...]:
        made = list[Any]()
        for name, call, value in zip(names, calls, in_columns(plain_record(output), names), strict=True):
            try:
                made.append(call(value))
            except ValueError as error:
                raise ValueError(
                    f"the record {output!r:.200} does not fit the schema of the results: column {name!r} is {error}"
                ) from None
        return tuple(made)

    return make


def _int_maker(kind: Any, zone: tzinfo) -> Callable[[Any], Any]:
    """Return the function that makes ints of the datetimes and dates that a value of a type is or contains."""
    match kind.typeName():
        case "array":
            if (each := _int_maker(kind.elementType, zone)) is _as_it_is:
                return each
            return lambda values: [*map(each, values)] if isinstance(values, list | tuple) else values
        case "map":
            pair = _int_maker(kind.keyType, zone), _int_maker(kind.valueType, zone)
            if pair == (_as_it_is, _as_it_is):
                return _as_it_is
            return lambda found: {pair[0](k): pair[1](v) for k, v in found.items()} if type(found) is dict else found
        case "struct":
            return partial(_row_with_ints, [_int_maker(each.dataType, zone) for each in kind.fields], kind.names)
        case "timestamp" | "timestamp_ntz" | "date" as name:
            return partial(_as_int, name, zone)
    return _as_it_is


def _row_with_ints(calls: Sequence[Callable[[Any], Any]], names: Sequence[str], row: Any) -> Any:
    if isinstance(row, dict):
        if row.keys() != {*names}:
            raise ValueError(f"{row!r:.80}, but its fields must be {[*names]}")
        row = [row[name] for name in names]
    is_row = isinstance(row, list | tuple) and len(row) == len(calls)
    return tuple([call(value) for call, value in zip(calls, row, strict=True)]) if is_row else row


def _as_int(name: str, zone: tzinfo, value: Any) -> Any:
    """Return a value of a type of times as an int. Raises ValueError with the reason.

    >>> _as_int("timestamp", UTC, datetime(1970, 1, 1, 0, 0, 1)), _as_int("date", UTC, date(1970, 1, 3))
    (1000000, 2)
    """
    if value is None or type(value) is int:
        return value
    if isinstance(value, datetime) == (name == "date") or not isinstance(value, date) or value != value:  # NaT
        raise ValueError(f"{value!r:.80} ({type(value).__name__}), but must be {name}")
    if not isinstance(value, datetime):
        return value.toordinal() - date(1970, 1, 1).toordinal()
    if name == "timestamp_ntz" and value.tzinfo is not None:
        advice = "choose a zone by astimezone, then drop it by replace(tzinfo=None)"
        raise ValueError(f"{value!r:.120}, but {name} has no time zone: {advice}")
    begin = datetime(1970, 1, 1, tzinfo=None if name == "timestamp_ntz" else UTC)
    known = value if value.tzinfo is not None or name == "timestamp_ntz" else value.replace(tzinfo=zone)
    return (known - begin) // timedelta(microseconds=1)


def _as_it_is(value: Any) -> Any:
    return value


def in_columns(record: Any, columns: Sequence[str]) -> tuple[Any, ...]:
    """Return the values of an output record in the order of the columns.

    >>> in_columns({"total": 3, "customer": "ann"}, ["customer", "total"]), in_columns(3, ["total"])
    (('ann', 3), (3,))
    """
    found = record._asdict() if isinstance(record, tuple) and hasattr(record, "_asdict") else record
    if isinstance(found, dict):
        if set(found) != set(columns):
            raise ValueError(f"the record {record!r:.200} has {sorted(found)}, not the columns {[*columns]}")
        found = tuple(found[name] for name in columns)
    values = found if isinstance(found, tuple) else (found,)
    if len(values) != len(columns):
        raise ValueError(f"the record {record!r:.200} has {len(values)} values for the columns {[*columns]}")
    return values if PLAIN.issuperset(map(type, values)) else tuple(map(without_classes, values))


def without_classes(value: Any) -> Any:
    """Return a value without numpy's scalars, Rows and NamedTuples, as `rows.result_rows.without_classes` does."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and value.dtype.kind in "biufSU":
        return value.item()
    if isinstance(value, tuple):
        names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
        values = tuple(map(without_classes, value))
        return dict(zip(names, values)) if names else values
    if type(value) is list:
        return [*map(without_classes, value)]
    if type(value) is dict:
        return {without_classes(key): without_classes(each) for key, each in value.items()}
    return value
