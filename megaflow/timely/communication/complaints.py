"""What is logged of connections that break the protocol or end before they have begun: so many lines, and then a count.

Whoever can reach the port can make such lines, thousands a second: they are not to fill a disk, nor to hide what else
the job says.
"""

from collections.abc import Callable

LINES_MAX = 20  # in a period, each as it is; of the others the number
PERIOD_SECONDS = 10.0
LENGTH_MAX = 500  # characters of a line, parts of which come from the other side


class Complaints:
    """The lines of one process. One writer: the polling thread.

    >>> lines, ends = [], []
    >>> complain = Complaints(lambda seconds, call: ends.append(call), lines.append)
    >>> for number in range(LINES_MAX + 3):
    ...     complain(f"closed connection {number}")
    >>> len(lines) == LINES_MAX, lines[-1]
    (True, 'closed connection 19')
    >>> ends.pop()()
    >>> lines[-1]
    'and 3 more connections within 10 s, the last one: closed connection 22'
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object], log: Callable[[str], None]) -> None:
        """`call_later(seconds, callback)` calls back, `log` writes a line."""
        self._call_later = call_later
        self._log = log
        self._count = 0  # in this period
        self._last = ""  # the last one

    def __call__(self, text: str) -> None:
        """Log a line, or count it."""
        if not self._count:
            self._call_later(PERIOD_SECONDS, self.end_period)
        self._count += 1
        self._last = text if len(text) <= LENGTH_MAX else text[: LENGTH_MAX - 1] + "…"
        if self._count <= LINES_MAX:
            self._log(self._last)

    def end_period(self) -> None:
        """Tell how many there were beside those that were logged, and begin anew."""
        more, self._count = self._count - LINES_MAX, 0
        if more > 0:
            connections = "1 more connection" if more == 1 else f"{more} more connections"
            self._log(f"and {connections} within {PERIOD_SECONDS:g} s, the last one: {self._last}")
