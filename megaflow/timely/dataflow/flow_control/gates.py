"""Gates: which places are full, and who waits for them to have room again.

A `Gate` is a place that holds records. It is closed from the moment it holds too many until it has room again. A
`Downstream` is the set of gates that can be reached from one place: it is full while one of them is closed. An operator
that asks and is told "full" waits, and is woken.

A fast neighbour must not keep a waiting operator out for ever: two gates may be closed in turn, and one that has opened
may be closed again before the operator runs. So the operator is woken when each gate that was closed when it began to
wait has been open at least once, and may then go on until it has sent one batch, whatever is closed by now. So one
`Downstream` passes a gate at most once for each time that the gate closes: what the gate holds stays within its mark
and one batch for each `Downstream` that it is part of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol


class HasRoom(Protocol):
    """A gate, or several that are alike."""

    def room(self) -> int:
        """Return how many records may come until it closes; less than 1 while it is closed."""


class Gate:
    """A place that is closed while it holds too much. It reports changes itself; asking costs nothing here."""

    def __init__(self) -> None:
        self.closed = False
        self.downstreams: list[Downstream] = []  # those that it is part of

    def close(self) -> None:
        """Report that this is full. Cost: O(1) for each `Downstream` that it is part of."""
        self.closed = True
        for downstream in self.downstreams:
            downstream.closed.add(self)

    def open(self) -> None:
        """Report that there is room again, and wake the operators that have waited for that."""
        self.closed = False
        for downstream in self.downstreams:
            downstream.opened(self)

    def _check(self) -> None:
        for downstream in self.downstreams:
            assert (self in downstream.closed) == self.closed, "all that it is part of know whether it is closed"


class Downstream:
    """The gates that can be reached from one place.

    Invariant: `closed` is the set of its gates that are closed; `wanted` is a subset of it, empty if nothing waits.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.places: list[HasRoom] = []  # its gates, closed or not; written by them
        self.closed: set[Gate] = set()  # written by gates
        self.wanted: set[Gate] = set()  # closed when the waiting began, and not open since
        self.granted = False  # may send one batch more, whatever is closed; cleared by the sender
        self._wake = wake

    def is_full(self) -> bool:
        """Tell whether a gate is closed; then `wake` is called as soon as there is room. Cost: O(1)."""
        if not self.closed or self.granted:
            return False
        if not self.wanted:
            self.wanted.update(self.closed)
        return True

    def room(self) -> int:
        """Return how many records may be sent until a gate closes; less than 1 if one is. Cost: O(places)."""
        return min((place.room() for place in self.places), default=sys.maxsize)

    def opened(self, gate: Gate) -> None:
        """Note that a gate is open again."""
        self.closed.discard(gate)
        if self.wanted:
            self.wanted.discard(gate)
            if not self.wanted:
                self.granted = True
                self._wake()

    def _check(self) -> None:
        assert self.wanted <= self.closed, "a gate that has been open is not waited for"
        for gate in self.closed:
            assert gate.closed and any(each is self for each in gate.downstreams), "its gates are closed"
