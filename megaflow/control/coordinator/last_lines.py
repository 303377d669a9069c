"""Whether all that was read is worked off: until then a job goes on, and may be changed, though all its lines are read.

1. All lines are read at epoch e when that is the control stream's present time and the last report has come: sources
   stamp with less than what they see of control. So when the output is complete before e, each of them is worked off.
   The epoch is left at once, for until then the output cannot be complete before it.
2. Some operators keep a capability until their input ends, and the output is never complete before e. So if it stands
   still for STILL_SECONDS, and no record is on its way between operators, the job ends all the same.
Only what may be begun depends on this, and nothing that is safe: the end that follows is the same, now or later.
"""

from typing import Final

from megaflow.control.coordinator.epoch_clock import CommandStream
from megaflow.control.coordinator.events import Instruction

STILL_SECONDS: Final = 1.0  # longer than the queues and stashes of a worker that works can stand still unseen


class LastLines:
    """What has become of the last lines of a job. One writer: the controller.

    >>> last, said = LastLines(stream := CommandStream()), []
    >>> last.are_worked_off(True, 0, said, 5.0), last.are_worked_off(True, 0, said, 5.5)
    (True, True)
    >>> stream.begin(7)
    >>> last = LastLines(stream)
    >>> [last.are_worked_off(True, frontier, said, 6.0) for frontier in (4, 6, 7)], stream.epoch
    ([False, False, True], 8)
    """

    def __init__(self, stream: CommandStream) -> None:
        self.works = False  # records are on their way between operators, as the last tick said
        self._stream = stream
        self._read_at: int | None = None  # the epoch of rule 1; None: more may come
        self._frontier: int | None = None  # of the output, as it was last
        self._moved = 0.0  # seconds: when it was found there, or a record on its way

    @property
    def under_way(self) -> bool:
        """Whether all are read, and perhaps not worked off."""
        return self._read_at is not None

    def are_worked_off(self, are_read: bool, frontier: int | None, out: list[Instruction], now: float) -> bool:
        """Tell whether all lines are read and worked off; `frontier`: of the output."""
        if not are_read:
            self._read_at = None
            return False
        if self._read_at is None:
            self._read_at = self._stream.epoch
            self._moved = now
            if frontier is not None and frontier < self._read_at:
                self._stream.advance(out, now)
        if frontier is None or frontier >= self._read_at:
            return True
        if self.works or frontier != self._frontier:
            self._frontier, self._moved = frontier, now
        return now - self._moved >= STILL_SECONDS

    def _check(self) -> None:
        assert self._read_at is None or self._read_at <= self._stream.epoch
