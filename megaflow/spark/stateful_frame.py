"""The DataFrames around a stateful fold: the grouped one that it reads, and the one of its outputs.

`job.launcher.run.spark_stateful` starts the jobs behind streaming results. Imports pyspark inside functions.
"""

import inspect
import json
import re
import sys
from functools import partial
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.rows.ddl import parse_ddl, schema_json, schema_text
from megaflow.rows.result_rows import zone_of
from megaflow.spark import stateful_rows, stateful_timers
from megaflow.spark.query_spec import TIME_ZONE, TRIGGER_SECONDS
from megaflow.spark.row_packing import ints_for, with_ints, with_timestamps
from megaflow.spark.stateful_timers import START, EventColumn, has_timers

AVAILABLE_NOW: Final = "AvailableNowTrigger"
DELAY: Final = "spark.watermarkDelayMs"  # in the metadata of a column with a watermark; survives select and alias
BINARY: Final = "UTF8_BINARY"  # collation of strings that are compared by their bytes
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
        place = place_of(fields, key, "groupBy: The key")
        kind = fields[place].dataType
        if not isinstance(kind.jsonValue(), str):
            raise UsageError(
                f"groupBy: The key {key!r} of type {kind.simpleString()} must have a simple type. Cast it to STRING."
            )
        if getattr(kind, "collation", BINARY) != BINARY:
            raise UsageError(
                f"groupBy: The key {key!r} is a {kind.simpleString()}, but keys are compared by their bytes. Cast it "
                "to STRING, after lower(…) if the case does not matter."
            )
        if place in places:
            raise UsageError(f"groupBy: The key {key!r} is named twice.")
        places.append(place)
    return places


def place_of(fields: Any, name: str, what: str) -> int:
    """Return the place of a column by its name, as Spark finds it. Raises UsageError."""
    exact = [place for place, field in enumerate(fields) if field.name == name]
    found = exact or [place for place, field in enumerate(fields) if field.name.lower() == name.lower()]
    if len(found) != 1:
        columns = ", ".join(field.name for field in fields)
        raise UsageError(f"{what} {name!r} must be one of the columns {columns}.")
    return found[0]


def event_column(frame: Any, fold: object, name: str | None) -> EventColumn | None:
    """Return the column of event time for a fold with timers: `name`, or the one with a watermark; None: there is none.

    In a streaming frame the column must have a watermark. Raises UsageError.
    """
    if name is not None and not (isinstance(name, str) and has_timers(fold)):
        raise UsageError(f"event_time names a column for a fold with timers. Leave out event_time={name!r:.80}.")
    if not has_timers(fold):
        return None
    fields = frame.schema.fields
    marked = [field.name for field in fields if DELAY in field.metadata]
    if name is None:
        if len(marked) > 1:
            raise UsageError(
                f"The columns {' and '.join(map(repr, marked))} have a watermark. Choose one for timers by "
                f"event_time={marked[0]!r}."
            )
        if not marked:
            return None
        [name] = marked
    field = fields[place := place_of(fields, name, "event_time: The column")]
    if frame.isStreaming and field.name not in marked:
        raise UsageError(
            f"event_time: The column {field.name!r} has no watermark. Add .withWatermark({field.name!r}, '10 minutes') "
            "to the frame, with the delay that you choose."
        )
    if frame.isStreaming and has_watermark_in_union(frame._jdf.queryExecution().analyzed()):
        raise UsageError(
            f"event_time: The watermark of {field.name!r} comes from one side of a union, and a fold has one watermark "
            "for all rows. Call withWatermark after the union."
        )
    path, kind = [place], field.dataType
    if kind.typeName() == "struct" and START in kind.names:  # a window: see rule 6 of `stateful_timers`
        path, kind = [place, kind.names.index(START)], kind[START].dataType
    if kind.typeName() != "timestamp":
        raise UsageError(
            f"event_time: The column {field.name!r} must be a TIMESTAMP or a window, not {kind.simpleString()}."
        )
    return EventColumn(field.name, tuple(path), int(field.metadata.get(DELAY, 0)))


def has_watermark_in_union(plan: Any, is_in_union: bool = False) -> bool:
    """Tell whether a plan of Spark has a watermark below a union. Then Spark's watermark is that of the slowest side.

    The union's column has only the delay of the first side.
    """
    if (name := plan.nodeName()) == "EventTimeWatermark":
        return is_in_union
    inputs = plan.children()
    return any(
        has_watermark_in_union(inputs.apply(place), is_in_union or name == "Union") for place in range(inputs.size())
    )


