"""The DataFrames around a stateful fold: the grouped one that it reads, and the one of its outputs.

`job.launcher.run.spark_stateful` starts the jobs behind streaming results. Imports pyspark inside functions.
"""

import inspect
import sys
from functools import partial
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.rows.ddl import parse_ddl
from megaflow.spark import stateful_rows
from megaflow.spark.stateful_rows import Fold

AVAILABLE_NOW: Final = "AvailableNowTrigger"
TRIGGERS: Final = {
    "OneTimeTrigger": "A query of a stateful frame cannot use trigger(once=True). Use trigger(availableNow=True).",
    AVAILABLE_NOW: "trigger(availableNow=True) needs PySpark 4.2 or newer here: earlier versions ask a source in "
    "Python once for the end of its data, at the start, when the job has no results. Use another trigger, and stop "
    "the query.",
}


def grouped_frame(grouped: Any) -> tuple[Any, list[str]]:
    """Return the frame of grouped data and the names of the key columns, as given. Raises UsageError."""
    if not hasattr(grouped, "_jgd"):
        raise UsageError(f"grouped must be frame.groupBy(…) of a classic Spark session, not {grouped!r:.80}.")
    java, names = grouped._jgd, list[str]()
    if "type: GroupBy]" not in java.toString():
        raise UsageError("grouped must be frame.groupBy(…), not a rollup, a cube or a pivot.")
    expressions = java.groupingExprs()
    for place in range(expressions.size()):
        expression = expressions.apply(place)
        kind = expression.getClass().getSimpleName()
        if kind == "UnresolvedAttribute":
            parts = expression.nameParts()
            names.append(parts.apply(0) if parts.size() == 1 else expression.name())
        elif kind == "AttributeReference":
            names.append(expression.name())
        else:
            raise UsageError(
                f"groupBy: A key must be a column by its name, not the expression {expression.sql()}. Add a column, as "
                "in frame.withColumn('key', …).groupBy('key')."
            )
    if not names:
        raise UsageError("groupBy: Name at least one key column.")
    return grouped._df, names


def key_places(frame: Any, keys: list[str]) -> list[int]:
    """Return the places of key columns in a frame. Raises UsageError for unknown names and types without an order."""
    fields, places = frame.schema.fields, list[int]()
    for key in keys:
        exact = [place for place, field in enumerate(fields) if field.name == key]
        found = exact or [place for place, field in enumerate(fields) if field.name.lower() == key.lower()]
        if len(found) != 1:
            columns = ", ".join(field.name for field in fields)
            raise UsageError(f"groupBy: The key {key!r} must be one of the columns {columns}.")
        if not isinstance(fields[found[0]].dataType.jsonValue(), str):
            kind = fields[found[0]].dataType.simpleString()
            raise UsageError(f"groupBy: The key {key!r} of type {kind} must have a simple type. Cast it to STRING.")
        if found[0] in places:
            raise UsageError(f"groupBy: The key {key!r} is named twice.")
        places += found
    return places


def check_fold(fold: object) -> None:
    """Raise UsageError for an object that cannot be called as a fold."""
    if callable(fold):
        try:
            inspect.signature(fold).bind(None, None, None)
            return
        except TypeError:
            pass
        except ValueError:  # it has no signature
            return
    raise UsageError(f"fold must be a function fold(key, row, state) -> (state, outputs), not {fold!r:.80}.")


def streaming_result(
    session: Any, source: str, addresses: tuple[tuple[str, int], ...], schema: str, secret: bytes
) -> Any:
    """Return the streaming DataFrame of a data source `source`, whose readers find their job at these addresses."""
    from megaflow.spark.results_source import ResultsPlace, reachable_place, register_source

    return register_source(session, source, reachable_place(session, ResultsPlace("", addresses, schema, secret)))


def batch_result(frame: Any, fold: Fold, places: list[int], schema: str) -> Any:
    """Return the outputs of a fold on a batch frame, as a batch DataFrame."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[stateful_rows.__name__])  # type: ignore[no-untyped-call]
    names = frame.columns
    columns = [column.name for column in parse_ddl(schema)]
    by_key = frame.repartition(*[frame[f"`{names[place].replace('`', '``')}`"] for place in places])
    rows = by_key.rdd.mapPartitions(partial(stateful_rows.fold_partition, fold, names, places, columns))
    return frame.sparkSession.createDataFrame(rows, schema)


def check_trigger(trigger: str, version: str = "") -> None:
    """Raise UsageError for a trigger of a query that this version of PySpark does not support here.

    >>> check_trigger("AvailableNowTrigger", "4.2.0")
    >>> check_trigger("AvailableNowTrigger", "4.1.1")
    Traceback (most recent call last):
        ...
    megaflow.errors.UsageError: trigger(availableNow=True) needs PySpark 4.2 or newer here: ...
    """
    if not version:
        from pyspark.version import __version__ as version
    major, minor = map(int, version.split(".")[:2])
    if trigger in TRIGGERS and not (trigger == AVAILABLE_NOW and (major, minor) >= (4, 2)):
        raise UsageError(TRIGGERS[trigger])
