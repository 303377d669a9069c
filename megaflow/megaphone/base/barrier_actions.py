"""Work that an operator does between two logical times, once its worker reaches that point: answers and cuts.

A command at epoch t concerns the operator's state after all records before t and none at t or later. A `Lookup` asks
for the states of keys; in a durable job a `Checkpoint` saves all states (`journal`, a subclass of `BarrierActions`). F
registers t as it reads the command. Code that is about to do something at time x calls `before(x)`, which carries out
everything registered up to x. Rules 1 to 4 of `journal` explain why that is exact; they hold without a checkpoint.

 1. By rule 4 there, exactly one worker has each bin at t. So only the worker that has a key's bin when it reaches t
    answers for the key. No worker needs to know which one that is.
 2. `BarrierActions` puts the state into its shown form at once, because a fold may change it in place.
 3. While nothing is registered, S does not call `before` for a batch or a time. F registers between two runs of S,
    since both are operators of one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.base.routing import Checkpoint, Lookup
from megaflow.quick_dataclass import dataclass

SHOWN_MAX: Final = 1 << 20
"""Characters of one state: more would delay other messages to the coordinator."""


@dataclass(slots=True)
class Showing:
    """The function that shows states in answers to lookups: an extension of a dataflow's graph."""

    show: Callable[[Any, str], str] = lambda state, form: repr(state)  # state, form -> text


@dataclass(frozen=True, slots=True)
class Shown:
    """The answer for one place of a lookup."""

    lookup: int
    place: int
    text: str | None  # None: there is no state
    fault: str | None = None  # why there is a state but no text


class BarrierActions:
    """Registered work of one operator on one worker that is not yet done. One writer: the worker's thread."""

    def __init__(self, operator: str, store: BinStore) -> None:
        self.wake: Callable[[], None] = lambda: None  # makes S run soon; set when S is made
        self.showing = Showing()  # set when the operator is built
        self.registered: deque[tuple[FlatTime, Checkpoint | Lookup]] = deque()  # by time
        self.answers: list[Shown] = []  # drained by the part that reports them
        self.bare: Callable[[Any], Any] = lambda state: state  # stored form -> the fold's state; set by S
        self._operator = operator
        self._store = store

    def look(self, time: FlatTime, lookup: Lookup) -> None:
        """Note that F has read the command."""
        if lookup.operator == self._operator:
            self.registered.append((time, lookup))
            self.wake()

    def register(self, time: FlatTime, checkpoint: Checkpoint) -> None:
        """Note that F has read the command. An operator that is not durable cuts nothing."""

    def before(self, time: FlatTime) -> None:
        """Carry out everything that is registered up to this time; call this before doing anything at this time."""
        while self.registered and self.registered[0][0] <= time:
            at, command = self.registered.popleft()
            if isinstance(command, Lookup):
                self._answer(command)
            else:
                self._cut(at, command)

    @property
    def next(self) -> FlatTime | None:
        """The first registered time whose work is not done."""
        return self.registered[0][0] if self.registered else None

    def take_answers(self) -> list[Shown]:
        """Return the answers since the last call."""
        answers, self.answers = self.answers, []
        return answers

    def state_of(self, key: Any) -> Any:
        """Return the stored state of a key, or None."""
        return self._store.states.get(key)

    def _cut(self, time: FlatTime, checkpoint: Checkpoint) -> None:
        raise AssertionError(f"{self._operator} is not durable, but {checkpoint} was registered")

    def _answer(self, lookup: Lookup) -> None:
        for place, (key, bin) in enumerate(lookup.places):
            if bin in self._store.bins:
                self.answers.append(self._shown(lookup, place, self.state_of(key)))

    def _shown(self, lookup: Lookup, place: int, state: Any) -> Shown:
        if state is None:
            return Shown(lookup.number, place, None)
        state = self.bare(state)
        kind = type(state).__qualname__
        try:
            text = self.showing.show(state, lookup.form)
        except Exception as error:  # raised by the state's class: no reason to end the job
            fault = f"the state, of type {kind}, cannot be shown: {type(error).__name__}: {error}"
            return Shown(lookup.number, place, None, fault[:SHOWN_MAX])
        if len(text) > SHOWN_MAX:
            fault = f"the state, of type {kind}, takes {len(text):,} characters; at most {SHOWN_MAX:,} are shown"
            return Shown(lookup.number, place, None, fault)
        return Shown(lookup.number, place, text)
