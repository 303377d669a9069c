"""Clients' questions for the state of a key, from the question to the answer of the key's owner.

A state machine of values, and a part of the controller.

    asked ─ Lookup, in an epoch t of its own ─▶ each operator ─ the owner at t: StatesShown ─▶ coordinator ─▶ client

1. The answer is the state after all records before t: see `megaphone.base.barrier_actions`. A bin has one owner at t,
   and that owner answers even if the bin moves then. So each key gets one answer, and no worker is asked twice.
2. Questions that arrive while others are under way wait, and go out together in one epoch when those are answered. So
   the control stream carries only a few commands in each round of progress, however many clients ask. TOGETHER_MAX and
   WAITING_MAX also bound them.
3. A hand-over and the end wait for questions under way, and none begins while the coordinator's part changes hands.
   A worker that leaves ships its bins first, and so has answered before it may leave. If the owner is lost, so is the
   question: the job ends or resumes from its last checkpoint. The client can ask again, because a question changes
   nothing.
4. The operator's own hash selects the bin, and clients may ask for any key. If the hash raises an error, the question
   is refused.
"""

import contextlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Final, TypeAlias

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked, Reply
from megaflow.control.messages import GetState, StatesShown
from megaflow.control.reports import StateReport
from megaflow.errors import CommandRefused, similar
from megaflow.megaphone.base.barrier_actions import Shown
from megaflow.megaphone.base.routing import Lookup
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.quick_dataclass import dataclass

WAITING_MAX: Final = 1_000  # questions that wait for those under way
TOGETHER_MAX: Final = 100  # in one epoch
KEY_LENGTH_MAX: Final = 4_000  # characters

Places: TypeAlias = tuple[tuple[Any, int], ...]
"""Pairs of a possible meaning of a KEY and the bin of that key, the likelier meaning first."""


def keys_meant(text: str) -> Iterator[Any]:
    """Yield the possible meanings of a KEY, the likelier one first.

    >>> [*keys_meant('["a", 1]')], [*keys_meant("7")], [*keys_meant("seven")]
    ([('a', 1), '["a", 1]'], [7, '7'], ['seven'])
    """
    with contextlib.suppress(ValueError, RecursionError):
        meant = _as_key(json.loads(text))
        if not isinstance(meant, dict):
            yield meant
    yield text


def _as_key(value: Any) -> Any:
    """Return a JSON value as it appears in a key: lists become tuples."""
    return tuple(map(_as_key, value)) if isinstance(value, list) else value


def places_of(views: Sequence[Core], asked: GetState) -> Places:
    """Return the keys to look up, with their bins. Raises CommandRefused.

    `views`: one worker's operators; each worker has the same ones.
    """
    keeping = {view.name: view for view in views if view.barrier_actions is not None}
    name, key = asked.operator, asked.key
    if name not in keeping:
        near = similar(name, keeping)
        question = f"; did you mean {near!r}?" if near else "."
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
        except Exception as error:  # the program's own hash may raise anything
            why = why or f"{type(error).__name__}: {error}"
    if not places:
        raise CommandRefused(f"operator {name!r} cannot have a key {key!r:.80}: {why}")
    return tuple(places)


@dataclass(slots=True)
class Sought:
    """One question."""

    asked: Asked
    places: Places
    found: dict[int, tuple[int, Shown]] = field(default_factory=dict)  # place -> (worker, its answer)


class Lookups:
    """The questions of one job. One writer: the controller."""

    def __init__(self, stream: CommandStream, find: Callable[[GetState], Places]) -> None:
        """`find` is `places_of`, applied to the operators."""
        self.waiting: list[Sought] = []
        self.open: dict[int, Sought] = {}  # under way: number of the command -> question, all of one epoch
        self._stream = stream
        self._find = find
        self._epoch = 0  # of the open questions
        self._next = 0  # number of the next command

    @property
    def asked(self) -> list[Asked]:
        """The requests that have not begun."""
        return [each.asked for each in self.waiting]

    def ask(self, asked: Asked) -> None:
        """Queue a client's question. Raises CommandRefused."""
        places = self._find(asked.request.body)
        if len(self.waiting) >= WAITING_MAX:
            raise CommandRefused(f"{WAITING_MAX} such requests are already waiting; try again later")
        self.waiting.append(Sought(asked, places))

    def gone(self, client: Hashable) -> None:
        """Drop the waiting questions of a client that has disconnected."""
        self.waiting = [each for each in self.waiting if each.asked.client != client]

    def cancel(self, reason: str) -> None:
        """Refuse the questions that have not begun."""
        self._stream.out += [each.refused(reason) for each in self.asked]
        self.waiting.clear()

    def go_on(self) -> None:
        """Issue waiting questions if none are under way; called after each event, if that is allowed."""
        if self.open:
            return
        begun, self.waiting = self.waiting[:TOGETHER_MAX], self.waiting[TOGETHER_MAX:]
        self.open = dict(enumerate(begun, self._next))
        self._next += len(begun)
        self._epoch = self._stream.issue(*self._commands())

    def _commands(self) -> Iterable[Lookup]:
        for number, each in self.open.items():
            body: GetState = each.asked.request.body
            yield Lookup(number, body.operator, each.places, body.form)

    def answered(self, worker: int, answer: StatesShown) -> None:
        """Record a worker's answers; answer the client of each question that is complete."""
        for shown in (Shown(*each) for each in answer.answers):
            sought = self.open[shown.lookup]
            assert shown.place not in sought.found, f"{shown} of worker {worker}: {sought.found[shown.place]}"
            sought.found[shown.place] = worker, shown
            if len(sought.found) == len(sought.places):
                del self.open[shown.lookup]
                self._stream.out.append(self._answer(sought))

    def _answer(self, sought: Sought) -> Reply:
        asked = sought.asked
        operator = asked.request.body.operator
        for place, (key, _) in enumerate(sought.places):
            worker, shown = sought.found[place]
            if shown.fault is not None:
                return asked.refused(f"operator {operator!r}, key {key!r:.80}: {shown.fault}")
            if shown.text is not None:
                return asked.done(StateReport(operator, key, shown.text, self._epoch, worker))
        return asked.done(StateReport(operator, sought.places[0][0], None, self._epoch, sought.found[0][0]))

    def _check(self) -> None:
        assert all(len(each.found) < len(each.places) for each in self.open.values())
        assert not self.open or self._epoch < self._stream.epoch
