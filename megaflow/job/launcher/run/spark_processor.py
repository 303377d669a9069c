"""Spark's `transformWithState` as a job: `megaflow.spark.transformWithState` and `transformWithStateInPandas`.

A `StatefulProcessor` runs unchanged. The result is a DataFrame like that of `megaflow.spark.stateful`, and its job
starts, ends and resumes in the same way: see `spark_stateful`.

1. The batches of the query that feeds the job are whole (see `control.coordinator.reading.spark_commits`). So the
   processor gets all rows that a key has in a batch in one call. Timers follow the time that Spark records for the
   batch (see `spark.batch_times`), and fire after its rows.
2. The initial state is a second input. Its only batch is whole, and enters before the others. If the store has it, it
   is not read again.
3. A batch frame has no batches to follow. Spark itself runs the processor on it.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.python_function import FrameOptions, naming_arguments, takes_arguments
from megaflow.job.launcher.run.spark_stateful import ROWS, check_frame, streaming_frame
from megaflow.rows.result_rows import zone_of
from megaflow.spark.processor_fold import INITIAL_ROWS, ProcessorPlan, declared_states, event_path, processor_flow
from megaflow.spark.processor_states import TIME_MODES, time_mode_of
from megaflow.spark.query_spec import TIME_ZONE, RowFrames
from megaflow.spark.stateful_frame import check_processor, grouped_frame, key_places, output_schema

OUTPUT_MODES: Final = ("append", "update")


@dataclass(frozen=True, slots=True)
class ProcessorOptions(FrameOptions):
    """The arguments of `megaflow.spark.transformWithState`."""

    grouped: Any
    statefulProcessor: Any
    outputStructType: Any
    outputMode: str
    timeMode: str
    initialState: Any = None
    eventTimeColumnName: str = ""
    _: KW_ONLY


@takes_arguments(ProcessorOptions)
def transformWithState(*given: Any, **named: Any) -> Any:
    """Run a `StatefulProcessor` of Spark on worker processes of megaflow; return its outputs as a DataFrame.

        totals = megaflow.spark.transformWithState(
            orders.groupBy("customer"), Totals(), "customer STRING, total LONG", "append", "EventTime", processes=4)

    In place of `orders.groupBy("customer").transformWithState(…)`. The processor, the schema, the modes and
    `initialState` are those of Spark. The other arguments and the DataFrame are those of `megaflow.spark.stateful`: a
    query starts and ends the job, `totals.megaflow` is the job, and the query's checkpointLocation resumes it.

    `handleInputRows` is called once for each key and batch of the input, with all of the batch's rows. Values are those
    that Spark gives a processor. Timers fire after the rows of the batch whose watermark, or processing time, reaches
    them. `docs/transform-with-state.md` lists the differences. The states of Spark's own query are not taken over;
    `initialState` may bring them.

    `grouped` of a batch frame gives what Spark's own transformWithState gives, without a job. Raises UsageError for
    wrong arguments. Needs `megaflow[arrow]` in the Python that Spark starts.
    """
    return _transform(ProcessorOptions(*given, **named), "transformWithState", in_pandas=False)


@takes_arguments(ProcessorOptions)
def transformWithStateInPandas(*given: Any, **named: Any) -> Any:
    """Run a `StatefulProcessor` whose methods take and return pandas DataFrames, as `transformWithState` does."""
    return _transform(ProcessorOptions(*given, **named), "transformWithStateInPandas", in_pandas=True)


def _transform(options: ProcessorOptions, verb: str, in_pandas: bool) -> Any:
    with naming_arguments():
        frame, keys = grouped_frame(options.grouped)
        check_frame(frame, options.on)
        processor, mode = options.statefulProcessor, time_mode_of(options.timeMode)
        check_processor(processor)
        if not (isinstance(options.outputMode, str) and options.outputMode.lower() in OUTPUT_MODES):
            raise UsageError(f"outputMode must be 'append' or 'update', not {options.outputMode!r:.80}.")
        if options.eventTimeColumnName:
            raise UsageError("eventTimeColumnName: Leave it out, and call withWatermark on the result if you need one.")
        if options.close_windows:
            raise UsageError(
                "close_windows: Leave it out. The timers of a processor wait for the next run, as in Spark."
            )
        if not frame.isStreaming:
            return getattr(options.grouped, verb)(
                processor, options.outputStructType, options.outputMode, options.timeMode, options.initialState
            )
        at = event_path(frame.schema)
        if mode == "eventtime" and not at:
            raise UsageError(
                "timeMode 'EventTime' needs a watermark. Call withWatermark('COLUMN', 'DELAY') on the frame, before "
                "groupBy."
            )
        places = key_places(frame, keys)
        frames, initial, initial_places = {ROWS: frame}, "", list[int]()
        if options.initialState is not None:
            frames[INITIAL_ROWS], initial_places = _initial(options.initialState, frame, places)
            initial = frames[INITIAL_ROWS].schema.json()
        schema = output_schema(options.outputStructType)
        zone = zone_of(frame.sparkSession.conf.get(TIME_ZONE))
        declared = declared_states(processor, options.timeMode)
        plan = ProcessorPlan(
            options.timeMode, frame.schema.json(), places, schema, zone, in_pandas, initial, at, declared
        )
        title = type(processor).__name__
        app = pickle_app(_dataflow(processor, plan, initial_places, f"{title}({', '.join(keys)})"))
        first = INITIAL_ROWS if initial else ""
        rows = RowFrames(frames, time_mode=TIME_MODES[mode], first=first, is_of_a_query=True)
        return streaming_frame(options, app, rows, title, schema)


def _dataflow(processor: Any, plan: ProcessorPlan, initial_places: list[int], name: str) -> Callable[[Any], Any]:
    """Return the dataflow of a processor. It counts as the processor's module, which travels to executors."""

    def dataflow(flow: Any) -> Any:
        return processor_flow(flow, processor, plan, ROWS, initial_places, name)

    dataflow.__module__ = type(processor).__module__
    return dataflow


def _initial(grouped: Any, frame: Any, places: list[int]) -> tuple[Any, list[int]]:
    """Return the frame of an initial state, and the places of its keys. Raises UsageError."""
    try:
        initial, keys = grouped_frame(grouped)
        found = key_places(initial, keys)
    except UsageError as error:
        raise UsageError(f"initialState: {error}") from None
    pairs = (frame.schema.fields, places), (initial.schema.fields, found)
    types = [[fields[place].dataType for place in some] for fields, some in pairs]
    if initial.isStreaming:
        raise UsageError("initialState must be groupBy(…) of a batch DataFrame, not of a stream.")
    if types[0] != types[1]:
        shown = [", ".join(each.simpleString() for each in some) for some in types]
        raise UsageError(
            f"initialState: Its keys have the types {shown[1]}, and those of the stream have {shown[0]}. Cast them."
        )
    return initial, found
