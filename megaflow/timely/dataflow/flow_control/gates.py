"""Gates and rooms: who is told "no more" when something further down is full, and who hears when that has ended.

A `Gate` is a place that holds records; it is closed from the moment when they are too many until there is room again.
A `Room` is all that lies after one place, as far as the gates there tell: full if one of them is closed. Whoever asks
and hears "full" waits, and is woken.

A fast neighbour must not keep a waiter out for ever: two gates may be closed in turn, and one that has opened may be
closed again before the waiter runs. So a waiter is woken when each gate that was closed when it began to wait has been
open at least once, and may then go on until it has sent one batch, whatever is closed by now. Each room passes a gate
at most once for each time that it closes, so what a gate holds stays within its mark and a batch for each of those.
"""

from __future__ import annotations

from collections.abc import Callable


class Gate:
    """Closed while what it stands for holds too much. It says so itself; only changes cost anything."""

    __slots__ = ("closed", "rooms")

    def __init__(self) -> None:
        self.closed = False
        self.rooms: list[Room] = []  # those that it is in

    def close(self) -> None:
        """Let all know that this is full. Cost: one for each room that it is in."""
        self.closed = True
        for room in self.rooms:
            room.closed.add(self)

    def open(self) -> None:
        """Let all know that there is room, and wake whoever has waited for that."""
        self.closed = False
        for room in self.rooms:
            room.opened(self)


class Room:
    """What lies after a place.

    Invariant: `closed` is the set of its gates that are closed; `wanted` is a part of it, empty if nobody waits.
    """

    __slots__ = ("_wake", "closed", "granted", "wanted")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.closed: set[Gate] = set()  # written by gates
        self.wanted: set[Gate] = set()  # closed when the waiting began, and not open since
        self.granted = False  # may send one batch more, whatever is closed; cleared by whoever sends
        self._wake = wake

    def is_full(self) -> bool:
        """Whether a gate is closed; then `wake` is called as soon as there is room. Cost: O(1)."""
        if not self.closed or self.granted:
            return False
        if not self.wanted:
            self.wanted.update(self.closed)
        return True

    def opened(self, gate: Gate) -> None:
        """Note that a gate is open again."""
        self.closed.discard(gate)
        if self.wanted:
            self.wanted.discard(gate)
            if not self.wanted:
                self.granted = True
                self._wake()
