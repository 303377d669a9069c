"""Commits of Spark lines that wait until their workers confirm that they hold these lines.

A commit on the control stream cannot be taken back: a source that lacks its lines can only stop the job. So the driver
asks the workers that a commit names before it passes the commit to the controller. If one of them lacks lines, the
commit is refused.

The lines stay staged between the answers and the control stream. Lines that are staged completely are dropped only by
another commit, of the same batch or of a later one. In the first case this commit is then a replay; in the second the
controller refuses it.
"""

from collections.abc import Collection, Hashable

from megaflow.control.coordinator.base.events import Asked
from megaflow.control.coordinator.base.questions import Question, Questions
from megaflow.control.coordinator.reading.spark_commits import WAITING_MAX
from megaflow.control.messages import CommitBatch
from megaflow.control.staging_messages import StagedAnswer, StagedAsk
from megaflow.errors import CommandRefused


class StagedChecks:
    """The commits that are being checked. One writer: the coordinating worker's thread."""

    def __init__(self, own: int) -> None:
        """`own` is the worker that coordinates."""
        self._own = own
        self._questions: Questions[Asked] = Questions()

    @property
    def asked(self) -> list[Asked]:
        """The requests that are being checked."""
        return [question.about for question in self._questions.open.values()]

    def begin(self, asked: Asked, commit: CommitBatch, members: Collection[int]) -> list[tuple[int, StagedAsk]]:
        """Return the questions to send, with their workers; none if the commit names no member.

        Raises CommandRefused if too many checks are under way.
        """
        workers = {worker for worker, _, _ in commit.winners.values() if worker in members}
        if len(self._questions.open) >= WAITING_MAX:
            raise CommandRefused(f"{WAITING_MAX} commits are already waiting; try again later")
        if not workers:
            return []
        question = StagedAsk(self._own, self._questions.begin(asked, workers), commit)
        return [(worker, question) for worker in sorted(workers)]

    def answered(self, source: int, answer: StagedAnswer) -> tuple[Asked, str | None] | None:
        """Record a worker's answer; with the last answer, return the request and what is missing, if anything."""
        is_own = answer.asker == self._own
        question = self._questions.answered(answer.id, source, answer.missing) if is_own else None
        return None if question is None else _result(question)

    def left(self, ids: Collection[int]) -> list[tuple[Asked, str | None]]:
        """Stop waiting for these workers; return the requests that are now complete, and what each lacks."""
        return [_result(question) for question in self._questions.left(ids)]

    def gone(self, client: Hashable) -> None:
        """Forget the requests of a client that has disconnected."""
        self._questions.take(lambda question: question.about.client is client)


def _result(question: Question[Asked]) -> tuple[Asked, str | None]:
    return question.about, "; ".join(filter(None, question.answers.values())) or None
