"""Timestamps after a fold: the stamps that `stamp=` puts beside the outputs of a stateful operator.

    "record"     (stamp, (key, value)) ─▶ [by key] ─▶ [F] ─▶ [S: the fold, for a value and its stamp] ─▶ (stamp, output)
    a function   (key, value) ─▶ [F] ─▶ [S: the fold] ─▶ [stamp: the function] ─▶ (stamp, output)

Without `stamp=` the outputs of a fold are a plain stream. So the `ttl=` of a second fold after it keeps its clock.

1. *A watermark does not overtake outputs.* S sends the outputs of a record at the record's epoch t, and the outputs of
   a timer at the epoch t at whose close the timer fires. It holds t until then (`stateful`, `stateful_timed`). The next
   operator judges what comes at t by w(t), the greatest watermark of earlier epochs. It closes t, and so raises the
   watermark, once nothing more can come at t (`event_timers`). Workers report a record only after they have read it,
   and a watermark is raised only after the reports. So w(t) stands for nothing that is read at t or later: it judges an
   output of t as it judges the records of t. Moves, joins and resumes change the owner of a key, but not the epoch of
   an output.
2. *The stamp of a record* goes to all outputs that the fold returns for the record. It has the record's timestamp and
   bound (`record_bounds`). So an output is late exactly where its record would be, and w(t) does not exceed the bound
   unless a partition is idle or new. Results behind the fold are reproducible if its outputs are. For each key they may
   depend on the order of records within a file or partition, but not on the order between files.
3. *The timestamp of a function* has no bound, because no partition limits what a function may return. Windows behind
   the fold promise only the watermark: an output is late if w(t) has reached the end of its window plus
   `allowed_lateness`. A timestamp of w(t) or more is in time. So these timestamps are in time:
   - the timestamp of a record of t, if it is not below the record's bound, and no partition is idle or new;
   - the timestamp of an event timer: the timer fires at the close of the first t whose commands raise the watermark to
     it, so it is greater than w(t). `timers.watermark` has risen by then, but outputs at t are judged by w(t).
   Results are reproducible if no output is late and the outputs do not depend on epochs.
4. *A timer's outputs* get the timestamp that the function returns for them, as all outputs do. The engine takes none
   from the timer, because timers by epoch or clock have none. A fold puts the timestamp into payload and output.
5. *The lateness of windows before the fold* counts for the windows behind it: their results may be that far behind
   the watermark. So `EventStream.behind` passes through the fold.
6. *The unit.* S and the receiver of an `exchange` learn it from the records that they get (`stream_unit`). A worker
   also learns it from a function's timestamps.
7. *States have no stamps.* A program may add or remove `stamp=` and continue with the states of a store.

Cost, only with `stamp=`: a call and a tuple for each record and output of "record"; the function and a tuple for each
output otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from megaflow.event_time.timestamp_assigner import FunctionStamper, as_it_is
from megaflow.megaphone.base.event_unit import NEVER
from megaflow.megaphone.base.stream_unit import StreamUnit
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.timely.dataflow.folds import NO_OUTPUTS, Fold, check_outputs, complain_about, require_pairs
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import stamped
from megaflow.timely.dataflow.operators.linear import linear

T = TypeVar("T")

RECORD: Final = "record"
"""The value of `stamp=` that gives outputs the stamps of their records."""


def stamp_by_record(unit: StreamUnit, core: Core, fold: Fold[Any, Any, Any, Any]) -> Fold[Any, Any, Any, Any]:
    """Return a fold of (stamp, value) pairs that gives each output of `fold` the stamp of its record."""
    name, is_declared = core.name, unit.is_declared
    met: set[type] = set()  # from which the unit was read

    def stamping(key: Any, given: Any, state: Any) -> Any:
        stamp, value = given
        if not is_declared and type(given) not in met:
            met.add(type(given))
            unit.read(met)
        try:
            state, outputs = fold(key, value, state)
            if outputs is NO_OUTPUTS:
                return state, outputs
            if type(outputs) is not list:
                check_outputs(name, outputs)
            elif len(outputs) == 1:  # mostly; a comprehension would take 130 ns more
                return state, [(stamp, outputs[0])]
            return state, [(stamp, output) for output in outputs]
        except (TypeError, ValueError) as error:
            core.explain(error, "fold(key, value, state)", [])
            raise

    return stamping


def by_key(name: str, unit: StreamUnit) -> Callable[[Any, list[Any]], list[Any]]:
    """Return a function that puts a batch's timestamps beside its values.

    It raises ProgramError for a record that is not a pair.
    """

    def apply(time: Any, batch: list[Any]) -> list[Any]:
        require_pairs(name, [record for _, record in batch])
        try:
            return unit.spell_values(batch)
        except (TypeError, ValueError) as error:
            complain_about([record for _, record in batch], name, error)
            raise

    return apply


def keep_stamps(time: Any, batch: list[Any]) -> list[Any]:
    """Repeat the stamp beside (stamp, value): an operator whose states expire takes the outer stamp off."""
    return [(key, (given[0], given)) for key, given in batch]


class OutputStamper(FunctionStamper[Any]):
    """Stamper of the outputs of one fold, by a function of the program."""

    _what = "output"

    def begin(self, batch: list[Any]) -> tuple[Callable[[Any, Any], int], int, Callable[[int, int], int]]:
        """Begin with a batch, as a `Stamper` does. Timestamps are not compared with each other."""
        return self._stamping(), NEVER, as_it_is

    def end(self, time: Any, batch: list[Any], greatest: int, has_come: bool) -> None:
        """End a batch. There is nothing to note."""


def stamp_by_function(
    port: Port[T], name: str, title: str, timestamp: Callable[[T], Any], unit: StreamUnit
) -> Port[stamped.Stamped[T]]:
    """Give each output of a fold the timestamp that a function returns for it, in the unit of the fold's stream."""
    return stamped.with_stamps(port, f"{name}.stamp", OutputStamper(title, timestamp, unit))


def exchange(port: Port[stamped.Stamped[T]], key: Callable[[T], int], unit: StreamUnit) -> Port[stamped.Stamped[T]]:
    """Send each record with its stamp to the worker that owns its key, and send that worker the unit: rule 6."""
    if unit.is_declared:
        return stamped.exchange(port, key)
    told = linear(port, "TellUnit", lambda time, batch: unit.spell(batch))
    return linear(stamped.exchange(told, key), "LearnUnit", lambda time, batch: unit.unspell(batch))
