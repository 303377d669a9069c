"""Standing of a job: its status for clients, and the state that its next coordinator receives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from megaflow.control.coordinator.base.job_state import JobState
from megaflow.control.coordinator.base.questions import Question, Questions
from megaflow.control.coordinator.members.membership_requests import MembershipRequests
from megaflow.control.coordinator.reading.watermarks import Watermarks
from megaflow.control.messages import StatusAnswer, StatusQuery
from megaflow.control.reports import KEYS_REPORTED_MAX, JobStatus, OperatorLoad, OperatorStatus, PendingMove
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import grouped


@dataclass(frozen=True, slots=True)
class JobStanding:
    """The parts of a controller that a status shows, or whose state the next controller receives."""

    job: str  # its name
    operators: Mapping[str, int]  # stateful ones: name -> number of bins
    changes: MembershipRequests  # with the parts that it uses
    watermarks: Watermarks
    questions: Questions[Any]

    def status(
        self, question: Question[Any], query: StatusQuery, state: str, frontier: int | None, now: float
    ) -> JobStatus:
        """Return the status that a client requested, from the answers to a question."""
        changes, moves, roster = self.changes, self.changes.moves, self.changes.roster
        answers = [question.answers[id] for id in roster.members.ids if id in question.answers]
        return JobStatus(
            self.job, state, changes.stream.epoch, frontier,
            workers=tuple(replace(each.status, state=roster.state_of(each.status.id)) for each in answers),
            operators=operator_statuses(answers, self.operators, moves.table if query.bins else None),
            pending=tuple(PendingMove(each.epoch, each.bins) for each in moves.pending.values()),
            plan=moves.plans.status(moves.table), changes=changes.statuses(),
            ledger=tuple(moves.ledger) if query.ledger else (),
            joining=changes.joins.statuses(now), silent=tuple(sorted(question.silent)),
            checkpoint=changes.checkpoints.status(now), watermark=self.watermarks.status(now),
            missing=changes.lines.partitions.unopened,
            taken_before=changes.lines.taken_before([each.status.id for each in answers]),
        )  # fmt: skip

    def state(self, now: float) -> JobState:
        """Return what the next coordinator needs. Everything must be at rest, see `job_state`."""
        changes, moves, lines, stream = self.changes, self.changes.moves, self.changes.lines, self.changes.stream
        return JobState(
            stream.epoch, stream.next, self.questions.next, moves.table, lines.state, lines.pool.splits,
            lines.partitions.state, changes.roster.state, changes.commits.state, tuple(moves.ledger),
            changes.joins.starts, moves.plans.kept, changes.checkpoints.state(now), self.watermarks.state(now),
        )  # fmt: skip

    def resume(self, state: JobState) -> None:
        """Continue from the state of the previous coordinator."""
        changes, moves, stream = self.changes, self.changes.moves, self.changes.stream
        stream.epoch, stream.next, self.questions.next = state.epoch, state.command, state.question
        moves.table, moves.plans.kept, changes.joins.starts = state.table, state.plan, state.starts
        changes.lines.resume(state.lines, state.pool, state.partitions)
        changes.roster.state, changes.commits.state = state.roster, state.commits
        moves.ledger.extend(state.ledger)
        changes.checkpoints.resume(state.checkpoints)
        self.watermarks.resume(state.watermarks)


def operator_statuses(
    answers: Iterable[StatusAnswer], operators: Mapping[str, int], table: Sequence[int] | None
) -> tuple[OperatorStatus, ...]:
    """Return the status of each operator (name -> number of bins); without bin owners if `table` is None."""
    parts = grouped((load.operator, load) for answer in answers for load in answer.loads)
    owners = None if table is None else tuple(table)
    return tuple(
        OperatorStatus(name, bins, owners, merged_load(parts[name]) if name in parts else None)
        for name, bins in operators.items()
    )


def merged_load(parts: Sequence[OperatorLoad]) -> OperatorLoad:
    """Return the load of one operator on all workers: busiest bins first; keys by the records certain to be theirs."""
    bins: dict[int, Sequence[float]] = {}  # bin -> [records, busy ms, keys, bytes]
    hot: dict[tuple[str, int], list[float]] = {}  # (key, bin) -> [records, error]
    for part in parts:
        rows = zip(part.records_per_second, part.busy_ms_per_second, part.keys, part.bytes)
        for bin, row in zip(part.bins, rows):
            bins[bin] = list(map(sum, zip(bins[bin], row))) if bin in bins else row  # in two parts if it has moved
        for key, bin, records, error in part.hot_keys:
            before = hot.get((key, bin), (0.0, 0.0))
            hot[key, bin] = [before[0] + records, before[1] + error]
    busiest = sorted(bins.items(), key=lambda each: (-each[1][1], -each[1][0], each[0]))
    surest = sorted(hot.items(), key=lambda each: each[1][1] - each[1][0])[:KEYS_REPORTED_MAX]
    return OperatorLoad(
        parts[0].operator,
        tuple(bin for bin, _ in busiest),
        tuple(row[0] for _, row in busiest),
        tuple(row[1] for _, row in busiest),
        tuple(int(row[2]) for _, row in busiest),
        tuple(int(row[3]) for _, row in busiest),
        tuple((key, bin, records, error) for (key, bin), (records, error) in surest),
    )
