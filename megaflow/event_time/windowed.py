"""A windowed stream: one operator with state for all aggregates of its windows.

    (time, (key, value)) ─▶ [by key] ─▶ [F] ─▶ [S: a timed fold] ─▶ (number, (time, result)) ─▶ [take 0], [take 1], …

F and S are built with the window, before its aggregates are known. Each `aggregated` adds an accumulator to the fold's
list, and a stateless operator that takes its results out of S's output. The list is complete when the dataflow is,
because nothing is added to a running dataflow. So the records are routed once, and a key's state has each pane or
session once, with all its accumulations.

What the fold does
 1. It receives the records of a key and epoch, and the watermark of all epochs before that. Records that are late, by
    their bounds or by the watermark (`record_bounds`), are dropped or go to the stream of late records. All others are
    put into the key's panes or sessions.
 2. Each key with state has an *alarm*: an event timer, not later than the watermark at which its next window closes. It
    is set for that moment, or earlier, because a session may grow later. If an earlier window comes, the timer of the
    later one remains and finds nothing to do.
 3. When the watermark reaches the alarm, the fold is called again. It closes all windows that are due (all windows
    under an infinite watermark) and sets the next alarm. That is later than the watermark, so one call is enough.
State and timers are plain values, which move and are written like those of every operator.

With `emit` and `marks`, a table of the results by key and window is right after every epoch:
 4. Each change of an open session puts its result out. So the session's last early result has the bounds that the
    session has now. Before the fold puts records in, it removes the results of all sessions whose bounds they change.
 5. A session that is closed is not in the state any more, so no final result is ever removed.
 6. If a run continues with a longer gap, the bounds of open sessions change between two results. The state then keeps
    the old ends until the next call for the key. That call is at the latest the one of the alarm.

If states of windows were given up at a resume, windows up to a timestamp g lack records (`state_migration`):
 7. A window is partial if it begins at g or before. A session is partial if it begins less than a gap after g: a record
    at g would belong to it. Its results go to the stream of partial results, or are counted and left out.
 8. g holds for all keys (`Core.partial_until`), or for one key: then its state is a dict of g and the state proper.
    This goes with the key, until no window can begin at g or before any more.

The bounds of windows are in the stream's unit. If the program does not declare it, S learns it from records and states
(`stream_unit`).

The results of one watermark come in the order of the ends of their windows: S sorts what it sends at the close of an
epoch, for all keys that it owns.

The timestamp of a result is the end of its window, less a microsecond. A window closes at the first watermark that has
reached its end (plus the lateness), so the watermark before it had not. For a following window, the result is late only
if that window allows less lateness. That is why `behind` travels with a stream of results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

from megaflow.errors import BuildError
from megaflow.event_time.accumulators import Accumulator, Accumulators
from megaflow.event_time.calendar_panes import CalendarPanes
from megaflow.event_time.calendar_windows import CalendarWindows
from megaflow.event_time.fold_stamps import by_key
from megaflow.event_time.kept_windows import ALARM, UNTIL, WINDOWS_OF_KEY, WindowsForm
from megaflow.event_time.panes import Closed, KeyWindows, Panes
from megaflow.event_time.sessions import Sessions
from megaflow.event_time.windows import (
    AlignedWindows,
    EarlyWindow,
    Kind,
    Length,
    SessionWindows,
    Window,
    WindowResult,
    Windows,
    length_of,
)
from megaflow.megaphone.base.event_unit import GREATEST, INFINITE, EventUnit
from megaflow.megaphone.base.stream_unit import StreamUnit
from megaflow.megaphone.folds.aggregates import place_of
from megaflow.megaphone.folds.stateful_core import Core, build
from megaflow.megaphone.folds.stateful_timed import TimedFolds
from megaflow.megaphone.router.splitting import ByMadePair
from megaflow.timely.dataflow.argument_checks import instance, shown
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.linear import linear
from megaflow.timely.dataflow.record_copies import copies_of

Emit: TypeAlias = Literal["every", "epoch"]
Output: TypeAlias = tuple[int, tuple[int, Any]]  # number of an aggregate or LATE, timestamp, record

LATE: Final = -1
PARTIAL: Final = -2
_KEEPERS: Final = {AlignedWindows: Panes, CalendarWindows: CalendarPanes, SessionWindows: Sessions}


class WindowFold:
    """The fold of a windowed stream on one worker."""

    def __init__(
        self, windows: KeyWindows[Any], accumulators: Accumulators, unit: StreamUnit, emit: Emit | None, core: Core,
        overlap: bool = True, behind: int = 0, local: Callable[[Any], Any] | None = None, marks: bool = False,
    ) -> None:  # fmt: skip
        """`overlap`: a value may be in several windows, or in several results of one.

        `behind`: microseconds for which a window stays open after its end. `local`: gives bounds their final form.
        `marks`: results are `WindowResult`s; with `emit`, they say which windows are removed.
        """
        self._local = local
        self._windows = windows
        self._behind = behind
        self._accumulators = accumulators
        self._unit = unit  # of the bounds of windows
        self._emit = emit
        self._marks = marks
        self._removes = marks and emit is not None
        self._core = core
        self._overlap = overlap or emit is not None
        self._partial_until = core.partial_until  # of the key of this call, in microseconds; None: nothing is partial
        core.store.events.are_alarms = True
        core.open_windows = self._count

    def _count(self) -> int:
        states = (state[WINDOWS_OF_KEY] if type(state) is dict else state for state in self._core.store.states.values())
        return sum(self._windows.count(state) for state in states if state is not None)

    def __call__(self, key: Any, time: Any, records: list[Any], state: Any, timers: Any) -> tuple[Any, list[Output]]:
        """Put in the records of an epoch, or close the windows that are due: then `records` are the times of alarms."""
        if type(state) is not dict:
            return self._called(key, records, state, timers)
        of_all, until = self._partial_until, state[UNTIL]
        self._partial_until = until if until is None or of_all is None else max(until, of_all)
        try:
            windows, out = self._called(key, records, state[WINDOWS_OF_KEY], timers)
        finally:
            self._partial_until = of_all
        if until is None and windows is None:
            return None, out
        state = {**state, WINDOWS_OF_KEY: windows}
        if until is None:
            return state, out
        over = min(until + self._windows.reach + self._behind, GREATEST)
        if windows is None:
            if self._core.store.events.watermark >= over:
                return None, out
            if state.get(ALARM) != over:
                timers.at_event(over, over)
                state[ALARM] = over
        return state, out

    def _called(self, key: Any, records: list[Any], state: Any, timers: Any) -> tuple[Any, list[Output]]:
        """Do that for a key whose state is the windows alone."""
        watermark = self._core.store.events.watermark
        out: list[Output] = []
        if not self._unit.is_declared:
            self._unit.read({*map(type, records)}, state)
        if self._removes and state is not None:
            before, now = self._windows.lengthened(state)
            self._put(out, key, before, EarlyWindow, "removed")
            self._put(out, key, now, EarlyWindow)
        if type(records[0]) is int:
            if state is None:
                return None, out
            if state[0] in records:
                state[0] = None
            state, closed = self._windows.close(state, watermark)
            kind = Window
            if closed and watermark >= INFINITE:
                events = self._core.store.events
                last = max(end for _, end, _ in closed) + self._behind
                events.early.closed(len(closed), min(last, GREATEST))
                kind = EarlyWindow if events.by_stop else Window
            self._put(out, key, closed, kind)
        else:
            for some in [records] if self._emit != "every" else [[record] for record in records]:
                if self._removes and state is not None:
                    self._put(out, key, self._windows.replaced(state, some, watermark), EarlyWindow, "removed")
                state, late, overtaken = self._windows.take(state, some, watermark)
                if self._emit is not None and state is not None:
                    self._put(out, key, self._windows.so_far(state, some, watermark), EarlyWindow)
                if late:
                    self._core.late += len(late)
                    self._core.overtaken += overtaken
                    out += [(LATE, (stamp, (key, value))) for stamp, value in late]
        if state is not None:
            deadline = self._windows.deadline(state)
            if state[0] is None or deadline < state[0]:
                timers.at_event(deadline, deadline)
                state[0] = deadline
            if not self._unit.is_declared:
                self._unit.spell_state(state)
        return state, out

    def _put(
        self, out: list[Output], key: Any, closed: list[Closed], kind: type[Window], mark: Kind | None = None
    ) -> None:
        """Add the results of windows to the outputs. `mark`: their kind; None: "early" or "final", as the windows."""
        mark = mark or ("early" if kind is EarlyWindow else "final")
        bound, local = self._unit.value, self._local
        for start, end, accumulated in closed:
            window = kind(bound(start), bound(end)) if local is None else kind(local(bound(start)), local(bound(end)))
            results = self._accumulators.results(accumulated)
            if self._partial_until is not None and start < self._partial_until + self._windows.joins:
                if not self._core.emits_partial:
                    self._put_partial(out, key, window, end, results, mark)
                    continue
            if self._overlap or len(results) > 1:  # or a reader of one could change another
                results = [copies_of([result])[0] for result in results]
            for number, result in enumerate(results):
                made = WindowResult(key, window, result, mark) if self._marks else (key, window, result)
                out.append((number, (end - 1, made)))


    def _put_partial(
        self, out: list[Output], key: Any, window: Window, end: int, results: list[Any], mark: Kind
    ) -> None:
        """Add the results of a partial window to the outputs, or count it once it is closed."""
        core = self._core
        if core.partial_is_taken:
            [result] = copies_of(results if len(results) == 1 else [tuple(results)])
            made = WindowResult(key, window, result, mark) if self._marks else (key, window, result)
            out.append((PARTIAL, (end - 1, made)))
        elif self._emit is None or mark == "final":
            core.leave_out(core.name, lambda: (
                f"{core.name!r} leaves out {window} of key {key!r:.80}: records before the job resumed are missing "
                "in it, as their state was dropped, or the windows are new. This holds for all windows that were open "
                "then. .partial() returns their results as a stream, and --partial-windows emit puts them out like all "
                "others."
            ))  # fmt: skip


class WindowedPort:
    """The output of S, and the operators that take results from it."""

    def __init__(
        self,
        port: Port[Any],
        windows: Windows,
        unit: StreamUnit,
        behind: int,
        allowed_lateness: Length,
        emit: Emit | None,
        marks: bool,
        placing: Any,
    ) -> None:
        """Build F and S for pairs of a timestamp and (key, value). Raises BuildError for invalid arguments.

        `behind`: how far the pairs may be behind the watermark.
        """
        place = place_of("window", placing, own=("windows", "allowed_lateness", "marks"))
        self.name = place.name
        instance(place.name, windows, (*_KEEPERS,), "tumbling(…), sliding(…) or session(…)")
        lateness = length_of(place.name, "allowed_lateness", allowed_lateness, is_length=False)
        if lateness < 0:
            raise BuildError(f"{place.name} ({user_line()}): allowed_lateness={allowed_lateness!r} must be 0 or more")
        if emit not in (None, "every", "epoch"):
            raise BuildError(
                f'{place.name} ({user_line()}): emit must be "every" (a result for each record), "epoch" (one for each '
                f"epoch in which a window has changed) or None (one when it closes), not {shown(emit)}"
            )
        instance(f"marks= of {place.name}", marks, bool, "True or False")
        self.behind = behind + lateness
        overlap = isinstance(windows, AlignedWindows) and windows.every != windows.size
        self.is_merged = overlap or isinstance(windows, SessionWindows)
        self._accumulators = Accumulators()
        self._where = user_line()
        port.scope.graph.unmet.append(self._lacking)
        kind: Any = _KEEPERS[type(windows)]
        keeper: KeyWindows[Any] = kind(windows, self._accumulators, self.behind)
        local = windows.local if isinstance(windows, CalendarWindows) else None

        def policy(core: Core) -> TimedFolds:
            self._core = core
            fold = WindowFold(keeper, self._accumulators, unit, emit, core, overlap, self.behind, local, marks)
            return TimedFolds(core, fold, EventUnit.MICROSECONDS, fired_by=lambda output: output[1][0])

        pairs = linear(port, f"{place.name}.by_key", by_key(place.name, unit))
        terms = replace(place.terms, form=WindowsForm(windows, self._accumulators, marks and emit is not None))
        self._output: Port[Output] = build(
            [pairs], place.hash, place.control, place.bins, place.name, policy, ByMadePair, terms
        )

    def aggregated(self, accumulator: Accumulator) -> Port[Any]:
        """Return a port of pairs of a timestamp and (key, Window, result)."""
        self._accumulators.append(accumulator)
        return self._taken(len(self._accumulators) - 1, accumulator.verb)

    def late(self) -> Port[Any]:
        """Return a port of pairs of a timestamp and (key, value): the records that are late for all their windows."""
        self._core.late_is_taken = True
        return self._taken(LATE, "late")

    def partial(self) -> Port[Any]:
        """Return a port of the results of partial windows: like those of an aggregation, with a tuple of several."""
        self._core.partial_is_taken = True
        return self._taken(PARTIAL, "partial")

    def _lacking(self) -> str | None:
        if self._accumulators or self._core.late_is_taken:
            return None
        return (
            f"{self.name} ({self._where}): these windows have no aggregation, so their records would be kept in "
            "vain; add one, such as .count() or .collect(), or remove .window(…)"
        )

    def _taken(self, wanted: int, what: str) -> Port[Any]:
        def take(time: Any, batch: list[Output]) -> list[Any]:
            return [record for number, record in batch if number == wanted]

        taken = linear(self._output, f"{self.name}.{what}", take)
        taken.scope.graph.nodes[taken.node].divides = True
        return taken
