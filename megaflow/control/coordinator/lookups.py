"""Keys of which clients ask the state: from the question to the answer of whoever owns the key by then.

A state machine of values, a part of the controller.

    asked ─ Lookup, in an epoch t of its own ─▶ each operator ─ the owner at t: StatesShown ─▶ coordinator ─▶ client

1. The answer is the state after all records before t: see `megaphone.moments`. A bin has one owner at t, who answers
   whatever becomes of the bin then; so each key is answered once, and nobody is asked twice.
2. What is asked while some are under way waits, and goes in one epoch when these are answered: however many ask, the
   control stream has a few commands a round of progress. That is bounded, too.
3. A hand-over and the end wait for those under way; none is begun while the coordinator's part changes hands. A worker
   that leaves has shipped its bins, and so has answered, before it may go. If the owner is lost so is the question: the
   job ends, or goes on from its last checkpoint, and the client asks anew, as nothing was changed by its question.
4. An operator's own hash tells the bin, and it may be asked for any key: what it raises refuses the question.
"""

import contextlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from megaflow.control.coordinator.epoch_clock import CommandStream
from megaflow.control.coordinator.events import Asked, Instruction, Reply
from megaflow.control.coordinator.request_progress import done
from megaflow.control.messages import GetState, Refused, StatesShown
from megaflow.control.reports import StateReport
from megaflow.errors import CommandRefused
from megaflow.megaphone.moments import Shown
from megaflow.megaphone.routing import Lookup
from megaflow.megaphone.stateful_core import Core
from megaflow.quick_dataclass import dataclass

WAITING_MAX: Final = 1_000  # questions that wait for those under way
TOGETHER_MAX: Final = 100  # in one epoch
KEY_LENGTH_MAX: Final = 4_000  # characters

Places: TypeAlias = tuple[tuple[Any, int], ...]
"""(what a KEY may mean, the bin that it falls into), what is likelier first."""


def keys_meant(text: str) -> Iterator[Any]:
    """Return what a KEY may mean, what is likelier first.

    >>> [*keys_meant('["a", 1]')], [*keys_meant("7")], [*keys_meant("seven")]
    ([('a', 1), '["a", 1]'], [7, '7'], ['seven'])
    """
    with contextlib.suppress(ValueError, RecursionError):
        meant = _as_key(json.loads(text))
        if not isinstance(meant, dict):
            yield meant
    yield text


def _as_key(value: Any) -> Any:
    """Return a value of JSON as it is in a key."""
    return tuple(map(_as_key, value)) if isinstance(value, list) else value


def places_of(views: Sequence[Core], asked: GetState) -> Places:
    """Return what is to be looked for, and in which bins, by a worker's view of its operators. Raises CommandRefused.

    Each worker has the same operators.
    """
    keeping = {view.name: view for view in views if view.moments is not None}
    name, key = asked.operator, asked.key
    if name not in keeping:
        near = get_close_matches(name, keeping, n=1)
        question = f"; did you mean {near[0]!r}?" if near else "."
        there = ", ".join(keeping) or "none"
        raise CommandRefused(f"the job has no operator {name!r} with a state{question} Operators with a state: {there}")
    if (count := [view.name for view in views].count(name)) > 1:
        raise CommandRefused(f"{count} operators are named {name!r}: give each its own name=, and use that")
    if not keeping[name].may_be_asked:
        raise CommandRefused(f"operator {name!r} cannot be looked up, because it has its own control=: leave that out")
    if len(key) > KEY_LENGTH_MAX:
        raise CommandRefused(f"a KEY of {len(key)} characters is too long: the limit is {KEY_LENGTH_MAX}")
    places, why = [], ""
    for meant in keys_meant(key):
        try:
            hash(meant)
            places.append((meant, keeping[name].store.bin_of_key(meant)))
        except Exception as error:  # perhaps of the program's own hash
            why = why or f"{type(error).__name__}: {error}"
    if not places:
        raise CommandRefused(f"operator {name!r} cannot have a key {key!r:.80}: {why}")
    return tuple(places)


@dataclass(slots=True)
class Sought:
    """One question."""

    asked: Asked
    places: Places
    found: dict[int, tuple[int, Shown]] = field(default_factory=dict)  # place -> (worker, what it has shown)


class Lookups:
    """The questions of one job. One writer: the controller."""

    def __init__(self, stream: CommandStream, find: Callable[[GetState], Places]) -> None:
        """`find` is `places_of` the operators."""
        self._stream = stream
        self._find = find
        self._waiting: list[Sought] = []
        self._open: dict[int, Sought] = {}  # number of the command -> question, all of one epoch
        self._epoch = 0  # of these
        self._next = 0  # number

    @property
    def under_way(self) -> bool:
        """Whether some are asked and not answered."""
        return bool(self._open)

    @property
    def asked(self) -> list[Asked]:
        """The requests that have not begun."""
        return [each.asked for each in self._waiting]

    def ask(self, asked: Asked) -> None:
        """Take in a client's question. Raises CommandRefused."""
        places = self._find(asked.request.body)
        if len(self._waiting) >= WAITING_MAX:
            raise CommandRefused(f"{WAITING_MAX} such requests are already waiting; try again later")
        self._waiting.append(Sought(asked, places))

    def gone(self, client: Hashable) -> None:
        """Drop what a client has asked for that has gone."""
        self._waiting = [each for each in self._waiting if each.asked.client != client]

    def cancel(self, reason: str, out: list[Instruction]) -> None:
        """Refuse what has not begun."""
        out += [Reply(each.client, Refused(each.request.id, reason)) for each in self.asked]
        self._waiting.clear()

    def go_on(self, may_begin: bool, out: list[Instruction], now: float) -> None:
        """Begin with what waits if it may be and none is under way; to be called after each event."""
        if not (self._waiting and may_begin) or self._open:
            return
        begun, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
        self._open = dict(enumerate(begun, self._next))
        self._next += len(begun)
        self._epoch = self._stream.issue(self._commands(), out, now)

    def _commands(self) -> Iterable[Lookup]:
        for number, each in self._open.items():
            body: GetState = each.asked.request.body
            yield Lookup(number, body.operator, each.places, body.as_json)

    def answered(self, worker: int, answer: StatesShown, out: list[Instruction]) -> None:
        """Take in what a worker has shown; answer whoever has asked once all is known."""
        for shown in (Shown(*each) for each in answer.answers):
            sought = self._open[shown.lookup]
            assert shown.place not in sought.found, f"{shown} of worker {worker}: {sought.found[shown.place]}"
            sought.found[shown.place] = worker, shown
            if len(sought.found) == len(sought.places):
                del self._open[shown.lookup]
                out.append(self._answer(sought))

    def _answer(self, sought: Sought) -> Reply:
        asked = sought.asked
        operator = asked.request.body.operator
        for place, (key, _) in enumerate(sought.places):
            worker, shown = sought.found[place]
            if shown.fault is not None:
                reason = f"operator {operator!r}, key {key!r:.80}: {shown.fault}"
                return Reply(asked.client, Refused(asked.request.id, reason))
            if shown.text is not None:
                return done(asked, StateReport(operator, key, shown.text, self._epoch, worker))
        return done(asked, StateReport(operator, sought.places[0][0], None, self._epoch, sought.found[0][0]))

    def _check(self) -> None:
        assert all(len(each.found) < len(each.places) for each in self._open.values())
        assert not self._open or self._epoch < self._stream.epoch
