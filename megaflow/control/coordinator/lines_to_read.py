"""Which lines of a job are still to be read, and who is given the splits; Spark's lines are in `spark_commits`.

1. A split is unread until a source has reported its end. What a source hands back is given to others, which there are:
   no process may leave that has the only open sources while lines are to come (`check_leave`).
2. The launcher's lines are read by one worker at a time, in the coordinator's process. When that has taken the last one
   that came there, the next coordinator tells its own worker to go on.
"""

from collections.abc import Iterable, Sequence

from megaflow.control.coordinator.roster import Roster
from megaflow.control.messages import AssignSplits, PushedEnded, Split
from megaflow.errors import CommandRefused
from megaflow.timely.membership import WorkerId


class LinesToRead:
    """The splits and pushed lines of one job. One writer: the controller."""

    def __init__(self, splits: Sequence[Split] = (), pushed: bool = False) -> None:
        """`pushed`: the launcher sends lines."""
        self._splits = tuple(splits)
        self._unread = {split.number for split in splits}
        self.pushed = pushed  # the launcher has more lines
        self._reads_pushed = True  # somebody was told to read them

    @property
    def over(self) -> bool:
        """Whether all are read."""
        return not (self._unread or self.pushed)

    @property
    def at_rest(self) -> bool:
        """Whether nobody is yet to be told to read the launcher's lines."""
        return self._reads_pushed or not self.pushed

    @property
    def unread(self) -> tuple[int, ...]:
        """The numbers of the splits that are not read, sorted."""
        return tuple(sorted(self._unread))

    def resume(self, unread: Iterable[int], pushed: bool) -> None:
        """Go on where another controller has stopped."""
        self._unread, self.pushed, self._reads_pushed = set(unread), pushed, False

    def assign(self, readers: Sequence[WorkerId]) -> list[AssignSplits]:
        """Return the command that gives all splits to these workers; none if there are no splits."""
        return [AssignSplits(spread(self._splits, readers))] if self._splits else []

    def read(self, split: int) -> None:
        """Note that a split is read."""
        self._unread.discard(split)

    def pushed_ended(self, report: PushedEnded) -> None:
        """Note that all is read that the launcher has pushed to one worker."""
        self.pushed, self._reads_pushed = report.elsewhere, True

    def check_leave(self, ids: Sequence[WorkerId], roster: Roster, commits_over: bool) -> None:
        """Raise CommandRefused if nobody would read the lines that are left, once these workers are gone."""
        if roster.members.coordinator in ids and self.pushed and roster.successor not in roster.readers:
            raise CommandRefused(
                f"worker {roster.successor}, which would read the launcher's lines (standard input, or an iterable) "
                "then, has closed its source: stop the job instead"
            )
        if not (self.over and commits_over) and set(ids).issuperset(roster.readers):
            raise CommandRefused(
                "no worker that stays could read the lines that are left: add a process, and ask again when its "
                "workers are ready for bins; or stop the job"
            )


def spread(splits: Iterable[Split], workers: Sequence[WorkerId]) -> dict[WorkerId, tuple[Split, ...]]:
    """Give each split to a worker, so that bytes are balanced as well as whole splits allow.

    The largest comes first, each goes to the worker with the fewest bytes so far, the lowest of several: none has more
    than 4/3 of what it would have at best (Graham 1969). Each worker is given its own in the order of their numbers.
    Cost: O(splits * workers).

    >>> splits = [Split(number, "a", 0, size) for number, size in enumerate((10, 20, 30))]
    >>> {worker: [split.number for split in given] for worker, given in spread(splits, (0, 3)).items()}
    {0: [2], 3: [0, 1]}
    """
    given: dict[int, list[Split]] = {worker: [] for worker in workers}
    loads = dict.fromkeys(workers, 0)
    for split in sorted(splits, key=lambda split: (split.start - split.end, split.number)):
        worker = min(loads, key=lambda worker: (loads[worker], worker))
        loads[worker] += split.end - split.start
        given[worker].append(split)
    ordered = {worker: sorted(some, key=lambda split: split.number) for worker, some in given.items() if some}
    return {worker: tuple(some) for worker, some in ordered.items()}
