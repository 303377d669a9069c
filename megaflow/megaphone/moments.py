"""What an operator is to do between two logical times, and when one worker has come to that: answers, and cuts.

A command at epoch t is about the operator's state after all records before t and none of t or later: a `Lookup` asks
for states of keys, and in a durable job a `Checkpoint` has all kept (`journal`, a kind of these moments). F registers t
as it reads the command. Whoever is about to do something of time x says `before(x)`, which comes to all that is
registered up to x: that is exact for rules 1 to 4 of `journal`, which need no checkpoint to hold.

 1. By rule 4 there each bin is with one worker at t. So a key is answered by whoever has its bin when it comes to t,
    and by nobody else; nobody is told who that is, and it need not know.
 2. The state is put into its form at once, for a fold may change it in place.
 3. While nothing is registered S does not ask here, for a batch or a time: F registers between two runs of S, as both
    are operators of one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.routing import Checkpoint, Lookup
from megaflow.quick_dataclass import dataclass

SHOWN_MAX: Final = 1 << 20
"""Characters of one state: more would hold up what else is said to the coordinator."""


@dataclass(slots=True)
class Showing:
    """How states are shown to those who ask for them: an extension of a dataflow's graph."""

    show: Callable[[Any, bool], str] = lambda state, as_json: repr(state)  # state, whether as JSON -> its form


@dataclass(frozen=True, slots=True)
class Shown:
    """The answer to one place of a lookup."""

    lookup: int
    place: int
    text: str | None  # None: there is no state
    fault: str | None = None  # why there is no text though there is a state


class Moments:
    """What is registered for one operator on one worker, and not come to. One writer: the worker's thread."""

    def __init__(self, operator: str, store: BinStore) -> None:
        self.wake: Callable[[], None] = lambda: None  # has S run soon; set when S is made
        self.showing = Showing()  # set when the operator is built
        self.registered: deque[tuple[FlatTime, Checkpoint | Lookup]] = deque()  # by time
        self.answers: list[Shown] = []  # drained by whoever reports them
        self.bare: Callable[[Any], Any] = lambda state: state  # what stands in the store -> the fold's; set by S
        self._operator = operator
        self._store = store

    def look(self, time: FlatTime, lookup: Lookup) -> None:
        """Note that F has read the command."""
        if lookup.operator == self._operator:
            self.registered.append((time, lookup))
            self.wake()

    def before(self, time: FlatTime) -> None:
        """Come to all that is registered up to this time, of which something is about to be done."""
        while self.registered and self.registered[0][0] <= time:
            at, command = self.registered.popleft()
            if isinstance(command, Lookup):
                self._answer(command)
            else:
                self._cut(at, command)

    @property
    def next(self) -> FlatTime | None:
        """The first time that is registered and not come to."""
        return self.registered[0][0] if self.registered else None

    def take_answers(self) -> list[Shown]:
        """Return the answers since the last call."""
        answers, self.answers = self.answers, []
        return answers

    def _state(self, key: Any) -> Any:
        return self._store.states.get(key)

    def _cut(self, time: FlatTime, checkpoint: Checkpoint) -> None:
        raise AssertionError(f"{self._operator} is not durable, but {checkpoint} was registered")

    def _answer(self, lookup: Lookup) -> None:
        for place, (key, bin) in enumerate(lookup.places):
            if bin in self._store.bins:
                self.answers.append(self._shown(lookup, place, self._state(key)))

    def _shown(self, lookup: Lookup, place: int, state: Any) -> Shown:
        if state is None:
            return Shown(lookup.number, place, None)
        state = self.bare(state)
        kind = type(state).__qualname__
        try:
            text = self.showing.show(state, lookup.as_json)
        except Exception as error:  # of the state's class: no reason to end the job
            fault = f"the state, of type {kind}, cannot be shown: {type(error).__name__}: {error}"
            return Shown(lookup.number, place, None, fault[:SHOWN_MAX])
        if len(text) > SHOWN_MAX:
            fault = f"the state, of type {kind}, takes {len(text):,} characters; at most {SHOWN_MAX:,} are shown"
            return Shown(lookup.number, place, None, fault)
        return Shown(lookup.number, place, text)
