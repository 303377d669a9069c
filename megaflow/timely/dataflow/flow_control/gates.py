"""Gates: which places are full, and which operators wait for room in them.

A `Gate` is a place that holds records. It closes when it holds too many, and opens when it has room again. A
`Downstream` is the set of gates that can be reached from one place. It is full while one of them is closed. An operator
that asks and gets the answer "full" waits, and is woken.

A fast neighbour must not keep a waiting operator out forever: two gates may close in turn, and a gate may close again
before the operator runs. So the operator is woken when each gate that was closed when it began to wait has been open at
least once. It may then continue until it has sent one batch, even if gates are closed by then. So one `Downstream`
passes a gate at most once for each time that the gate closes. The gate never holds more than its mark and one batch for
each `Downstream` that it is part of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


class Gate:
    """A place that is closed while it holds too much. It reports its own changes, so asking it costs nothing."""

    def __init__(self) -> None:
        self.closed = False
        self.downstreams: list[Downstream] = []  # those that it is part of

    def close(self) -> None:
        """Report that this gate is full. Cost: O(1) for each `Downstream` that it is part of."""
        self.closed = True
        for downstream in self.downstreams:
            downstream.closed.add(self)

    def open(self) -> None:
        """Report that there is room again, and wake the operators that have waited for it."""
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
        self.rooms: list[Callable[[], int]] = []  # how many records fit in each gate; written by the gates
        self.closed: set[Gate] = set()  # written by gates
        self.wanted: set[Gate] = set()  # closed when the waiting began, and never open since then
        self.granted = False  # one more batch may be sent, whatever is closed; cleared by the sender
        self._wake = wake

    def is_full(self) -> bool:
        """Return whether a gate is closed and no batch is `granted`. If so, `wake` is called once there is room.

        Cost: O(1).
        """
        if not self.closed or self.granted:
            return False
        if not self.wanted:
            self.wanted.update(self.closed)
        return True

    def room(self) -> int:
        """Return how many records may be sent until a gate closes. Less than 1 if one is closed. Cost: O(gates)."""
        return min((room() for room in self.rooms), default=sys.maxsize)

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
