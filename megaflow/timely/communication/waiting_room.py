"""Who is at the door and has not proved yet that it knows the secret; who has to go, and when. Values, no sockets.

1. There is room for so many strangers. When it is full, the one that has said nothing for longest makes room for the
   next, but not before it has had a moment: so silent strangers keep nobody out, and who answers is never sent away.
2. Who has proved that it knows the secret makes room at once, and is never sent away for another.
3. Nobody is there for longer than its patience allows without saying the next that it has to say.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class WaitingRoom(Generic[T]):
    """Strangers and the proven ones, by when they were heard last. One writer: the polling thread."""

    def __init__(self, places: int, moment_seconds: float, patience_seconds: float) -> None:
        self._places = places  # of strangers
        self._moment_seconds = moment_seconds
        self._patience_seconds = patience_seconds
        self._strangers: dict[T, float] = {}  # -> when it was heard last, the longest ago first
        self._proven: dict[T, float] = {}  # likewise

    def __len__(self) -> int:
        """How many are waiting, the proven ones included."""
        return len(self._strangers) + len(self._proven)

    def __contains__(self, who: T) -> bool:
        return who in self._strangers or who in self._proven

    @property
    def is_full(self) -> bool:
        """Whether there is no place for another stranger."""
        return len(self._strangers) >= self._places

    def hear(self, who: T, now: float, proven: bool = False) -> None:
        """Note that somebody has come or said something, and whether it has proved what it knows by now."""
        self.leave(who)
        (self._proven if proven else self._strangers)[who] = now

    def leave(self, who: T) -> None:
        """Forget somebody; nothing if it was not here."""
        self._strangers.pop(who, None)
        self._proven.pop(who, None)

    def quietest(self, now: float) -> T | None:
        """Return the stranger that is to make room; None if each may have its moment yet.

        >>> room = WaitingRoom(2, 0.25, 5.0)
        >>> for who, when in (("first", 0.0), ("second", 0.1), ("first", 0.2)):
        ...     room.hear(who, when)
        >>> room.is_full, room.quietest(0.3), room.quietest(0.4)
        (True, None, 'second')
        """
        who = next(iter(self._strangers), None)
        return who if who is not None and now - self._strangers[who] >= self._moment_seconds else None

    def overdue(self, now: float) -> Iterator[T]:
        """Yield those whose time is up; they may leave meanwhile."""
        for some in (self._strangers, self._proven):
            yield from [who for who, heard in some.items() if now - heard >= self._patience_seconds]

    def seconds_to_overdue(self, now: float) -> float | None:
        """Return when the first is overdue if it says nothing; None if nobody waits."""
        firsts = [next(iter(some.values())) for some in (self._strangers, self._proven) if some]
        return max(0.0, min(firsts) + self._patience_seconds - now) if firsts else None
