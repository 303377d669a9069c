"""Actors outside of a simulated job, each a generator that yields how long it waits: clients, and delayed calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from megaflow.errors import MegaflowError
from megaflow.testing.simulated_clients import Talk, Waits


@dataclass(eq=False)
class Actor:
    """A client that follows a script, or a delayed call."""

    waits: Waits
    due: float | None  # seconds of the clock; None: when it is ready
    is_ready: Callable[[], bool] = bool


class Outside:
    """All outside actors. One writer: the simulated job."""

    def __init__(self, random: Random, now: Callable[[], float]) -> None:
        self.refusals: list[str] = []  # of clients' requests
        self._actors: list[Actor] = []
        self._random = random
        self._now = now

    def add(self, waits: Waits, due: float | None, is_ready: Callable[[], bool] = bool) -> None:
        """Run a generator from this time of the clock on; it yields how long it waits."""
        self._actors.append(Actor(waits, due, is_ready))

    def client(self, talk: Talk, scripts: Sequence[Callable[[Talk], Waits]], due: float) -> None:
        """Run a client's scripts one after another, and note refusals."""
        self.add(self._follow(scripts, talk), due, lambda: talk.is_ready)

    def later(self, call: Callable[[], object], seconds: float, at_most: bool = True) -> None:
        """Call a function after this many seconds, or after a random time up to that if `at_most`."""

        def wait() -> Waits:
            yield self._random.random() * seconds if at_most else seconds
            call()

        self.add(wait(), self._now())

    def possible(self, now: float) -> Iterator[Callable[[], None]]:
        """Yield a call for each actor that can continue."""
        for actor in self._actors:
            if actor.is_ready() if actor.due is None else actor.due <= now:
                yield partial(self._go_on, actor)

    def due(self) -> Iterator[float | None]:
        """Yield the time at which each actor continues."""
        for actor in self._actors:
            yield actor.due

    def _go_on(self, actor: Actor) -> None:
        try:
            seconds = next(actor.waits)
            actor.due = None if seconds is None else self._now() + seconds
        except StopIteration:
            self._actors.remove(actor)

    def _follow(self, scripts: Sequence[Callable[[Talk], Waits]], talk: Talk) -> Waits:
        for script in scripts:
            try:
                yield from script(talk)
            except MegaflowError as error:
                self.refusals.append(f"{type(error).__name__}: {error}")
        talk.hang_up()