def check_fold(fold: object) -> None:
    """Raise UsageError for an object that is neither a function for a fold nor a fold with timers."""
    if has_timers(fold):
        if isinstance(fold, type):
            raise UsageError(f"fold must be an object of the class {fold.__name__}: write {fold.__name__}().")
        for name, given in (("on_row", "row"), ("on_timer", "payload")):
            try:
                inspect.signature(getattr(fold, name)).bind(None, None, None, None)
            except (AttributeError, TypeError):
                raise UsageError(
                    f"A fold with timers needs the method {name}(self, key, {given}, state, timers), and "
                    f"{type(fold).__name__} has no such method. It returns (state, outputs)."
                ) from None
        return
    if callable(fold):
        try:
            inspect.signature(fold).bind(None, None, None)
            return
        except TypeError:
            pass
        except ValueError:  # it has no signature
            return
    raise UsageError(f"fold must be a function fold(key, row, state) -> (state, outputs), not {fold!r:.80}.")


def check_processor(processor: object) -> None:
    """Raise UsageError for an object that is no StatefulProcessor of Spark."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    if isinstance(processor, type) and issubclass(processor, StatefulProcessor):
        name = processor.__name__
        raise UsageError(f"statefulProcessor must be an object of the class {name}: write {name}().")
    if not isinstance(processor, StatefulProcessor):
        raise UsageError(f"statefulProcessor must be a StatefulProcessor of Spark, not {processor!r:.80}.")


def output_schema(output: Any) -> str:
    """Return the schema of the outputs in the form of `StructType.json`. Raises UsageError."""
    text = schema_text(output, "outputStructType")
    try:
        schema = schema_json(parse_ddl(text))
    except UsageError as error:
        raise UsageError(f"outputStructType: {error}") from None
    return schema if isinstance(output, str) else str(output.json())


def streaming_result(
    session: Any, source: str, addresses: tuple[tuple[str, int], ...], schema: str, secret: bytes, observe: str
) -> Any:
    """Return the streaming DataFrame of a data source `source`, whose readers find their job at these addresses.

    `observe`: the name of the job's figures in Spark's metrics; "": there are none.
    """
    from megaflow.spark.results_source import ResultsPlace, reachable_place, register_source

    place = ResultsPlace("", addresses, schema, secret, observe=observe)
    return register_source(session, source, reachable_place(session, place))


def batch_result(
    frame: Any, fold: Any, places: list[int], schema: str, event: EventColumn | None, has_tuples: bool
) -> Any:
    """Return the outputs of a fold on a batch frame, as a batch DataFrame."""
    from pyspark import cloudpickle
    from pyspark.sql.types import StructType

    for module in (stateful_rows, stateful_timers):
        cloudpickle.register_pickle_by_value(sys.modules[module.__name__])  # type: ignore[no-untyped-call]
    kind, output = frame.schema, StructType.fromJson(json.loads(schema_json(parse_ddl(schema))))

    def column(*names: str) -> Any:
        return frame[".".join("`" + name.replace("`", "``") + "`" for name in names)]

    zone = zone_of(frame.sparkSession.conf.get(TIME_ZONE))
    keys = [column(kind.names[place]) for place in places]
    by_key = frame.repartition(*keys)
    if has_timers(fold):
        times = [] if event is None else [column(event.name, *[START] * (len(event.path) - 1))]
        by_key = by_key.sortWithinPartitions(*keys, *times)
        task: Any = partial(stateful_timers.fold_sorted, fold, kind, places, output, event, has_tuples, zone)
    else:
        task = partial(stateful_rows.fold_partition, fold, kind, places, output, has_tuples, zone)
    made = frame.sparkSession.createDataFrame(with_ints(by_key).rdd.mapPartitions(task), ints_for(output))
    return with_timestamps(made, output)


def feed_seconds(trigger: str) -> float | None:
    """Return how often the input is read for a query with this trigger; None: once, what exists.

    The input is read as often as the query asks for results, as Spark reads a source. A query without a pause does not
    list an idle folder all the time.

    >>> feed_seconds("ProcessingTimeTrigger(3000)"), feed_seconds("ProcessingTimeTrigger(0)"), feed_seconds(
    ...     "AvailableNowTrigger")
    (3.0, 0.2, None)
    """
    if trigger == AVAILABLE_NOW:
        return None
    found = re.fullmatch(r"ProcessingTimeTrigger\((\d+)\)", trigger)
    return int(found[1]) / 1000 if found and int(found[1]) else TRIGGER_SECONDS


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
