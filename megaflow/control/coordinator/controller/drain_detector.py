"""Whether everything that was read has been processed.

Until then a job continues and accepts changes, although all its lines are read.

1. Let e be the control stream's present time when the last report of a read line has arrived. Sources stamp with times
   below what they see of control. So once the output is complete before e, each line is processed. The stream leaves e
   at once: while it stays at e, sources hold earlier times, and the output cannot become complete before e.
2. Some operators keep a capability until their input ends, so the output never becomes complete before e. Therefore the
   job also ends if the output stands still for STILL_SECONDS and no record is moving between operators.

No safety depends on this. It decides only which changes may still begin, and the end that follows is the same, now or
later.
"""

from typing import Final

from megaflow.control.coordinator.base.epoch_clock import CommandStream

STILL_SECONDS: Final = 1.0  # longer than queues and stashes of a busy worker can stand still unnoticed


class DrainDetector:
    """Progress of the last lines of a job. One writer: the controller.

    >>> last = DrainDetector(stream := CommandStream())
    >>> last.are_worked_off(True, 0, 5.0), last.are_worked_off(True, 0, 5.5)
    (True, True)
    >>> stream.begin(7)
    >>> last = DrainDetector(stream)
    >>> [last.are_worked_off(True, frontier, 6.0) for frontier in (4, 6, 7)], stream.epoch
    ([False, False, True], 8)
    """

    def __init__(self, stream: CommandStream) -> None:
        self.works = False  # records were moving between operators at the last tick
        self.read_at: int | None = None  # the epoch e of rule 1; None: more may come
        self._stream = stream
        self._frontier: int | None = None  # of the output, at the last look
        self._moved = 0.0  # seconds: when the frontier last changed, or a record was last moving

    def are_worked_off(self, are_read: bool, frontier: int | None, now: float) -> bool:
        """Tell whether all lines are read and processed. `frontier`: of the output.

        If more lines have come since the last call, everything begins anew.
        """
        if not are_read:
            self.read_at = None
            return False
        if self.read_at is None:
            self.read_at = self._stream.epoch
            self._moved = now
            if frontier is not None and frontier < self.read_at:
                self._stream.advance()
        if frontier is None or frontier >= self.read_at:
            return True
        if self.works or frontier != self._frontier:
            self._frontier, self._moved = frontier, now
        return now - self._moved >= STILL_SECONDS

    def _check(self) -> None:
        assert self.read_at is None or self.read_at <= self._stream.epoch
