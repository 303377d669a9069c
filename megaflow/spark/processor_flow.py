"""The dataflow around a `StatefulProcessor`: its rows, those of its initial state, and the operator with its fold."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from megaflow.keyed_state import KeyedState
from megaflow.megaphone.base.bins import stable_hash
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.spark.processor_fold import ProcessorFold, ProcessorPlan
from megaflow.spark.stateful_rows import register_rows
from megaflow.stream import Stream

INITIAL_ROWS: Final = "initial"  # name of the job's second input
BINS: Final = 256


def processor_flow(
    flow: Any, processor: Any, plan: ProcessorPlan, rows: str, initial_places: Sequence[int], name: str
) -> Stream[Any]:
    """Build the dataflow on a worker. `initial_places`: those of the keys in the initial state's rows; (): it has none.

    Each record is a row with the times of its batch, and its key is that of the row.
    """
    register_rows()
    pairs = _keyed(flow.rows(rows), plan.places)
    if initial_places:
        pairs = _keyed(flow.rows(INITIAL_ROWS), initial_places).concat(pairs)
    made = KeyedState("stateful_unary", ProcessorFold(processor, plan), stable_hash, None, BINS, name, 1, None, False)
    return Stream(made.timed([pairs.port], EventUnit.MILLISECONDS))


def _keyed(records: Stream[Any], places: Sequence[int]) -> Stream[Any]:
    key_of = itemgetter(*places)
    return records.map(lambda record: (key_of(record[1]), record))
