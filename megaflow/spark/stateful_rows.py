"""Folds on Spark's Rows: the dataflow of a stateful frame, and the same fold in Spark's own tasks for a batch frame.

The module imports nothing of megaflow at its top, because `fold_partition` travels by value to executors without it.

1. A fold gets the values that Spark's Python code gets: a Row, in it naive datetimes in the machine's time zone, dates,
   Decimals and nested Rows. Spark's own types convert them, from the ints and tuples that travel between workers.
2. A record's key is its tuple of travelling values, so bins and stored keys do not depend on a time zone.
3. A Row may be a state and an output. It travels with its names.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

PLAIN = frozenset([bool, int, float, str, bytes, type(None)])
Fold = Callable[[Any, Any, Any], tuple[Any, Iterable[Any]]]


def stateful_flow(flow: Any, fold: Fold, schema: str, places: Sequence[int], has_tuples: bool) -> Any:
    """Build the dataflow of a stateful frame on a worker. `places` are those of the key columns in the schema.

    `has_tuples`: the fold gets the travelling values as they are.
    """
    from pyspark.sql.types import StructType

    register_rows()
    names = [field["name"] for field in json.loads(schema)["fields"]]
    make, key_of = StructType.fromJson(json.loads(schema)).fromInternal, key_maker(names, places)

    def by_name(_: Any, values: Any, state: Any) -> Any:
        row = make(values)
        return fold(key_of(row), row, state)

    given = fold if has_tuples else by_name
    folded = flow.rows().stateful_state_machine(given, key=itemgetter(*places), name=operator_name(names, places))
    return folded.map(plain_record)


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
    fold: Fold, kind: Any, places: Sequence[int], columns: Sequence[str], has_tuples: bool, rows: Iterable[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield the outputs of a fold on all rows of some keys, as tuples. Runs in a task of Spark.

    It keeps the states of these keys in memory. `kind` is the StructType of the rows.
    """
    key_of = itemgetter(*places) if has_tuples else key_maker(kind.names, places)
    states = dict[Any, Any]()
    for row in map(kind.toInternal, rows) if has_tuples else rows:
        if (key := key_of(row)) not in states:
            checked_key(key)
        state, outputs = answer_of(key, fold(key, row, states.get(key)))
        if state is None:
            states.pop(key, None)
        else:
            states[key] = state
        for output in outputs:
            yield in_columns(plain_record(output), columns)


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
    return values if PLAIN.issuperset(map(type, values)) else tuple(map(without_numpy, values))


def without_numpy(value: Any) -> Any:
    """Return a value without numpy's scalars, as `rows.result_rows.without_numpy` does."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and value.dtype.kind in "biufSU":
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(without_numpy, value))
    if type(value) is dict:
        return {without_numpy(key): without_numpy(each) for key, each in value.items()}
    return value
