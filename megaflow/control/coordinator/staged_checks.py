"""Commits of Spark lines whose workers are being asked whether they hold these lines.

A commit that is on the control stream cannot be taken back: a source that lacks its lines can only stop the job. So
the workers that it names are asked before the controller hears of it, and if one lacks some, the commit is refused.

Between the answers and the stream nothing takes the lines away. What is staged whole is dropped by a commit of the same
batch alone, of which this one is then a replay, or of a later one, after which the controller refuses this one.
"""

from collections.abc import Collection, Hashable
from dataclasses import field
from itertools import count

from megaflow.control.coordinator.events import Asked
from megaflow.control.coordinator.spark_commits import WAITING_MAX
from megaflow.control.messages import CommitBatch
from megaflow.control.staging_messages import StagedAnswer, StagedAsk
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass


@dataclass(slots=True)
class _Check:
    """A commit and what is known of it."""

    asked: Asked
    silent: set[int]  # workers that have not answered
    missing: list[str] = field(default_factory=list)


class StagedChecks:
    """The commits that are being checked. One writer: the coordinating worker's thread."""

    def __init__(self, own: int) -> None:
        """`own` is the worker that coordinates."""
        self._own = own
        self._open: dict[int, _Check] = {}  # id of `StagedAsk` -> check
        self._ids = count()

    @property
    def asked(self) -> list[Asked]:
        """The requests that are being checked."""
        return [check.asked for check in self._open.values()]

    def begin(self, asked: Asked, commit: CommitBatch, members: Collection[int]) -> list[tuple[int, StagedAsk]]:
        """Return whom to ask what; nobody if no member is named. Raises CommandRefused if too many are under way."""
        workers = {worker for worker, _, _ in commit.winners.values() if worker in members}
        if len(self._open) >= WAITING_MAX:
            raise CommandRefused(f"{WAITING_MAX} commits are already waiting; try again later")
        if not workers:
            return []
        question = StagedAsk(self._own, next(self._ids), commit)
        self._open[question.id] = _Check(asked, workers)
        return [(worker, question) for worker in sorted(workers)]

    def answered(self, source: int, answer: StagedAnswer) -> tuple[Asked, str | None] | None:
        """Take a worker's answer; with the last one to it, return the request and what is missing, if anything is."""
        check = self._open.get(answer.id) if answer.asker == self._own else None
        if check is None:
            return None
        check.silent.discard(source)
        if answer.missing is not None:
            check.missing.append(answer.missing)
        if check.silent:
            return None
        del self._open[answer.id]
        return check.asked, "; ".join(check.missing) or None

    def left(self, ids: Collection[int]) -> list[tuple[Asked, str | None]]:
        """Wait for these workers no longer; return what is known by now of the requests that waited for them alone."""
        known = []
        for id, check in list(self._open.items()):
            check.silent.difference_update(ids)
            if not check.silent:
                del self._open[id]
                known.append((check.asked, "; ".join(check.missing) or None))
        return known

    def gone(self, client: Hashable) -> None:
        """Forget what a client has asked that has hung up."""
        self._open = {id: check for id, check in self._open.items() if check.asked.client is not client}
