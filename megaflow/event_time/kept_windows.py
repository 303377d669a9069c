"""The kind of the open windows in a store, as text in a commit; and whether a program can continue with them.

If a program read the state of one kind of windows as another kind, results would be wrong without an error: panes of
another width hold other records, and accumulations of a sum and of a maximum are both numbers. So a commit names the
windows and aggregations of an operator's states. A program continues with them only in these cases:
 1. The windows and the aggregations, in their order, are the same. The lateness is not part of a state, so it may
    differ.
 2. Sessions now have a longer gap. Each open session then lasts by the longer gap from its last record on, up to the
    next session of its key. Two sessions that the shorter gap has separated stay two, until a record joins them.
 3. The operator has another version. Its `upgrade` then converts each state.
 4. An earlier megaflow wrote the store, and its commits do not name windows. Then nothing is compared.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from megaflow.durable.restored import WINDOWS, Adapt, Upgrade, unchanged
from megaflow.event_time.accumulators import Accumulators
from megaflow.event_time.calendar_windows import CalendarWindows
from megaflow.event_time.windows import SessionWindows, Windows

UNTIL: Final = "until"
WINDOWS_OF_KEY: Final = "windows"
ALARM: Final = "alarm"
"""Keys of the state of a key whose windows may be partial: up to which begin, None: they are whole; its state
otherwise; and the time of the alarm that removes it, once that is set."""

_SESSIONS: Final = re.compile(r"session\((\d+)\.(\d{6})\)")
_ADDRESS: Final = re.compile(" at 0x[0-9a-fA-F]+")  # other in each process


class WindowsForm:
    """Form of the states of a windowed stream: its windows and aggregations."""

    def __init__(self, windows: Windows, accumulators: Accumulators, removes: bool = False) -> None:
        """`accumulators` grow while the dataflow is built, and are read afterwards.

        `removes`: early results of sessions are removed when their bounds change.
        """
        self._removes = removes
        self._windows = windows
        self._accumulators = accumulators

    def text(self) -> str:
        """Return the windows and the aggregations as a commit names them. Call it once the dataflow is built."""
        verbs = ", ".join(each.verb for each in self._accumulators)
        return f"{WINDOWS}{described(self._windows)} with {verbs or 'no aggregation'}"

    def upgrading(self, upgrade: Upgrade, furthest: int | None, has_other_windows: bool) -> Upgrade:
        """Return a function that also keeps up to when the windows of a forgotten key are partial.

        `has_other_windows`: those of other keys are partial unless their state shows that it was upgraded.
        """

        def upgraded(key: Any, state: Any, version: int) -> Any:
            is_wrapped = type(state) is dict
            before = state[WINDOWS_OF_KEY] if is_wrapped else state
            new = None if before is None else upgrade(key, before, version)
            if new is None and before is not None:
                return None if furthest is None else {UNTIL: furthest, WINDOWS_OF_KEY: None}
            if has_other_windows and new is not None:
                return {UNTIL: None, WINDOWS_OF_KEY: new}
            return {**state, WINDOWS_OF_KEY: new} if is_wrapped else new

        return upgraded

    def adapter(self, kept: str) -> Adapt | None:
        """Return a function that turns a state of the windows in a store into one of these; None if there is none.

        While the dataflow is built the aggregations are not known yet, and not compared.
        """
        theirs, _, verbs = kept.removeprefix(WINDOWS).partition(" with ")
        mine, _, my_verbs = self.text().removeprefix(WINDOWS).partition(" with ")
        if not kept.startswith(WINDOWS) or (self._accumulators and verbs != my_verbs):
            return None
        if theirs == mine:
            return unchanged
        if isinstance(self._windows, SessionWindows) and (found := _SESSIONS.fullmatch(theirs)) is not None:
            longer = self._windows.gap - int(found[1] + found[2])
            return within(lengthened(longer, self._removes)) if longer > 0 else None
        return None


def within(adapt: Adapt) -> Adapt:
    """Return a function that adapts the windows of a key, also if some are partial."""

    def adapted(state: Any) -> Any:
        if type(state) is not dict:
            return adapt(state)
        before = state[WINDOWS_OF_KEY]
        return {**state, WINDOWS_OF_KEY: None if before is None else adapt(before)}

    return adapted


def described(windows: Windows) -> str:
    """Return the call that makes these windows, with all microseconds.

    >>> from megaflow.event_time.windows import session, sliding, tumbling
    >>> described(tumbling("1D", tz="Europe/Berlin"))
    'tumbling(1D, tz=Europe/Berlin)'
    >>> described(tumbling(20)), described(sliding(20, every=2.5, offset=1)), described(session(30))
    ('tumbling(20.000000)', 'sliding(20.000000, every=2.500000, offset=1.000000)', 'session(30.000000)')
    """
    if isinstance(windows, SessionWindows):
        return f"session({_seconds(windows.gap)})"
    offset = f", offset={_seconds(windows.offset)}" if windows.offset else ""
    if isinstance(windows, CalendarWindows):
        zone = _ADDRESS.sub("", str(windows.zone))  # of a class of the program's without a text of its own
        return f"tumbling({windows.count}{windows.unit}, tz={zone}{offset})"
    if windows.every == windows.size:
        return f"tumbling({_seconds(windows.size)}{offset})"
    return f"sliding({_seconds(windows.size)}, every={_seconds(windows.every)}{offset})"


def _seconds(micros: int) -> str:
    sign, micros = "-" * (micros < 0), abs(micros)
    return f"{sign}{micros // 1_000_000}.{micros % 1_000_000:06}"


def lengthened(longer: int, keeps_ends: bool = False) -> Callable[[Any], Any]:
    """Return a function that lengthens the sessions of a key by so many microseconds, up to the next one.

    `keeps_ends`: each session also gets the end that it had.

    >>> lengthened(20)([None, [[0, 15, [1]], [30, 45, [1]], [90, 105, [2]]]])
    [None, [[0, 30, [1]], [30, 65, [1]], [90, 125, [2]]]]
    >>> lengthened(20, keeps_ends=True)([None, [[30, 45, [1]]]])
    [None, [[30, 65, [1], 45]]]
    """

    def adapt(state: Any) -> Any:
        intervals = state[1]
        for interval in intervals if keeps_ends else ():
            if len(interval) == 3:
                interval.append(interval[1])
        for interval, following in pairwise(intervals):
            interval[1] = min(interval[1] + longer, following[0])
        intervals[-1][1] += longer
        return state

    return adapt
